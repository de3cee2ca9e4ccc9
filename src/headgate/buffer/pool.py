"""The segments that one partition or gate may use.

Each result partition has a `LocalPool`: its task thread requests segments and blocks while there is none. So has each
input gate: its remote channels request without blocking, and register a listener. The size of a pool is a permission,
not a possession: the pool takes a segment from the network pool only when it is requested, and a pool that was shrunk
returns its excess as its buffers are recycled. `network.py` describes how sizes are computed.

All state is guarded by the exchange lock. Invariants: held = available + in use; a pool with held > size has no
available segment; a listener is queued only while the pool has no segment that it could use.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.buffer.builder import Buffer
from headgate.buffer.listener import Answer, Claim
from headgate.errors import Cancelled, InvariantViolated, RequestTimeout
from headgate.meters import Activity
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer.listener import BufferListener
    from headgate.buffer.network import NetworkPool
    from headgate.buffer.segment import Segment
    from headgate.meters import TaskTimer
    from headgate.sync import Lock, Wake

__all__ = ["UNCHANNELLED", "LocalPool", "LocalPoolStatistics"]

UNCHANNELLED = -1
"""The channel of buffers that count against no channel's limit: broadcast and exported ones."""

_EXPORTED_WAIT_S = 0.05  # see `_block`
_NOT_USED, _MORE_WANTED = Answer.NOT_USED, Answer.USED_MORE_WANTED  # looking up a member costs more than comparing it


@dataclass(frozen=True, slots=True)
class LocalPoolStatistics:
    """A snapshot of one local pool."""

    name: str
    required: int
    maximum: int
    size: int
    held: int  # segments taken from the network pool
    available: int  # held segments that are not in use
    lent: int  # held segments whose memory user code refers to
    waiting: int  # queued listeners, blocked threads among them

    @property
    def usage(self) -> float:
        """The share of the size that is in use: 0 to 1, more while the pool shrinks or is overdrawn."""
        return (self.held - self.available) / self.size if self.size else 0.0


