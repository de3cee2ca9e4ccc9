"""Records that are larger than, or do not end with, a buffer.

Facts. On the wire a record is a u32 length and that many bytes. A buffer has a fixed size, and is sent as it is when it
is full, so a record continues in the next buffer wherever one ends: within its bytes or within its length. Most records
are batches and much smaller than a buffer; some are larger than memory should hold.

Problem. Copying every record out of its buffers would cost as much as decoding it; but a record in several buffers is
not contiguous, and waiting for its last buffer while holding the others would use up the channel's credit: a record
larger than all buffers of a channel would never be complete.

Solution. A record inside one buffer is returned as a view of it (`borrowed`), without a copy. Any other is gathered:
its bytes are copied out of each buffer as it arrives, so the buffer is recycled at once. They are copied into memory
of their own or, above `record.spill_threshold`, into an unnamed temporary file, which is mapped when it is complete.
Arrow needs its bytes aligned. The writer aligns them relative to the start of the segment, so gathering keeps the
record's offset modulo 16 (its phase): a record that was aligned to 8 or 16 in the segment is aligned in the copy.

`SpanningWriter` runs on the producer's task or flusher thread, `SpanningReader` on the consumer's task thread.
Invariants: a length is checked against the limit before memory or disk is allocated for it; neither class refers to a
large record after it is written or read.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headgate.errors import CorruptStream, LocalProtocolError, RecordTooLarge, SpillError

if TYPE_CHECKING:
    from headgate.record.serializer import Encoded

__all__ = ["LENGTH", "Read", "RecordLimits", "SpanningReader", "SpanningWriter", "Target", "Written"]

LENGTH = struct.Struct("<I")
"""The header of a record: the number of bytes that follow."""

_NOTHING = memoryview(b"")
_PHASES = 16  # the alignment of memory from malloc, hence the largest that gathering can keep


class Written(Enum):
    """The state after copying a record into a buffer.

    >>> from headgate.buffer import Buffer
    >>> writer = SpanningWriter(); writer.begin((b"12345678",))
    >>> writer.copy_to(Buffer(memoryview(bytearray(8))))
    <Written.RECORD_DONE_BUFFER_FULL: 'record finished, buffer full'>
    """

    BUFFER_FULL = "buffer full, record unfinished"
    RECORD_DONE_BUFFER_FULL = "record finished, buffer full"
    RECORD_DONE = "record finished, room left"


class Read(Enum):
    """The state after searching a buffer for the next record.

    >>> reader = SpanningReader(RecordLimits(), "channel 0")
    >>> reader.feed(memoryview(LENGTH.pack(2) + b"to")); reader.next()
    <Read.RECORD_LAST: 'a record was read, and this buffer is used up'>
    """

    INCOMPLETE = "the rest of the record is in a later buffer"
    RECORD_MORE = "a record was read, and there is more in this buffer"
    RECORD_LAST = "a record was read, and this buffer is used up"


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The largest size of a record, and the size above which it is gathered on disk.

    >>> RecordLimits(max_size_bytes=1000).check(1001)
    Traceback (most recent call last):
    headgate.errors.RecordTooLarge: a record or batch takes 1001 bytes; the limit is 1000 (record.max_size)
    """

    max_size_bytes: int = 1 << 30
    spill_threshold_bytes: int = 5 << 20
    spill_directory: str | None = None  # None: the system's directory for temporary files

    def check(self, size_bytes: int) -> None:
        """Raise RecordTooLarge if a record is over the limit."""
        if size_bytes > self.max_size_bytes:
            raise RecordTooLarge(
                f"a record or batch takes {size_bytes} bytes; the limit is {self.max_size_bytes} (record.max_size)"
            )


class Target(Protocol):
    """The destination of a record: a `Buffer`."""

    @property
    def room(self) -> int:
        """The number of bytes that still fit."""
        ...

    def append(self, data: bytes | bytearray | memoryview, start: int = 0, /) -> int:
        """Copy as much of `data[start:]` as fits. Return the number of bytes copied."""
        ...


