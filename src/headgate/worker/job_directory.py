"""The directory of a job on one disk: its permissions, its lock, and its removal.

`<one of batch.directories>/headgate-<user id>/<job>/`. Used by `worker.storage`, on any thread. Its files may contain
pickles, so only this user has access, no link is followed, and files are opened through the directory's descriptor.

Every process that uses the directory holds a shared lock (flock) on its file `lock`. A process removes the directory
only while it holds that lock exclusively, and renames it first, so no other process can enter it meanwhile. A directory
whose lock is free belongs to a crashed job, or to one whose driver is on another machine (file `remote-driver`) and may
start another attempt: the latter is kept until nothing has changed in it for ten minutes.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from contextlib import ExitStack, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from headgate.errors import StorageError
from headgate.output.disk.folder import Folder, storage_error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.ids import JobId

__all__ = ["JobDirectory", "sweep"]

ABANDONED_S: Final = 600.0
"""The directory of a job with a remote driver is abandoned if nothing has changed in it for so long."""

_LOCK: Final = "lock"
_REMOTE_DRIVER: Final = "remote-driver"
_SWEPT: Final = ".swept-"  # prefix of directories that are being removed
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
_TRIES: Final = 300
_PAUSE_S: Final = 0.01
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_ELSEWHERE: Final = "headgate keeps nothing there (batch.directories names other places)"


class JobDirectory:
    """A job's directory on one disk. It is not removed before `leave`.

    >>> import tempfile
    >>> from headgate.ids import JobId
    >>> with tempfile.TemporaryDirectory() as place:
    ...     mine = JobDirectory(place, JobId("etl"), driver_here=True)
    ...     sweep([place]), mine.folder.names()   # it is in use
    ...     mine.leave(remove=True), os.listdir(f"{place}/headgate-{os.geteuid()}")
    ([], ['lock'])
    (True, [])

    Raises:
        StorageError: it cannot be made, or other users have access to it.
    """

    def __init__(self, directory: str, job: JobId, *, driver_here: bool) -> None:
        name = job if _PLAIN.fullmatch(job) else f"job-{sha256(job.encode()).hexdigest()[:32]}"
        self._name = name
        self._path = os.path.join(_base(directory), name)
        self.folder: Folder
        """Contains the job's files."""
        for _ in range(_TRIES):
            if self._enter(directory, driver_here=driver_here):
                return
            time.sleep(_PAUSE_S)  # another process is removing an old directory of this name
        raise StorageError("cannot be used: another process keeps its lock", path=self._path)

    def _enter(self, directory: str, *, driver_here: bool) -> bool:
        """Open the directory and take its lock. Return False if it is being removed."""
        with ExitStack() as opened:
            base = _opened_base(directory, opened, create=True)
            try:
                fd = _opened(self._path, self._name, base, create=True)
                folder = Folder(self._path, fd)
                opened.callback(folder.close)
                lock = os.open(_LOCK, _MAKE, 0o600, dir_fd=fd)
                opened.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if not _is_still(fd, self._name, base):
                    return False
                os.utime(lock)
                if not driver_here:
                    os.close(os.open(_REMOTE_DRIVER, _MAKE, 0o600, dir_fd=fd))
            except (FileNotFoundError, BlockingIOError):
                return False
            except OSError as error:
                raise storage_error("used", error, self._path) from error
            self.folder, self._base, self._lock = folder, base, lock
            self._closing = opened.pop_all()
            return True

    def leave(self, *, remove: bool) -> bool:
        """Release the lock; with `remove`, the last process removes the directory. Return True if removed."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return False
        with self._closing:
            with suppress(OSError):
                os.utime(lock)
            if not remove:
                return False
            fd = self.folder.fd
            assert fd is not None, "it was opened"
            fcntl.flock(lock, fcntl.LOCK_UN)  # first, so that of two processes that leave together one is the last
            return _lock_exclusively(lock) and _is_still(fd, self._name, self._base) and _remove(self._name, self._base)


def sweep(directories: Iterable[str]) -> list[str]:
    """Remove the directories of crashed jobs. Return their paths.

    >>> sweep(["/nonesuch"])
    []
    """
    removed = []
    for directory in directories:
        with suppress(OSError, StorageError), ExitStack() as opened:  # it stays until a later sweep
            base = _opened_base(directory, opened, create=False)
            for name in os.listdir(base):
                with suppress(OSError, StorageError):
                    if _sweep_one(directory, name, base):
                        removed.append(os.path.join(_base(directory), name))
    return removed


def _sweep_one(directory: str, name: str, base: int) -> bool:
    """Remove one job's directory if it is abandoned. Return True if removed."""
    with ExitStack() as opened:
        fd = _opened(os.path.join(_base(directory), name), name, base, create=False)
        opened.callback(os.close, fd)
        # Made if missing: a process that is about to enter the directory locks the same file.
        lock = os.open(_LOCK, _MAKE, 0o600, dir_fd=fd)
        opened.callback(os.close, lock)
        if not _lock_exclusively(lock) or not _is_still(fd, name, base):
            return False
        if not name.startswith(_SWEPT) and not _is_abandoned(fd):
            return False
        return _remove(name, base)


def _is_abandoned(fd: int) -> bool:
    """Return True if a directory whose lock is free is not needed for another attempt."""
    names = os.listdir(fd)
    if _REMOTE_DRIVER not in names:
        return True
    newest = os.fstat(fd).st_mtime
    for name in names:
        with suppress(FileNotFoundError):
            newest = max(newest, os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime)
    return time.time() - newest > ABANDONED_S


def _remove(name: str, base: int) -> bool:
    """Remove a directory whose lock the caller holds exclusively. Return True if removed."""
    swept = f"{_SWEPT}{secrets.token_hex(8)}"
    try:
        os.rename(name, swept, src_dir_fd=base, dst_dir_fd=base)
        shutil.rmtree(swept, dir_fd=base)
    except OSError:  # a later sweep removes the rest
        return False
    return True


def _lock_exclusively(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(fd: int, name: str, base: int) -> bool:
    """Return True if the opened directory still has this name: it may have been removed before the lock was taken."""
    try:
        found = os.stat(name, dir_fd=base, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(fd))


def _base(directory: str) -> str:
    """Return the path of this user's directory."""
    return os.path.join(directory, f"headgate-{os.geteuid()}")


def _opened_base(directory: str, opened: ExitStack, *, create: bool) -> int:
    """Open this user's directory on one disk, until `opened` is closed. Return its descriptor."""
    try:
        outer = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, outer)
        mode = os.fstat(outer).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StorageError(f"every user may remove files in it: chmod +t; {_ELSEWHERE}", path=directory)
        base = _opened(_base(directory), os.path.basename(_base(directory)), outer, create=create)
    except OSError as error:
        raise storage_error("used", error, directory) from error
    opened.callback(os.close, base)
    return base


def _opened(path: str, name: str, outer: int, *, create: bool) -> int:
    """Open a directory and check its owner and mode. Return its descriptor."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=outer)
    except NotADirectoryError:
        raise StorageError(f"is a link or no directory; {_ELSEWHERE}", path=path) from None
    found = os.fstat(fd)
    wrong = None
    if found.st_uid != os.geteuid():
        wrong = f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
    elif found.st_mode & _OTHERS:
        wrong = f"is open to others (its mode is {stat.S_IMODE(found.st_mode):o}): chmod 700 {path}"
    if wrong is not None:
        os.close(fd)
        raise StorageError(f"{wrong}; {_ELSEWHERE}", path=path)
    return fd