class LocalPool:
    """The segments of one partition or gate; created by `NetworkPool.create_pool`.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker: worker.memory.create_pool("map", required=2, maximum=8)
    <LocalPool map: 0 held, size 8 (2..8)>
    """

    __slots__ = (
        "_available",
        "_destroyed",
        "_in_use",
        "_listeners",
        "_network",
        "held",
        "lent",
        "lock",
        "max_per_channel",
        "maximum",
        "name",
        "overdraft",
        "required",
        "segment_size",
        "size",
    )

    def __init__(
        self,
        network: NetworkPool,
        name: str,
        *,
        required: int,
        maximum: int | None,
        channels: int,
        max_per_channel: int | None,
        overdraft: int,
    ) -> None:
        self._network = network
        self.lock: Lock = network.lock
        self.segment_size = network.segment_size
        self.name = name
        self.required = required
        self.maximum = network.total if maximum is None else max(required, min(maximum, network.total))
        self.max_per_channel = network.total if max_per_channel is None else max_per_channel
        self.overdraft = overdraft
        self.size = required
        self.held = 0
        self.lent = 0
        self._available: deque[Segment] = deque()
        self._in_use = [0] * (channels + 1)  # the last entry is UNCHANNELLED
        self._listeners: deque[tuple[BufferListener, int]] = deque()
        self._destroyed = False

    def __repr__(self) -> str:
        return f"<LocalPool {self.name}: {self.held} held, size {self.size} ({self.required}..{self.maximum})>"

    # Requesting.

    def try_request_locked(self, channel: int = UNCHANNELLED, overdraft: bool = False) -> Segment | None:
        """Return a segment for `channel`, or None; `overdraft` allows the request to exceed size and channel limit."""
        if self._destroyed:
            raise self._gone()
        extra = self.overdraft if overdraft else 0
        if channel >= 0 and self._in_use[channel] >= self.max_per_channel + extra:
            return None
        if self._available:
            segment = self._available.pop()  # the one used last: its memory is probably still in the cache
        else:
            if self.held >= self.size + extra:
                return None
            past_size = self.held >= self.size
            taken = self._network.try_take_spare_locked() if past_size else self._network.try_take_locked()
            if taken is None:
                return None
            self.held += 1
            segment = taken
        self._in_use[channel] += 1
        return segment

    def try_buffer_locked(self, channel: int, overdraft: bool) -> Buffer | None:
        """Return an empty buffer with one reader, or None: `try_request_locked` for writers, once per buffer."""
        segment = self.try_request_locked(channel, overdraft)
        return None if segment is None else Buffer.over(segment, self, channel)

    def request(
        self,
        channel: int = UNCHANNELLED,
        overdraft: bool = False,
        *,
        timeout_s: float | None = None,
        timer: TaskTimer | None = None,
    ) -> Segment:
        """Return a segment for `channel`; the calling task thread blocks until there is one.

        Raises:
            RequestTimeout: The pool granted none within `timeout_s`.
            Cancelled: The pool is or was destroyed.
        """
        self._poll_network(timer)
        claim = None
        with self.lock:
            if self._destroyed:
                raise self._gone()  # before a segment is granted: the wake-up would be lost with the exception
            wake = self._network.collect_returned_locked()
            segment = self.try_request_locked(channel, overdraft)
            if segment is None:
                claim = Claim(self._network.sync)
                self.listen_locked(claim, channel)
        if wake is not None:
            wake()
        if claim is None:
            assert segment is not None, "the request was granted at once"
            return segment
        return self._await(claim, channel, timeout_s, timer)

    def listen_locked(self, listener: BufferListener, channel: int = UNCHANNELLED) -> None:
        """Queue a listener for the next segment that the pool can grant to `channel`."""
        if self._destroyed:
            raise self._gone()
        self._listeners.append((listener, channel))
        self._network.set_waiting_locked(self, waiting=True)

    # Recycling.

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:
        """Take back a segment whose buffer has no references left."""
        in_use = self._in_use
        in_use[channel] -= 1
        if in_use[channel] < 0:
            raise InvariantViolated(f"{self!r}: {segment!r} was recycled twice for channel {channel}")
        if self.held > self.size or self._network.returned:
            return self._recycle_slowly_locked(segment)
        self._available.append(segment)
        return self.serve_locked() if self._listeners else None

    def _recycle_slowly_locked(self, segment: Segment) -> Wake:
        """Recycle while the pool is overdrawn, shrunk or destroyed, or while exported memory has been returned."""
        if self.held <= self.size:
            self._available.append(segment)
            wake = None
        else:
            self.held -= 1
            wake = self._network.give_back_locked(segment)
        if self._listeners:
            wake = together(wake, self.serve_locked())
        return together(wake, self._network.collect_returned_locked()) if self._network.returned else wake

    def lend_locked(self, buffer: Buffer) -> tuple[memoryview | None, Wake]:
        """Return the segment's memory as a view that may outlive the buffer, or None.

        At most half of the segments beyond `required` are exported: the others keep the data flowing.
        """
        if self._destroyed or self.lent * 2 >= self.size - self.required:
            return None, None
        self.lent += 1
        wake = None
        if buffer.channel != UNCHANNELLED:
            # User code may hold it for any time: it must not count against its channel meanwhile.
            self._in_use[buffer.channel] -= 1
            self._in_use[UNCHANNELLED] += 1
            buffer.channel = UNCHANNELLED
            wake = self.serve_locked() if self._listeners else None
        return self._network.lend_locked(buffer), wake

    def serve_locked(self) -> Wake:
        """Offer segments to the listeners in their order; those whose channel is at its limit keep their place."""
        wake: Wake = None
        listeners, available, blocked = self._listeners, self._available, []
        while listeners and (available or (self.held < self.size and self._network.free)):
            listener, channel = listeners.popleft()
            segment = self.try_request_locked(channel)
            if segment is None:
                blocked.append((listener, channel))
                continue
            answer, woken = listener.offer_locked(segment)
            if woken is not None:
                wake = together(wake, woken)
            if answer is _NOT_USED:
                self._in_use[channel] -= 1
                available.append(segment)
            elif answer is _MORE_WANTED:
                listeners.append((listener, channel))
        listeners.extendleft(reversed(blocked))
        self._network.set_waiting_locked(self, waiting=bool(listeners))
        return wake

    # Resizing and destroying.

    def resized_locked(self) -> Wake:
        """Adapt to the `size` that the network pool has just set: return the excess, grant to listeners."""
        wakes = []
        while self._available and self.held > self.size:
            self.held -= 1
            wakes.append(self._network.give_back_locked(self._available.pop()))
        if self._listeners:
            wakes.append(self.serve_locked())
        return together(*wakes)

    def destroy(self) -> None:
        """Refuse all further requests; segments in use return to the network pool when recycled. Idempotent."""
        with self.lock:
            wake = self.destroy_locked()
        if wake is not None:
            wake()

    def destroy_locked(self) -> Wake:
        """Do the same as `destroy`, for callers that hold the lock."""
        if self._destroyed:
            return None
        self._destroyed = True
        self.size = 0
        # Before the available segments are returned: the network pool then serves only listeners of other pools.
        wakes = [listener.cancel_locked() for listener, _ in self._listeners]
        self._listeners.clear()
        self._network.set_waiting_locked(self, waiting=False)
        available = [*self._available]
        self._available.clear()
        self.held -= len(available)
        return together(*wakes, self._network.destroy_locked(self, available))

    @property
    def in_use(self) -> int:
        """The number of segments in use; read without the lock, so it may be out of date by one change."""
        return max(0, self.held - len(self._available))

    @property
    def destroyed(self) -> bool:
        """True once requests are refused."""
        return self._destroyed

    def statistics(self) -> LocalPoolStatistics:
        """Return a snapshot of the pool."""
        self._network.collect_returned()
        with self.lock:
            return LocalPoolStatistics(
                name=self.name,
                required=self.required,
                maximum=self.maximum,
                size=self.size,
                held=self.held,
                available=len(self._available),
                lent=self.lent,
                waiting=len(self._listeners),
            )

    def _poll_network(self, timer: TaskTimer | None) -> None:
        """Run pending network work: sending recycles segments, and costs less than blocking until another thread did.

        The time counts as back-pressured.
        """
        if timer is not None:
            timer.enter(Activity.BACK_PRESSURED)
        try:
            self._network.sync.poll_once()
        finally:
            if timer is not None:
                timer.leave()

    def _await(self, claim: Claim, channel: int, timeout_s: float | None, timer: TaskTimer | None) -> Segment:
        if timer is not None:
            timer.enter(Activity.BACK_PRESSURED)
        try:
            self._block(claim, timeout_s)
        except BaseException:  # an interrupt (KeyboardInterrupt) must leave no request and no segment behind
            self._withdraw(claim, channel)
            raise
        finally:
            if timer is not None:
                timer.leave()
        with self.lock:
            if claim.segment is not None:
                return claim.segment
            if self._destroyed:
                raise self._gone()
            self._forget_locked(claim)
        raise RequestTimeout(
            f"{self.name} got no network buffer within {timeout_s:g} s: its {self.size} buffers, or the "
            f"{self.max_per_channel} of one channel, are all in use. Its consumer is stuck, or network memory is too "
            "small (network.buffers_request_timeout, memory.network.min)."
        )

    def _block(self, claim: Claim, timeout_s: float | None) -> None:
        """Block until the request is granted or the time is over.

        While memory is exported, wake up every `_EXPORTED_WAIT_S`: the interpreter may have returned a segment while
        the lock was held, and no other thread may recycle anything that would collect it.
        """
        self._network.collect_returned()
        left_s = timeout_s
        while self.lent and (left_s is None or left_s > 0):
            wait_s = _EXPORTED_WAIT_S if left_s is None else min(_EXPORTED_WAIT_S, left_s)
            if claim.waiter.wait(wait_s):
                return
            self._network.collect_returned()
            if left_s is not None:
                left_s -= wait_s
        claim.waiter.wait(left_s)  # also with nothing left: the last collection may have granted the request

    def _gone(self) -> Cancelled:
        return Cancelled(f"{self.name}: its buffer pool was destroyed")

    def _forget_locked(self, claim: Claim) -> None:
        self._listeners = deque(entry for entry in self._listeners if entry[0] is not claim)
        self._network.set_waiting_locked(self, waiting=bool(self._listeners))

    def _withdraw(self, claim: Claim, channel: int) -> None:
        with self.lock:
            self._forget_locked(claim)
            wake = self.recycle_locked(claim.segment, channel) if claim.segment is not None else None
        if wake is not None:
            wake()
