"""Records across buffers, both ways.

On the wire a record is a u32 length and that many bytes, cut wherever a buffer ends. `SpanningWriter` (task
thread of the producer) copies one record after another into buffers and says which of three things happened;
`SpanningReader` (task thread of the consumer) finds records again and says which of three things happened. A
record that lies in one buffer is not copied; one that does not is gathered in memory, or in an unnamed
temporary file if it is large. Neither keeps what it used for a large record.

Invariants: a length is checked against the limit before memory or disk is taken for it; gathering keeps a
record's position modulo 16, so that what was aligned when written is aligned when read.
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
"""What stands before every record: the number of bytes that follow."""

_NOTHING = memoryview(b"")
_PHASES = 16  # malloc's alignment: what gathering can keep


class Written(Enum):
    """What happened when a record was copied into a buffer.

    >>> from headgate.buffer import Buffer
    >>> writer = SpanningWriter(); writer.begin((b"12345678",))
    >>> writer.copy_to(Buffer(memoryview(bytearray(8))))
    <Written.RECORD_DONE_BUFFER_FULL: 'record finished, buffer full'>
    """

    BUFFER_FULL = "buffer full, record unfinished"
    RECORD_DONE_BUFFER_FULL = "record finished, buffer full"
    RECORD_DONE = "record finished, room left"


class Read(Enum):
    """What happened when the next record was looked for in a buffer.

    >>> reader = SpanningReader(RecordLimits(), "channel 0")
    >>> reader.feed(memoryview(LENGTH.pack(2) + b"to")); reader.next()
    <Read.RECORD_LAST: 'a record was read, and this buffer is used up'>
    """

    INCOMPLETE = "the rest of the record is in a later buffer"
    RECORD_MORE = "a record was read, and there is more in this buffer"
    RECORD_LAST = "a record was read, and this buffer is used up"


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """How large records may be, and from when on they are gathered on disk.

    >>> RecordLimits(max_size_bytes=1000).check(1001)
    Traceback (most recent call last):
    headgate.errors.RecordTooLarge: a record or batch takes 1001 bytes; the limit is 1000 (record.max_size)
    """

    max_size_bytes: int = 1 << 30
    spill_threshold_bytes: int = 5 << 20
    spill_directory: str | None = None  # None: the system's

    def check(self, size_bytes: int) -> None:
        """Refuse to write a record over the limit."""
        if size_bytes > self.max_size_bytes:
            raise RecordTooLarge(
                f"a record or batch takes {size_bytes} bytes; the limit is {self.max_size_bytes} (record.max_size)"
            )


class Target(Protocol):
    """What a record is copied into: a `Buffer`."""

    @property
    def room(self) -> int:
        """How many more bytes fit."""
        ...

    def append(self, data: bytes | bytearray | memoryview, start: int = 0, /) -> int:
        """Copy as much of `data[start:]` as fits; how much that was."""
        ...


class SpanningWriter:
    r"""Copies a record into as many buffers as it takes.

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
        """The next record: its length and its bytes, in pieces. The last one must be done."""
        if self._pieces:
            raise LocalProtocolError("a record is begun while another is unfinished")
        self._pieces = pieces
        self._piece = self._at = 0

    @property
    def unfinished(self) -> bool:
        """Whether part of a record still waits for a buffer."""
        return bool(self._pieces)

    @property
    def begun(self) -> bool:
        """Whether part of the record is in a buffer already."""
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
        self._pieces = ()  # nothing of a large record is kept
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
        self._where = where  # for error texts: which channel
        self._memory = _NOTHING
        self._offset = self._position = self._end = 0
        self._header = bytearray()  # of a record whose length itself was cut
        self._gather: _Gathering | None = None
        self.record = self._memory
        """The record that `next` found. If `borrowed`, it is part of the buffer and ends with it."""
        self.borrowed = False

    def feed(self, memory: memoryview, offset: int = 0) -> None:
        """The next buffer's bytes; the one before must be used up. `offset`: where they begin in their segment."""
        if self._position < self._end:
            raise LocalProtocolError(
                f"{self._where}: a buffer is fed while another has {self._end - self._position} bytes"
            )
        self._memory, self._offset, self._position, self._end = memory, offset, 0, len(memory)

    def next(self) -> Read:
        """Look for the next record and put it into `record`."""
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
        """A copy of a borrowed record that outlives its buffer, aligned as it was."""
        start = self._offset + self._position - len(self.record)
        copy = _MemoryGathering(len(self.record), start % _PHASES)
        copy.append(self.record)
        return copy.finish()

    @property
    def end(self) -> int:
        """Where in the fed bytes the borrowed record ends."""
        return self._position

    def let_go(self) -> None:
        """Keep nothing of a record that was gathered."""
        self.record = _NOTHING

    def close(self) -> None:
        """Forget an unfinished record, and its file."""
        if self._gather is not None:
            self._gather.close()
            self._gather = None
        self._memory = self.record = _NOTHING
        self._position = self._end = 0
        self._header.clear()

    @property
    def unfinished(self) -> bool:
        """Whether the channel ended, or was looked at, in the middle of a record."""
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
    """Where a record that spans buffers is put together."""

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
        """Nothing to do: the interpreter frees the memory."""


class _FileGathering:
    """In a file without a name: gone when its last user is, however the process ends."""

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
        except (OSError, ValueError) as error:  # ValueError: it failed, and so was closed, before
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
