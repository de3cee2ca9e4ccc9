"""One reader's way through one subpartition on disk: what a gate or a connection polls like any other.

Made by its partition when somebody attaches; `ReadAhead` reads for it. Everything but `read` runs under the exchange
lock; that runs on the thread `headgate-disk`.

Invariants: a reader is told only when it had nothing; who has closed it gets no buffer and leaves none behind; a file
that is being read is not closed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from headgate.buffer import Buffer, BufferSlice, Kind
from headgate.errors import Cancelled, HeadgateError, ProducerFailed
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer import LocalPool, Segment
    from headgate.output.partition_file import Chunks, PartitionFile
    from headgate.output.pipelined import SubpartitionListener
    from headgate.output.read_ahead import ReadAhead
    from headgate.sync import Wake

__all__ = ["BlockingReader"]

_DATA = Kind.DATA


class FileInUse(Protocol):
    """The partition, as far as its readers know it."""

    def begin_reading_locked(self) -> PartitionFile:
        """The file, which stays open until `end_reading_locked`."""
        ...

    def end_reading_locked(self) -> Wake:
        """Whoever waits to close it may."""
        ...

    def unreadable_locked(self, error: HeadgateError) -> Wake:
        """The file is no good: whoever could make it anew should know."""
        ...


class BlockingReader:
    """One reader of one subpartition on disk: what `Polled` and `Supply` ask for. Made by its partition.

    >>> BlockingReader.poll_locked.__name__
    'poll_locked'
    """

    __slots__ = (
        "_chunks",
        "_count",
        "_failure",
        "_listener",
        "_next",
        "_partition",
        "_read_ahead",
        "_ready",
        "_where",
        "announced",
        "backlog",
        "closed",
        "low",
        "queued",
    )

    def __init__(
        self,
        partition: FileInUse,
        chunks: Chunks,
        read_ahead: ReadAhead,
        listener: SubpartitionListener,
        *,
        backlog: int,
        where: str,
    ) -> None:
        self.backlog = backlog  # data buffers, on disk or read ahead
        self.announced = False  # there is something to poll
        self.queued = False  # its turn will come, or it is being read
        self.closed = False
        self.low = 0  # with so few at hand it wants more
        self._partition = partition
        self._chunks = chunks
        self._count = len(chunks)
        self._next = 0  # the first that was not read from disk
        self._ready: deque[BufferSlice] = deque()
        self._failure: HeadgateError | None = None
        self._read_ahead = read_ahead
        self._listener: SubpartitionListener | None = listener
        self._where = where

    # Whoever reads.

    @property
    def readable(self) -> int:
        """Buffers at hand; without the lock, it was true a moment ago."""
        return len(self._ready)

    @property
    def next_is_data(self) -> bool:
        """Whether a poll gives data: not an event, an error or nothing, which need no buffer at the reader."""
        ready = self._ready
        return bool(ready) and ready[0].buffer.kind is _DATA

    @property
    def pressing(self) -> bool:
        """Whether what is there should not wait for more: what was read ahead came at once."""
        return True

    @property
    def drained(self) -> bool:
        """Whether the end has been polled."""
        return self._next == self._count and not self._ready

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next buffer at hand, to be released by the caller, and whom to wake.

        Raises:
            ProducerFailed: the file could not be read.
            Cancelled: the partition was released.
        """
        ready = self._ready
        if not ready:
            if self._failure is not None:
                raise _again(self._failure)
            return None, None
        taken = ready.popleft()
        if taken.buffer.kind is _DATA:
            self.backlog -= 1
        if not ready:
            self.announced = self._failure is not None
        if len(ready) > self.low or self.queued or self._next == self._count or self._failure is not None:
            return taken, None
        return taken, self._read_ahead.want_locked(self)

    # The partition and the read-ahead.

    @property
    def wants(self) -> bool:
        """Whether there is something to read from disk, and room for it."""
        exhausted = self.closed or self._next == self._count or self._failure is not None
        return not exhausted and len(self._ready) <= self.low

    def plan_locked(self, pool: LocalPool, allowance: int) -> list[Segment | None]:
        """Places for the chunks that come next, as many as may be: a segment, or None for an event."""
        chunks, first = self._chunks, self._next
        places: list[Segment | None] = []
        for number in range(first, min(first + allowance - len(self._ready), self._count)):
            if chunks.is_event(number):
                places.append(None)
            elif (segment := pool.try_request_locked()) is not None:
                places.append(segment)
            else:
                break
        return places

    def begin_locked(self) -> PartitionFile:
        """It is being read from now on."""
        return self._partition.begin_reading_locked()

    def read(self, file: PartitionFile, pool: LocalPool, places: list[Segment | None]) -> list[BufferSlice]:
        """Read the next chunks into their places: the only part outside the lock."""
        chunks, first = self._chunks, self._next
        slices: list[BufferSlice] = []
        done, count = 0, len(places)
        while done < count:
            segments: list[Segment] = []
            while done + len(segments) < count and (segment := places[done + len(segments)]) is not None:
                segments.append(segment)
            if segments:
                sizes = file.read_many(chunks, first + done, [segment.memory for segment in segments])
                for segment, size in zip(segments, sizes, strict=True):
                    slices.append(Buffer.awaiting(segment, pool).received(0, size))
                done += len(segments)
            else:
                event = Buffer.event(file.read_event(chunks, first + done))
                slices.append(BufferSlice(event, event.memory, 0))
                done += 1
        return slices

    def deliver_locked(self, slices: list[BufferSlice]) -> Wake:
        """What was read, unless nobody wants it any more."""
        wake = self._partition.end_reading_locked()
        if self.closed:
            return together(wake, *[one.release_locked() for one in slices])
        self._next += len(slices)
        self._ready.extend(slices)
        return together(wake, self._tell_locked())

    def fail_locked(self, error: HeadgateError) -> Wake:
        """It cannot be read: whoever reads learns that after what is at hand."""
        wake = together(self._partition.end_reading_locked(), self._partition.unreadable_locked(error))
        if self.closed:
            return wake
        self._failure = ProducerFailed(f"{self._where}: {error}", cause=error)
        return together(wake, self._tell_locked())

    def close_locked(self, cause: BaseException | None = None, *, tell: bool = False) -> Wake:
        """Drop everything; with `tell`, whoever reads learns the cause. May be repeated."""
        if self.closed:
            return None
        over = self.drained
        self.closed = True
        if cause is None or isinstance(cause, Cancelled):
            self._failure = Cancelled(f"{self._where} was released" + (f": {cause}" if cause is not None else ""))
        else:
            self._failure = ProducerFailed(f"{self._where}: its producer failed: {cause}", cause=cause)
        wakes = [one.release_locked() for one in self._ready]
        self._ready.clear()
        self.backlog = 0
        listener, self._listener = self._listener, None
        self.announced = True
        if tell and listener is not None and not over:
            wakes.append(listener.available_locked())
        self._read_ahead.left_locked()
        return together(*wakes)

    def _tell_locked(self) -> Wake:
        if self.announced or self._listener is None:
            return None
        self.announced = True
        return self._listener.available_locked()


def _again(error: HeadgateError) -> HeadgateError:
    """A new exception each time: one that is raised twice collects tracebacks."""
    return ProducerFailed(str(error), cause=error.cause) if isinstance(error, ProducerFailed) else Cancelled(str(error))
