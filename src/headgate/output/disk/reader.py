"""BlockingReader: one reader of one subpartition on disk, which a gate or a connection polls.

Its partition makes it when a gate or a connection attaches; `ReadAhead` reads for it. All methods run under the
exchange lock, except `read`, which runs on the thread `headgate-disk`.

Invariants: the listener is called only if the reader had nothing to poll. After `close_locked`, a reader returns no
buffer and holds none. A file is not closed during a read.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headgate.buffer import Buffer, BufferSlice, Kind, PackedSlice
from headgate.errors import Cancelled, HeadgateError, ProducerFailed
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer import LocalPool, Segment
    from headgate.output.disk.blocking import BlockingPartition
    from headgate.output.disk.file import Chunks, PartitionFile
    from headgate.output.disk.read_ahead import ReadAhead
    from headgate.output.pipelined import SubpartitionListener
    from headgate.sync import Wake

__all__ = ["BlockingReader"]

_DATA = Kind.DATA


class BlockingReader:
    """One reader of one subpartition on disk: a `Supply`."""

    __slots__ = (
        "_chunks",
        "_count",
        "_failure",
        "_listener",
        "_next",
        "_packed",
        "_partition",
        "_read_ahead",
        "_ready",
        "_where",
        "backlog",
        "closed",
        "low",
        "notified",
        "queued",
    )

    def __init__(
        self,
        partition: BlockingPartition,
        chunks: Chunks,
        read_ahead: ReadAhead,
        listener: SubpartitionListener,
        *,
        backlog: int,
        where: str,
        packed: bool = False,
    ) -> None:
        self.backlog = backlog  # data buffers, on disk or read ahead
        self.notified = False  # the listener was called
        self.queued = False  # in the read-ahead's queue, or in a read
        self.closed = False
        self.low = 0  # with at most this number of buffers, more are read
        self._partition = partition
        self._packed = packed  # compressed buffers stay compressed
        self._chunks = chunks
        self._count = len(chunks)
        self._next = 0  # the first chunk that was not read from disk
        self._ready: deque[BufferSlice] = deque()
        self._failure: HeadgateError | None = None
        self._read_ahead = read_ahead
        self._listener: SubpartitionListener | None = listener
        self._where = where

    # Called by the gate or the connection.

    @property
    def readable(self) -> int:
        """The number of buffers to poll; without the lock, the value may be outdated."""
        return len(self._ready)

    @property
    def next_is_data(self) -> bool:
        """True if a poll returns data; an event, an error or nothing needs no credit."""
        ready = self._ready
        return bool(ready) and ready[0].buffer.kind is _DATA

    @property
    def urgent(self) -> bool:
        """True: buffers that were read ahead need not wait for more."""
        return True

    @property
    def drained(self) -> bool:
        """True if the end has been polled."""
        return self._next == self._count and not self._ready

    def notify_at_backlog_locked(self, backlog: int) -> None:
        """Do nothing: the backlog of a finished file never grows."""

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return the next buffer, which the caller releases, or None, and a call to make after the lock is released.

        Raises:
            ProducerFailed: The file could not be read.
            Cancelled: The partition was released.
        """
        ready = self._ready
        if not ready:
            if self._failure is not None:
                raise _new_error(self._failure)
            return None, None
        taken = ready.popleft()
        if taken.buffer.kind is _DATA:
            self.backlog -= 1
        if not ready:
            self.notified = self._failure is not None
        if len(ready) > self.low or self.queued or self._next == self._count or self._failure is not None:
            return taken, None
        return taken, self._read_ahead.queue_locked(self)

    # Called by the partition and the read-ahead.

    @property
    def wants(self) -> bool:
        """True if there are chunks to read from disk, and room for them."""
        exhausted = self.closed or self._next == self._count or self._failure is not None
        return not exhausted and len(self._ready) <= self.low

    def plan_locked(self, pool: LocalPool, allowance: int) -> list[Segment | None]:
        """Return segments for the next chunks, up to the allowance and the pool's; None for an event."""
        chunks, first = self._chunks, self._next
        segments: list[Segment | None] = []
        for number in range(first, min(first + allowance - len(self._ready), self._count)):
            if chunks.is_event(number):
                segments.append(None)
            elif (segment := pool.try_request_locked()) is not None:
                segments.append(segment)
            else:
                break
        return segments

    def begin_locked(self) -> PartitionFile:
        """Start a read. Return the file."""
        return self._partition.begin_reading_locked()

    def read(self, file: PartitionFile, pool: LocalPool, planned: list[Segment | None]) -> list[BufferSlice]:
        """Read the next chunks into their segments. Called without the lock."""
        chunks, first = self._chunks, self._next
        slices: list[BufferSlice] = []
        done, count = 0, len(planned)
        while done < count:
            segments: list[Segment] = []
            while done + len(segments) < count and (segment := planned[done + len(segments)]) is not None:
                segments.append(segment)
            if segments:
                memories = [segment.memory for segment in segments]
                sizes = file.read_many(chunks, first + done, memories, as_stored=self._packed)
                for number, (segment, size) in enumerate(zip(segments, sizes, strict=True), first + done):
                    read = Buffer.awaiting(segment, pool).received(0, size)
                    if self._packed and (unpacked := chunks.unpacked(number)):
                        read = PackedSlice(read.buffer, read.memory, codec=file.codec, unpacked=unpacked)
                    slices.append(read)
                done += len(segments)
            else:
                event = Buffer.event(file.read_event(chunks, first + done))
                slices.append(BufferSlice(event, event.memory, 0))
                done += 1
        return slices

    def deliver_locked(self, slices: list[BufferSlice]) -> Wake:
        """Add the read chunks; release them if the reader was closed meanwhile."""
        wake = self._partition.end_reading_locked()
        if self.closed:
            return together(wake, *[one.release_locked() for one in slices])
        self._next += len(slices)
        self._ready.extend(slices)
        return together(wake, self._notify_locked())

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Store a read error, which polls raise after the buffers that were read."""
        wake = together(self._partition.end_reading_locked(), self._partition.unreadable_locked(error))
        if self.closed:
            return wake
        self._failure = ProducerFailed(f"{self._where}: {error}", cause=error)
        return together(wake, self._notify_locked())

    def close_locked(self, cause: BaseException | None = None, *, wake_listener: bool = False) -> Wake:
        """Release all buffers; with `wake_listener`, call the listener, whose poll raises. May be called again."""
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
        self.notified = True
        if wake_listener and listener is not None and not over:
            wakes.append(listener.available_locked())
        self._read_ahead.remove_reader_locked()
        return together(*wakes)

    def _notify_locked(self) -> Wake:
        if self.notified or self._listener is None:
            return None
        self.notified = True
        return self._listener.available_locked()


def _new_error(error: HeadgateError) -> HeadgateError:
    """Return a new exception for each raise: an exception that is raised again accumulates tracebacks."""
    return ProducerFailed(str(error), cause=error.cause) if isinstance(error, ProducerFailed) else Cancelled(str(error))
