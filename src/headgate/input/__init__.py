"""From the producer's queue to the consumer's loop.

`channel` reaches one producer, `gate` takes turns among channels (`union` among gates) and is where a task waits for
input, `reader` turns buffers back into elements.
"""

from headgate.input.channel import Backoff, ChannelState, ChannelStatistics, InputChannel, LocalSource, Source
from headgate.input.gate import Gate, GateStatistics, InputGate
from headgate.input.reader import ReaderStatistics, RecordReader
from headgate.input.union import UnionGate

__all__ = [
    "Backoff",
    "ChannelState",
    "ChannelStatistics",
    "Gate",
    "GateStatistics",
    "InputChannel",
    "InputGate",
    "LocalSource",
    "ReaderStatistics",
    "RecordReader",
    "Source",
    "UnionGate",
]
