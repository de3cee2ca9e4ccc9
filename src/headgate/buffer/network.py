"""All segments of a worker, and how many of them each local pool may use.

Facts. The number of segments is fixed when the worker starts; tasks come and go. Each pool has a number that it
requires (with fewer, its task could not make progress at all) and a maximum that it can use. What the pools require
must always be there, or a task blocks for ever.

Problem. With sizes fixed at `required`, most segments would never be used; a pool that just takes what is free would
keep it from those that need it later.

Solution. A size is a permission that changes. `create_pool` refuses a pool if the sum of `required` of all pools and of
the exclusive segments would exceed the total. All other segments are spare, and are redistributed over the pools
whenever a pool is created or destroyed or exclusive segments are requested or recycled: each pool's size is
`required` + a share of the spare segments in proportion to what it can use beyond `required` (`share_out`). No buffer
is revoked: a pool above its new size returns segments as its buffers are recycled, so a pool that grew may have to
wait for them. Free segments go first to threads blocked in `request_exclusive`, then to pools with queued listeners,
in the order in which these began to wait. An overdraft (a writer that must finish a record) takes only segments that
no pool may still take within its size.

All state is guarded by the exchange lock. Invariants: free + held by pools + exclusive = total; required by pools +
exclusive <= total.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.buffer.pool import LocalPool
from headgate.errors import InsufficientBuffers, InvariantViolated, RequestTimeout
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.buffer.builder import Buffer
    from headgate.buffer.segment import Arena, Segment
    from headgate.sync import Lock, Sync, Wake

__all__ = ["NetworkPool", "NetworkPoolStatistics", "share_out"]

_log = logging.getLogger(__name__)


def share_out(spare: int, excess: Iterable[int]) -> list[int]:
    """Return how many of `spare` segments each pool gets; `excess` is the number that each can use beyond `required`.

    Shares are in proportion to min(spare, excess). They are differences of rounded running totals, so rounding loses
    no segment.

    >>> share_out(10, [5, 100, 0, 3])
    [2, 6, 0, 2]
    """
    parts = [min(spare, wanted) for wanted in excess]
    whole = sum(parts)
    if whole == 0:
        return parts
    given = min(spare, whole)
    shares, parts_seen, distributed = [], 0, 0
    for part in parts:
        parts_seen += part
        share = given * parts_seen // whole - distributed
        distributed += share
        shares.append(share)
    return shares


@dataclass(frozen=True, slots=True)
class NetworkPoolStatistics:
    """A snapshot of a worker's network memory."""

    total: int
    free: int
    required: int  # the sum of what the pools require, in use or not
    exclusive: int
    pools: int
    segment_size: int


