"""Shared by the tests of memory: a small network pool, and buffers with bytes in them."""

from collections.abc import Iterator
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
from headgate.sync import Sync, ThreadSync, Wake


def make_network(count: int = 8, segment_size: int = 16, sync: Sync | None = None) -> NetworkPool:
    return NetworkPool(Arena(segment_size, count), ThreadSync() if sync is None else sync)


@contextmanager
def small_network(count: int = 8, segment_size: int = 16, sync: Sync | None = None) -> Iterator[NetworkPool]:
    """Yield a network pool and destroy its local pools at the end; the test gives back the segments in use."""
    network = make_network(count, segment_size, sync)
    yield network
    for pool in list(network._pools):
        pool.destroy()


def take(pool: LocalPool, channel: int = UNCHANNELLED, *, overdraft: bool = False) -> Segment | None:
    """Request a segment without blocking."""
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
    """Return a slice of a finished buffer of the pool; it is the only reference to the buffer."""
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
    """A listener with prepared answers, then 'not used'; it records all calls."""

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
