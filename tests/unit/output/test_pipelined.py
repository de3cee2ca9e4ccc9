"""A subpartition in memory: whom it wakes and when, its backlog, and what may be read."""

import pytest

from headgate.buffer import Arena, Buffer, BufferReader, Kind, NetworkPool
from headgate.errors import Cancelled, LocalProtocolError, ProducerFailed
from headgate.ids import SubpartitionIndex
from headgate.output import PipelinedSubpartition, SubpartitionState
from headgate.record import CheckpointBarrier, EndOfPartition
from headgate.record.element import encode_event
from headgate.sync import ThreadSync

pytestmark = pytest.mark.spec("P2")


class Listener:
    """Counts how often it is told, and how often its wake-up is performed."""

    def __init__(self):
        self.told = 0

    def available_locked(self):
        self.told += 1


class Queue:
    """A subpartition with a writer's and a reader's hand on it."""

    def __init__(self, *, listen=True, segments=16):
        self.sync = ThreadSync()
        self.memory = NetworkPool(Arena(8, segments), self.sync)
        self.pool = self.memory.create_pool("partition", required=1)
        self.subpartition = PipelinedSubpartition(SubpartitionIndex(3), self.sync.lock, "partition p")
        self.listener = Listener()
        if listen:
            self.locked(self.subpartition.attach_locked, self.listener)

    def close(self):
        self.locked(self.subpartition.release_locked)
        self.pool.destroy()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def locked(self, function, *args):
        with self.sync.lock:
            result = function(*args)
        wake = result[1] if isinstance(result, tuple) else result
        if callable(wake):
            wake()
        return result

    def add(self, data=b""):
        """A new unfinished buffer behind the others."""
        segment = self.pool.request()
        buffer = Buffer(segment.memory, segment=segment, owner=self.pool, channel=-1)
        with self.sync.lock:
            self.subpartition.add_locked(BufferReader(buffer))
        buffer.append(data)
        return buffer

    def finish(self, buffer):
        with self.sync.lock:
            buffer.finish_locked()
            self.subpartition.notify_locked()

    def event(self, event):
        with self.sync.lock:
            self.subpartition.add_locked(BufferReader(Buffer.event(encode_event(event))))

    def flush(self):
        self.locked(self.subpartition.flush_locked)

    def poll(self):
        taken, _ = self.locked(self.subpartition.poll_locked)
        if taken is None:
            return None
        data, kind = bytes(taken.memory), taken.kind
        taken.release()
        return data if kind is Kind.DATA else "event"

    @property
    def told(self):
        """How often the reader was told since the last look."""
        told, self.listener.told = self.listener.told, 0
        return told

    @property
    def available(self):
        with self.sync.lock:
            return self.subpartition.available_locked()


def test_only_the_first_finished_buffer_wakes_the_reader():
    with Queue() as queue:
        buffer = queue.add(b"a")
        assert queue.told == 0, "an unfinished buffer that nobody flushed is no news"
        queue.finish(buffer)
        assert queue.told == 1
        for data in (b"b", b"c", b"d"):
            queue.finish(queue.add(data))
        assert queue.told == 0, "it knows already"
        assert [queue.poll() for _ in range(5)] == [b"a", b"b", b"c", b"d", None]
        queue.finish(queue.add(b"e"))
        assert queue.told == 1, "it may have gone to sleep: first again"
        assert queue.poll() == b"e"


def test_adding_behind_an_unfinished_buffer_counts_as_finishing_it():
    with Queue() as queue:
        first = queue.add(b"a")
        with queue.sync.lock:
            first.finish_locked()  # the writer finishes and adds under one lock
        second = queue.add(b"b")
        assert queue.told == 1
        assert queue.poll() == b"a"
        assert not queue.available
        queue.finish(second)
        assert queue.told == 1
        assert queue.poll() == b"b"


def test_a_flush_wakes_the_reader_again_for_queued_buffers():
    with Queue() as queue:
        queue.finish(queue.add(b"a"))
        assert queue.told == 1
        queue.flush()
        assert queue.told == 1, "now it is pressing"
        queue.flush()
        assert queue.told == 1, "still"
        queue.event(CheckpointBarrier(1, 0))
        assert queue.told == 1
        assert [queue.poll() for _ in range(2)] == [b"a", "event"]


