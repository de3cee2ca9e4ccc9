"""The exchange lock and places to sleep, where nobody ever really waits.

Handed to the pools, gates and partitions of a simulated worker. Actions run one after another, so a lock that is taken
while it is held, or a sleeper whom nobody has woken, would wait for ever: both are violations of an invariant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from headgate.sync import Lock

__all__ = ["SimLock", "SimSync", "SimWaiter"]


class SimLock:
    """A lock that is never contended.

    >>> lock = SimLock()
    >>> with lock: lock.acquire()
    Traceback (most recent call last):
    headgate.errors.InvariantViolated: the lock is taken by somebody who holds it: a real thread would hang
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; without `blocking`, only if it is free."""
        if self._held:
            if not blocking:
                return False
            raise InvariantViolated("the lock is taken by somebody who holds it: a real thread would hang")
        self._held = True
        return True

    def release(self) -> None:
        """Give it back."""
        if not self._held:
            raise InvariantViolated("a lock is released that nobody holds")
        self._held = False

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class SimWaiter:
    """A place to sleep for a task that is called again, by `woken`, instead of being woken.

    >>> waiter = SimWaiter(lambda: print("woken"))
    >>> waiter.wake(); waiter.wait(timeout_s=None)
    woken
    True
    >>> waiter.wait(timeout_s=None)
    Traceback (most recent call last):
    headgate.errors.InvariantViolated: a blocking call in a simulation: a real thread would sleep here
    """

    __slots__ = ("_wakes", "_woken")

    def __init__(self, woken: Callable[[], object] | None = None) -> None:
        self._woken = woken
        self._wakes = 0

    def wait(self, timeout_s: float | None) -> bool:  # noqa: ARG002 - a Waiter
        """Return, if the wake-up has come already."""
        if not self._wakes:
            raise InvariantViolated("a blocking call in a simulation: a real thread would sleep here")
        self._wakes = 0
        return True

    def wake(self) -> None:
        """Wake the sleeper; exactly once."""
        self._wakes += 1
        if self._wakes > 1:
            raise InvariantViolated("a sleeper is woken twice")
        if self._woken is not None:
            self._woken()


class SimSync:
    """A `Sync` without threads.

    >>> sync = SimSync()
    >>> with sync.lock: sync.lock.locked()
    True
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock: Lock = SimLock()

    def mutex(self) -> Lock:
        """A new lock for something smaller than the exchange."""
        return SimLock()

    def waiter(self) -> SimWaiter:
        """A new place for one thread to sleep."""
        return SimWaiter()

    def help(self) -> bool:
        """Nobody helps: the network has actions of its own."""
        return False
