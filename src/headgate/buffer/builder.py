"""A buffer: a segment, or the bytes of an event, between one writer and its readers.

Facts. A producer's task thread fills a buffer, and one reader per subpartition (several if the buffer is broadcast)
reads it: a consumer's task thread in the same worker, or the thread that sends it. A reader may start before the
buffer is full, and a segment returns to its pool only when the writer and all readers are done with it.

Problem. A lock per appended batch would be taken once by the writer and once by each reader, mostly for nothing.

Solution. The writer appends without a lock and then stores one int, `Buffer.marker`: the number of readable bytes, or
its bitwise complement once the buffer is finished. A reader loads the int once and so sees both facts together.
`BufferReader.take_locked` returns the bytes published since the previous call as a `BufferSlice` of the same memory:
nothing is copied. Only references are counted under the exchange lock, once per buffer and reader.

Invariants: only the writer changes the marker, and the readable size never decreases; the marker of a finished buffer
never changes; references = 1 while the writer has not finished + readers not exhausted + slices not released.
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
    """The content of a buffer: records or an event."""

    DATA = "data"  # pooled memory; each buffer uses one credit and counts in the backlog
    EVENT = "event"  # memory of its own, freed by the interpreter; uses no credit


_DATA = Kind.DATA  # a module global: looking up an enum member costs more than the comparison itself


class BufferOwner(Protocol):
    """The owner of a buffer's segment, to which it returns: a `LocalPool`, or a remote channel."""

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        ...

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:
        """Take back the segment of a buffer without references. Called exactly once per use of the segment."""
        ...

    def lend_locked(self, buffer: Buffer) -> tuple[memoryview | None, Wake]:
        """Return the segment's memory as a view that may outlive the buffer, or None if the pool has none to spare."""
        ...


class Buffer:
    """A segment in use, or the bytes of an event: the writer's side.

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
        self.marker = 0  # readable bytes, or ~bytes once finished: see the module's docstring
        self.position = 0  # the offset of the next byte to append
        self.references = 0
        if segment is not None:
            self.reader = BufferReader(self)  # for the first subpartition; further ones and events make their own
        self.references = 1  # the writer's
        self.event_read: Event | None = None  # the decoded event, set by the gate that received it

    @classmethod
    def over(cls, segment: Segment, owner: BufferOwner, channel: int) -> Buffer:
        """Return an empty buffer with one reader in an unused segment.

        The buffer and its reader belong to the segment and are used again with it: allocating both objects each time
        would be a third of the cost of handing a buffer over.
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
        """Return a buffer for received bytes: the connection copies them into `memory`, then calls `received`."""
        buffer = segment.buffer
        return buffer if buffer is not None and buffer.owner is owner else cls.over(segment, owner, -1)

    def received(self, start: int, end: int) -> BufferSlice:
        """Finish the buffer around the received bytes `memory[start:end]`, and return them as its only slice."""
        self.position = end
        self.marker = ~end
        self.references = 1
        return BufferSlice(self, self.memory if end - start == self.capacity else self.memory[start:end], start)

    def give_back_locked(self) -> Wake:
        """Recycle the segment of a buffer that was reserved for received bytes and got none."""
        self.references = 1
        return self.release_locked()

    @classmethod
    def event(cls, data: bytes) -> Buffer:
        """Return a finished buffer around the bytes of an event."""
        buffer = cls(memoryview(data))
        buffer.marker = ~len(data)
        return buffer

    def __repr__(self) -> str:
        where = f"segment {self.segment.index}" if self.segment is not None else "event"
        return f"<Buffer {where}, {self.size} of {self.capacity} bytes, {self.references} references>"

    # Called by the writer, without a lock.

    def append(self, data: memoryview | bytes | bytearray, start: int = 0) -> int:
        """Copy as much of `data[start:]` as fits and publish it. Return the number of bytes copied."""
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
        """The number of bytes that still fit."""
        return self.capacity - self.position

    def publish(self, size: int) -> None:
        """Publish bytes that were written to `memory` directly: all up to `size` become readable."""
        assert self.position <= size <= self.capacity, "published bytes lie inside the buffer"
        self.position = self.marker = size

    def finish_locked(self) -> Wake:
        """Mark the buffer as finished, and drop the writer's reference."""
        if self.marker < 0:
            raise LocalProtocolError(f"{self!r} is finished twice")
        self.marker = ~self.position
        if self.references > 1:
            self.references -= 1
            return None
        return self.release_locked()

    # Called by the writer and by readers.

    @property
    def size(self) -> int:
        """The number of published bytes."""
        marker = self.marker
        return marker if marker >= 0 else ~marker

    @property
    def finished(self) -> bool:
        """True once the writer appends nothing more."""
        return self.marker < 0

    def retain_locked(self) -> None:
        """Add a reference."""
        self.references += 1

    def release_locked(self) -> Wake:
        """Drop a reference. The last one returns the segment to its owner."""
        owner = self.owner
        if owner is None:
            return None  # an event's memory is freed by the interpreter
        references = self.references - 1
        if references < 0:
            raise InvariantViolated(f"{self!r} was released more often than it was retained")
        self.references = references
        if references:
            return None
        assert self.segment is not None, "a buffer with an owner has a segment"
        return owner.recycle_locked(self.segment, self.channel)


