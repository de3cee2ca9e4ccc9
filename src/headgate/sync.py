"""The exchange lock, and how a task thread waits.

One lock per worker guards pools, subpartitions and gates. It is taken per buffer, never per record, and
never held across I/O or user code. Whoever decides under the lock that somebody must be woken returns that
wake-up as a `Wake`; the caller performs it after leaving the lock. A function whose caller must hold the
lock ends in `_locked` and asserts it.

Where the lock is taken once per buffer, it is taken by `acquire` and `release` in a `try`: in CPython 3.11 that is
less than half of what `with` costs.

The core (`record buffer output input`) sees only the protocols; `ThreadSync` is handed in by whoever builds
the worker, another one by the simulator.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

__all__ = ["Driver", "Lock", "Sleeper", "Sync", "ThreadSync", "Ticker", "Waiter", "Wake", "together"]

Wake = Callable[[], object] | None
"""What is still to be done after the lock: call it, unless it is None."""

_log = logging.getLogger(__name__)


def together(*wakes: Wake) -> Wake:
    """Several wake-ups as one.

    >>> together(None, None) is None
    True
    >>> together(lambda: print("writer"), None, lambda: print("reader"))()
    writer
    reader
    """
    due = [wake for wake in wakes if wake is not None]
    if len(due) <= 1:
        return due[0] if due else None

    def wake_all() -> None:
        for wake in due:
            wake()

    return wake_all


class Lock(Protocol):
    """What the core needs of the exchange lock; `threading.Lock()` is one. Not reentrant."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; without `blocking`, only if that needs no waiting. Whether it was taken."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...

    def locked(self) -> bool:
        """Whether somebody holds it: what `_locked` functions assert."""
        ...


class Waiter(Protocol):
    """Where one thread sleeps until another wakes it: a binary semaphore that starts empty.

    The sleeper announces itself under the lock; whoever takes the announcement back owes exactly one
    `wake`. So no wake-up is lost and none is left over.
    """

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until woken (True) or until the time is over (False). None means for ever."""
        ...

    def wake(self) -> None:
        """Wake the sleeper, or let its next `wait` return at once."""
        ...


class Sync(Protocol):
    """The one lock of a worker's exchange, and the maker of places to sleep."""

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        ...

    def mutex(self) -> Lock:
        """A new lock for something smaller than the exchange; taken before the exchange lock, never inside it."""
        ...

    def waiter(self) -> Waiter:
        """A new place for one thread to sleep."""
        ...

    def help(self) -> bool:
        """Do what others have to do just now, the network above all, without waiting. Whether there was anything."""
        ...


class Sleeper(Protocol):
    """A thread that is about to sleep, as far as a `Driver` knows it."""

    @property
    def woken(self) -> bool:
        """Whether it need not sleep any more."""
        ...

    def sleep(self, timeout_s: float | None) -> bool:
        """Sleep until woken (True) or until the time is over (False)."""
        ...


class Driver(Protocol):
    """Work that a thread does rather than sleep: the network's."""

    def sleep(self, sleeper: Sleeper, timeout_s: float | None) -> bool:
        """Work until the sleeper is woken (True) or until the time is over (False)."""
        ...

    def help(self) -> bool:
        """Work, if there is anything to do at this moment and nobody does it. Whether there was."""
        ...

    def ring(self) -> None:
        """Somebody was woken that may be at work: let it look."""
        ...


class _ThreadWaiter:
    __slots__ = ("_driver", "_signal", "woken")

    def __init__(self, driver: Driver | None) -> None:
        self._driver = driver
        self._signal = threading.Lock()
        self._signal.acquire()
        self.woken = False  # beside the signal, for a driver looks at it several times in each turn

    def sleep(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return self._signal.acquire()
        return self._signal.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def wait(self, timeout_s: float | None) -> bool:
        if self._driver is None or self.woken:
            return self.sleep(timeout_s)
        return self._driver.sleep(self, timeout_s)

    def wake(self) -> None:
        self._signal.release()
        self.woken = True  # after the release: who sees it need not wait for the signal
        if self._driver is not None:
            self._driver.ring()


class ThreadSync:
    """A `Sync` between the threads of one process.

    >>> sync = ThreadSync()
    >>> with sync.lock:
    ...     sync.lock.locked()
    True
    >>> waiter = sync.waiter()
    >>> waiter.wake(); waiter.wait(timeout_s=None)
    True
    """

    __slots__ = ("driver", "lock")

    def __init__(self) -> None:
        self.lock: Lock = threading.Lock()
        self.driver: Driver | None = None
        """What threads do rather than sleep, if anything."""

    def mutex(self) -> Lock:
        """A new lock for something smaller than the exchange."""
        return threading.Lock()

    def waiter(self) -> Waiter:
        """A new place for one thread to sleep."""
        return _ThreadWaiter(self.driver)

    def help(self) -> bool:
        """Do what the driver has to do just now, if there is one."""
        return self.driver is not None and self.driver.help()


class Ticker:
    """Calls functions again and again at their own interval, all on one thread: the flusher's clock.

    A function that raises is not called again; raising is its own business to report. The thread starts
    with the first function and ends with `close`.

    >>> ticker, called = Ticker("doctest"), threading.Event()
    >>> ticker.every(0.001, called.set)
    >>> called.wait(timeout=10)
    True
    >>> ticker.close()
    """

    def __init__(self, name: str = "headgate-ticker") -> None:
        self._name = name
        self._changed = threading.Condition()
        self._due: dict[Callable[[], object], tuple[float, float]] = {}  # function -> (interval, next time)
        self._thread: threading.Thread | None = None
        self._closed = False

    def every(self, interval_s: float, function: Callable[[], object]) -> None:
        """Call `function` every `interval_s` seconds from now on."""
        assert interval_s > 0, "an interval is a positive time"
        with self._changed:
            assert not self._closed, "the ticker is closed"
            self._due[function] = (interval_s, time.monotonic() + interval_s)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def cancel(self, function: Callable[[], object]) -> None:
        """Stop calling `function`; a call under way may still finish."""
        with self._changed:
            self._due.pop(function, None)

    def close(self) -> None:
        """Stop calling anything and wait for the thread to end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            try:
                function()
            except Exception:  # noqa: BLE001 - the ticker outlives what it calls
                _log.exception("%s: %r failed and is not called again", self._name, function)
                self.cancel(function)

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                function, (interval_s, at) = min(self._due.items(), key=lambda item: item[1][1])
                if (ahead := at - time.monotonic()) > 0:
                    self._changed.wait(ahead)
                    continue
                self._due[function] = (interval_s, time.monotonic() + interval_s)
                return function
        return None
