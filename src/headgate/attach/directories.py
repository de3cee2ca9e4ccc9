"""The state directory of a user: `run`, with a socket for each process that has jobs, and `jobs`, with their files.

Used on any thread.

Invariants: a directory that is opened here is no link, belongs to this user, and no other user can write to it; its
files are accessed through the descriptor that was checked, so that the directory cannot be replaced meanwhile.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PrivateDirectory", "state_directory"]

_VARIABLE: Final = "HEADGATE_STATE_DIR"  # `config.load` does not read it as a setting
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def state_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the state directory, which may not exist.

    >>> state_directory({"HEADGATE_STATE_DIR": "/var/lib/etl"})
    PosixPath('/var/lib/etl')
    >>> state_directory({"XDG_STATE_HOME": "/home/me/state", "HOME": "/home/me"})
    PosixPath('/home/me/state/headgate')
    >>> state_directory({"HOME": "/home/me"})
    PosixPath('/home/me/.local/state/headgate')

    Raises:
        ConfigError: there is no home directory, and no variable names another.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get(_VARIABLE):
        return Path(given).absolute()
    if (shared := environ.get("XDG_STATE_HOME", "")).startswith(
        "/"
    ):  # the XDG specification: relative paths are ignored
        return Path(shared, "headgate")
    home = environ.get("HOME") or os.path.expanduser("~")
    if not home.startswith("/"):
        raise ConfigError(f"there is no home directory to keep the state of jobs in: set {_VARIABLE} to a directory")
    return Path(home, ".local", "state", "headgate")


class PrivateDirectory:
    """An open directory of the state directory that only this user can write to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, PrivateDirectory("jobs", root=Path(folder), create=True) as jobs:
    ...     jobs.path == Path(folder, "jobs"), jobs.names()
    (True, [])

    Raises:
        FileNotFoundError: it does not exist, and `create` is not set.
        OSError: it cannot be opened or created.
        ConfigError: it is a link, belongs to another user, or others can write to it.
    """

    def __init__(self, name: str, *, root: Path | None = None, create: bool = False) -> None:
        root = state_directory() if root is None else root
        if create:
            root.parent.mkdir(parents=True, exist_ok=True)
        outer = _open_directory(root, root, None, create=create)
        try:
            self.path = root / name
            self.fd = _open_directory(self.path, name, outer, create=create)
        finally:
            os.close(outer)

    def names(self) -> list[str]:
        """Return the sorted names of its files."""
        return sorted(os.listdir(self.fd))

    def via(self, name: str) -> str:
        """Return a path to a file through the descriptor; it is short, as the address of a socket must be."""
        return f"/proc/self/fd/{self.fd}/{name}"

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def close(self) -> None:
        """Close it. May be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _open_directory(path: Path, name: str | Path, outer: int | None, *, create: bool) -> int:
    """Return the descriptor of a directory, after checking its type, owner and mode."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer)
    try:
        fd = os.open(name, _FLAGS, dir_fd=outer)
    except NotADirectoryError:
        raise ConfigError(f"{path} is a link or no directory: headgate writes nothing there") from None
    found = os.fstat(fd)
    wrong = None
    if found.st_uid != os.geteuid():
        wrong = f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
    elif found.st_mode & _OTHERS_WRITE:
        wrong = f"can be written to by others (its mode is {stat.S_IMODE(found.st_mode):o}): chmod 700 {path}"
    if wrong is not None:
        os.close(fd)
        raise ConfigError(f"{path} {wrong}; headgate writes nothing there ({_VARIABLE} can name another directory)")
    return fd
