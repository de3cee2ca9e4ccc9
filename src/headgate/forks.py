"""Child processes that a user's function forks (`os.fork`, `multiprocessing`), and headgate's objects in them.

Facts. A child has one thread, the one that forked; copies of all file descriptors, which refer to the parent's
connections; and locks in the state that other threads of the parent had left them in.

Problem. A child that writes to a connection corrupts the parent's stream; a child that keeps it open hides the parent's
end from the peer; a child that blocks on a lock held by another thread blocks for ever.

Solution. Right after the fork, the child abandons every registered object: transports close their descriptors without
sending anything, event loops stop, and tasks end. The user's own code in the child is not touched. If it returns to
headgate's code, or raises, that ends the process (`end_child`). Objects that the child creates after the fork work: it
may run jobs of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ChildEnds", "Forked", "end_child", "register"]

_RETURNED = b"headgate: a user's function has returned in a process that it forked; a child ends with os._exit\n"


class Forked(Protocol):
    """An object that a child process must abandon; see `register`."""

    def abandon(self) -> None:
        """Release descriptors in the child, on its only thread. Must not take a lock or block."""
        ...


_registered: WeakSet[Forked] = WeakSet()


def register(one: Forked) -> None:
    """Abandon an object in child processes forked from now on. Only a weak reference to it is stored.

    >>> class Transport:
    ...     def abandon(self): os._exit(7)
    >>> transport = Transport(); register(transport)
    >>> child = os.fork()
    >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    7
    """
    _registered.add(one)


def end_child(error: BaseException | None) -> NoReturn:
    """End this process, a child whose user code has returned to headgate (`error` is None) or raised.

    The exit status is that of a SystemExit, otherwise 1. Nothing that belongs to the parent is flushed or closed.

    >>> child = os.fork()
    >>> if child == 0:
    ...     end_child(SystemExit(7))
    >>> os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    7
    """
    while error is not None and not isinstance(error, SystemExit) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SystemExit):
        code = error.code
        os._exit(code if isinstance(code, int) else code is not None)
    text = _RETURNED if error is None else f"headgate: in a forked child: {type(error).__name__}: {error}\n".encode()
    os.write(2, text)
    os._exit(1)


class ChildEnds:
    """A replacement, in a child, for a lock that tasks take: taking it ends the process."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002 - the signature of a lock
        """End the process."""
        end_child(None)

    def release(self) -> None:
        """Do nothing: it is never taken."""

    def locked(self) -> bool:
        """Return False: it is never taken."""
        return False

    def __enter__(self) -> object:
        end_child(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def _forked() -> None:
    abandoned = list(_registered)
    _registered.clear()
    for one in abandoned:
        one.abandon()


os.register_at_fork(after_in_child=_forked)
