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
    from headgate.record.element import Event
    from headgate.sync import Lock, Wake

__all__ = ["Buffer", "BufferOwner", "BufferReader", "BufferSlice", "Kind"]


class Kind(Enum):
    """What a buffer carries.

    >>> Buffer.event(b"end").kind
    <Kind.EVENT: 'event'>
    """

    DATA = "data"  # pooled; uses a credit; part of the backlog
    EVENT = "event"  # its own bytes; needs no credit; freed, not pooled


_DATA = Kind.DATA  # looking up an enum member costs more than the comparison


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
        "capacity",
        "channel",
        "event_read",
        "kind",
        "marker",
        "memory",
        "owner",
        "position",
        "reader",
        "references",
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
        self.position = 0  # where the next byte goes
        self.references = 0
        if segment is not None:
            self.reader = BufferReader(self)  # for the first subpartition it goes to; events have none
        self.references = 1  # the writer's
        self.event_read: Event | None = None  # what an event's bytes say, once a gate has decoded them

    @classmethod
    def over(cls, segment: Segment, owner: BufferOwner, channel: int) -> Buffer:
        """An empty buffer with one reader, in a segment that nobody uses.

        Its objects belong to the segment and are used again with it: making them anew would be a third of the
        cost of handing a buffer over.
        """
        buffer = segment.buffer
        if buffer is None:
            segment.buffer = buffer = cls(segment.memory, segment=segment)
            buffer.kind = _DATA
        buffer.owner = owner
        buffer.channel = channel
        buffer.marker = buffer.position = 0
        buffer.references = 2  # the writer and the reader
        buffer.reader.position = 0
        return buffer

    @classmethod
    def awaiting(cls, segment: Segment, owner: BufferOwner) -> Buffer:
        """A buffer for bytes that come over the network: they are put into `memory`, then it is `received`."""
        buffer = segment.buffer
        return buffer if buffer is not None and buffer.owner is owner else cls.over(segment, owner, -1)

    def received(self, start: int, end: int) -> BufferSlice:
        """Finish it around the bytes that have come: they are the one slice that there will be."""
        self.position = end
        self.marker = ~end
        self.references = 1
        return BufferSlice(self, self.memory if end - start == self.capacity else self.memory[start:end], start)

    def give_back_locked(self) -> Wake:
        """Nothing will come into it after all."""
        self.references = 1
        return self.release_locked()

    @classmethod
    def event(cls, data: bytes) -> Buffer:
        """A finished buffer around the bytes of an event."""
        buffer = cls(memoryview(data))
        buffer.marker = ~len(data)
        return buffer

    def __repr__(self) -> str:
        where = f"segment {self.segment.index}" if self.segment is not None else "event"
        return f"<Buffer {where}, {self.size} of {self.capacity} bytes, {self.references} references>"

    # The writer's side: no lock.

    def append(self, data: memoryview | bytes | bytearray, start: int = 0) -> int:
        """Copy as much of `data[start:]` as fits and publish it; how many bytes that was."""
        assert self.marker >= 0, "a finished buffer does not grow"
        position = self.position
        count = min(len(data) - start, self.capacity - position)
        end = position + count
        if start == 0 and count == len(data):
            self.memory[position:end] = data
        else:
            self.memory[position:end] = memoryview(data)[start : start + count]
        self.position = self.marker = end
        return count

    @property
    def room(self) -> int:
        """How many more bytes fit."""
        return self.capacity - self.position

    def publish(self, size: int) -> None:
        """Declare bytes that were put into `memory` directly: all up to `size` are readable."""
        assert self.position <= size <= self.capacity, "published bytes lie inside the buffer"
        self.position = self.marker = size

    def finish_locked(self) -> Wake:
        """Nothing more will be appended; drops the writer's reference."""
        if self.marker < 0:
            raise LocalProtocolError(f"{self!r} is finished twice")
        self.marker = ~self.position
        if self.references > 1:
            self.references -= 1
            return None
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
        self.references += 1

    def release_locked(self) -> Wake:
        """One user less; the last one gives the segment back to its owner."""
        owner = self.owner
        if owner is None:
            return None  # an event is not counted: the interpreter frees it
        references = self.references - 1
        if references < 0:
            raise InvariantViolated(f"{self!r} was released more often than it was retained")
        self.references = references
        if references:
            return None
        assert self.segment is not None, "what has an owner has a segment"
        return owner.recycle_locked(self.segment, self.channel)


