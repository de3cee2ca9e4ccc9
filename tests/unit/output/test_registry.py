"""The registry: found once, not twice; unknown is PartitionNotFound; a job's partitions go with it."""

import pytest
from tests.support.exchange import Exchange, partition_id

from headgate.errors import (
    Cancelled,
    CorruptStream,
    LocalProtocolError,
    PartitionNotFound,
    ProducerFailed,
    TransportError,
    UnknownReceiver,
)
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.output import PartitionType, Rescale, ResultPartition
from headgate.record import EndOfSuperstep, UserEvent
from headgate.record.element import encode_event

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


# Task events.


def publish(exchange, event, identity=None):
    with exchange.sync.lock:
        wake = exchange.registry.publish_locked(identity or partition_id(), event)
    if wake is not None:
        wake()
    return wake


@pytest.mark.spec("K4")
def test_an_event_from_a_consumer_is_dispatched_by_its_name():
    with Exchange() as exchange:
        heard = []
        exchange.registry.subscribe(partition_id(), "reload", lambda event: heard.append(("first", event)))
        exchange.registry.subscribe(partition_id(), "reload", lambda event: heard.append(("second", event)))
        exchange.registry.subscribe(partition_id(), "end-of-superstep", lambda event: heard.append(("third", event)))
        reload, superstep = UserEvent("reload", b"rules"), EndOfSuperstep()
        publish(exchange, encode_event(reload))
        assert heard == [("first", reload), ("second", reload)]
        publish(exchange, encode_event(superstep))
        assert heard[2:] == [("third", superstep)]
        with pytest.raises(UnknownReceiver, match="no operator of its task subscribes to task event 'another'"):
            publish(exchange, encode_event(UserEvent("another")))
        assert len(heard) == 3


@pytest.mark.spec("K4")
def test_handlers_are_called_without_the_lock():
    with Exchange() as exchange:
        locked = []
        exchange.registry.subscribe(partition_id(), "x", lambda _: locked.append(exchange.sync.lock.locked()))
        publish(exchange, encode_event(UserEvent("x")))
        assert locked == [False]


@pytest.mark.spec("K4")
def test_a_handler_that_fails_is_logged_and_the_others_are_called(caplog):
    with Exchange() as exchange:
        heard = []
        exchange.registry.subscribe(partition_id(), "reload", lambda _: 1 / 0)
        exchange.registry.subscribe(partition_id(), "reload", heard.append)
        publish(exchange, encode_event(UserEvent("reload")))
        assert heard == [UserEvent("reload")]
        assert "a handler of the task event reload failed" in caplog.text
        assert "ZeroDivisionError" in caplog.text


@pytest.mark.spec("K4")
def test_only_a_partition_s_own_handlers_are_called():
    with Exchange() as exchange:
        heard = []
        exchange.registry.subscribe(partition_id(), "x", heard.append)
        with pytest.raises(UnknownReceiver, match="is not on this worker any more"):
            publish(exchange, encode_event(UserEvent("x")), partition_id(7))
        assert heard == []


@pytest.mark.spec("K4")
def test_subscribing_to_an_unknown_partition_is_an_error():
    with Exchange() as exchange, pytest.raises(PartitionNotFound):
        exchange.registry.subscribe(partition_id(7), "x", print)


@pytest.mark.spec("K4", "P5")
@pytest.mark.parametrize("how", ["one", "job", "all"])
def test_handlers_are_forgotten_with_the_partition(how):
    with Exchange() as exchange:
        heard = []
        exchange.registry.subscribe(partition_id(), "x", heard.append)
        registry = exchange.registry
        {
            "one": lambda: registry.release(partition_id()),
            "job": lambda: registry.release_job(JobId("job")),
            "all": registry.release_all,
        }[how]()
        with pytest.raises(UnknownReceiver, match="is not on this worker any more"):
            publish(exchange, encode_event(UserEvent("x")))
        again = another(exchange, partition_id())
        registry.register(again)
        with pytest.raises(UnknownReceiver, match="no operator of its task subscribes to task event 'x'"):
            publish(exchange, encode_event(UserEvent("x")))
        assert heard == []
        again.release()


@pytest.mark.spec("K4", "N8")
def test_bytes_that_are_no_event_are_corrupt():
    with Exchange() as exchange:
        exchange.registry.subscribe(partition_id(), "x", print)
        with pytest.raises(CorruptStream, match=r"partition job#1/v0\.0\[0\], task event"):
            publish(exchange, b"junk")


@pytest.mark.spec("G8")
def test_a_reader_that_is_lost_leaves_its_cause():
    with Exchange(Rescale(), channels=2) as exchange:
        lost = TransportError("connection reset", peer="10.0.0.1:7077")
        for index in (0, 1):
            with exchange.sync.lock:
                wake = exchange.registry.release_subpartition_locked(partition_id(), SubpartitionIndex(index), lost)
            if wake is not None:
                wake()
            with exchange.sync.lock, pytest.raises(ProducerFailed) as caught:
                exchange.partition.subpartitions[index].poll_locked()
            assert caught.value.cause is lost
            assert exchange.pool.destroyed == (index == 1), "while one reads, the writer goes on"
        with pytest.raises(Cancelled, match=r"no reader left: connection reset \(10\.0\.0\.1:7077\)"):
            exchange.partition.next_buffer(0, None, mid_record=False)
