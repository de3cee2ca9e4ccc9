"""Reading ahead: the order of readers, the limit, the memory, and the notification of listeners."""

import pytest
from tests.support.blocking_partition import SIZE, Gated, Reading, Rig
from tests.support.buffers import give, take_all

from headgate.buffer import Kind
from headgate.errors import ProducerFailed, StorageError
from headgate.output import StepResult


def finished(tmp_path, subpartitions=1, *, each=12, **rig):
    """A rig whose partition has `each` buffers for each reader, numbered."""
    found = Rig(tmp_path, subpartitions, **rig)
    for number in range(each):
        for channel in range(subpartitions):
            found.put(channel, bytes([channel, number]))
    found.partition.finish()
    return found


@pytest.mark.spec("P3")
def test_a_reader_is_woken_once_and_has_at_most_its_limit_of_buffers(tmp_path):
    with finished(tmp_path, most=4) as rig:
        reading = Reading(rig, 0)
        reader = reading.reader
        assert (reader.notified, reader.readable, reader.backlog, reading.told) == (False, 0, 12, 0)
        assert reading.poll() is None
        assert rig.step() is StepResult.READ
        assert rig.step() is StepResult.BLOCK, "it has what it may have"
        assert (reader.notified, reader.readable, reader.backlog, reading.told) == (True, 4, 12, 1)
        assert reader.next_is_data
        assert reader.urgent
        assert reading.take() == b"\0\0"
        assert (reader.readable, reader.backlog) == (3, 11)
        assert rig.step() is StepResult.BLOCK, "it has more than half"
        assert reading.take() == b"\0\1"
        assert rig.step() is StepResult.READ
        assert (reader.readable, reading.told) == (4, 1), "it knows that there is something"


def test_a_reader_without_buffers_is_woken_again(tmp_path):
    with finished(tmp_path, most=2) as rig:
        reading = Reading(rig, 0)
        rig.step_out()
        assert [reading.take() for _ in range(3)] == [b"\0\0", b"\0\1", None]
        assert not reading.reader.notified
        rig.step_out()
        assert (reading.reader.notified, reading.told) == (True, 2)


def test_the_end_is_an_event_and_the_last(tmp_path):
    with finished(tmp_path, each=1) as rig:
        reading = Reading(rig, 0)
        reader = reading.reader
        rig.step_out()
        assert not reader.drained
        reading.poll()
        assert not reader.next_is_data
        assert not reader.drained
        reading.poll()
        assert [one.kind for one in reading.held] == [Kind.DATA, Kind.EVENT]
        assert reader.drained
        assert not reader.notified
        assert reading.poll() is None
        reading.drop()


@pytest.mark.spec("M4")
@pytest.mark.parametrize("segments", [2, 3, 6])
def test_no_more_than_the_pool_has(tmp_path, segments):
    with finished(tmp_path, 3, segments=20, most=100) as rig:
        rig.ahead.pool.maximum = segments
        rig.memory.create_pool("another", required=0).destroy()  # shares out anew
        readings = [Reading(rig, index) for index in range(3)]
        rig.step_out()
        assert rig.ahead.pool.held == rig.used == rig.ahead.pool.size == segments
        found = [[], [], []]
        while not all(one.reader.drained for one in readings):
            for index, one in enumerate(readings):
                data = one.take()
                if data is not None:
                    found[index].append(data)
            rig.step_out()
            assert rig.used <= segments
        assert [some[:-1] for some in found] == [[bytes([c, n]) for n in range(12)] for c in range(3)]


def test_where_there_is_little_memory_all_get_the_same(tmp_path):
    """Two that read all they can must not leave a third with nothing."""
    with finished(tmp_path, segments=12, most=8) as rig:
        readings = [Reading(rig, 0) for _ in range(3)]
        rig.step_out()
        assert [one.reader.readable for one in readings] == [4, 4, 4]
        readings[0].leave()
        for one in readings[1:]:
            for _ in range(3):
                one.take()
        rig.step_out()
        assert [one.reader.readable for one in readings[1:]] == [6, 6]


def test_readers_are_served_round_robin(tmp_path):
    with finished(tmp_path, 3, most=2) as rig:
        readings = [Reading(rig, index) for index in range(3)]
        for told in ([1, 0, 0], [1, 1, 0], [1, 1, 1]):
            rig.step()
            assert [one.told for one in readings] == told


def test_the_read_ahead_blocks_until_a_reader_has_half_its_buffers(tmp_path):
    with finished(tmp_path, most=4) as rig:
        assert rig.woken == 0
        reading = Reading(rig, 0)
        assert rig.woken == 1, "the first reader"
        second = Reading(rig, 0)
        assert rig.woken == 1, "it is on its way"
        rig.step_out()
        reading.take()
        assert rig.woken == 1
        reading.take()
        assert rig.woken == 2
        reading.take()
        second.take()
        second.take()
        assert rig.woken == 2


