"""The exchange lock, and how a task thread blocks and is woken.

One lock per worker guards pools, subpartitions and gates. It is taken per buffer, never per record, and never held
across I/O or user code. A function that decides under the lock to wake a thread returns that call (`Wake`); its
caller makes it after releasing the lock. A function whose caller must hold the lock ends in `_locked` and asserts it.

Code that takes the lock once per buffer calls `acquire` and `release` in a `try`: in CPython 3.11 that costs less than
half of `with`.

The core (`record buffer output input`) sees only the protocols. The worker's environment hands in a `ThreadSync`, the
simulator its own.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Protocol, Self

__all__ = [
    "BlockedThread",
    "DebugLock",
    "Lock",
    "NetworkDriver",
    "Sync",
    "ThreadSync",
    "Ticker",
    "Wake",
    "WakeSignal",
    "together",
]

Wake = Callable[[], object] | None
"""A call to make after the lock is released, or None."""

_log = logging.getLogger(__name__)


def together(*wakes: Wake) -> Wake:
    """Return one `Wake` that makes all the calls in order; None if there are none.

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
    """The interface of the exchange lock; `threading.Lock()` has it. Not reentrant."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock. Return True if it was taken.

        Without `blocking`, take it only if it is free; with `timeout`, only within so many seconds.
        """
        ...

    def release(self) -> None:
        """Release the lock."""
        ...

    def locked(self) -> bool:
        """Return True if a thread holds the lock. `_locked` functions assert it."""
        ...


class WakeSignal(Protocol):
    """A signal that one thread blocks on until another thread wakes it: a binary semaphore that starts at zero.

    The thread publishes its signal under the lock before it blocks. The thread that removes the published signal, under
    the lock too, calls `wake` exactly once. So no wake-up is lost, and none is left over.
    """

    def wait(self, timeout_s: float | None) -> bool:
        """Block until `wake` (True) or until the time is over (False). None: no limit."""
        ...

    def wake(self) -> None:
        """Unblock the waiting thread, or let its next `wait` return at once."""
        ...


class Sync(Protocol):
    """The exchange lock of a worker, and the factory of mutexes and signals."""

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        ...

    def mutex(self) -> Lock:
        """Return a new lock, smaller than the exchange lock: taken before that, never inside it."""
        ...

    def new_signal(self) -> WakeSignal:
        """Return a new signal for one thread to block on."""
        ...

    def poll_once(self) -> bool:
        """Run pending network work without blocking. Return True if there was any.

        A task calls it before it blocks.
        """
        ...


class BlockedThread(Protocol):
    """A thread that is about to block, as a `NetworkDriver` sees it."""

    @property
    def woken(self) -> bool:
        """True once the thread need not block any more."""
        ...

    def block(self, timeout_s: float | None) -> bool:
        """Block until woken (True) or until the time is over (False)."""
        ...


class NetworkDriver(Protocol):
    """An event loop that a thread drives instead of blocking."""

    def drive_until(self, thread: BlockedThread, timeout_s: float | None) -> bool:
        """Drive the event loop until `thread` is woken (True) or until the time is over (False)."""
        ...

    def poll_once(self, *, before_blocking: bool) -> bool:
        """Run pending network work without blocking. Return True if there was any.

        `before_blocking`: the caller blocks next unless there was any.
        """
        ...

    def wake_poller(self) -> None:
        """Interrupt the thread that polls: the thread that was woken may be that one."""
        ...


class _ThreadSignal:
    __slots__ = ("_driver", "_semaphore", "woken")

    def __init__(self, driver: NetworkDriver | None) -> None:
        self._driver = driver
        self._semaphore = threading.Lock()
        self._semaphore.acquire()
        self.woken = False  # kept beside the semaphore: the event loop reads it several times per dispatch

    def block(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return self._semaphore.acquire()
        return self._semaphore.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))

    def wait(self, timeout_s: float | None) -> bool:
        if self._driver is None or self.woken:
            return self.block(timeout_s)
        return self._driver.drive_until(self, timeout_s)

    def wake(self) -> None:
        self._semaphore.release()
        self.woken = True  # after the release: a thread that reads True then acquires without blocking
        if self._driver is not None:
            self._driver.wake_poller()


class DebugLock:
    """A lock for tests that records which thread holds it.

    A `threading.Lock` only answers that some thread holds it. With this lock a test wraps every `_locked` function and
    asserts that the calling thread holds it.

    >>> lock = DebugLock()
    >>> with lock: lock.assert_held()
    >>> lock.assert_held()
    Traceback (most recent call last):
    AssertionError: the calling thread does not hold the lock
    """

    __slots__ = ("_lock", "_owner")

    _held: ClassVar[threading.local] = threading.local()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0

    @classmethod
    def any_held(cls) -> bool:
        """Return True if the calling thread holds a `DebugLock`."""
        return getattr(cls._held, "count", 0) > 0

    def assert_held(self) -> None:
        """Raise AssertionError unless the calling thread holds the lock."""
        assert self._owner == threading.get_ident(), "the calling thread does not hold the lock"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, see `Lock`. A thread that would deadlock with itself gets an AssertionError."""
        caller = threading.get_ident()
        assert not blocking or timeout >= 0 or self._owner != caller, "the calling thread holds the lock: a deadlock"
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner = caller
        self._held.count = getattr(self._held, "count", 0) + 1
        return True

    def release(self) -> None:
        """Release the lock; only the thread that took it may."""
        self.assert_held()
        self._owner = 0
        self._held.count -= 1
        self._lock.release()

    def locked(self) -> bool:
        """Return True if a thread holds the lock."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class ThreadSync:
    """A `Sync` between the threads of one process.

    With `debug`, its locks are `DebugLock`s; tests switch that on for all by `debug_by_default`.

    >>> sync = ThreadSync()
    >>> with sync.lock:
    ...     sync.lock.locked()
    True
    >>> signal = sync.new_signal()
    >>> signal.wake(); signal.wait(timeout_s=None)
    True
    """

    __slots__ = ("_debug", "driver", "lock")

    debug_by_default: ClassVar[bool] = False

    def __init__(self, *, debug: bool | None = None) -> None:
        self._debug = self.debug_by_default if debug is None else debug
        self.lock: Lock = self.mutex()
        self.driver: NetworkDriver | None = None
        """The event loop that threads drive instead of blocking, if there is one."""

    def mutex(self) -> Lock:
        """Return a new lock, smaller than the exchange lock."""
        return DebugLock() if self._debug else threading.Lock()

    def new_signal(self) -> WakeSignal:
        """Return a new signal for one thread to block on."""
        return _ThreadSignal(self.driver)

    def poll_once(self) -> bool:
        """Run pending network work without blocking. Return True if there was any."""
        return self.driver is not None and self.driver.poll_once(before_blocking=True)


class Ticker:
    """Calls functions periodically, each at its own interval, all on one thread: the flusher's.

    A function that raises is logged and not called again. The thread starts with the first function and ends with
    `close`.

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