def test_a_flush_wakes_only_with_data():
    with Queue() as queue:
        queue.flush()
        assert queue.told == 0, "nothing is there"
        buffer = queue.add()
        queue.flush()
        assert queue.told == 0, "nothing is written"
        buffer.append(b"ab")
        queue.flush()
        assert queue.told == 1
        assert queue.poll() == b"ab"
        queue.flush()
        assert queue.told == 0, "nothing new"
        assert queue.poll() is None
        buffer.append(b"c")
        assert queue.told == 0
        queue.flush()
        assert queue.told == 1
        assert queue.poll() == b"c"
        queue.finish(buffer)
        assert queue.poll() is None


def test_the_end_wakes():
    with Queue() as queue:
        queue.event(EndOfPartition())
        assert queue.told == 1
        assert queue.poll() == "event"


def test_an_unfinished_buffer_is_readable_only_after_a_flush():
    with Queue() as queue:
        buffer = queue.add(b"a")
        assert not queue.available
        assert queue.told == 0
        queue.flush()
        assert queue.available
        assert queue.poll() == b"a"
        buffer.append(b"b")
        assert not queue.available, "a flush is for what was there then"
        queue.flush()
        assert queue.poll() == b"b"
        queue.finish(buffer)
        assert queue.poll() is None


def test_an_unfinished_buffer_is_readable_only_at_the_end_of_the_queue():
    with Queue() as queue:
        queue.finish(queue.add(b"a"))
        last = queue.add(b"b")
        queue.flush()
        assert queue.poll() == b"a", "one buffer at a time, in order"
        assert queue.poll() == b"b"
        assert queue.poll() is None
        last.append(b"c")
        queue.finish(last)
        queue.finish(queue.add(b"d"))
        assert [queue.poll() for _ in range(3)] == [b"c", b"d", None], "each byte once"


def test_a_buffer_that_was_read_to_its_end_before_it_was_finished_gives_nothing_more():
    with Queue(segments=2) as queue:
        buffer = queue.add(b"a")
        queue.flush()
        assert queue.poll() == b"a"
        queue.finish(buffer)
        assert queue.poll() is None
        assert queue.subpartition.backlog == 0
        for _ in range(5):  # all memory is there again
            buffer = queue.add(b"a")
            queue.finish(buffer)
            assert queue.poll() == b"a"


def test_an_empty_finished_buffer_is_harmless():
    with Queue() as queue:
        queue.finish(queue.add())
        queue.event(EndOfPartition())
        assert [taken for taken in (queue.poll(), queue.poll(), queue.poll()) if taken] == ["event"]
        assert queue.subpartition.backlog == 0


def test_the_backlog_counts_data_only():
    with Queue() as queue:
        backlog = lambda: queue.subpartition.backlog  # noqa: E731
        queue.event(CheckpointBarrier(1, 0))
        assert backlog() == 0
        queue.finish(queue.add(b"a"))
        queue.finish(queue.add(b"b"))
        queue.event(CheckpointBarrier(2, 0))
        last = queue.add(b"c")
        assert backlog() == 3
        with queue.sync.lock:
            assert queue.subpartition.statistics_locked().queued == 5
        seen = []
        while (taken := queue.poll()) is not None:
            seen.append((taken, backlog()))
            if len(seen) == 4:
                queue.flush()
        assert seen == [("event", 3), (b"a", 2), (b"b", 1), ("event", 1), (b"c", 1)]
        queue.finish(last)
        assert queue.poll() is None
        assert backlog() == 0


def test_a_reader_that_attaches_to_queued_data_is_woken_at_once():
    with Queue(listen=False) as queue:
        queue.finish(queue.add(b"a"))
        assert queue.told == 0
        queue.locked(queue.subpartition.attach_locked, queue.listener)
        assert queue.told == 1
        assert queue.poll() == b"a"
        with queue.sync.lock, pytest.raises(LocalProtocolError, match="subpartition 3 already has its reader"):
            queue.subpartition.attach_locked(Listener())


def test_a_reader_that_attaches_to_an_empty_queue_is_not_woken():
    with Queue(listen=False) as queue:
        queue.locked(queue.subpartition.attach_locked, queue.listener)
        assert queue.told == 0


