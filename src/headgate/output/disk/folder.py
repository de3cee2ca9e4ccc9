"""Folder: a directory of partition files, by its descriptor; and the errors of its files.

Used on any thread; its only state is the directory's descriptor. A descriptor always refers to the checked directory,
also if another process replaces the directory at its path.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final, Protocol

from headgate.errors import StorageError, StorageFull

__all__ = ["DiskQuota", "Folder", "storage_error"]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskQuota(Protocol):
    """The limit of a worker's bytes on disk: a `worker.storage.Quota`."""

    def take(self, size_bytes: int, path: str | None = None) -> None:
        """Request bytes for a file at `path`. Raises StorageFull, which names the path."""
        ...

    def count(self, size_bytes: int) -> None:
        """Add bytes of an existing file, also above the limit."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Release bytes."""
        ...


class Folder:
    """A directory by its path or, if it is opened, by its descriptor, which the folder owns.

    >>> Folder("/data").path_of("v0.0-3.partition")
    '/data/v0.0-3.partition'
    """

    __slots__ = ("_fd", "_opened", "path")

    def __init__(self, path: str, fd: int | None = None) -> None:
        self.path = path
        self._fd = fd
        self._opened = fd is not None

    def path_of(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return os.path.join(self.path, name)

    def open(self, name: str, flags: int) -> int:
        """Open a file that is not a link. Return its descriptor. Other users cannot read a created file."""
        return os.open(self._name(name), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)

    def link(self, name: str, new: str) -> None:
        """Give a file a second name; raise FileExistsError if it is used."""
        os.link(self._name(name), self._name(new), src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str, only: os.stat_result | None = None) -> None:
        """Remove a file, if it exists and, with `only`, if it is that file."""
        path = self._name(name)
        with suppress(FileNotFoundError):
            if only is None or os.path.samestat(os.stat(path, dir_fd=self.fd, follow_symlinks=False), only):
                os.unlink(path, dir_fd=self.fd)

    def names(self) -> list[str]:
        """Return the names of all entries."""
        return os.listdir(self.path if self.fd is None else self.fd)

    def close(self) -> None:
        """Close the descriptor, if there is one. May be called more than once."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def fd(self) -> int | None:
        """The descriptor; None if the folder is used by its path.

        Raises:
            StorageError: The descriptor was closed: the path may refer to another directory now.
        """
        if self._opened and self._fd is None:
            raise StorageError("is used after it was closed", path=self.path)
        return self._fd

    def _name(self, name: str) -> str:
        assert "/" not in name, "a file of this directory"
        return name if self._opened else os.path.join(self.path, name)


def storage_error(doing: str, error: OSError, path: str) -> StorageError:
    """Return the StorageError, or StorageFull, of an operating system's error.

    >>> storage_error("written", OSError(errno.ENOSPC, "No space left on device"), "/data/v0.0-3.partition")
    StorageFull('/data/v0.0-3.partition: cannot be written: No space left on device; make room there, or name ...')
    """
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        advice = "make room there, or name other places in batch.directories"
        return StorageFull(f"cannot be {doing}: {reason}; {advice}", path=path)
    return StorageError(f"cannot be {doing}: {reason}", path=path)
