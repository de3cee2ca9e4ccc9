"""`Sync`s whose signals do not block: the test runs the code of the other threads."""

from collections.abc import Callable

from headgate.sync import ThreadSync, WakeSignal


class HookedSync(ThreadSync):
    """A signal that calls `on_wait(timeout_s)` instead of blocking; that must wake it, or advance the time."""

    __slots__ = ("on_wait", "waits")

    def __init__(self, on_wait: Callable[[float | None], object]) -> None:
        super().__init__()
        self.on_wait = on_wait
        self.waits: list[float | None] = []

    def new_signal(self) -> "HookedWaiter":
        return HookedWaiter(self)


class HookedWaiter:
    def __init__(self, sync: HookedSync) -> None:
        self._sync = sync
        self._wakes = 0

    def wait(self, timeout_s: float | None) -> bool:
        if not self._wakes:
            self._sync.waits.append(timeout_s)
            self._sync.on_wait(timeout_s)
        woken = self._wakes > 0
        assert woken or timeout_s is not None, "the thread would sleep for ever"
        self._wakes = 0
        return woken

    def wake(self) -> None:
        self._wakes += 1
        assert self._wakes == 1, "a sleeper is woken once"


class ScriptedSync(ThreadSync):
    """A `Sync` whose signals do not block: `on_wait` runs the code of the other threads.

    `on_wait` is called outside the lock, as a wait is; what it raises, the wait raises. `in_request` is called
    inside the lock, while the requester makes its place to sleep.
    """

    __slots__ = ("in_request", "on_wait", "timeouts")

    def __init__(self, on_wait: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.on_wait = on_wait
        self.in_request: Callable[[], object] = lambda: None
        self.timeouts: list[float | None] = []

    def new_signal(self) -> WakeSignal:
        self.in_request()
        return _ScriptedWaiter(self)


class _ScriptedWaiter:
    def __init__(self, sync: ScriptedSync) -> None:
        self._sync = sync
        self._woken = False

    def wait(self, timeout_s: float | None) -> bool:
        assert not self._sync.lock.locked(), "no thread blocks while it holds the lock"
        self._sync.timeouts.append(timeout_s)
        if not self._woken:
            self._sync.on_wait()
        return self._woken

    def wake(self) -> None:
        assert not self._woken, "one sleeper, one wake"
        self._woken = True
