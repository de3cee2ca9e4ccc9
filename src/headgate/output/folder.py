"""A directory that files are made, found and removed in, and what its errors are to users.

Used by whoever writes or reads partitions, on any thread; it keeps no state but the directory's descriptor. With a
descriptor nothing can be put in the place of the directory that was looked at.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final, Protocol

from headgate.errors import StorageError, StorageFull

__all__ = ["Folder", "Room", "storage_error"]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Room(Protocol):
    """How many bytes may be on disk: a `worker.storage.Quota`."""

    def take(self, size_bytes: int, path: str | None = None) -> None:
        """So many more are going to be there; `StorageFull` if they may not."""
        ...

    def count(self, size_bytes: int) -> None:
        """So many more are there, whether they may or not."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """So many are gone."""
        ...


class Folder:
    """A directory by its path or, if it has been opened, by its descriptor, which it then owns.

    >>> Folder("/data").path_of("v0.0-3.partition")
    '/data/v0.0-3.partition'
    """

    __slots__ = ("_fd", "_opened", "path")

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path = path
        self._fd = fd
        self._opened = fd is not None

    def path_of(self, name: str) -> str:
        """Where a file of this name is, for people."""
        return os.path.join(self.path, name)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of one of its files, which is no link; others cannot read what is made."""
        return os.open(self._name(name), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)

    def link(self, name: str, new: str) -> None:
        """Give a file a second name, which must be free."""
        os.link(self._name(name), self._name(new), src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str, only: os.stat_result | None = None) -> None:
        """Remove a file, if it is there and, with `only`, if it is that one."""
        path = self._name(name)
        with suppress(FileNotFoundError):
            if only is None or os.path.samestat(os.stat(path, dir_fd=self.fd, follow_symlinks=False), only):
                os.unlink(path, dir_fd=self.fd)

    def names(self) -> list[str]:
        """Of everything in it."""
        return os.listdir(self.path if self.fd is None else self.fd)

    def close(self) -> None:
        """Close the descriptor, if it has one. May be repeated."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def fd(self) -> int | None:
        """The descriptor; None if it goes by its path.

        Raises:
            StorageError: it was closed: its path may be another directory's by now.
        """
        if self._opened and self._fd is None:
            raise StorageError("is used after it was closed", path=self.path)
        return self._fd

    def _name(self, name: str) -> str:
        assert "/" not in name, "a file of this directory"
        return name if self._opened else os.path.join(self.path, name)


def storage_error(doing: str, error: OSError, path: str) -> StorageError:
    """What an error of the system is to whoever needs the file.

    >>> storage_error("written", OSError(errno.ENOSPC, "No space left on device"), "/data/v0.0-3.partition")
    StorageFull('/data/v0.0-3.partition: cannot be written: No space left on device; make room there, or name ...')
    """
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        advice = "make room there, or name other places in batch.directories"
        return StorageFull(f"cannot be {doing}: {reason}; {advice}", path=path)
    return StorageError(f"cannot be {doing}: {reason}", path=path)
