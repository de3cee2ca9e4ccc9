"""Where headgate keeps what outlives a process or is shared between processes of one user: the state directory.

Used by whoever offers, finds or keeps jobs, on any thread. Below it are `run`, with a socket for each process that has
jobs, and `jobs`, with a file for each finished one.

Invariants: what is opened here is a real directory, belongs to this user, and nobody else may write to it; everything
in it is reached through the descriptor of the directory that was looked at, so that nothing can be put in its place.
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

_VARIABLE: Final = "HEADGATE_STATE_DIR"  # one that `config.load` knows to be no setting
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def state_directory(environ: Mapping[str, str] | None = None) -> Path:
    """The state directory, which may not exist.

    >>> state_directory({"HEADGATE_STATE_DIR": "/var/lib/etl"})
    PosixPath('/var/lib/etl')
    >>> state_directory({"XDG_STATE_HOME": "/home/me/state", "HOME": "/home/me"})
    PosixPath('/home/me/state/headgate')
    >>> state_directory({"HOME": "/home/me"})
    PosixPath('/home/me/.local/state/headgate')

    Raises:
        ConfigError: there is no home directory, and no variable says where else.
    """
    environ = os.environ if environ is None else environ
    if given := environ.get(_VARIABLE):
        return Path(given).absolute()
    if (shared := environ.get("XDG_STATE_HOME", "")).startswith("/"):  # others are to be ignored, it is agreed
        return Path(shared, "headgate")
    home = environ.get("HOME") or os.path.expanduser("~")
    if not home.startswith("/"):
        raise ConfigError(f"there is no home directory to keep the state of jobs in: set {_VARIABLE} to a directory")
    return Path(home, ".local", "state", "headgate")


class PrivateDirectory:
    """The state directory or one of those in it, opened; nobody but this user can have put anything there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, PrivateDirectory("jobs", root=Path(place), create=True) as jobs:
    ...     jobs.path == Path(place, "jobs"), jobs.names()
    (True, [])

    Raises:
        FileNotFoundError: it does not exist, and is not to be created.
        OSError: it cannot be opened or created.
        ConfigError: it is a link, belongs to somebody else, or others may write to it.
    """

    def __init__(self, name: str, *, root: Path | None = None, create: bool = False) -> None:
        root = state_directory() if root is None else root
        if create:
            root.parent.mkdir(parents=True, exist_ok=True)
        outer = _opened(root, root, None, create=create)
        try:
            self.path = root / name
            self.fd = _opened(self.path, name, outer, create=create)
        finally:
            os.close(outer)

    def names(self) -> list[str]:
        """Of everything in it, in order."""
        return sorted(os.listdir(self.fd))

    def via(self, name: str) -> str:
        """A path to one of its files through the descriptor; short, as the addresses of sockets have to be."""
        return f"/proc/self/fd/{self.fd}/{name}"

    def remove(self, name: str) -> None:
        """Remove one of its files, if it is there."""
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


def _opened(path: Path, name: str | Path, outer: int | None, *, create: bool) -> int:
    """A directory's descriptor, after a look at what it is."""
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer)
    try:
        fd = os.open(name, _FLAGS, dir_fd=outer)
    except NotADirectoryError:
        raise ConfigError(f"{path} is a link or no directory: headgate keeps nothing there") from None
    found = os.fstat(fd)
    wrong = None
    if found.st_uid != os.geteuid():
        wrong = f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
    elif found.st_mode & _OTHERS_WRITE:
        wrong = f"can be written to by others (its mode is {stat.S_IMODE(found.st_mode):o}): chmod 700 {path}"
    if wrong is not None:
        os.close(fd)
        raise ConfigError(f"{path} {wrong}; headgate keeps nothing there ({_VARIABLE} names another place)")
    return fd
