"""Memory: where a record's bytes lie between its writer and its reader.

`segment` is the allocation, `network` and `pool` say who may use how much of it, `builder` is one buffer
shared by a writer and its readers, `budget` adds up what a job needs.
"""

from headgate.buffer.budget import GateDemand, Limits, PartitionDemand, PoolBounds, TaskDemand, preflight
from headgate.buffer.builder import Buffer, BufferOwner, BufferReader, BufferSlice, Kind
from headgate.buffer.listener import Answer, BufferListener
from headgate.buffer.network import NetworkPool, NetworkPoolStatistics, share_out
from headgate.buffer.pool import UNCHANNELLED, LocalPool, LocalPoolStatistics
from headgate.buffer.segment import Arena, Segment

__all__ = [
    "UNCHANNELLED",
    "Answer",
    "Arena",
    "Buffer",
    "BufferListener",
    "BufferOwner",
    "BufferReader",
    "BufferSlice",
    "GateDemand",
    "Kind",
    "Limits",
    "LocalPool",
    "LocalPoolStatistics",
    "NetworkPool",
    "NetworkPoolStatistics",
    "PartitionDemand",
    "PoolBounds",
    "Segment",
    "TaskDemand",
    "preflight",
    "share_out",
]