class BufferReader:
    """The position of one reader in a buffer. The reader holds a reference, which passes to its last slice.

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
        """Return the bytes published since the last call, or None if there are none.

        If the buffer is finished, the returned slice takes over the reader's reference, and no later call may return
        anything. If None is returned for a finished buffer, the caller must release the reader.
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
        """Drop the reader's reference without reading further."""
        return self.buffer.release_locked()


class BufferSlice:
    """Bytes handed to a reader, which must release them exactly once.

    `offset` is the position of the slice in its buffer, so that a record keeps its alignment across the exchange. A
    gate sets `channel` to the number of the channel from which it polled the slice.

    >>> taken = BufferReader(Buffer.event(b"end")).take_locked()
    >>> taken.memory.tobytes(), taken.offset
    (b'end', 0)
    >>> taken.release(); taken.release()
    Traceback (most recent call last):
    headgate.errors.LocalProtocolError: a slice of <Buffer event, 3 of 3 bytes, ...> is released twice
    """

    __slots__ = ("buffer", "channel", "memory", "offset", "released")

    codec = 0
    """The codec by which the bytes are compressed; 0: uncompressed, as in every slice that a gate returns."""

    def __init__(self, buffer: Buffer, memory: memoryview, offset: int) -> None:
        self.buffer = buffer
        self.memory = memory
        self.offset = offset
        self.released = False
        self.channel = -1

    @property
    def event(self) -> Event | None:
        """The event, if the slice is one and was polled from a gate."""
        return self.buffer.event_read

    @property
    def kind(self) -> Kind:
        """Data or event."""
        return self.buffer.kind

    def release(self) -> None:
        """Return the memory; the caller must not touch it afterwards. Takes the exchange lock."""
        owner = self.buffer.owner
        if owner is None:
            self.release_locked()  # an event has no pool, so there is nothing to lock
            return
        owner.lock.acquire()
        try:
            wake = self.release_locked()
        finally:
            owner.lock.release()
        if wake is not None:
            wake()

    def release_locked(self) -> Wake:
        """Do the same as `release`, for callers that hold the lock."""
        buffer = self.buffer
        if self.released:
            raise LocalProtocolError(f"a slice of {buffer!r} is released twice")
        self.released = True
        owner, segment = buffer.owner, buffer.segment
        if buffer.references == 1 and owner is not None and segment is not None:  # inlined: the common case
            buffer.references = 0
            return owner.recycle_locked(segment, buffer.channel)
        return buffer.release_locked()

    def lend(self) -> memoryview | None:
        """Return the same bytes as memory that may outlive this slice, or None if the caller must copy them.

        The segment returns to its pool when the last view, array or Arrow buffer made from the memory is gone.
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


class PackedSlice(BufferSlice):
    """Compressed bytes, read from a file for a reader in another worker; `unpacked` is their decompressed size."""

    __slots__ = ("codec", "unpacked")

    def __init__(self, buffer: Buffer, memory: memoryview, *, codec: int, unpacked: int) -> None:
        super().__init__(buffer, memory, 0)
        self.codec = codec
        self.unpacked = unpacked
