"""All segments of a worker, and how the spare ones are shared out over its local pools.

Whenever a pool is made or destroyed, or exclusive segments are taken or given back, every pool gets a new
size: what it requires plus its share of what nobody requires.

Everything here runs under the exchange lock. Invariants: free + held by pools + exclusive = total; what the
pools require + exclusive <= total.
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
    """How many of `spare` segments each pool gets, where `excess` is how many each may have past its need.

    Shares are in proportion to min(spare, excess). Running totals let the rounding errors cancel out, so
    that nothing is lost.

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
    """The state of a worker's network memory at one moment.

    >>> from headgate.buffer.segment import Arena
    >>> from headgate.sync import ThreadSync
    >>> NetworkPool(Arena(segment_size=64, count=10), ThreadSync()).statistics()
    NetworkPoolStatistics(total=10, free=10, required=0, exclusive=0, pools=0, segment_size=64)
    """

    total: int
    free: int
    required: int  # promised to pools, whether taken or not
    exclusive: int
    pools: int
    segment_size: int


class NetworkPool:
    """All segments of a worker.

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
        self.returned: deque[Buffer] = deque()  # lent buffers whose last user is gone; see `_came_back`
        self._pools: list[LocalPool] = []
        self._wanting: dict[LocalPool, None] = {}  # pools with unserved listeners, longest waiting first
        self._exclusive = 0
        self.shelf: list[Segment] = []
        """Exclusive segments that wait for data, of all channels together: the one used last is used next."""
        self._collecting = False  # `collect_returned_locked` is at work
        self._claims: deque[_ExclusiveClaim] = deque()
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
        """A pool that is sure of `required` segments and may grow to `maximum` (None: to all there are).

        Args:
            name: what error texts and statistics call it.
            required: segments kept for it whatever the others want.
            maximum: its largest size.
            channels: how many queues its buffers go to.
            max_per_channel: most buffers in use for one of those queues.
            overdraft: how far a writer may go past the size to finish a record it has begun.
        """
        assert required >= 0, "a pool cannot need less than nothing"
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
        """Segments for as long as the caller likes, outside any pool; all or none.

        Sleeps while segments promised to the caller are still in use by pools that have just shrunk.
        """
        with self.lock:
            self._refuse_unless_spare_locked(name, count)
            self._exclusive += count
            claim = _ExclusiveClaim(self.sync, count)
            self._claims.append(claim)
            wake = together(self._share_out_locked(), self._serve_locked())
        if wake is not None:
            wake()
        try:
            claim.waiter.wait(timeout_s)
        except BaseException:  # an interrupt must leave no claim and no segment behind
            self._withdraw(claim)
            self.recycle_exclusive(claim.segments, of=count)
            raise
        if not self._withdraw(claim):
            self.recycle_exclusive(claim.segments, of=count)
            raise RequestTimeout(
                f"{name} got {len(claim.segments)} of {count} exclusive buffers within {timeout_s or 0:g} s; "
                "the others are still in use elsewhere (network.buffers_request_timeout)"
            )
        return claim.segments

    def recycle_exclusive(self, segments: list[Segment], *, of: int | None = None) -> None:
        """Take exclusive segments back; `of`: how many the caller was promised, if it did not get all."""
        with self.lock:
            wake = self.recycle_exclusive_locked(segments, of=of)
        if wake is not None:
            wake()

    def recycle_exclusive_locked(self, segments: list[Segment], *, of: int | None = None) -> Wake:
        """As `recycle_exclusive`, for callers who hold the lock already."""
        self._exclusive -= len(segments) if of is None else of
        assert self._exclusive >= 0, "more exclusive segments came back than were given"
        self.free.extend(segments)
        return together(self._share_out_locked(), self._serve_locked())

    def collect_returned(self) -> None:
        """Release the lent buffers whose last user is gone."""
        with self.lock:
            wake = self.collect_returned_locked()
        if wake is not None:
            wake()

    def close(self) -> None:
        """Give the memory back. Whoever still holds a segment may go on touching it, but gets no other."""
        self.collect_returned()
        with self.lock:
            self.arena.close(keep=set(self.arena.segments) - set(self.free))

    def statistics(self) -> NetworkPoolStatistics:
        """Totals at this moment."""
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

    # What the local pools call.

    def try_take_locked(self) -> Segment | None:
        """A free segment, or None."""
        return self.free.pop() if self.free else None

    def try_take_spare_locked(self) -> Segment | None:
        """As `try_take_locked`, but none that another pool may take within its size, or an exclusive claim.

        For an overdraft: else two pools within their sizes could use up what a third is sure of.
        """
        promised = sum([max(0, pool.size - pool.held) for pool in self._pools])
        promised += sum([claim.missing for claim in self._claims])
        return self.free.pop() if len(self.free) > promised else None

    def give_back_locked(self, segment: Segment) -> Wake:
        """A local pool returns a segment that it holds no more: to whoever has waited longest."""
        self.free.append(segment)
        if len(self.free) > self.total:
            raise InvariantViolated(f"{segment!r} came back to the network pool twice")
        return self._serve_locked() if self._wanting or self._claims else None

    def want_locked(self, pool: LocalPool, *, wanted: bool) -> None:
        """Whether somebody waits for this pool to get a segment."""
        if wanted:
            self._wanting.setdefault(pool)
        else:
            self._wanting.pop(pool, None)

    def destroy_locked(self, pool: LocalPool, at_hand: list[Segment]) -> Wake:
        """Forget a pool and share out anew, what it had at hand too."""
        self._pools.remove(pool)
        self._wanting.pop(pool, None)
        self.free.extend(at_hand)
        return together(self._share_out_locked(), self._serve_locked())

    # Lending: memory that user code may keep.

    def lend_locked(self, buffer: Buffer) -> memoryview:
        """The memory of a buffer, which is released when the last user of that memory is gone."""
        assert buffer.segment is not None, "events are not lent"
        buffer.retain_locked()
        return self.arena.lend(buffer.segment, lambda: self._came_back(buffer))

    def collect_returned_locked(self) -> Wake:
        """As `collect_returned`, for callers who hold the lock already."""
        if self._collecting:
            return None  # a release below came here again: the loop above it goes on
        wakes: list[Wake] = []
        self._collecting = True
        while self.returned:
            buffer = self.returned.popleft()
            assert isinstance(buffer.owner, LocalPool), "only pooled buffers are lent"
            buffer.owner.lent -= 1
            wakes.append(buffer.release_locked())
        self._collecting = False
        return together(*wakes)

    def _came_back(self, buffer: Buffer) -> None:
        """The garbage collector says that lent memory is unused.

        This may interrupt any thread anywhere, also one that holds the lock, so it must not wait for it. If
        the lock is taken, the next release or request collects the buffer.
        """
        self.returned.append(buffer)
        if self.lock.acquire(blocking=False):
            try:
                wake = self.collect_returned_locked()
            finally:
                self.lock.release()
            if wake is not None:
                wake()

    # Sharing out.

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
        # All sizes before any change of hands: nobody is served by a size that is about to shrink.
        for pool, share in zip(self._pools, shares, strict=True):
            pool.size = pool.required + share
        return together(*[pool.resized_locked() for pool in self._pools])

    def _withdraw(self, claim: _ExclusiveClaim) -> bool:
        """Stop waiting; whether the claim was complete."""
        with self.lock:
            if claim.missing:
                self._claims.remove(claim)
            return not claim.missing

    def _serve_locked(self) -> Wake:
        """Free segments go to exclusive claims, which never give back by themselves, before pools."""
        wakes: list[Wake] = []
        while self._claims and (self.free or not self._claims[0].missing):
            claim = self._claims[0]
            while self.free and claim.missing:
                claim.segments.append(self.free.pop())
                claim.missing -= 1
            if not claim.missing:
                wakes.append(self._claims.popleft().waiter.wake)
        for pool in list(self._wanting):
            if not self.free:
                break
            wakes.append(pool.serve_locked())
        return together(*wakes)


class _ExclusiveClaim:
    """A thread asleep until its exclusive segments are complete."""

    __slots__ = ("missing", "segments", "waiter")

    def __init__(self, sync: Sync, count: int) -> None:
        self.waiter = sync.waiter()
        self.missing = count
        self.segments: list[Segment] = []