class SpanningWriter:
    r"""Copies a record into as many buffers as it needs.

    >>> from headgate.buffer import Buffer
    >>> writer, first, second = SpanningWriter(), Buffer(memoryview(bytearray(6))), Buffer(memoryview(bytearray(6)))
    >>> writer.begin((LENGTH.pack(5), b"hello"))
    >>> writer.copy_to(first), writer.copy_to(second)
    (<Written.BUFFER_FULL: ...>, <Written.RECORD_DONE: ...>)
    >>> bytes(first.memory), bytes(second.memory[:3])
    (b'\x05\x00\x00\x00he', b'llo')
    """

    __slots__ = ("_at", "_piece", "_pieces")

    def __init__(self) -> None:
        self._pieces: Encoded = ()
        self._piece = 0
        self._at = 0

    def begin(self, pieces: Encoded) -> None:
        """Set the next record: its length and its bytes, in pieces. The previous record must be finished."""
        if self._pieces:
            raise LocalProtocolError("a record is begun while another is unfinished")
        self._pieces = pieces
        self._piece = self._at = 0

    @property
    def unfinished(self) -> bool:
        """True while part of a record is not in a buffer yet."""
        return bool(self._pieces)

    @property
    def begun(self) -> bool:
        """True once part of the record is in a buffer."""
        return self._piece > 0 or self._at > 0

    def copy_to(self, target: Target) -> Written:
        """Copy what fits."""
        pieces, piece, at = self._pieces, self._piece, self._at
        while piece < len(pieces):
            at += target.append(pieces[piece], at)
            if at < len(pieces[piece]):
                self._piece, self._at = piece, at
                return Written.BUFFER_FULL
            piece, at = piece + 1, 0
        self._pieces = ()  # frees a large record
        return Written.RECORD_DONE if target.room else Written.RECORD_DONE_BUFFER_FULL


class SpanningReader:
    r"""Finds the records of one channel in its buffers.

    >>> reader = SpanningReader(RecordLimits(), "channel 0")
    >>> reader.feed(memoryview(b"\x05\x00\x00\x00he"))
    >>> reader.next()
    <Read.INCOMPLETE: ...>
    >>> reader.feed(memoryview(b"llo"))
    >>> reader.next(), bytes(reader.record)
    (<Read.RECORD_LAST: ...>, b'hello')
    """

    __slots__ = (
        "_end",
        "_gather",
        "_header",
        "_limits",
        "_memory",
        "_offset",
        "_position",
        "_where",
        "borrowed",
        "record",
    )

    def __init__(self, limits: RecordLimits, where: str) -> None:
        self._limits = limits
        self._where = where  # the channel, for error texts
        self._memory = _NOTHING
        self._offset = self._position = self._end = 0
        self._header = bytearray()  # the first part of a length that continues in the next buffer
        self._gather: _Gathering | None = None
        self.record = self._memory
        """The record that `next` found. If `borrowed`, it is a part of the buffer and valid until that is released."""
        self.borrowed = False

    def feed(self, memory: memoryview, offset: int = 0) -> None:
        """Set the next buffer's bytes, once the previous are read; `offset` is their position in the segment."""
        if self._position < self._end:
            raise LocalProtocolError(
                f"{self._where}: a buffer is fed while another has {self._end - self._position} bytes"
            )
        self._memory, self._offset, self._position, self._end = memory, offset, 0, len(memory)

    def next(self) -> Read:
        """Find the next record and store it in `record`."""
        if self._gather is None:
            start = self._position
            if not self._header and self._end - start >= 4:
                (length,) = LENGTH.unpack_from(self._memory, start)
                start += 4
            else:
                maybe_length = self._take_header()
                if maybe_length is None:
                    return Read.INCOMPLETE
                length, start = maybe_length, self._position
            stop = start + length
            if stop <= self._end:
                self.record, self.borrowed = self._memory[start:stop], True
                self._position = stop
                return Read.RECORD_MORE if stop < self._end else Read.RECORD_LAST
            self._position = start
            self._gather = self._begin_gathering(length, (self._offset + start) % _PHASES)
        return self._continue_gathering(self._gather)

    def detached(self) -> memoryview:
        """Return a copy of a borrowed record, with the same phase, that outlives its buffer."""
        start = self._offset + self._position - len(self.record)
        copy = _MemoryGathering(len(self.record), start % _PHASES)
        copy.append(self.record)
        return copy.finish()

    @property
    def end(self) -> int:
        """The position after the borrowed record in the bytes of the buffer."""
        return self._position

    def let_go(self) -> None:
        """Drop the reference to a gathered record."""
        self.record = _NOTHING

    def close(self) -> None:
        """Discard an unfinished record, and its file."""
        if self._gather is not None:
            self._gather.close()
            self._gather = None
        self._memory = self.record = _NOTHING
        self._position = self._end = 0
        self._header.clear()

    @property
    def unfinished(self) -> bool:
        """True if the channel's bytes end, or were read up to a point, inside a record."""
        return self._gather is not None or bool(self._header) or self._position < self._end

    def _take_header(self) -> int | None:
        take = min(4 - len(self._header), self._end - self._position)
        self._header += self._memory[self._position : self._position + take]
        self._position += take
        if len(self._header) < 4:
            return None
        (length,) = LENGTH.unpack(self._header)
        self._header.clear()
        return int(length)

    def _begin_gathering(self, length: int, phase: int) -> _Gathering:
        if length > self._limits.max_size_bytes:
            raise CorruptStream(
                f"{self._where}: a record claims {length} bytes; the limit is {self._limits.max_size_bytes} "
                "(record.max_size)"
            )
        if length > self._limits.spill_threshold_bytes:
            return _FileGathering(length, phase, self._limits.spill_directory)
        return _MemoryGathering(length, phase)

    def _continue_gathering(self, gather: _Gathering) -> Read:
        stop = min(self._position + gather.missing, self._end)
        gather.append(self._memory[self._position : stop])
        self._position = stop
        if gather.missing:
            return Read.INCOMPLETE
        self.record, self.borrowed = gather.finish(), False
        self._gather = None
        return Read.RECORD_MORE if stop < self._end else Read.RECORD_LAST


