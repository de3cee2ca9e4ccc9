"""One buffer between one writer and its readers.

The writer appends to a `Buffer` without a lock and publishes how far it got in one int, the marker. Each
`BufferReader` (one per subpartition: several when broadcast) takes what was published since its last look, as
a `BufferSlice` of the same memory: nothing is copied. References are counted under the exchange lock; the
last release gives the segment back to its owner.

Invariants: only the writer moves the marker, and only upwards; a finished buffer's marker never moves again;
references = 1 while the writer has not finished + readers not exhausted + slices not released.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headgate.errors import InvariantViolated, LocalProtocolError

if TYPE_CHECKING:
    from headgate.buffer.segment import Segment
    from headgate.sync import Lock, Wake

__all__ = ["Buffer", "BufferOwner", "BufferReader", "BufferSlice", "Kind"]


class Kind(Enum):
    """What a buffer carries."""

    DATA = "data"  # pooled; uses a credit; part of the backlog
    EVENT = "event"  # its own bytes; needs no credit; freed, not pooled


class BufferOwner(Protocol):
    """Whoever lent the segment and wants it back: a local pool."""

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        ...

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:
        """Take a segment back; called exactly once per buffer."""
        ...

    def lend_locked(self, buffer: Buffer) -> tuple[memoryview | None, Wake]:
        """The segment as memory that may outlive the buffer's release, if the pool can spare it."""
        ...


class Buffer:
    """A segment in use, or the bytes of an event; the writer's side.

    >>> event = Buffer.event(b"end")
    >>> BufferReader(event).take_locked().memory.tobytes()
    b'end'
    """

    __slots__ = (
        "_position",
        "_references",
        "capacity",
        "channel",
        "kind",
        "marker",
        "memory",
        "owner",
        "segment",
    )

    def __init__(
        self,
        memory: memoryview,
        *,
        segment: Segment | None = None,
        owner: BufferOwner | None = None,
        channel: int = 0,
    ) -> None:
        self.memory = memory
        self.capacity = len(memory)
        self.segment = segment
        self.owner = owner
        self.channel = channel
        self.kind = Kind.EVENT if owner is None else Kind.DATA
        # What readers may see: bytes written so far, or ~bytes once finished. One int, so that a reader
        # sees position and end together without a lock.
        self.marker = 0
        self._position = 0
        self._references = 1

    @classmethod
    def event(cls, data: bytes) -> Buffer:
        """A finished buffer around the bytes of an event."""
        buffer = cls(memoryview(data))
        buffer.marker = ~len(data)
        return buffer

    def __repr__(self) -> str:
        where = f"segment {self.segment.index}" if self.segment is not None else "event"
        return f"<Buffer {where}, {self.size} of {self.capacity} bytes, {self._references} references>"

    # The writer's side: no lock.

    def append(self, data: memoryview | bytes | bytearray, start: int = 0) -> int:
        """Copy as much of `data[start:]` as fits and publish it; how many bytes that was."""
        position = self._position
        count = min(len(data) - start, self.capacity - position)
        end = position + count
        if start == 0 and count == len(data):
            self.memory[position:end] = data
        else:
            self.memory[position:end] = memoryview(data)[start : start + count]
        self._position = self.marker = end
        return count

    @property
    def room(self) -> int:
        """How many more bytes fit."""
        return self.capacity - self._position

    @property
    def position(self) -> int:
        """Where the next byte goes."""
        return self._position

    def publish(self, size: int) -> None:
        """Declare bytes that were put into `memory` directly: all up to `size` are readable."""
        assert self._position <= size <= self.capacity, "published bytes lie inside the buffer"
        self._position = self.marker = size

    def finish_locked(self) -> Wake:
        """Nothing more will be appended; drops the writer's reference."""
        if self.marker < 0:
            raise LocalProtocolError(f"{self!r} is finished twice")
        self.marker = ~self._position
        return self.release_locked()

    # Everybody's side.

    @property
    def size(self) -> int:
        """Bytes published so far."""
        marker = self.marker
        return marker if marker >= 0 else ~marker

    @property
    def finished(self) -> bool:
        """Whether the writer is done with it."""
        return self.marker < 0

    def retain_locked(self) -> None:
        """One more user of the memory."""
        self._references += 1

    def release_locked(self) -> Wake:
        """One user less; the last one gives the segment back to its owner."""
        owner, segment = self.owner, self.segment
        if owner is None or segment is None:
            return None  # an event is not counted: the interpreter frees it
        self._references -= 1
        if self._references > 0:
            return None
        if self._references < 0:
            self._references = 0
            raise InvariantViolated(f"{self!r} was released more often than it was retained")
        return owner.recycle_locked(segment, self.channel)


class BufferReader:
    """One reader's place in a buffer. Made with a reference of its own, which passes to the last slice."""

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: Buffer) -> None:
        buffer.retain_locked()
        self.buffer = buffer
        self.position = 0

    def take_locked(self) -> BufferSlice | None:
        """What was published since the last call; None if nothing was.

        Once the buffer is finished this is the last call that may return anything, and the reader's
        reference goes with what it returns (or is dropped by `exhausted_locked`).
        """
        buffer = self.buffer
        marker = buffer.marker
        end = marker if marker >= 0 else ~marker
        start = self.position
        if end == start and buffer.kind is Kind.DATA:
            return None
        self.position = end
        if marker >= 0:
            buffer.retain_locked()
        memory = buffer.memory if end - start == buffer.capacity else buffer.memory[start:end]
        return BufferSlice(buffer, memory, start)

    def release_locked(self) -> Wake:
        """Drop the reader's own reference without reading on."""
        return self.buffer.release_locked()


class BufferSlice:
    """Bytes handed to a reader, to be released exactly once.

    `offset` is where the slice begins in its buffer: a record keeps its alignment across the exchange.
    """

    __slots__ = ("_released", "buffer", "memory", "offset")

    def __init__(self, buffer: Buffer, memory: memoryview, offset: int) -> None:
        self.buffer = buffer
        self.memory = memory
        self.offset = offset
        self._released = False

    @property
    def kind(self) -> Kind:
        """Data or event."""
        return self.buffer.kind

    def release(self) -> None:
        """Give the memory back; must not be touched afterwards."""
        owner = self.buffer.owner
        if owner is None:
            self.release_locked()  # events belong to nobody: there is nothing to guard
            return
        with owner.lock:
            wake = self.release_locked()
        if wake is not None:
            wake()

    def release_locked(self) -> Wake:
        """As `release`, for callers who hold the lock already."""
        if self._released:
            raise LocalProtocolError(f"a slice of {self.buffer!r} is released twice")
        self._released = True
        return self.buffer.release_locked()

    def retain(self) -> BufferSlice:
        """A second handle on the same bytes, to be released by its own."""
        owner = self.buffer.owner
        if owner is None:
            return self._share_locked()
        with owner.lock:
            return self._share_locked()

    def _share_locked(self) -> BufferSlice:
        if self._released:
            raise LocalProtocolError(f"a slice of {self.buffer!r} is retained after its release")
        self.buffer.retain_locked()
        return BufferSlice(self.buffer, self.memory, self.offset)

    def lend(self) -> memoryview | None:
        """The same bytes as memory that may outlive this slice's release, or None if it must be copied.

        The segment returns to its pool when the last view, array or Arrow buffer made from it is gone.
        """
        owner = self.buffer.owner
        if owner is None:
            return None
        with owner.lock:
            whole, wake = owner.lend_locked(self.buffer)
        if wake is not None:
            wake()
        return None if whole is None else whole[self.offset : self.offset + len(self.memory)]
