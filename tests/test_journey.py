"""One record's journey, stage by stage, by plain calls: no thread, no socket. Read this first.

writer -> selector -> serializer -> buffer -> subpartition -> gate -> reader
"""

import random

import pytest

from headgate.buffer import Arena, NetworkPool
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import InputGate, LocalSource, RecordReader
from headgate.output import Hash, PartitionRegistry, PartitionType, RecordWriter, ResultPartition
from headgate.record import Batch, EndOfPartition, MsgpackSerializer, Watermark
from headgate.sync import ThreadSync

WORDS = [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)]


@pytest.mark.spec("T2", "T5", "M3", "M9", "R1", "W1", "P2", "P4", "G1")
def test_a_record_travels_from_its_writer_to_its_reader() -> None:
    # A worker has one allocation of network memory and one lock.
    sync = ThreadSync()
    memory = NetworkPool(Arena(segment_size=64, count=16), sync)

    # The producing task has a partition: two subpartitions, and a pool that says how many buffers it may use.
    partition_id = PartitionId(JobId("word-count"), AttemptId(1), vertex=0, output=0, subtask=0)
    pool = memory.create_pool("partition", required=3, maximum=8, channels=2, max_per_channel=4)
    partition = ResultPartition(partition_id, PartitionType.PIPELINED_BOUNDED, 2, pool)
    registry = PartitionRegistry(sync.lock)
    registry.register(partition)

    # Two consuming tasks have a gate each, whose only channel reads one subpartition.
    readers = []
    for index in range(2):
        gate = InputGate(f"count-{index}", channels=1, sync=sync, clock=ManualClock())
        gate.connect(0, LocalSource(registry, partition_id, SubpartitionIndex(index)))
        readers.append(RecordReader(gate, MsgpackSerializer(tuple[str, int])))
    assert [reader.poll() for reader in readers] == [None, None]

    # Emitting only chooses a channel and puts the record on that channel's list: no buffer is taken yet.
    writer = RecordWriter(
        partition,
        Hash(lambda pair: pair[0]),
        MsgpackSerializer(tuple[str, int]),
        sync=sync,
        below=random.Random(0).randrange,
        buffer_timeout=BufferTimeout.parse("-1"),
    )
    for word in WORDS:
        writer.emit(word)
    assert memory.statistics().free == 16

    # A flush serializes each list as one batch into a buffer and lets the readers have the unfinished buffers.
    writer.flush()
    assert memory.statistics().free < 16
    batches = [reader.poll() for reader in readers]
    received = [pair for batch in batches if isinstance(batch, Batch) for pair in batch.values]
    assert sorted(received) == sorted(WORDS)

    # Equal keys meet in one reader, and in order.
    for batch in batches:
        if isinstance(batch, Batch):
            assert batch.values == [pair for pair in WORDS if pair in batch.values]

    # A watermark travels with the records to every channel.
    writer.emit_element(Watermark(1000))
    writer.flush()
    assert [reader.poll() for reader in readers] == [Watermark(1000), Watermark(1000)]

    # A record larger than a buffer crosses several; its reader takes what is there and waits for the rest.
    long_word = ("x" * 150, 1)
    writer.emit(long_word)
    writer.flush()
    assert [element for reader in readers if (element := reader.poll())] == [Batch([long_word])]
    assert max(reader.statistics().buffers_in for reader in readers) >= 3

    # The end comes to every channel. When all of it is read, all memory is back.
    writer.finish()
    writer.close()
    assert [reader.poll() for reader in readers] == [EndOfPartition(), EndOfPartition()]
    assert all(reader.finished for reader in readers)
    assert memory.statistics().free == memory.statistics().total
    assert writer.statistics().records_out == len(WORDS) + 1
