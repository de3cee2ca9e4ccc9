"""The registry: found once, not twice; unknown is PartitionNotFound; a job's partitions go with it."""

import pytest
from tests.support import Exchange, partition_id

from headgate.errors import Cancelled, LocalProtocolError, PartitionNotFound, ProducerFailed
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import PartitionType, ResultPartition

pytestmark = pytest.mark.spec("P5")


class Listener:
    def available_locked(self):
        return None


def another(exchange, identity, subpartitions=1):
    pool = exchange.memory.create_pool(str(identity), required=1, channels=subpartitions)
    return ResultPartition(identity, PartitionType.PIPELINED, subpartitions, pool)


def attach(exchange, identity, index=0):
    with exchange.sync.lock:
        return exchange.registry.attach_locked(identity, SubpartitionIndex(index), Listener())[0]


def test_registering_twice_is_an_error():
    with Exchange() as exchange:
        with pytest.raises(LocalProtocolError, match="job#1/v0"):
            exchange.registry.register(exchange.partition)
        twin = another(exchange, partition_id())
        with pytest.raises(LocalProtocolError, match="registered already"):
            exchange.registry.register(twin)
        twin.release()
        assert [one.id for one in exchange.registry.statistics()] == [partition_id()]


def test_a_partition_is_found_by_its_whole_identity():
    with Exchange(connect=False) as exchange:
        assert attach(exchange, partition_id()) is exchange.partition.subpartitions[0]
        for unknown in (
            partition_id(subtask=1),
            partition_id(job="another"),
            PartitionId(JobId("job"), AttemptId(2), 0, 0, 0),
            PartitionId(JobId("job"), AttemptId(1), 1, 0, 0),
            PartitionId(JobId("job"), AttemptId(1), 0, 1, 0),
        ):
            with pytest.raises(PartitionNotFound) as caught:
                attach(exchange, unknown)
            assert str(unknown) in str(caught.value)


@pytest.mark.parametrize("index", [1, -1, 99])
def test_an_unknown_subpartition_is_not_found(index):
    with Exchange(connect=False) as exchange, pytest.raises(PartitionNotFound, match=f"1 subpartitions.*{index}"):
        attach(exchange, partition_id(), index)


def test_a_job_s_partitions_are_released_with_it():
    with Exchange() as exchange:
        mine = [another(exchange, partition_id(i, job="mine")) for i in range(3)]
        for partition in mine:
            exchange.registry.register(partition)
        cause = ValueError("boom")
        found = attach(exchange, partition_id(1, job="mine"))
        exchange.registry.release_job(JobId("mine"), cause)
        assert all(partition.pool.destroyed for partition in mine)
        with exchange.sync.lock, pytest.raises(ProducerFailed) as caught:
            found.poll_locked()
        assert caught.value.cause is cause
        with pytest.raises(PartitionNotFound):
            attach(exchange, partition_id(0, job="mine"))
        assert not exchange.pool.destroyed, "another job's partition lives on"
        exchange.writer.emit(b"a")
        exchange.writer.flush()
        assert exchange.take() == [b"a"]
        exchange.registry.release_job(JobId("mine"))
        again = another(exchange, partition_id(0, job="mine"))
        exchange.registry.register(again)  # the id is free again
        exchange.registry.release_all()
        assert exchange.registry.statistics() == ()
        assert again.pool.destroyed
        with pytest.raises(Cancelled):
            exchange.reader.poll()


def test_release_may_be_repeated():
    with Exchange() as exchange:
        exchange.registry.release(partition_id())
        exchange.registry.release(partition_id())
        exchange.registry.release(partition_id(7))
        with exchange.sync.lock:
            assert exchange.registry.release_subpartition_locked(partition_id(), SubpartitionIndex(0)) is None
        with pytest.raises(Cancelled):
            exchange.reader.poll()