@pytest.mark.parametrize("announced", [False, True])
def test_release_drops_all_buffers_and_wakes_the_reader(announced):
    """Also one that knows of data: it may be waiting for credit before it takes it."""
    with Queue() as queue:
        if announced:
            queue.finish(queue.add(b"a"))
        last = queue.add(b"b")
        assert queue.told == announced
        cause = ValueError("boom")
        queue.locked(queue.subpartition.release_locked, cause)
        queue.locked(queue.subpartition.release_locked)
        assert queue.told == 1, "once in all"
        assert queue.subpartition.backlog == 0
        assert queue.subpartition.state is SubpartitionState.RELEASED
        with pytest.raises(ProducerFailed, match="boom") as caught:
            queue.poll()
        assert caught.value.cause is cause
        assert caught.value.__cause__ is cause
        with queue.sync.lock:
            last.finish_locked()


def test_buffers_and_events_after_a_release_are_dropped():
    with Queue() as queue:
        queue.locked(queue.subpartition.release_locked)
        queue.finish(queue.add(b"a"))
        queue.event(EndOfPartition())
        queue.flush()
        assert queue.told == 1, "of the release"
        with pytest.raises(Cancelled):
            queue.poll()
        with queue.sync.lock, pytest.raises(Cancelled):
            queue.subpartition.attach_locked(Listener())


@pytest.mark.spec("P2", "P4")
def test_nothing_is_added_after_the_end():
    with Queue() as queue:
        queue.event(EndOfPartition())
        with queue.sync.lock:
            queue.subpartition.finish_locked()
        with pytest.raises(LocalProtocolError, match="after the end"):
            queue.event(CheckpointBarrier(1, 0))
        assert queue.poll() == "event"
        assert queue.subpartition.state is SubpartitionState.FINISHED


# What a reader in another worker asks.


@pytest.mark.spec("N2")
def test_next_is_data_is_true_if_a_poll_returns_data():
    with Queue() as queue:
        look = lambda: queue.subpartition.next_is_data  # noqa: E731
        assert not look(), "nothing is there"
        queue.event(CheckpointBarrier(1, 0))
        assert not look()
        queue.finish(queue.add(b"a"))
        queue.event(CheckpointBarrier(2, 0))
        assert not look()
        assert queue.poll() == "event"
        assert look(), "data is before the next one"
        assert queue.poll() == b"a"
        assert not look()
        assert queue.poll() == "event"
        assert not look()


@pytest.mark.spec("N2")
@pytest.mark.parametrize("read", [b"", b"a"], ids=["empty", "read"])
def test_a_buffer_with_nothing_left_in_it_does_not_hide_the_event_behind_it(read):
    with Queue() as queue:
        buffer = queue.add(read)
        queue.flush()
        assert queue.poll() == (read or None)
        assert queue.subpartition.next_is_data, "more may be written into it at any time"
        queue.finish(buffer)
        assert not queue.subpartition.next_is_data, "nothing is left in it"
        queue.event(EndOfPartition())
        assert not queue.subpartition.next_is_data
        assert queue.poll() == "event"


@pytest.mark.spec("N2")
def test_a_buffer_with_something_left_in_it_does_hide_the_event_behind_it():
    with Queue() as queue:
        buffer = queue.add(b"a")
        queue.flush()
        assert queue.poll() == b"a"
        buffer.append(b"b")
        queue.finish(buffer)
        queue.event(EndOfPartition())
        assert queue.subpartition.next_is_data
        assert queue.poll() == b"b"
        assert not queue.subpartition.next_is_data


@pytest.mark.spec("N2", "G8")
def test_a_failure_needs_no_buffer_at_the_reader():
    with Queue() as queue:
        queue.finish(queue.add(b"a"))
        assert queue.subpartition.next_is_data
        queue.locked(queue.subpartition.release_locked, ValueError("boom"))
        assert not queue.subpartition.next_is_data
        with pytest.raises(ProducerFailed):
            queue.poll()


@pytest.mark.spec("P4")
def test_it_is_drained_when_the_end_was_polled():
    with Queue() as queue:
        look = lambda: queue.subpartition.drained  # noqa: E731
        assert not look(), "empty is not the end"
        queue.finish(queue.add(b"a"))
        queue.event(EndOfPartition())
        with queue.sync.lock:
            queue.subpartition.finish_locked()
        assert not look()
        assert queue.poll() == b"a"
        assert not look()
        assert queue.poll() == "event"
        assert look()


def test_a_released_subpartition_is_not_drained():
    with Queue() as queue:
        queue.locked(queue.subpartition.release_locked)
        assert not queue.subpartition.drained
