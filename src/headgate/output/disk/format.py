"""Header, index and trailer of a partition's file. `docs/partition-files.md` has every byte.

Used by `disk.file` and `disk.finished`; no function here does I/O. A chunk is one buffer or event. The index has a list
of chunks for each subpartition, and one list for all subpartitions (broadcast): a reader reads its list merged with
that one, in the order of the file.

Invariant: decoding any bytes returns an index or raises `CorruptStream`. Entries are not checked here: the caller
checks an entry before its use.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.config import Compression
from headgate.errors import CorruptStream
from headgate.output.compression import CODECS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "COMPRESSED",
    "ENTRY",
    "EVENT",
    "HEADER",
    "MAX_PIECES",
    "MAX_SUBPARTITIONS",
    "NO_CHECKSUM",
    "SIZE",
    "TRAILER",
    "Checksum",
    "Chunks",
    "FileLayout",
    "Header",
    "Index",
    "after",
    "check_index",
    "event_limit",
    "index_location",
    "trailer",
]

HEADER: Final = struct.Struct("<4sHBBII")
"""Magic, version, codec, checksum, subpartitions, segment size."""
ENTRY: Final = struct.Struct("<QIII")
"""A chunk: offset, stored size, size and flags, checksum of the stored bytes."""
TRAILER: Final = struct.Struct("<QQI4s")
"""Offset and size of the index, checksum of all but the chunks, magic."""
_COUNTS: Final = struct.Struct("<II")  # of a list: chunks, and data chunks among them
_FLAGS: Final = struct.Struct("<I")

EVENT: Final = 1 << 31
COMPRESSED: Final = 1 << 30
SIZE: Final = COMPRESSED - 1
MAX_SUBPARTITIONS: Final = 1 << 20
MAX_PIECES: Final = 1024
"""The maximum number of memories of one system call."""

_BEGIN: Final = b"HGPF"
_END: Final = b"HGPE"
_VERSION: Final = 1
NO_CHECKSUM: Final = 0
_CRC32: Final = 1
_CRC32C: Final = 2


class Checksum(NamedTuple):
    """The checksum of buffers: CRC-32C if the package is installed, which is far faster, otherwise CRC-32.

    Uncompressed files have no checksums of buffers: they would take half of the time of reading. Events always have a
    CRC-32.

    >>> Checksum.of(1).compute(b"to be"), Checksum.best(Compression.NONE).kind
    (4218129493, 0)
    """

    kind: int
    compute: Callable[[bytes | memoryview], int]

    @staticmethod
    def best(compression: Compression) -> Checksum:
        """Return the checksum of new files."""
        if compression is Compression.NONE:
            return Checksum.of(NO_CHECKSUM)
        try:
            return Checksum.of(_CRC32C)
        except CorruptStream:
            return Checksum.of(_CRC32)

    @staticmethod
    def of(kind: int) -> Checksum:
        """Return the checksum with this number."""
        if kind == NO_CHECKSUM:
            return Checksum(kind, _no_checksum)
        if kind == _CRC32:
            return Checksum(kind, zlib.crc32)
        if kind != _CRC32C:
            raise CorruptStream(f"checksum {kind} is unknown")
        try:
            from crc32c import crc32c  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise CorruptStream("its checksums need the package crc32c: pip install 'headgate[checksum]'") from error
        return Checksum(kind, crc32c)


class Header(NamedTuple):
    """The start of a file.

    >>> Header.decode(Header(Compression.LZ4, 1, 8, 32768).encode()).subpartitions
    8
    """

    compression: Compression
    checksum: int
    subpartitions: int
    segment_size: int

    def encode(self) -> bytes:
        """Return the first bytes of a file."""
        codec = CODECS.index(self.compression)
        return HEADER.pack(_BEGIN, _VERSION, codec, self.checksum, self.subpartitions, self.segment_size)

    @classmethod
    def decode(cls, data: bytes) -> Header:
        """Return the header of the first bytes of a file; raise CorruptStream."""
        if len(data) != HEADER.size:
            raise CorruptStream(f"it has {len(data)} bytes, which is no partition's file")
        magic, version, codec, checksum, subpartitions, segment_size = HEADER.unpack(data)
        if magic != _BEGIN:
            raise CorruptStream("it is no partition's file")
        if version != _VERSION:
            raise CorruptStream(f"it is of version {version}, not {_VERSION}")
        if codec >= len(CODECS) or not 0 < subpartitions <= MAX_SUBPARTITIONS or not 0 < segment_size <= SIZE:
            raise CorruptStream("its header is damaged")
        return cls(CODECS[codec], checksum, subpartitions, segment_size)


class FileLayout(NamedTuple):
    """Header and index of a file, and the end of its chunks, which is the start of the index."""

    header: Header
    index_bytes: bytes
    data_end: int


class Chunks:
    """The chunks of one reader, in order; 20 bytes per chunk.

    >>> chunks = Chunks(memoryview(ENTRY.pack(16, 5, EVENT | 5, 0)))
    >>> len(chunks), chunks.is_event(0)
    (1, True)
    """

    __slots__ = ("_count", "_entries")

    def __init__(self, entries: memoryview) -> None:
        self._entries = entries
        self._count = len(entries) // ENTRY.size

    def __len__(self) -> int:
        return self._count

    def is_event(self, number: int) -> bool:
        """Return True if a chunk is an event."""
        (flags,) = _FLAGS.unpack_from(self._entries, number * ENTRY.size + 12)
        return bool(flags & EVENT)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return offset, stored size, size and flags, and checksum of a chunk, unchecked."""
        return ENTRY.unpack_from(self._entries, number * ENTRY.size)

    def unpacked(self, number: int) -> int:
        """Return the decompressed size of a compressed chunk; 0 if it is not compressed."""
        (flags,) = _FLAGS.unpack_from(self._entries, number * ENTRY.size + 12)
        return flags & SIZE if flags & COMPRESSED else 0

    def offset(self, number: int) -> int:
        """Return the offset of a chunk in the file."""
        return self.entry(number)[0]

    def merged(self, others: Chunks) -> Chunks:
        """Return these and other chunks, in the order of the file."""
        if not len(others):
            return self
        if not self._count:
            return others
        pieces, copied = [], 0
        for number in range(len(others)):  # usually few, so ranges of `self` are copied as a whole
            position = bisect_left(range(copied, self._count), others.offset(number), key=self.offset) + copied
            pieces += [self._part(copied, position), others._part(number, number + 1)]
            copied = position
        pieces.append(self._part(copied, self._count))
        return Chunks(memoryview(b"".join(pieces)))

    def _part(self, start: int, stop: int) -> memoryview:
        return self._entries[start * ENTRY.size : stop * ENTRY.size]


