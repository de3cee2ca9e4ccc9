"""Memory: the bytes of a record between its writer and its reader.

`segment` allocates it, `network` and `pool` limit how much of it each partition and gate may use, `builder` is one
buffer shared by a writer and its readers, `queue` what a reader polls, `budget` adds up what a job requires.
"""

from headgate.buffer.budget import GateDemand, Limits, PartitionDemand, PoolBounds, TaskDemand, WorkerDemand, preflight
from headgate.buffer.builder import Buffer, BufferOwner, BufferReader, BufferSlice, Kind, PackedSlice
from headgate.buffer.listener import Answer, BufferListener
from headgate.buffer.network import NetworkPool, NetworkPoolStatistics, share_out
from headgate.buffer.pool import UNCHANNELLED, LocalPool, LocalPoolStatistics
from headgate.buffer.queue import BufferQueue
from headgate.buffer.segment import Arena, Segment

__all__ = [
    "UNCHANNELLED",
    "Answer",
    "Arena",
    "Buffer",
    "BufferListener",
    "BufferOwner",
    "BufferQueue",
    "BufferReader",
    "BufferSlice",
    "GateDemand",
    "Kind",
    "Limits",
    "LocalPool",
    "LocalPoolStatistics",
    "NetworkPool",
    "NetworkPoolStatistics",
    "PackedSlice",
    "PartitionDemand",
    "PoolBounds",
    "Segment",
    "TaskDemand",
    "WorkerDemand",
    "preflight",
    "share_out",
]
