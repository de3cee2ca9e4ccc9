"""A finished partition on disk, for its readers. `docs/partition-files.md` has every byte.

Any number of threads may read from one `PartitionFile` at once; it has no lock and, once made, no state but its
descriptor. It does I/O, so nobody calls it with the exchange lock held.

Invariant: whatever is in a file, reading it gives what was written, or `StorageError`: index, events and, if there is a
codec, buffers have checksums, and nothing that the index says is believed before it was looked at.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING
from zlib import crc32

from headgate.errors import CorruptStream, LocalProtocolError, StorageError
from headgate.output.compression import Compressor
from headgate.output.folder import Folder, storage_error
from headgate.output.partition_format import (
    COMPRESSED,
    EVENT,
    HEADER,
    MOST_PIECES,
    NO_CHECKSUM,
    SIZE,
    TRAILER,
    Checksum,
    Chunks,
    Contents,
    Header,
    Index,
    after,
    check_index,
    event_limit,
    place_of_index,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.output.folder import Room

__all__ = ["Chunks", "PartitionFile"]


class PartitionFile:
    """A finished partition, for any number of readers.

    >>> import tempfile
    >>> from headgate.config import Compression
    >>> from headgate.output.partition_file import PartitionFileWriter
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
        self, path: str, fd: int, contents: Contents, *, folder: Folder | None = None, quota: Room | None = None
    ) -> None:
        header, index, data_end = contents
        self.path = path
        self.subpartitions = header.subpartitions
        self.bytes_on_disk = data_end + len(index) + TRAILER.size
        """The size of the file."""
        self._index: Index | None = Index.decode(index, header.subpartitions)
        self._segment_size = header.segment_size
        self._event_limit = event_limit(header.segment_size)
        self._data_end = data_end
        self._compressor = Compressor(header.compression)
        self._checksum = Checksum.of(header.checksum).compute
        self._unchecked = header.checksum == NO_CHECKSUM
        self._folder = Folder(os.path.dirname(path)) if folder is None else folder
        self._quota = quota
        self._fd = fd
        self._identity = os.fstat(fd)
        self._removed = False

    @classmethod
    def open(
        cls, path: str, *, segment_size: int, folder: Folder | None = None, quota: Room | None = None
    ) -> PartitionFile:
        """A file that somebody has finished; its index is read and checked.

        Raises:
            StorageError: it is not there, cannot be read, is damaged, or has buffers larger than `segment_size`.
        """
        place = Folder(os.path.dirname(path)) if folder is None else folder
        fd = -1
        try:
            fd = place.open(os.path.basename(path), os.O_RDONLY | os.O_NONBLOCK)  # not asleep if it is a FIFO
            file = cls(path, fd, _contents(fd, segment_size), folder=place, quota=quota)
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
        """How many buffers a subpartition has, without events."""
        return self._known().data_chunks(index)

    def chunks(self, index: int) -> Chunks:
        """What the reader of a subpartition reads, in order."""
        return self._known().chunks(index)

    def read_into(self, chunks: Chunks, number: int, memory: memoryview) -> int:
        """Read one buffer; how many bytes it has.

        Raises:
            StorageError: it cannot be read, or is damaged.
        """
        return self.read_many(chunks, number, (memory,))[0]

    def read_many(self, chunks: Chunks, first: int, memories: Sequence[memoryview]) -> list[int]:
        """Read as many buffers as there are memories, neighbours in the file by one call; how many bytes each has.

        Raises:
            StorageError: one cannot be read, or is damaged.
        """
        stretch: list[tuple[int, int, int, memoryview]] = []  # stored size, flags, checksum, where it goes
        sizes, begin, end, packed = [], 0, -1, 0
        for number, memory in enumerate(memories, first):
            offset, stored, flags, checksum = chunks.entry(number)
            size = flags & SIZE
            self._check(offset, stored, flags, self._segment_size)
            if flags & EVENT or size > len(memory):
                raise LocalProtocolError(f"{self.path}: chunk {number} is an event, or larger than {len(memory)} bytes")
            if offset != end or len(stretch) == MOST_PIECES:
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
        """Read one event.

        Raises:
            StorageError: it cannot be read, or is damaged.
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
        """Read no more; the file stays. May be repeated; no read may be under way."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Close it, and remove the file, unless another has its name by now. May be repeated; no read may be under way.

        Raises:
            StorageError: it cannot be removed.
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

    def _known(self) -> Index:
        if self._index is None:
            raise StorageError("is read after it was removed", path=self.path)
        return self._index

    def _check(self, offset: int, stored: int, flags: int, limit: int) -> None:
        """An entry of the index, before anything that it says is believed."""
        size = flags & SIZE
        fits = 0 < stored < size if flags & COMPRESSED else 0 < stored == size
        if offset < HEADER.size or offset + stored > self._data_end or size > limit or not fits:
            raise self._damaged(offset)

    def _read_stretch(self, stretch: list[tuple[int, int, int, memoryview]], offset: int, packed: int) -> None:
        """Read buffers that are neighbours, from the first one's offset."""
        if not packed:
            self._fill([memory for _, _, _, memory in stretch], offset)
            if self._unchecked:
                return
            data = memoryview(b"")
        else:  # as one, since what is compressed does not go where it belongs anyway
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
        """Read what is at an offset, by one call where the system gives all at once."""
        if self._fd < 0:
            raise StorageError("is read after it was closed", path=self.path)
        missing = sum(map(len, memories))
        try:
            while missing:
                read = os.preadv(self._fd, memories, offset)
                if not read:
                    raise self._damaged(offset)  # it has ended
                missing -= read
                if missing:
                    memories, offset = after(memories, read), offset + read
        except OSError as error:
            raise storage_error("read", error, self.path) from error

    def _damaged(self, offset: int) -> StorageError:
        return StorageError(f"is damaged at byte {offset}", path=self.path)


def _contents(fd: int, segment_size: int) -> Contents:
    """What a file says of itself, checked."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise CorruptStream("it is no file")
    header = os.pread(fd, HEADER.size, 0)
    decoded = Header.decode(header)
    ending = os.pread(fd, TRAILER.size, max(found.st_size - TRAILER.size, 0))
    offset, size, checksum = place_of_index(ending, found.st_size)
    beginning = _read_all(fd, Index.begin(decoded.subpartitions), offset)
    if Index.size(beginning) != size:  # before memory is taken for the rest
        raise CorruptStream("its index is damaged")
    index = beginning + _read_all(fd, size - len(beginning), offset + len(beginning))
    check_index(header, index, offset, checksum)
    if decoded.segment_size > segment_size:
        raise CorruptStream(f"it has buffers of {decoded.segment_size} bytes; they are of {segment_size} now")
    return Contents(decoded, index, offset)


def _read_all(fd: int, size: int, offset: int) -> bytes:
    """So many bytes of a file, or `CorruptStream`."""
    data = os.pread(fd, size, offset)
    while len(data) < size:  # the system gives less than 2 GiB at once
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise CorruptStream("the file has ended")
        data += more
    return data
