"""A subpartition in memory: the queue of buffers between a writer and one reader.

The writer's thread adds and flushes, the reader (a gate's task thread, or the network thread) polls, both under the
exchange lock. The reader is notified only when it may have stopped polling: of the first finished buffer, of a flush
with data, of the end, and when the backlog has grown to a number that it has set; not of each buffer.

Invariants: only the last buffer may be unfinished; the backlog is the number of data buffers in the queue; `notified`
is True from the notification of the reader until a poll leaves nothing to read.
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
    """The reader of a subpartition."""

    def available_locked(self) -> Wake:
        """Poll the subpartition soon: it has data, or has failed."""
        ...


class SubpartitionState(Enum):
    """The states of a subpartition, in their order."""

    WRITING = "writing"
    FINISHED = "finished"  # the end is in the queue
    RELEASED = "released"  # the queue is empty and stays empty


@dataclass(frozen=True, slots=True)
class SubpartitionStatistics:
    """A snapshot of a subpartition."""

    state: SubpartitionState
    queued: int
    backlog: int


_RELEASED = SubpartitionState.RELEASED
_WRITING = SubpartitionState.WRITING
_DATA = Kind.DATA


class PipelinedSubpartition:
    """The part of a partition that one reader polls.

    >>> from headgate.buffer import Buffer, BufferReader
    >>> from headgate.ids import SubpartitionIndex
    >>> from headgate.sync import ThreadSync
    >>> lock = ThreadSync().lock
    >>> queue = PipelinedSubpartition(SubpartitionIndex(0), lock, "partition etl#1/v0.0[0]")
    >>> with lock:
    ...     queue.add_locked(BufferReader(Buffer.event(b"end")))
    ...     queue.poll_locked()[0].memory.tobytes()
    b'end'
    """

    __slots__ = (
        "_cause",
        "_flushed",
        "_listener",
        "_lock",
        "_notify_at",
        "_queue",
        "_where",
        "backlog",
        "index",
        "notified",
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
        self.notified = False
        self._notify_at = 0  # the backlog at which the reader is notified again
        self._listener: SubpartitionListener | None = None
        self._cause: BaseException | None = None

    # Called by the writer.

    def add_locked(self, reader: BufferReader) -> Wake:
        """Add a buffer behind the others, which must all be finished; it is released if the subpartition is."""
        if self.state is not _WRITING:
            return self._refuse_locked(reader)
        queue = self._queue
        queue.append(reader)
        if reader.buffer.kind is not _DATA:
            return self._notify_locked()
        self.backlog += 1
        if self._listener is None or (self.notified and self.backlog != self._notify_at):
            return None
        if self.notified:
            return self._listener.available_locked()
        if len(queue) == 1:  # mostly it has no data yet
            return self._notify_locked()
        self.notified = True
        return self._listener.available_locked()

    def _refuse_locked(self, reader: BufferReader) -> Wake:
        if self.state is SubpartitionState.FINISHED:
            raise LocalProtocolError(f"{self._where}: a buffer is added after the end")
        return reader.release_locked()

    def flush_locked(self) -> Wake:
        """Let the reader poll the data of the unfinished buffer too."""
        assert self._lock.locked(), "the caller holds the exchange lock"
        if self._queue:
            self._flushed = True
        return self._notify_locked()

    def finish_locked(self) -> None:
        """Note that the end-of-partition event is in the queue."""
        if self.state is SubpartitionState.WRITING:
            self.state = SubpartitionState.FINISHED

    def notify_locked(self) -> Wake:
        """Notify the reader if there is something to poll and it was not notified."""
        return None if self.notified else self._notify_locked()

    def _notify_locked(self) -> Wake:
        """Notify the reader, if there is something to poll, also a second time: it must not wait for more any longer.

        A stream without credit uses each of these calls to poll the network: credit may have arrived.
        """
        if self._listener is None or not self.available_locked():
            return None
        self.notified = True
        return self._listener.available_locked()

    # Called by the reader.

    def attach_locked(self, listener: SubpartitionListener) -> Wake:
        """Set the one reader, and notify it if there is data."""
        if self._listener is not None:
            raise LocalProtocolError(f"{self._where} already has its reader")
        if self.state is SubpartitionState.RELEASED:
            raise self._gone()
        self._listener = listener
        return self.notify_locked()

    def available_locked(self) -> bool:
        """Return True if a poll may return something: a finished buffer, or a flushed unfinished one."""
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
        """The number of data buffers to poll; read without the lock, so it may be out of date by one change."""
        return self.backlog if self.notified else 0

    @property
    def next_is_data(self) -> bool:
        """True if a poll may return data; False for an event, an error or nothing, which need no credit."""
        for reader in self._queue:
            marker = reader.buffer.marker
            if reader.buffer.kind is not _DATA:
                return False
            if marker >= 0 or ~marker > reader.position:
                return True  # else it was read to its end before it was finished, and a poll skips it
        return False

    @property
    def urgent(self) -> bool:
        """True if the data must not wait for more: it was flushed, or ends with an event."""
        return self._flushed or not self._queue or self._queue[-1].buffer.kind is not _DATA

    @property
    def drained(self) -> bool:
        """True once the end was polled."""
        return self.state is SubpartitionState.FINISHED and not self._queue

    def notify_at_backlog_locked(self, backlog: int) -> None:
        """Call the reader's `available_locked` when the backlog grows to this number, although it is notified.

        A stream without credit polls nothing, so no notification would follow the first one.
        """
        self._notify_at = backlog

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return the next bytes, which the caller releases, or None; and a wake-up to perform after the lock.

        Raises:
            ProducerFailed: the writer's task failed.
            Cancelled: the partition was released.
        """
        queue = self._queue
        queued = len(queue)
        if queued > 1 and (reader := queue[0]).position == 0 and (marker := (buffer := reader.buffer).marker) < -1:
            # Inlined, the common case under load: a finished unread buffer, not empty, and more behind it.
            queue.popleft()
            if buffer.kind is _DATA:
                self.backlog -= 1
            self.notified = queued > 2 or queue[0].buffer.marker < 0 or (self._flushed and self.available_locked())
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
                wake = together(wake, reader.release_locked())  # it was read to its end before it was finished
        self.notified = len(queue) > 1 or self.available_locked()
        return taken, wake

    def release_locked(self, cause: BaseException | None = None) -> Wake:
        """Release all buffers. A poll raises the cause from then on. Idempotent."""
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
        if listener is not None and not read_to_the_end:  # also one that was notified: it may have no credit
            wakes.append(listener.available_locked())
        return together(*wakes)

    def statistics_locked(self) -> SubpartitionStatistics:
        """Return a snapshot of the queue."""
        return SubpartitionStatistics(self.state, len(self._queue), self.backlog)

    def _gone(self) -> HeadgateError:
        if isinstance(self._cause, Cancelled):
            return Cancelled(str(self._cause))
        return ProducerFailed(f"{self._where}: its producer failed: {self._cause}", cause=self._cause)