class NetworkPool:
    """The segments of a worker, from which its local pools and remote channels take theirs.

    >>> from headgate.buffer.segment import Arena
    >>> from headgate.sync import ThreadSync
    >>> network = NetworkPool(Arena(segment_size=64, count=10), ThreadSync())
    >>> first = network.create_pool("map", required=2, maximum=4)
    >>> second = network.create_pool("sink", required=2, maximum=100)
    >>> first.statistics().size, second.statistics().size
    (3, 7)
    >>> second.destroy(); first.statistics().size
    4
    """

    def __init__(self, arena: Arena, sync: Sync) -> None:
        self.sync = sync
        self.lock: Lock = sync.lock
        self.arena = arena
        self.segment_size = arena.segment_size
        self.total = len(arena.segments)
        self.free = deque(arena.segments)
        self.returned: deque[Buffer] = deque()  # exported buffers that nothing refers to any more: see `_on_returned`
        self._pools: list[LocalPool] = []
        self._waiting: dict[LocalPool, None] = {}  # pools with queued listeners, in the order they began to wait
        self._exclusive = 0
        self.exclusive_free: list[Segment] = []
        """Exclusive segments without data, of all remote channels: the one used last is used next (processor cache)."""
        self._collecting = False  # a call of `collect_returned_locked` is active
        self._requests: deque[_ExclusiveRequest] = deque()
        _log.info(
            "network memory: %.1f MiB, %d segments of %d bytes",
            arena.size_bytes / (1024 * 1024),
            self.total,
            self.segment_size,
        )

    def create_pool(
        self,
        name: str,
        *,
        required: int,
        maximum: int | None = None,
        channels: int = 0,
        max_per_channel: int | None = None,
        overdraft: int = 0,
    ) -> LocalPool:
        """Create a pool that is guaranteed `required` segments and may grow to `maximum` (None: all segments).

        Args:
            name: The name in error texts and statistics.
            required: Segments reserved for the pool.
            maximum: The largest size of the pool.
            channels: The number of channels whose buffers are counted one by one.
            max_per_channel: The largest number of buffers in use for one channel.
            overdraft: Segments beyond its size that a writer may take to finish a record.

        Raises:
            InsufficientBuffers: Fewer than `required` segments are neither required by pools nor exclusive.
        """
        assert required >= 0, "a pool requires 0 or more segments"
        pool = LocalPool(
            self,
            name,
            required=required,
            maximum=maximum,
            channels=channels,
            max_per_channel=max_per_channel,
            overdraft=overdraft,
        )
        with self.lock:
            self._refuse_unless_spare_locked(name, required)
            self._pools.append(pool)
            wake = self._share_out_locked()
        if wake is not None:
            wake()
        return pool

    def request_exclusive(self, name: str, count: int, *, timeout_s: float | None = None) -> list[Segment]:
        """Return `count` segments that belong to the caller until it recycles them.

        Blocks while some of them are still in use by pools that have just shrunk.

        Raises:
            InsufficientBuffers: Fewer than `count` segments are neither required by pools nor exclusive.
            RequestTimeout: Not all were free within `timeout_s`; the caller gets none.
        """
        with self.lock:
            self._refuse_unless_spare_locked(name, count)
            self._exclusive += count
            request = _ExclusiveRequest(self.sync, count)
            self._requests.append(request)
            wake = together(self._share_out_locked(), self._serve_locked())
        if wake is not None:
            wake()
        try:
            request.waiter.wait(timeout_s)
        except BaseException:  # an interrupt (KeyboardInterrupt) must leave no request and no segment behind
            self._withdraw(request)
            self.recycle_exclusive(request.segments, of=count)
            raise
        if not self._withdraw(request):
            self.recycle_exclusive(request.segments, of=count)
            raise RequestTimeout(
                f"{name} got {len(request.segments)} of {count} exclusive buffers within {timeout_s or 0:g} s; "
                "the others are still in use elsewhere (network.buffers_request_timeout)"
            )
        return request.segments

    def recycle_exclusive(self, segments: list[Segment], *, of: int | None = None) -> None:
        """Take exclusive segments back; `of`: the number that the caller had requested, if it got fewer."""
        with self.lock:
            wake = self.recycle_exclusive_locked(segments, of=of)
        if wake is not None:
            wake()

    def recycle_exclusive_locked(self, segments: list[Segment], *, of: int | None = None) -> Wake:
        """Do the same as `recycle_exclusive`, for callers that hold the lock."""
        self._exclusive -= len(segments) if of is None else of
        assert self._exclusive >= 0, "more exclusive segments were recycled than granted"
        self.free.extend(segments)
        return together(self._share_out_locked(), self._serve_locked())

    def collect_returned(self) -> None:
        """Recycle the exported buffers that nothing refers to any more."""
        with self.lock:
            wake = self.collect_returned_locked()
        if wake is not None:
            wake()

    def close(self) -> None:
        """Close the arena. Segments in use stay readable; none is granted any more."""
        self.collect_returned()
        with self.lock:
            self.arena.close(keep=set(self.arena.segments) - set(self.free))

    def statistics(self) -> NetworkPoolStatistics:
        """Return a snapshot of the totals."""
        self.collect_returned()
        with self.lock:
            return NetworkPoolStatistics(
                total=self.total,
                free=len(self.free),
                required=sum(pool.required for pool in self._pools),
                exclusive=self._exclusive,
                pools=len(self._pools),
                segment_size=self.segment_size,
            )

    # Called by local pools.

    def try_take_locked(self) -> Segment | None:
        """Return a free segment, or None."""
        return self.free.pop() if self.free else None

    def try_take_spare_locked(self) -> Segment | None:
        """Return a free segment for an overdraft, or None if pools below their size or exclusive requests need it.

        Without this rule, two pools could use up the segments that a third one requires.
        """
        promised = sum([max(0, pool.size - pool.held) for pool in self._pools])
        promised += sum([request.missing for request in self._requests])
        return self.free.pop() if len(self.free) > promised else None

    def give_back_locked(self, segment: Segment) -> Wake:
        """Take back a segment that a local pool no longer holds, and grant it to the longest waiting request."""
        self.free.append(segment)
        if len(self.free) > self.total:
            raise InvariantViolated(f"{segment!r} was returned to the network pool twice")
        return self._serve_locked() if self._waiting or self._requests else None

    def set_waiting_locked(self, pool: LocalPool, *, waiting: bool) -> None:
        """Note that a pool has queued listeners, or none any more."""
        if waiting:
            self._waiting.setdefault(pool)
        else:
            self._waiting.pop(pool, None)

    def destroy_locked(self, pool: LocalPool, available: list[Segment]) -> Wake:
        """Remove a pool, and redistribute its segments; `available` are those that it held without using them."""
        self._pools.remove(pool)
        self._waiting.pop(pool, None)
        self.free.extend(available)
        return together(self._share_out_locked(), self._serve_locked())

    # Exporting memory to user code: see `segment.py`.

    def lend_locked(self, buffer: Buffer) -> memoryview:
        """Return the memory of a buffer as a view that holds a reference to the buffer while it exists."""
        assert buffer.segment is not None, "an event has no segment"
        buffer.retain_locked()
        return self.arena.lend(buffer.segment, lambda: self._on_returned(buffer))

    def collect_returned_locked(self) -> Wake:
        """Do the same as `collect_returned`, for callers that hold the lock."""
        if self._collecting:
            return None  # called by a release in the loop below, which continues
        wakes: list[Wake] = []
        self._collecting = True
        while self.returned:
            buffer = self.returned.popleft()
            assert isinstance(buffer.owner, LocalPool), "only pooled buffers are exported"
            buffer.owner.lent -= 1
            wakes.append(buffer.release_locked())
        self._collecting = False
        return together(*wakes)

    def _on_returned(self, buffer: Buffer) -> None:
        """Recycle an exported buffer that nothing refers to any more.

        The interpreter calls this on any thread between any two instructions, also on a thread that holds the lock,
        so it must not block on the lock. If the lock is taken, the next recycled buffer or request collects this one.
        """
        self.returned.append(buffer)
        if self.lock.acquire(blocking=False):
            try:
                wake = self.collect_returned_locked()
            finally:
                self.lock.release()
            if wake is not None:
                wake()

    # Redistributing.

    def _refuse_unless_spare_locked(self, name: str, count: int) -> None:
        promised = self._exclusive + sum(pool.required for pool in self._pools)
        if promised + count > self.total:
            raise InsufficientBuffers(
                f"{name} needs {count} network buffers, but only {self.total - promised} of {self.total} are not "
                f"promised to others ({self.segment_size} bytes each). Raise memory.network.min and "
                "memory.network.max, or lower the parallelism or network.buffers_per_channel."
            )

    def _share_out_locked(self) -> Wake:
        spare = self.total - self._exclusive - sum(pool.required for pool in self._pools)
        shares = share_out(spare, [pool.maximum - pool.required for pool in self._pools])
        # All sizes first: otherwise a pool could be granted segments by a size that the next step shrinks.
        for pool, share in zip(self._pools, shares, strict=True):
            pool.size = pool.required + share
        return together(*[pool.resized_locked() for pool in self._pools])

    def _withdraw(self, request: _ExclusiveRequest) -> bool:
        """Remove an unfinished request. Return True if it was complete."""
        with self.lock:
            if request.missing:
                self._requests.remove(request)
            return not request.missing

    def _serve_locked(self) -> Wake:
        """Grant free segments: first to exclusive requests, which no recycled buffer would serve, then to pools."""
        wakes: list[Wake] = []
        while self._requests and (self.free or not self._requests[0].missing):
            request = self._requests[0]
            while self.free and request.missing:
                request.segments.append(self.free.pop())
                request.missing -= 1
            if not request.missing:
                wakes.append(self._requests.popleft().waiter.wake)
        for pool in list(self._waiting):
            if not self.free:
                break
            wakes.append(pool.serve_locked())
        return together(*wakes)


class _ExclusiveRequest:
    """The request of a thread that is blocked until all its exclusive segments are granted."""

    __slots__ = ("missing", "segments", "waiter")

    def __init__(self, sync: Sync, count: int) -> None:
        self.waiter = sync.new_signal()
        self.missing = count
        self.segments: list[Segment] = []
