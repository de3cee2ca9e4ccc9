"""A partition on disk: one file, however many subpartitions it has. `docs/partition-files.md` has every byte.

`PartitionFileWriter` belongs to one task's thread; the `PartitionFile` that it leaves is for any number of readers. It
has no lock and does I/O, so nobody calls it with the exchange lock held.

Invariants: a file has its name only once it is whole, and never takes the name of another; what a file takes is taken
from the quota before it is written, and given back when the file is gone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final
from zlib import crc32

from headgate.errors import LocalProtocolError, StorageError
from headgate.output.compression import Compressor
from headgate.output.finished_file import PartitionFile
from headgate.output.folder import Folder, storage_error
from headgate.output.partition_format import (
    COMPRESSED,
    ENTRY,
    EVENT,
    MOST_PIECES,
    MOST_SUBPARTITIONS,
    SIZE,
    Checksum,
    Chunks,
    Contents,
    Header,
    Index,
    after,
    event_limit,
    trailer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.config import Compression
    from headgate.output.folder import Room

__all__ = ["ALL", "Chunks", "PartitionFile", "PartitionFileWriter"]

ALL: Final = -1
"""The channel of a chunk that goes to all subpartitions. It is stored once."""


class PartitionFileWriter:
    """Writes a partition under a temporary name; `finish` gives it its own.

    >>> import tempfile
    >>> from headgate.config import Compression
    >>> with tempfile.TemporaryDirectory() as place:
    ...     writer = PartitionFileWriter(
    ...         f"{place}/v0.0-0.partition", temporary=f"{place}/.v0.0-0.part", subpartitions=2, segment_size=64,
    ...         compression=Compression.NONE, quota=None)
    ...     writer.append([(0, memoryview(b"to be"), False), (ALL, memoryview(b"the end"), True)])
    ...     file, memory = writer.finish(), memoryview(bytearray(64))
    ...     mine = file.chunks(0)
    ...     len(mine), bytes(memory[: file.read_into(mine, 0, memory)]), file.read_event(mine, 1), len(file.chunks(1))
    ...     file.remove()
    (2, b'to be', b'the end', 1)
    """

    def __init__(
        self,
        path: str,
        *,
        subpartitions: int,
        segment_size: int,
        compression: Compression,
        quota: Room | None,
        temporary: str,
        folder: Folder | None = None,
    ) -> None:
        assert 1 <= subpartitions <= MOST_SUBPARTITIONS, "a partition has at least one reader"
        assert 0 < segment_size <= SIZE, "sizes have 30 bits in the file"
        self.path = path
        self.file: PartitionFile | None = None
        """What `finish` gave."""
        self._folder = Folder(os.path.dirname(path)) if folder is None else folder
        self._temporary = os.path.basename(temporary)
        self._quota = quota
        self._segment_size = segment_size
        self._event_limit = event_limit(segment_size)
        self._compressor = Compressor(compression)
        self._checksum = Checksum.best(compression)
        self._header = Header(compression, self._checksum.kind, subpartitions, segment_size).encode()
        self._entries = [bytearray() for _ in range(subpartitions + 1)]  # first those of all
        self._data = [0] * (subpartitions + 1)
        self._end = 0  # of what is in the file
        self._fd = -1
        self._failure: StorageError | None = None
        try:
            self._fd = self._folder.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise storage_error("made", error, path) from error
        self._write([self._header], len(self._header))

    @property
    def bytes_written(self) -> int:
        """How many bytes are in the file."""
        return self._end

    def append(self, chunks: Sequence[tuple[int, memoryview, bool]]) -> None:
        """Write chunks, each a channel or `ALL`, its bytes, and whether it is an event; by one call of the system.

        Raises:
            StorageFull: there is no room on the disk, or in the quota. What was written is gone.
            StorageError: they cannot be written. What was written is gone.
        """
        self._check_open()
        compress, checksum, pack = self._compressor.compress, self._checksum.compute, ENTRY.pack
        pieces: list[memoryview | bytes] = []
        offset = self._end
        for channel, memory, is_event in chunks:
            size = flags = len(memory)
            limit = self._event_limit if is_event else self._segment_size
            if not 0 < size <= limit or not ALL <= channel < len(self._data) - 1:
                self.discard()  # the index has some of these chunks already
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
        """Write the index, and let the file have its name.

        Raises:
            StorageFull: there is no room for it. What was written is gone.
            StorageError: it cannot be written, or there is a file with its name. What was written is gone.
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
        contents = Contents(Header.decode(self._header), index, end)
        file = PartitionFile(self.path, self._fd, contents, folder=self._folder, quota=self._quota)
        self.file, self._fd = file, -1
        self._entries.clear()
        self._remove_temporary()
        return file

    def discard(self) -> None:
        """Leave nothing of what was written, unless it is finished. May be repeated."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._remove_temporary()
        self._entries.clear()
        if self._quota is not None:
            self._quota.give_back(self._end)

    def _write(self, pieces: list[memoryview | bytes], size: int) -> None:
        """Write all of these; if that fails, discard everything."""
        if self._quota is not None:
            try:
                self._quota.take(size, self.path)
            except StorageError as error:
                self.discard()
                self._failed(error)
                raise
        self._end += size  # as the quota sees it
        try:
            for start in range(0, len(pieces), MOST_PIECES):
                _write_all(self._fd, pieces[start : start + MOST_PIECES])
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
        except (OSError, StorageError):  # it stays until the next start: nobody reads it under this name
            return


def _write_all(fd: int, pieces: Sequence[memoryview | bytes]) -> None:
    """Write at the end of the file, by one call where the system takes all at once."""
    left = sum(map(len, pieces))
    while left:
        written = os.writev(fd, pieces)
        left -= written
        if left:
            pieces = after([memoryview(piece) for piece in pieces], written)