class Index:
    """The lists of a file: the first for all subpartitions, then one for each.

    >>> entries = [b"", ENTRY.pack(16, 2, 2, 0), b""]
    >>> index = Index.decode(Index.encode(entries, [0, 1, 0]), subpartitions=2)
    >>> index.data_chunks(0), len(index.chunks(0)), len(index.chunks(1))
    (1, 1, 0)
    """

    __slots__ = ("_data", "_lists")

    def __init__(self, lists: Sequence[Chunks], data: Sequence[int]) -> None:
        self._lists = lists
        self._data = data

    @staticmethod
    def encode(entries: Sequence[bytes | bytearray], data: Sequence[int]) -> bytes:
        """Return the bytes of the index, from the entries and the number of data chunks of each list."""
        counts = [_COUNTS.pack(len(some) // ENTRY.size, of_data) for some, of_data in zip(entries, data, strict=True)]
        return b"".join((*counts, *entries))

    @staticmethod
    def begin(subpartitions: int) -> int:
        """Return the number of bytes of the lists' lengths."""
        return (subpartitions + 1) * _COUNTS.size

    @staticmethod
    def size(beginning: bytes) -> int:
        """Return the size of the index, from the bytes of the lists' lengths."""
        chunks: int = sum(count for count, _ in _COUNTS.iter_unpack(beginning))
        return len(beginning) + ENTRY.size * chunks

    @classmethod
    def decode(cls, index: bytes, subpartitions: int) -> Index:
        """Return the index of its bytes; raise CorruptStream."""
        view, start = memoryview(index), cls.begin(subpartitions)
        if len(index) < start or len(index) != cls.size(index[:start]):
            raise CorruptStream("its index is damaged")
        lists, data = [], []
        for count, of_data in _COUNTS.iter_unpack(view[:start]):
            if of_data > count:
                raise CorruptStream("its index is damaged")
            stop = start + count * ENTRY.size
            lists.append(Chunks(view[start:stop]))
            data.append(of_data)
            start = stop
        return cls(lists, data)

    def chunks(self, subpartition: int) -> Chunks:
        """Return the chunks of a reader of this subpartition."""
        return self._lists[subpartition + 1].merged(self._lists[0])

    def data_chunks(self, subpartition: int) -> int:
        """Return the number of data chunks of a reader of this subpartition."""
        return self._data[subpartition + 1] + self._data[0]


def event_limit(segment_size: int) -> int:
    """Return the maximum size of an event: as on the wire, small segments do not limit it.

    >>> event_limit(64), event_limit(32768)
    (8192, 32768)
    """
    return max(segment_size, 8192)


def after(pieces: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return the rest of pieces of memory after the first `done` bytes.

    >>> [bytes(piece) for piece in after([memoryview(b"to be"), memoryview(b"or")], 3)]
    [b'be', b'or']
    """
    for number, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[number + 1 :]]
        done -= len(piece)
    return []


def trailer(header: bytes, index: bytes, offset: int) -> bytes:
    """Return the last bytes of a file.

    >>> trailer(bytes(16), b"", 16).hex(" ")
    '10 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ... 48 47 50 45'
    """
    return TRAILER.pack(offset, len(index), _checksum_of(header, index, offset), _END)


def index_location(data: bytes, file_size: int) -> tuple[int, int, int]:
    """Return offset, size and checksum of the index, from the last bytes of a file; raise CorruptStream.

    >>> index_location(trailer(bytes(16), b"12345678", 100), file_size=132)[:2]
    (100, 8)
    """
    if len(data) != TRAILER.size:
        raise CorruptStream(f"it has {file_size} bytes, which is no partition's file")
    offset, size, checksum, magic = TRAILER.unpack(data)
    if magic != _END or offset < HEADER.size or offset + size + TRAILER.size != file_size:
        raise CorruptStream("its end is missing or damaged")
    return offset, size, checksum


def check_index(header: bytes, index: bytes, offset: int, checksum: int) -> None:
    """Raise CorruptStream unless the checksum of header, index and offset is right.

    >>> check_index(bytes(16), b"", 16, checksum=0)
    Traceback (most recent call last):
    headgate.errors.CorruptStream: its index is damaged
    """
    if _checksum_of(header, index, offset) != checksum:
        raise CorruptStream("its index is damaged")


def _no_checksum(data: bytes | memoryview) -> int:  # noqa: ARG001 - the signature of checksums
    return 0


def _checksum_of(header: bytes, index: bytes, offset: int) -> int:
    return zlib.crc32(index, zlib.crc32(header + offset.to_bytes(8, "little")))
