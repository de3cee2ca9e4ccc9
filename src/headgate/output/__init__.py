"""From an operator's output to the queue that its reader polls.

`selector` chooses the channel, `writer` collects, serializes and appends, `partition` provides buffers and has one
queue (`pipelined`) per reader, `registry` finds partitions for readers. A partition may be on disk instead
(`disk.blocking`), read by any number of readers when it is finished (`disk.read_ahead`). `columns` writes Arrow record
batches, `hot_keys` finds keys with many records.
"""

from headgate.output.disk.blocking import AnyPartition, BlockingPartition, BlockingSubpartition
from headgate.output.disk.read_ahead import ReadAhead, StepResult
from headgate.output.disk.reader import BlockingReader
from headgate.output.hot_keys import HotKeys, KeyShare
from headgate.output.partition import PartitionStatistics, PartitionType, ResultPartition
from headgate.output.pipelined import (
    PipelinedSubpartition,
    SubpartitionListener,
    SubpartitionState,
    SubpartitionStatistics,
)
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
    "StepResult",
    "SubpartitionListener",
    "SubpartitionState",
    "SubpartitionStatistics",
    "WriterStatistics",
]