def test_the_read_ahead_blocks_until_there_is_memory_and_keeps_the_order_of_readers(tmp_path):
    with finished(tmp_path, 2, segments=8, most=4) as rig:
        taken = take_all(rig.ahead.pool)
        first, second = Reading(rig, 0), Reading(rig, 1)
        assert rig.step(2) is StepResult.BLOCK
        woken = rig.woken
        assert rig.ahead.pool.statistics().waiting == 1
        give(rig.ahead.pool, taken.pop())
        assert rig.woken == woken + 1
        assert rig.step() is StepResult.READ
        assert (first.told, second.told) == (1, 0)
        give(rig.ahead.pool, *taken)
        rig.step_out()
        assert (first.reader.readable, second.reader.readable) == (4, 4)


def test_events_need_no_memory(tmp_path):
    with finished(tmp_path, each=0, segments=8) as rig:
        taken = take_all(rig.ahead.pool)
        assert Reading(rig, 0).rest() == []
        give(rig.ahead.pool, *taken)


@pytest.mark.spec("M8")
def test_while_memory_is_lent_the_read_ahead_polls_at_intervals(tmp_path):
    with finished(tmp_path, segments=8, most=100) as rig:
        reading = Reading(rig, 0)
        rig.step_out()
        reading.poll()
        lent = reading.held[0].lend()
        reading.drop()
        while reading.take() is not None:
            pass
        taken = take_all(rig.ahead.pool)
        assert rig.step() is StepResult.POLL
        del lent
        rig.memory.collect_returned()
        assert rig.step() is StepResult.READ
        give(rig.ahead.pool, *taken)


@pytest.mark.spec("M9")
def test_a_reader_that_leaves_during_a_step_recycles_all_its_buffers(tmp_path):
    with finished(tmp_path) as rig:
        reading = Reading(rig, 0)
        rig.partition._file = gated = Gated(rig.partition._file, "read_many")
        gated.go_on.set()
        read = gated.read_many

        class Leaves:
            """The reader goes in the middle of a step."""

            path = rig.path

            def read_many(self, *args, **options):
                reading.leave()
                return read(*args, **options)

        rig.partition._file = Leaves()
        assert rig.step() is StepResult.READ
        rig.partition._file = gated
        assert rig.ahead.pool.in_use == 0
        assert rig.step() is StepResult.BLOCK
        assert Reading(rig, 0).rest() == [bytes([0, number]) for number in range(12)]


@pytest.mark.spec("M9")
@pytest.mark.parametrize("error", [StorageError("cannot be read", path="/data/x"), RuntimeError("a bug")])
def test_an_error_is_raised_to_its_reader_after_the_buffers_read_before(tmp_path, error):
    with finished(tmp_path, most=4) as rig:
        bad, good = Reading(rig, 0), Reading(rig, 0)
        rig.step_out()
        whole = rig.partition._file

        class Failing:
            path = rig.path

            def read_many(self, *_, **__):
                raise error

        assert [bad.take(), bad.take()] == [b"\0\0", b"\0\1"]
        rig.partition._file = Failing()
        rig.step_out()
        rig.partition._file = whole
        assert [bad.take(), bad.take()] == [b"\0\2", b"\0\3"]
        assert bad.reader.notified
        assert not bad.reader.next_is_data
        for _ in range(2):
            with pytest.raises(ProducerFailed, match=str(error.args[0])) as caught:
                bad.poll()
            assert isinstance(caught.value.cause, StorageError)
            assert caught.value.cause.path == getattr(error, "path", rig.path)
        assert bad.told == 1, "it stood in its gate's queue all the time"
        assert good.rest() == [bytes([0, number]) for number in range(12)]


def test_an_error_wakes_a_reader_without_buffers(tmp_path):
    with finished(tmp_path) as rig:
        reading = Reading(rig, 0)

        class Failing:
            path = rig.path

            def read_many(self, *_, **__):
                raise StorageError("cannot be read", path=self.path)

        whole, rig.partition._file = rig.partition._file, Failing()
        rig.step()
        rig.partition._file = whole
        assert (reading.told, reading.reader.notified) == (1, True)


def test_after_the_end_there_is_nothing_to_do(tmp_path):
    with finished(tmp_path) as rig:
        Reading(rig, 0)
        rig.step_out()
        woken = rig.woken
        rig.ahead.close()
        assert rig.woken == woken + 1, "the thread must be woken"
        rig.ahead.close()
        assert rig.step() is StepResult.CLOSED
        assert rig.woken == woken + 1


def test_whole_buffers_are_handed_over_as_they_are(tmp_path):
    with Rig(tmp_path) as rig:
        rig.put(0, b"x" * SIZE)
        rig.put(0, b"y")
        rig.partition.finish()
        reading = Reading(rig, 0)
        rig.step_out()
        reading.poll()
        reading.poll()
        whole, part = reading.held
        assert whole.memory is whole.buffer.segment.memory
        assert (len(part.memory), part.offset, part.buffer.size) == (1, 0, 1)
        reading.drop()
