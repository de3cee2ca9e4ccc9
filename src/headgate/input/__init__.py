"""From the producer's queue to the consumer's loop.

`channel` reads from a producer in this worker, `remote` from one in another worker; `gate` polls channels in rounds
(`union` polls gates), `waiting` is where a task blocks for input; `reader` turns buffers back into elements.
"""

from headgate.input.channel import (
    Backoff,
    ChannelSource,
    ChannelState,
    ChannelStatistics,
    InputChannel,
    LocalSource,
    Outlet,
)
from headgate.input.gate import GateStatistics, InputGate
from headgate.input.reader import ReaderStatistics, RecordReader
from headgate.input.remote import RemoteChannel, RemoteOutlet, receive_run_locked
from headgate.input.remote_state import RemoteState, RemoteStatistics
from headgate.input.union import UnionGate
from headgate.input.waiting import Gate

__all__ = [
    "Backoff",
    "ChannelSource",
    "ChannelState",
    "ChannelStatistics",
    "Gate",
    "GateStatistics",
    "InputChannel",
    "InputGate",
    "LocalSource",
    "Outlet",
    "ReaderStatistics",
    "RecordReader",
    "RemoteChannel",
    "RemoteOutlet",
    "RemoteState",
    "RemoteStatistics",
    "UnionGate",
    "receive_run_locked",
]
