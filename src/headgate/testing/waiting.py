"""The exchange lock and the wake signals of a simulated worker; neither ever blocks.

Actions run one after another. So an `acquire` of a lock that is held, and a `wait` for a signal that was not sent,
would block for ever: both raise InvariantViolated.
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
    headgate.errors.InvariantViolated: the lock is acquired while it is held: a real thread would deadlock
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002 - it never blocks
        """Take the lock; without `blocking`, only if it is free."""
        if self._held:
            if not blocking:
                return False
            raise InvariantViolated("the lock is acquired while it is held: a real thread would deadlock")
        self._held = True
        return True

    def release(self) -> None:
        """Release the lock."""
        if not self._held:
            raise InvariantViolated("a lock is released that is not held")
        self._held = False

    def locked(self) -> bool:
        """Return True if the lock is held."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class SimWaiter:
    """A `WakeSignal` that calls `woken`, instead of unblocking a thread.

    >>> waiter = SimWaiter(lambda: print("woken"))
    >>> waiter.wake(); waiter.wait(timeout_s=None)
    woken
    True
    >>> waiter.wait(timeout_s=None)
    Traceback (most recent call last):
    headgate.errors.InvariantViolated: a blocking call in a simulation: a real thread would block here
    """

    __slots__ = ("_wakes", "_woken")

    def __init__(self, woken: Callable[[], object] | None = None) -> None:
        self._woken = woken
        self._wakes = 0

    def wait(self, timeout_s: float | None) -> bool:  # noqa: ARG002 - a WakeSignal
        """Return at once if `wake` was called; otherwise raise InvariantViolated."""
        if not self._wakes:
            raise InvariantViolated("a blocking call in a simulation: a real thread would block here")
        self._wakes = 0
        return True

    def wake(self) -> None:
        """Call `woken`; a second call before `wait` raises InvariantViolated."""
        self._wakes += 1
        if self._wakes > 1:
            raise InvariantViolated("a signal is sent twice")
        if self._woken is not None:
            self._woken()


class SimSync:
    """A `Sync` without threads."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock: Lock = SimLock()

    def mutex(self) -> Lock:
        """Return a new lock, smaller than the exchange lock."""
        return SimLock()

    def new_signal(self) -> SimWaiter:
        """Return a new signal."""
        return SimWaiter()

    def poll_once(self) -> bool:
        """Return False: the actions of the network are scheduled by the simulator."""
        return False
