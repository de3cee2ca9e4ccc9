"""Disk for what an operator cannot keep in memory: where it is, how much there may be, and how it is written.

A `SpillSpace` comes with an operator's `Place`; `SpillFile` is one file of it, written once from its beginning and then
read anywhere. Both are used on the task's thread only.

Invariants: a file has no name, so it is gone when its operator closes it, and also when the process dies; what it takes
is asked of the quota before it is written, and given back when it is closed; whatever the disk does is a StorageError.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from headgate.config import Compression
from headgate.errors import CorruptStream, StorageError
from headgate.output.compression import Compressor
from headgate.output.folder import storage_error
from headgate.record import AuthenticatedPeer, SerializerRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.record.serializer import Buffer, Serializer

__all__ = ["Piece", "SpillFile", "SpillQuota", "SpillSpace"]


class SpillQuota(Protocol):
    """How much a worker may have on disk."""

    def take(self, size_bytes: int, path: str | None = None) -> None:
        """So many bytes more, at this path; or StorageFull, which names it."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """So many bytes less."""
        ...


def _objects() -> Serializer[Any]:
    # These bytes never leave the process, for nobody else can open the file.
    return SerializerRegistry().serializer_for("pickle", peer=AuthenticatedPeer.this_process())


@dataclass(frozen=True, slots=True)
class SpillSpace:
    """Where an operator may spill, and how.

    >>> from headgate.record import StrSerializer
    >>> space = SpillSpace(tempfile.gettempdir, memory_bytes=2**20, serializers=(StrSerializer(),))
    >>> with space.file() as file:
    ...     piece = file.append([b"to ", b"be"])
    ...     bytes(file.read(piece))
    b'to be'
    """

    directory: Callable[[], str | os.PathLike[str]]  # asked when the first file is made
    memory_bytes: int  # what an operator may keep in memory of its keys
    compression: Compression = Compression.NONE
    quota: SpillQuota | None = None  # None: no limit
    serializers: tuple[Serializer[Any], ...] = ()  # of the values of each input
    objects: Serializer[Any] = field(default_factory=_objects)
    """Of keys, and of whatever else an operator has made itself."""

    def file(self) -> SpillFile:
        """A new file."""
        return SpillFile(os.fspath(self.directory()), Compressor(self.compression), self.quota)


class Piece(NamedTuple):
    """Where something lies in a file.

    >>> Piece(offset=0, stored=10, raw=25).compressed
    True
    """

    offset: int
    stored: int  # bytes
    raw: int  # bytes, before it was compressed

    @property
    def compressed(self) -> bool:
        """Whether it has to be decompressed."""
        return self.stored != self.raw


class SpillFile:
    """One file without a name.

    >>> with SpillFile(tempfile.gettempdir(), Compressor(Compression.LZ4)) as file:
    ...     piece = file.append([b"be" * 1000])
    ...     piece.compressed, bytes(file.read(piece)) == b"be" * 1000
    (True, True)
    """

    __slots__ = ("_compressor", "_file", "_quota", "_where", "bytes_on_disk")

    def __init__(self, directory: str, compressor: Compressor, quota: SpillQuota | None = None) -> None:
        self._where = os.path.join(directory, "(spilled groups)")
        self._compressor = compressor
        self._quota = quota
        self.bytes_on_disk = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise storage_error("made", error, self._where) from error

    def append(self, pieces: Sequence[Buffer]) -> Piece:
        """Write some bytes as one piece, compressed where that makes it smaller."""
        raw = b"".join(pieces)
        smaller = self._compressor.compress(memoryview(raw))
        stored = raw if smaller is None else smaller
        if self._quota is not None:
            self._quota.take(len(stored), self._where)
        piece = Piece(self.bytes_on_disk, len(stored), len(raw))
        self.bytes_on_disk += len(stored)  # first, for half of it may be there if this fails
        left = memoryview(stored)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise storage_error("written", error, self._where) from error
        return piece

    def read(self, piece: Piece) -> memoryview:
        """The bytes of a piece, which belong to the caller."""
        stored = memoryview(bytearray(piece.stored))
        done = 0
        try:
            while done < piece.stored and (n := os.preadv(self._file.fileno(), [stored[done:]], piece.offset + done)):
                done += n
        except OSError as error:
            raise storage_error("read", error, self._where) from error
        if done < piece.stored:
            raise StorageError(f"ends after {done} of {piece.stored} bytes that were written", path=self._where)
        if not piece.compressed:
            return stored
        raw = memoryview(bytearray(piece.raw))
        try:
            self._compressor.decompress_into(stored, raw)
        except CorruptStream as error:
            raise self.damaged(error) from error
        return raw

    def damaged(self, error: Exception) -> StorageError:
        """What is raised where the bytes of a piece are not what was written."""
        return StorageError(f"cannot be understood: {error}", path=self._where)

    def close(self) -> None:
        """Give everything back; may be repeated."""
        with suppress(OSError):  # of bytes that nobody wants any more
            self._file.close()
        if self._quota is not None and self.bytes_on_disk:
            self._quota.give_back(self.bytes_on_disk)
        self.bytes_on_disk = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