class _Gathering(Protocol):
    """The copy of a record that spans buffers."""

    missing: int

    def append(self, data: memoryview) -> None: ...

    def finish(self) -> memoryview: ...

    def close(self) -> None: ...


class _MemoryGathering:
    __slots__ = ("_at", "_memory", "_phase", "missing")

    def __init__(self, length: int, phase: int) -> None:
        self._memory = memoryview(bytearray(phase + length))
        self._phase = self._at = phase
        self.missing = length

    def append(self, data: memoryview) -> None:
        end = self._at + len(data)
        self._memory[self._at : end] = data
        self._at = end
        self.missing -= len(data)

    def finish(self) -> memoryview:
        return self._memory[self._phase :]

    def close(self) -> None:
        """Do nothing: the interpreter frees the memory."""


class _FileGathering:
    """A copy in an unnamed file: the system frees it with its last mapping, also if the process is killed."""

    __slots__ = ("_file", "_phase", "_size", "_where", "missing")

    def __init__(self, length: int, phase: int, directory: str | None) -> None:
        self._phase = phase
        self._size = phase + length
        self.missing = length
        self._where = directory or tempfile.gettempdir()
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115 - closed by finish or close
        except OSError as error:
            raise self._failed(error) from error
        self._write(memoryview(bytes(phase)))

    def append(self, data: memoryview) -> None:
        self._write(data)
        self.missing -= len(data)

    def _write(self, data: memoryview) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except (OSError, ValueError) as error:  # ValueError: a previous write failed and closed the file
            self.close()
            raise self._failed(error) from error

    def finish(self) -> memoryview:
        try:
            mapping = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self.close()
        return memoryview(mapping)[self._phase :]

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: Exception) -> SpillError:
        return SpillError(
            f"a record of {self._size - self._phase} bytes could not be gathered in {self._where}: {error}. "
            "Free some space there, or change record.spill_directory or record.spill_threshold."
        )
