"""PartitionFile: a finished partition on disk, for its readers. `docs/partition-files.md` has every byte.

Any number of threads may read from one `PartitionFile` at the same time; it has no lock and, after its construction, no
state except its descriptor. It does I/O, so it is never called with the exchange lock held.

Invariant: a read returns the written bytes, or raises `StorageError`, whatever the file contains. Index, events and, if
there is a codec, buffers have checksums, and every entry of the index is checked before it is used.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING
from zlib import crc32

from headgate.errors import CorruptStream, LocalProtocolError, StorageError
from headgate.output.compression import CODECS, Compressor
from headgate.output.disk.folder import Folder, storage_error
from headgate.output.disk.format import (
    COMPRESSED,
    EVENT,
    HEADER,
    MAX_PIECES,
    NO_CHECKSUM,
    SIZE,
    TRAILER,
    Checksum,
    Chunks,
    FileLayout,
    Header,
    Index,
    after,
    check_index,
    event_limit,
    index_location,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.output.disk.folder import DiskQuota

__all__ = ["Chunks", "PartitionFile"]


class PartitionFile:
    """A finished partition, for any number of readers.

    >>> import tempfile
    >>> from headgate.config import Compression
    >>> from headgate.output.disk.file import PartitionFileWriter
    >>> with tempfile.TemporaryDirectory() as place:
    ...     PartitionFileWriter(
    ...         f"{place}/v0.0-0.partition", temporary=f"{place}/.v0.0-0.part", subpartitions=2, segment_size=64,
    ...         compression=Compression.NONE, quota=None).finish().close()
    ...     file = PartitionFile.open(f"{place}/v0.0-0.partition", segment_size=64)
    ...     file.subpartitions, file.data_chunks(0), file.bytes_on_disk
    ...     file.remove()
    (2, 0, 64)
    """

    def __init__(
        self, path: str, fd: int, layout: FileLayout, *, folder: Folder | None = None, quota: DiskQuota | None = None
    ) -> None:
        header, index, data_end = layout
        self.path = path
        self.subpartitions = header.subpartitions
        self.bytes_on_disk = data_end + len(index) + TRAILER.size
        """The size of the file."""
        self._index: Index | None = Index.decode(index, header.subpartitions)
        self._segment_size = header.segment_size
        self._event_limit = event_limit(header.segment_size)
        self._data_end = data_end
        self._compressor = Compressor(header.compression)
        self.codec = CODECS.index(header.compression)
        """The number of the codec of compressed buffers."""
        self._checksum = Checksum.of(header.checksum).compute
        self._unchecked = header.checksum == NO_CHECKSUM
        self._folder = Folder(os.path.dirname(path)) if folder is None else folder
        self._quota = quota
        self._fd = fd
        self._identity = os.fstat(fd)
        self._removed = False

    @classmethod
    def open(
        cls, path: str, *, segment_size: int, folder: Folder | None = None, quota: DiskQuota | None = None
    ) -> PartitionFile:
        """Open a finished file, and read and check its index.

        Raises:
            StorageError: The file does not exist, cannot be read, is damaged, or has buffers above `segment_size`.
        """
        directory = Folder(os.path.dirname(path)) if folder is None else folder
        fd = -1
        try:
            fd = directory.open(os.path.basename(path), os.O_RDONLY | os.O_NONBLOCK)  # does not block on a FIFO
            file = cls(path, fd, _read_layout(fd, segment_size), folder=directory, quota=quota)
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            if isinstance(error, OSError):
                raise storage_error("read", error, path) from error
            if isinstance(error, CorruptStream):
                raise StorageError(f"cannot be read: {error}", path=path) from error
            if isinstance(error, MemoryError):
                raise StorageError("cannot be read: its index is too large", path=path) from error
            raise
        if quota is not None:
            quota.count(file.bytes_on_disk)
        return file

    def data_chunks(self, index: int) -> int:
        """Return the number of buffers of a subpartition, without events."""
        return self._open_index().data_chunks(index)

    def chunks(self, index: int) -> Chunks:
        """Return the chunks of a subpartition, in order."""
        return self._open_index().chunks(index)

    def read_many(
        self, chunks: Chunks, first: int, memories: Sequence[memoryview], *, as_stored: bool = False
    ) -> list[int]:
        """Read a buffer into each memory, adjacent ones by one system call. Return the bytes of each buffer.

        With `as_stored`, compressed buffers stay compressed (see `Chunks.unpacked`), and are read without a copy.

        Raises:
            StorageError: A buffer cannot be read, or is damaged.
        """
        stretch: list[tuple[int, int, int, memoryview]] = []  # stored size, flags, checksum, destination
        sizes, begin, end, packed = [], 0, -1, 0
        for number, memory in enumerate(memories, first):
            offset, stored, flags, checksum = chunks.entry(number)
            size = flags & SIZE
            self._check(offset, stored, flags, self._segment_size)
            if flags & EVENT or size > len(memory):
                raise LocalProtocolError(f"{self.path}: chunk {number} is an event, or larger than {len(memory)} bytes")
            if as_stored:
                size, flags = stored, flags & ~COMPRESSED
            if offset != end or len(stretch) == MAX_PIECES:
                if stretch:
                    self._read_stretch(stretch, begin, packed)
                stretch, begin, end, packed = [], offset, offset, 0
            stretch.append((stored, flags, checksum, memory[:size]))
            packed |= flags & COMPRESSED
            end += stored
            sizes.append(size)
        if stretch:
            self._read_stretch(stretch, begin, packed)
        return sizes

    def read_event(self, chunks: Chunks, number: int) -> bytes:
        """Return one event.

        Raises:
            StorageError: The event cannot be read, or is damaged.
        """
        offset, stored, flags, checksum = chunks.entry(number)
        self._check(offset, stored, flags, self._event_limit)
        if not flags & EVENT:
            raise LocalProtocolError(f"{self.path}: chunk {number} is no event")
        event = bytearray(stored)
        self._fill([memoryview(event)], offset)
        if crc32(event) != checksum:
            raise self._damaged(offset)
        return bytes(event)

    def close(self) -> None:
        """Close the descriptor; the file stays. May be called more than once, but not during a read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Close and remove the file, unless another file has its name. May be called more than once, but not in a read.

        Raises:
            StorageError: The file cannot be removed.
        """
        self.close()
        if self._removed:
            return
        try:
            self._folder.remove(os.path.basename(self.path), self._identity)
        except OSError as error:
            raise storage_error("removed", error, self.path) from error
        self._removed = True
        self._index = None
        if self._quota is not None:
            self._quota.give_back(self.bytes_on_disk)

    def _open_index(self) -> Index:
        if self._index is None:
            raise StorageError("is read after it was removed", path=self.path)
        return self._index

    def _check(self, offset: int, stored: int, flags: int, limit: int) -> None:
        """Check an entry of the index before it is used."""
        size = flags & SIZE
        fits = 0 < stored < size if flags & COMPRESSED else 0 < stored == size
        if offset < HEADER.size or offset + stored > self._data_end or size > limit or not fits:
            raise self._damaged(offset)

    def _read_stretch(self, stretch: list[tuple[int, int, int, memoryview]], offset: int, packed: int) -> None:
        """Read adjacent buffers, from the first one's offset."""
        if not packed:
            self._fill([memory for _, _, _, memory in stretch], offset)
            if self._unchecked:
                return
            data = memoryview(b"")
        else:  # into one temporary buffer, because compressed buffers need one anyway
            data = memoryview(bytearray(sum(stored for stored, _, _, _ in stretch)))
            self._fill([data], offset)
        at = 0
        for stored, flags, checksum, memory in stretch:
            piece = data[at : at + stored] if packed else memory
            if self._checksum(piece) != checksum:
                raise self._damaged(offset + at)
            if flags & COMPRESSED:
                try:
                    self._compressor.decompress_into(piece, memory)
                except CorruptStream as error:
                    raise self._damaged(offset + at) from error
            elif packed:
                memory[:] = piece
            at += stored

    def _fill(self, memories: list[memoryview], offset: int) -> None:
        """Fill memories from an offset, by one system call if that reads all bytes."""
        if self._fd < 0:
            raise StorageError("is read after it was closed", path=self.path)
        missing = sum(map(len, memories))
        try:
            while missing:
                read = os.preadv(self._fd, memories, offset)
                if not read:
                    raise self._damaged(offset)  # the file has ended
                missing -= read
                if missing:
                    memories, offset = after(memories, read), offset + read
        except OSError as error:
            raise storage_error("read", error, self.path) from error

    def _damaged(self, offset: int) -> StorageError:
        return StorageError(f"is damaged at byte {offset}", path=self.path)


def _read_layout(fd: int, segment_size: int) -> FileLayout:
    """Read and check header, index and trailer of a file."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise CorruptStream("it is no file")
    header = os.pread(fd, HEADER.size, 0)
    decoded = Header.decode(header)
    ending = os.pread(fd, TRAILER.size, max(found.st_size - TRAILER.size, 0))
    offset, size, checksum = index_location(ending, found.st_size)
    beginning = _read_all(fd, Index.begin(decoded.subpartitions), offset)
    if Index.size(beginning) != size:  # before memory is allocated for the rest
        raise CorruptStream("its index is damaged")
    index = beginning + _read_all(fd, size - len(beginning), offset + len(beginning))
    check_index(header, index, offset, checksum)
    if decoded.segment_size > segment_size:
        raise CorruptStream(f"it has buffers of {decoded.segment_size} bytes; they are of {segment_size} now")
    return FileLayout(decoded, index, offset)


def _read_all(fd: int, size: int, offset: int) -> bytes:
    """Return exactly `size` bytes of a file, or raise CorruptStream."""
    data = os.pread(fd, size, offset)
    while len(data) < size:  # one call reads less than 2 GiB
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise CorruptStream("the file has ended")
        data += more
    return data