class BufferReader:
    """One reader's place in a buffer. It has a reference of its own, which passes to the last slice.

    >>> buffer = Buffer(memoryview(bytearray(16)))
    >>> reader = BufferReader(buffer)
    >>> buffer.append(b"to be "), reader.take_locked().memory.tobytes()
    (6, b'to be ')
    >>> buffer.append(b"or not"), reader.take_locked().memory.tobytes()
    (6, b'or not')
    """

    __slots__ = ("buffer", "position")

    def __init__(self, buffer: Buffer) -> None:
        buffer.references += 1
        self.buffer = buffer
        self.position = 0

    def take_locked(self) -> BufferSlice | None:
        """What was published since the last call; None if nothing was.

        Once the buffer is finished this is the last call that may return anything, and the reader's
        reference goes with what it returns. If it returns nothing, the reference is the caller's to drop.
        """
        buffer = self.buffer
        marker = buffer.marker
        end = marker if marker >= 0 else ~marker
        start = self.position
        if end == start and buffer.kind is _DATA:
            return None
        self.position = end
        if marker >= 0:
            buffer.references += 1
        return BufferSlice(buffer, buffer.memory if end - start == buffer.capacity else buffer.memory[start:end], start)

    def release_locked(self) -> Wake:
        """Drop the reader's own reference without reading on."""
        return self.buffer.release_locked()


class BufferSlice:
    """Bytes handed to a reader, to be released exactly once.

    `offset` is where the slice begins in its buffer: a record keeps its alignment across the exchange. A gate
    adds the number of the channel it came from.

    >>> taken = BufferReader(Buffer.event(b"end")).take_locked()
    >>> taken.memory.tobytes(), taken.offset
    (b'end', 0)
    >>> taken.release(); taken.release()
    Traceback (most recent call last):
    headgate.errors.LocalProtocolError: a slice of <Buffer event, 3 of 3 bytes, ...> is released twice
    """

    __slots__ = ("buffer", "channel", "memory", "offset", "released")

    def __init__(self, buffer: Buffer, memory: memoryview, offset: int) -> None:
        self.buffer = buffer
        self.memory = memory
        self.offset = offset
        self.released = False
        self.channel = -1

    @property
    def event(self) -> Event | None:
        """The event, if it is one and came through a gate."""
        return self.buffer.event_read

    @property
    def kind(self) -> Kind:
        """Data or event."""
        return self.buffer.kind

    def release(self) -> None:
        """Give the memory back; it must not be touched afterwards."""
        owner = self.buffer.owner
        if owner is None:
            self.release_locked()  # events belong to nobody: there is nothing to guard
            return
        owner.lock.acquire()
        try:
            wake = self.release_locked()
        finally:
            owner.lock.release()
        if wake is not None:
            wake()

    def release_locked(self) -> Wake:
        """As `release`, for callers who hold the lock already."""
        buffer = self.buffer
        if self.released:
            raise LocalProtocolError(f"a slice of {buffer!r} is released twice")
        self.released = True
        owner, segment = buffer.owner, buffer.segment
        if buffer.references == 1 and owner is not None and segment is not None:  # as `Buffer.release_locked` ends
            buffer.references = 0
            return owner.recycle_locked(segment, buffer.channel)
        return buffer.release_locked()

    def retain(self) -> BufferSlice:
        """A second handle on the same bytes, to be released by its own."""
        owner = self.buffer.owner
        if owner is None:
            return self._share_locked()
        with owner.lock:
            return self._share_locked()

    def _share_locked(self) -> BufferSlice:
        if self.released:
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
            if self.released:
                raise LocalProtocolError(f"a slice of {self.buffer!r} is lent after its release")
            whole, wake = owner.lend_locked(self.buffer)
        if wake is not None:
            wake()
        return None if whole is None else whole[self.offset : self.offset + len(self.memory)]
