"""PartitionFileWriter: writes a partition's file, one for all subpartitions. `docs/partition-files.md` has every byte.

It belongs to one task's thread; the `PartitionFile` that `finish` returns is for any number of readers. It has no lock
and does I/O, so it is never called with the exchange lock held.

Invariants: a file gets its name only when it is complete, and never replaces another file. Bytes are requested from
the quota before they are written, and released when the file is removed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from zlib import crc32

from headgate.errors import LocalProtocolError, StorageError
from headgate.output.compression import Compressor
from headgate.output.disk.finished import PartitionFile
from headgate.output.disk.folder import Folder, storage_error
from headgate.output.disk.format import (
    COMPRESSED,
    ENTRY,
    EVENT,
    MAX_PIECES,
    MAX_SUBPARTITIONS,
    SIZE,
    Checksum,
    Chunks,
    FileLayout,
    Header,
    Index,
    after,
    event_limit,
    trailer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.config import Compression
    from headgate.output.disk.folder import DiskQuota

__all__ = ["ALL", "Chunks", "PartitionFile", "PartitionFileWriter"]

ALL: Final = -1
"""The channel of a chunk for all subpartitions. It is stored once."""


class PartitionFileWriter:
    """Writes a partition under a temporary name; `finish` gives the file its name.

    >>> import tempfile
    >>> from headgate.config import Compression
    >>> with tempfile.TemporaryDirectory() as place:
    ...     writer = PartitionFileWriter(
    ...         f"{place}/v0.0-0.partition", temporary=f"{place}/.v0.0-0.part", subpartitions=2, segment_size=64,
    ...         compression=Compression.NONE, quota=None)
    ...     writer.append([(0, memoryview(b"to be"), False), (ALL, memoryview(b"the end"), True)])
    ...     file, memory = writer.finish(), memoryview(bytearray(64))
    ...     chunks = file.chunks(0)
    ...     sizes = file.read_many(chunks, 0, [memory])
    ...     bytes(memory[: sizes[0]]), file.read_event(chunks, 1), len(file.chunks(1))
    ...     file.remove()
    (b'to be', b'the end', 1)
    """

    def __init__(
        self,
        path: str,
        *,
        subpartitions: int,
        segment_size: int,
        compression: Compression,
        quota: DiskQuota | None,
        temporary: str,
        folder: Folder | None = None,
    ) -> None:
        assert 1 <= subpartitions <= MAX_SUBPARTITIONS, "a partition has at least one reader"
        assert 0 < segment_size <= SIZE, "sizes have 30 bits in the file"
        self.path = path
        self.file: PartitionFile | None = None
        """The result of `finish`."""
        self._folder = Folder(os.path.dirname(path)) if folder is None else folder
        self._temporary = os.path.basename(temporary)
        self._quota = quota
        self._segment_size = segment_size
        self._event_limit = event_limit(segment_size)
        self._compressor = Compressor(compression)
        self._checksum = Checksum.best(compression)
        self._header = Header(compression, self._checksum.kind, subpartitions, segment_size).encode()
        self._entries = [bytearray() for _ in range(subpartitions + 1)]  # the first for `ALL`
        self._data = [0] * (subpartitions + 1)
        self._end = 0  # of the file
        self._fd = -1
        self._failure: StorageError | None = None
        try:
            self._fd = self._folder.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise storage_error("made", error, path) from error
        self._write([self._header], len(self._header))

    @property
    def bytes_written(self) -> int:
        """The number of bytes in the file."""
        return self._end

    def append(self, chunks: Sequence[tuple[int, memoryview, bool]]) -> None:
        """Write chunks by one system call; a chunk is a channel or `ALL`, its bytes, and True for an event.

        Raises:
            StorageFull: The disk or the quota is full. The file is discarded.
            StorageError: The bytes cannot be written. The file is discarded.
        """
        self._check_open()
        compress, checksum, pack = self._compressor.compress, self._checksum.compute, ENTRY.pack
        pieces: list[memoryview | bytes] = []
        offset = self._end
        for channel, memory, is_event in chunks:
            size = flags = len(memory)
            limit = self._event_limit if is_event else self._segment_size
            if not 0 < size <= limit or not ALL <= channel < len(self._data) - 1:
                self.discard()  # the index contains some of these chunks already
                raise LocalProtocolError(f"{self.path}: a chunk of {size} bytes for channel {channel} does not belong")
            piece: memoryview | bytes = memory
            if is_event:
                check, flags = crc32(memory), flags | EVENT
            else:
                self._data[channel + 1] += 1
                packed = compress(memory)
                if packed is not None:
                    piece, flags = packed, flags | COMPRESSED
                check = checksum(piece)
            stored = len(piece)
            self._entries[channel + 1] += pack(offset, stored, flags, check)
            pieces.append(piece)
            offset += stored
        self._write(pieces, offset - self._end)

    def finish(self) -> PartitionFile:
        """Write the index, and give the file its name.

        Raises:
            StorageFull: The disk or the quota is full. The file is discarded.
            StorageError: The index cannot be written, or the name is used. The file is discarded.
        """
        self._check_open()
        index, end = Index.encode(self._entries, self._data), self._end
        ending = trailer(self._header, index, end)
        self._write([index, ending], len(index) + len(ending))
        try:
            self._folder.link(self._temporary, os.path.basename(self.path))
        except FileExistsError:
            self.discard()
            raise self._failed(StorageError("exists already: another run has finished it", path=self.path)) from None
        except OSError as error:
            self.discard()
            raise self._failed(storage_error("given its name", error, self.path)) from error
        layout = FileLayout(Header.decode(self._header), index, end)
        file = PartitionFile(self.path, self._fd, layout, folder=self._folder, quota=self._quota)
        self.file, self._fd = file, -1
        self._entries.clear()
        self._remove_temporary()
        return file

    def discard(self) -> None:
        """Remove the file, unless it is finished. May be called more than once."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._remove_temporary()
        self._entries.clear()
        if self._quota is not None:
            self._quota.give_back(self._end)

    def _write(self, pieces: list[memoryview | bytes], size: int) -> None:
        """Write all pieces; discard the file after an error."""
        if self._quota is not None:
            try:
                self._quota.take(size, self.path)
            except StorageError as error:
                self.discard()
                self._failed(error)
                raise
        self._end += size  # before the write, because the quota counts these bytes
        try:
            for start in range(0, len(pieces), MAX_PIECES):
                _write_all(self._fd, pieces[start : start + MAX_PIECES])
        except OSError as error:
            self.discard()
            raise self._failed(storage_error("written", error, self.path)) from error

    def _check_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)("was given up before: it could not be written", path=self.path)
        if self._fd < 0:
            raise LocalProtocolError(f"{self.path} is written to after its end")

    def _failed(self, error: StorageError) -> StorageError:
        self._failure = error
        return error

    def _remove_temporary(self) -> None:
        try:
            self._folder.remove(self._temporary)
        except (OSError, StorageError):  # no reader uses this name, and the next start removes the file
            return


def _write_all(fd: int, pieces: Sequence[memoryview | bytes]) -> None:
    """Append pieces to the file, by one system call if that writes all of them."""
    left = sum(map(len, pieces))
    while left:
        written = os.writev(fd, pieces)
        left -= written
        if left:
            pieces = after([memoryview(piece) for piece in pieces], written)
