"""From an operator's output to the queue its reader takes buffers from.

`selector` chooses the channel, `writer` collects, serializes and appends, `partition` hands out buffers and keeps
one queue (`pipelined`) per reader, `registry` lets readers find it. A partition may be on disk instead (`blocking`),
read by many when it is finished (`read_ahead`). `columns` does the first two for Arrow, `hot_keys`
looks for keys that many records have.
"""

from headgate.output.blocking import AnyPartition, BlockingPartition, BlockingSubpartition
from headgate.output.blocking_reader import BlockingReader
from headgate.output.hot_keys import HotKeys, KeyShare
from headgate.output.partition import PartitionStatistics, PartitionType, ResultPartition
from headgate.output.pipelined import (
    PipelinedSubpartition,
    SubpartitionListener,
    SubpartitionState,
    SubpartitionStatistics,
)
from headgate.output.read_ahead import ReadAhead, Turn
from headgate.output.registry import PartitionRegistry
from headgate.output.selector import (
    Below,
    Broadcast,
    Custom,
    Forward,
    Global,
    Hash,
    Rebalance,
    Rescale,
    Selector,
    Shuffle,
)
from headgate.output.writer import RecordWriter, WriterStatistics

__all__ = [
    "AnyPartition",
    "Below",
    "BlockingPartition",
    "BlockingReader",
    "BlockingSubpartition",
    "Broadcast",
    "Custom",
    "Forward",
    "Global",
    "Hash",
    "HotKeys",
    "KeyShare",
    "PartitionRegistry",
    "PartitionStatistics",
    "PartitionType",
    "PipelinedSubpartition",
    "ReadAhead",
    "Rebalance",
    "RecordWriter",
    "Rescale",
    "ResultPartition",
    "Selector",
    "Shuffle",
    "SubpartitionListener",
    "SubpartitionState",
    "SubpartitionStatistics",
    "Turn",
    "WriterStatistics",
]
