"""What the tests of memory share: a small network pool, buffers with bytes in them, and honest threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headgate.buffer import (
    UNCHANNELLED,
    Answer,
    Arena,
    Buffer,
    BufferReader,
    BufferSlice,
    LocalPool,
    NetworkPool,
    Segment,
)
from headgate.sync import Sync, ThreadSync, Waiter, Wake

PATIENCE_S = 60.0
"""Far more than anything here takes: reaching it means that somebody sleeps for ever."""


def make_network(count: int = 8, segment_size: int = 16, sync: Sync | None = None) -> NetworkPool:
    return NetworkPool(Arena(segment_size, count), ThreadSync() if sync is None else sync)


@contextmanager
def small_network(count: int = 8, segment_size: int = 16, sync: Sync | None = None) -> Iterator[NetworkPool]:
    """A network pool whose local pools are destroyed at the end; segments in use are the test's to give back."""
    network = make_network(count, segment_size, sync)
    yield network
    for pool in list(network._pools):
        pool.destroy()


def take(pool: LocalPool, channel: int = UNCHANNELLED, *, overdraft: bool = False) -> Segment | None:
    """A non-blocking request."""
    with pool.lock:
        return pool.try_request_locked(channel, overdraft=overdraft)


def take_all(pool: LocalPool, channel: int = UNCHANNELLED) -> list[Segment]:
    taken = []
    while (segment := take(pool, channel)) is not None:
        taken.append(segment)
    return taken


def give(pool: LocalPool, *segments: Segment | None, channel: int = UNCHANNELLED) -> None:
    for segment in segments:
        assert segment is not None, "the pool gave a segment"
        with pool.lock:
            wake = pool.recycle_locked(segment, channel)
        if wake is not None:
            wake()


def wrap(pool: LocalPool, segment: Segment, channel: int = UNCHANNELLED) -> Buffer:
    return Buffer(segment.memory, segment=segment, owner=pool, channel=channel)


def filled(pool: LocalPool, data: bytes = b"data", channel: int = UNCHANNELLED) -> BufferSlice:
    """A finished buffer of the pool; its only reference is the slice."""
    with pool.lock:
        segment = pool.try_request_locked(channel)
        assert segment is not None, "the pool gave a segment"
        buffer = wrap(pool, segment, channel)
        reader = BufferReader(buffer)
        assert buffer.append(data) == len(data)
        assert buffer.finish_locked() is None
        part = reader.take_locked()
    assert part is not None
    return part


class Listener:
    """Answers what it was told to, then 'not used'; remembers what happened to it."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.offered = 0
        self.segments: list[Segment] = []
        self.woken = 0
        self.cancelled = 0

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        self.offered += 1
        answer = self.answers.pop(0) if self.answers else Answer.NOT_USED
        if answer is Answer.NOT_USED:
            return answer, None
        self.segments.append(segment)
        return answer, self._wake

    def cancel_locked(self) -> Wake:
        self.cancelled += 1
        return self._wake

    def _wake(self) -> None:
        self.woken += 1


def listen(pool: LocalPool, listener: Listener, channel: int = UNCHANNELLED) -> Listener:
    with pool.lock:
        pool.listen_locked(listener, channel)
    return listener


def run_threads(*functions: Callable[[], object]) -> None:
    """Each on a thread of its own, all at once; the first exception of any is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def guarded(function: Callable[[], object]) -> None:
        try:
            start.wait(PATIENCE_S)
            function()
        except BaseException as error:  # noqa: BLE001 - carried over to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread never ended"


class ScriptedSync(ThreadSync):
    """A `Sync` whose sleepers do not sleep: what would happen meanwhile is done by `on_wait`.

    `on_wait` is called outside the lock, as a wait is; what it raises, the wait raises. `in_request` is called
    inside the lock, while the requester makes its place to sleep.
    """

    __slots__ = ("in_request", "on_wait", "timeouts")

    def __init__(self, on_wait: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.on_wait = on_wait
        self.in_request: Callable[[], object] = lambda: None
        self.timeouts: list[float | None] = []

    def waiter(self) -> Waiter:
        self.in_request()
        return _ScriptedWaiter(self)


class _ScriptedWaiter:
    def __init__(self, sync: ScriptedSync) -> None:
        self._sync = sync
        self._woken = False

    def wait(self, timeout_s: float | None) -> bool:
        assert not self._sync.lock.locked(), "nobody sleeps with the lock"
        self._sync.timeouts.append(timeout_s)
        if not self._woken:
            self._sync.on_wait()
        return self._woken

    def wake(self) -> None:
        assert not self._woken, "one sleeper, one wake"
        self._woken = True
