"""Disk space for data of an operator that does not fit in memory.

A `SpillSpace` is part of an operator's `OperatorPlace`; a `SpillFile` is one of its files: appended to, then read at
any position. Both are used on the task's thread only.

Invariants: a file has no name, so it is deleted when its operator closes it, and also when the process dies. Its bytes
are requested from the quota before they are written, and released when it is closed. Errors of the disk are raised as
StorageError.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headgate.config import Compression
from headgate.errors import CorruptStream, StorageError
from headgate.output.compression import Compressor
from headgate.output.disk.folder import storage_error
from headgate.record import AuthenticatedPeer, SerializerRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.output.disk.folder import DiskQuota
    from headgate.record.serializer import Buffer, Serializer

__all__ = ["Piece", "SpillFile", "SpillSpace"]


def _objects() -> Serializer[Any]:
    # Pickle is safe here: no other process can open the file.
    return SerializerRegistry().serializer_for("pickle", peer=AuthenticatedPeer.this_process())


@dataclass(frozen=True, slots=True)
class SpillSpace:
    """The disk space of an operator.

    >>> from headgate.record import StrSerializer
    >>> space = SpillSpace(tempfile.gettempdir, memory_bytes=2**20, serializers=(StrSerializer(),))
    >>> with space.file() as file:
    ...     piece = file.append([b"to ", b"be"])
    ...     bytes(file.read(piece))
    b'to be'
    """

    directory: Callable[[], str | os.PathLike[str]]  # called for the first file
    memory_bytes: int  # the operator's limit for data of its keys in memory
    compression: Compression = Compression.NONE
    quota: DiskQuota | None = None  # None: no limit
    serializers: tuple[Serializer[Any], ...] = ()  # of the values of each input
    objects: Serializer[Any] = field(default_factory=_objects)
    """The serializer of keys, and of values that an operator has created."""

    def file(self) -> SpillFile:
        """Return a new file."""
        return SpillFile(os.fspath(self.directory()), Compressor(self.compression), self.quota)


class Piece(NamedTuple):
    """The position of written bytes in a file.

    >>> Piece(offset=0, stored=10, raw=25).compressed
    True
    """

    offset: int
    stored: int  # bytes
    raw: int  # bytes before compression

    @property
    def compressed(self) -> bool:
        """True if the bytes are compressed."""
        return self.stored != self.raw


class SpillFile:
    """One file without a name.

    >>> with SpillFile(tempfile.gettempdir(), Compressor(Compression.LZ4)) as file:
    ...     piece = file.append([b"be" * 1000])
    ...     piece.compressed, bytes(file.read(piece)) == b"be" * 1000
    (True, True)
    """

    __slots__ = ("_compressor", "_file", "_quota", "_shown_path", "bytes_on_disk")

    def __init__(self, directory: str, compressor: Compressor, quota: DiskQuota | None = None) -> None:
        self._shown_path = os.path.join(directory, "(spilled groups)")
        self._compressor = compressor
        self._quota = quota
        self.bytes_on_disk = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise storage_error("made", error, self._shown_path) from error

    def append(self, pieces: Sequence[Buffer]) -> Piece:
        """Write bytes as one piece, compressed if that makes it smaller. Return its position."""
        raw = b"".join(pieces)
        smaller = self._compressor.compress(memoryview(raw))
        stored = raw if smaller is None else smaller
        if self._quota is not None:
            self._quota.take(len(stored), self._shown_path)
        piece = Piece(self.bytes_on_disk, len(stored), len(raw))
        self.bytes_on_disk += len(stored)  # before the write, because a part of it may be written if this fails
        left = memoryview(stored)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise storage_error("written", error, self._shown_path) from error
        return piece

    def read(self, piece: Piece) -> memoryview:
        """Return the bytes of a piece, in new memory."""
        stored = memoryview(bytearray(piece.stored))
        done = 0
        try:
            while done < piece.stored and (n := os.preadv(self._file.fileno(), [stored[done:]], piece.offset + done)):
                done += n
        except OSError as error:
            raise storage_error("read", error, self._shown_path) from error
        if done < piece.stored:
            raise StorageError(f"ends after {done} of {piece.stored} bytes that were written", path=self._shown_path)
        if not piece.compressed:
            return stored
        raw = memoryview(bytearray(piece.raw))
        try:
            self._compressor.decompress_into(stored, raw)
        except CorruptStream as error:
            raise self.damaged(error) from error
        return raw

    def damaged(self, error: Exception) -> StorageError:
        """Return the error for bytes that differ from those written."""
        return StorageError(f"cannot be understood: {error}", path=self._shown_path)

    def close(self) -> None:
        """Delete the file and release its bytes. May be called more than once."""
        with suppress(OSError):  # the bytes are not needed any more
            self._file.close()
        if self._quota is not None and self.bytes_on_disk:
            self._quota.give_back(self.bytes_on_disk)
        self.bytes_on_disk = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
