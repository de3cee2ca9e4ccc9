"""Cheap looks at what waits, without the exchange lock: they agree with the statistics that take it."""

import random

import pytest
from tests.support.cluster import Cluster, pid, produce, records
from tests.support.waiting import wait_until

from headgate.config import BufferTimeout
from headgate.ids import SubpartitionIndex
from headgate.output import Forward, Rebalance
from headgate.record import BytesSerializer
from headgate.worker import Environment


@pytest.mark.spec("B2")
def test_readable_buffers_of_local_channels_count_at_the_producer():
    with Environment(memory_bytes=2**20) as worker:
        partitions = [worker.partition(pid(subtask), subpartitions=1) for subtask in (0, 1)]
        gate = worker.gate("words", channels=3)
        assert gate.waiting() == (0, 0), "nobody is connected"
        for channel, partition in enumerate(partitions):
            gate.connect(channel, worker.local_source(partition.id, SubpartitionIndex(0)))
        never = BufferTimeout.parse("-1")
        writers = [worker.writer(one, Forward(), BytesSerializer(), buffer_timeout=never) for one in partitions]
        writers[0].emit_batch([b"not flushed"] * 16)
        assert gate.waiting() == (0, 1), "nothing can be read of a buffer that is not full"
        assert partitions[0].subpartitions[0].readable == 0
        writers[0].emit_batch([bytes(worker.memory.segment_size)] * 3)
        writers[0].flush()
        buffers = partitions[0].statistics().subpartitions[0].backlog
        assert gate.waiting() == (buffers, buffers)
        assert partitions[0].subpartitions[0].readable == buffers
        assert buffers > 2
        writers[1].emit(b"a little")
        writers[1].flush()
        assert gate.waiting() == (buffers + 1, buffers + 1)
        assert partitions[0].pool.in_use == buffers
        pool = partitions[0].pool.statistics()
        assert pool.held - pool.available == buffers
        gate.release()
        assert gate.waiting() == (0, 0)
        for writer in writers:
            writer.close()


@pytest.mark.spec("B2")
def test_received_buffers_and_backlog_of_remote_channels_are_counted_apart():
    with Cluster(network__buffers_per_channel=2, network__floating_buffers_per_gate=0) as cluster:
        gate, writer = cluster.gate(1, [(0, 0, 0)]), cluster.writer(0)
        segment = cluster.workers[0].memory.segment_size
        writer.emit_batch([bytes(segment)] * 6)
        wait_until(lambda: gate.waiting()[0] == 2, "as many buffers as it has credit for")
        wait_until(lambda: gate.waiting()[1] >= 4, "the others to wait at the producer")
        source = gate.channels[0].source
        assert (source.statistics().queued, source.statistics().backlog) == gate.waiting()
        writer.close()


@pytest.mark.spec("B2")
def test_bytes_are_counted_by_channel():
    with Cluster() as cluster:
        gate = cluster.gate(1, [(0, 0, 0), (0, 0, 1), (0, 1, 0)])
        writer = cluster.writer(0, 0, 2, Rebalance(random.Random(0).randrange))
        other = cluster.writer(0, 1)
        produce(writer, records(300))
        produce(other, [b"x" * 1000])
        reader = cluster.workers[1].reader(gate, BytesSerializer())
        list(reader)
        first, second, third = reader.bytes_in
        assert first + second == writer.partition.bytes_out
        assert third == other.partition.bytes_out
        assert min(first, second) > 0
        assert sum(reader.bytes_in) == reader.statistics().bytes_in
