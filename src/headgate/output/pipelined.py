"""A subpartition in memory: the queue of buffers between a writer and one reader.

The writer's thread adds and flushes, the reader (a local channel's task thread, or the network thread) polls,
both under the exchange lock. The reader is woken only when it may have gone to sleep: for the first finished
buffer, on a flush with data, and at the end; not for each buffer.

Invariants: only the last buffer may be unfinished; the backlog is the number of data buffers in the queue;
`announced` is true from the moment the reader was told until a poll leaves nothing to read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headgate.buffer import BufferSlice, Kind
from headgate.errors import Cancelled, HeadgateError, LocalProtocolError, ProducerFailed
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer import BufferReader
    from headgate.ids import SubpartitionIndex
    from headgate.sync import Lock, Wake

__all__ = ["PipelinedSubpartition", "SubpartitionListener", "SubpartitionState", "SubpartitionStatistics"]


class SubpartitionListener(Protocol):
    """The reader of a subpartition, as far as the subpartition knows it."""

    def available_locked(self) -> Wake:
        """There is something to poll, or the subpartition has failed."""
        ...


class SubpartitionState(Enum):
    """Where a subpartition is in its life.

    >>> from headgate.ids import SubpartitionIndex
    >>> from headgate.sync import ThreadSync
    >>> queue = PipelinedSubpartition(SubpartitionIndex(0), ThreadSync().lock, "partition etl#1/v0.0[0]")
    >>> queue.finish_locked(); queue.state
    <SubpartitionState.FINISHED: 'finished'>
    """

    WRITING = "writing"
    FINISHED = "finished"  # the end is in the queue
    RELEASED = "released"  # nothing is kept, nothing more is taken


@dataclass(frozen=True, slots=True)
class SubpartitionStatistics:
    """A subpartition at one moment.

    >>> from headgate.ids import SubpartitionIndex
    >>> from headgate.sync import ThreadSync
    >>> queue = PipelinedSubpartition(SubpartitionIndex(0), ThreadSync().lock, "partition etl#1/v0.0[0]")
    >>> queue.statistics_locked()
    SubpartitionStatistics(state=<SubpartitionState.WRITING: 'writing'>, queued=0, backlog=0)
    """

    state: SubpartitionState
    queued: int
    backlog: int


_RELEASED = SubpartitionState.RELEASED
_WRITING = SubpartitionState.WRITING
_DATA = Kind.DATA


class PipelinedSubpartition:
    """One reader's share of a partition.

    >>> from headgate.buffer import Buffer, BufferReader
    >>> from headgate.ids import SubpartitionIndex
    >>> from headgate.sync import ThreadSync
    >>> queue = PipelinedSubpartition(SubpartitionIndex(0), ThreadSync().lock, "partition etl#1/v0.0[0]")
    >>> queue.add_locked(BufferReader(Buffer.event(b"end")))
    >>> queue.poll_locked()[0].memory.tobytes()
    b'end'
    """

    __slots__ = (
        "_cause",
        "_flushed",
        "_listener",
        "_lock",
        "_queue",
        "_where",
        "announced",
        "backlog",
        "index",
        "state",
    )

    def __init__(self, index: SubpartitionIndex, lock: Lock, where: str) -> None:
        self.index = index
        self.state = SubpartitionState.WRITING
        self.backlog = 0
        self._lock = lock
        self._where = f"{where}, subpartition {index}"
        self._queue: deque[BufferReader] = deque()
        self._flushed = False  # the last, unfinished buffer may be read
        self.announced = False
        self._listener: SubpartitionListener | None = None
        self._cause: BaseException | None = None

    # The writer's side.

    def add_locked(self, reader: BufferReader) -> Wake:
        """A buffer behind the others, which must all be finished; dropped if nobody will read it."""
        if self.state is not _WRITING:
            return self._refuse_locked(reader)
        queue = self._queue
        queue.append(reader)
        if reader.buffer.kind is not _DATA:
            return self._press_locked()
        self.backlog += 1
        if self.announced or self._listener is None:
            return None
        if len(queue) == 1:  # mostly it is empty yet
            return self._press_locked()
        self.announced = True
        return self._listener.available_locked()

    def _refuse_locked(self, reader: BufferReader) -> Wake:
        if self.state is SubpartitionState.FINISHED:
            raise LocalProtocolError(f"{self._where}: a buffer is added after the end")
        return reader.release_locked()

    def flush_locked(self) -> Wake:
        """Let the reader have what is in the unfinished buffer too."""
        assert self._lock.locked(), "the caller holds the exchange lock"
        if self._queue:
            self._flushed = True
        return self._press_locked()

    def finish_locked(self) -> None:
        """The end-of-partition event is in the queue."""
        if self.state is SubpartitionState.WRITING:
            self.state = SubpartitionState.FINISHED

    def announce_locked(self) -> Wake:
        """Tell the reader, if there is something to read that it does not know of."""
        return None if self.announced else self._press_locked()

    def _press_locked(self) -> Wake:
        """As `announce_locked`, but the reader is told again of what it knows: it must not wait for more any longer.

        And each time: the reader may have no credit for it, and whoever flushes can look whether some has come.
        """
        if self._listener is None or not self.available_locked():
            return None
        self.announced = True
        return self._listener.available_locked()

    # The reader's side.

    def attach_locked(self, listener: SubpartitionListener) -> Wake:
        """The one reader introduces itself; it is told at once if there is data."""
        if self._listener is not None:
            raise LocalProtocolError(f"{self._where} already has its reader")
        if self.state is SubpartitionState.RELEASED:
            raise self._gone()
        self._listener = listener
        return self.announce_locked()

    def available_locked(self) -> bool:
        """Whether a poll may give something: a finished buffer, or a flushed unfinished one."""
        queue = self._queue
        if len(queue) > 1:
            return True
        if not queue:
            return self._cause is not None
        last = queue[0]
        marker = last.buffer.marker
        return marker < 0 or (self._flushed and marker > last.position)

    @property
    def readable(self) -> int:
        """Data buffers that a reader could have; without the lock, it was true a moment ago."""
        return self.backlog if self.announced else 0

    @property
    def next_is_data(self) -> bool:
        """Whether a poll may give data: not an event, an error or nothing, which need no buffer at the reader."""
        for reader in self._queue:
            marker = reader.buffer.marker
            if reader.buffer.kind is not _DATA:
                return False
            if marker >= 0 or ~marker > reader.position:
                return True  # else it was read up to its end before it was finished, and a poll passes over it
        return False

    @property
    def pressing(self) -> bool:
        """Whether what is there should not wait for more: it was flushed, or ends in an event."""
        return self._flushed or not self._queue or self._queue[-1].buffer.kind is not _DATA

    @property
    def drained(self) -> bool:
        """Whether the end has been polled."""
        return self.state is SubpartitionState.FINISHED and not self._queue

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next bytes, to be released by the caller (None if there are none), and whom to wake.

        Raises:
            ProducerFailed: the writer's task failed.
            Cancelled: the partition was released.
        """
        queue = self._queue
        queued = len(queue)
        if queued > 1 and (reader := queue[0]).position == 0 and (marker := (buffer := reader.buffer).marker) < -1:
            # The usual case under load: a finished buffer, not empty, that nobody has looked at, and more behind it.
            queue.popleft()
            if buffer.kind is _DATA:
                self.backlog -= 1
            self.announced = queued > 2 or queue[0].buffer.marker < 0 or (self._flushed and self.available_locked())
            memory, size = buffer.memory, ~marker
            return BufferSlice(buffer, memory if size == buffer.capacity else memory[:size], 0), None
        if self.state is _RELEASED:
            raise self._gone()
        taken, wake = None, None
        while queue and taken is None:
            reader = queue[0]
            finished = reader.buffer.marker < 0  # before taking: what is taken then is all there will be
            taken = reader.take_locked()
            if not finished:
                self._flushed = False
                break
            del queue[0]
            if reader.buffer.kind is _DATA:
                self.backlog -= 1
            if taken is None:
                wake = together(wake, reader.release_locked())  # it was read up to its end before it was finished
        self.announced = len(queue) > 1 or self.available_locked()
        return taken, wake

    def release_locked(self, cause: BaseException | None = None) -> Wake:
        """Drop everything; a reader that comes again learns the cause. May be repeated."""
        assert self._lock.locked(), "the caller holds the exchange lock"
        if self.state is SubpartitionState.RELEASED:
            return None
        read_to_the_end = self.state is SubpartitionState.FINISHED and not self._queue
        self.state = SubpartitionState.RELEASED
        self._cause = cause if cause is not None else Cancelled(f"{self._where} was released")
        wakes = [reader.release_locked() for reader in self._queue]
        self._queue.clear()
        self.backlog = 0
        listener, self._listener = self._listener, None
        if listener is not None and not read_to_the_end:  # also one that knows of data, but has no credit for it
            wakes.append(listener.available_locked())
        return together(*wakes)

    def statistics_locked(self) -> SubpartitionStatistics:
        """The queue at this moment."""
        return SubpartitionStatistics(self.state, len(self._queue), self.backlog)

    def _gone(self) -> HeadgateError:
        if isinstance(self._cause, Cancelled):
            return Cancelled(str(self._cause))
        return ProducerFailed(f"{self._where}: its producer failed: {self._cause}", cause=self._cause)
