"""From the producer's queue to the consumer's loop.

`channel` reaches one producer, `remote` one in another worker; `gate` takes turns among channels (`union` among gates)
and, by `waiting`, is where a task waits for input; `reader` turns buffers back into elements.
"""

from headgate.input.channel import Backoff, ChannelState, ChannelStatistics, InputChannel, LocalSource, Outlet, Source
from headgate.input.gate import GateStatistics, InputGate
from headgate.input.reader import ReaderStatistics, RecordReader
from headgate.input.remote import RemoteChannel, RemoteOutlet, arrive_run_locked
from headgate.input.remote_state import RemoteState, RemoteStatistics
from headgate.input.union import UnionGate
from headgate.input.waiting import Gate

__all__ = [
    "Backoff",
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
    "Source",
    "UnionGate",
    "arrive_run_locked",
]
