"""How many segments one partition or gate may use.

A `LocalPool` stands behind each result partition (the task thread asks, and sleeps when there is none) and
each input gate (the network thread asks, and leaves a listener when there is none). Its size is a permission,
not a possession: segments are taken from the network pool only when needed, and a pool that shrank gives its
excess back as its buffers return.

Everything here runs under the exchange lock. Invariants: held = available + in use; available segments exist
only while held <= size; a listener waits only while nothing it could use is at hand.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.buffer.builder import Buffer
from headgate.buffer.listener import Answer, Claim
from headgate.errors import Cancelled, InvariantViolated, RequestTimeout
from headgate.meters import TaskState
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer.listener import BufferListener
    from headgate.buffer.network import NetworkPool
    from headgate.buffer.segment import Segment
    from headgate.meters import TaskTimer
    from headgate.sync import Lock, Wake

__all__ = ["UNCHANNELLED", "LocalPool", "LocalPoolStatistics"]

UNCHANNELLED = -1
"""The channel of buffers that count against no queue's limit: broadcast ones and lent ones."""

_LENT_NAP_S = 0.05
_NOT_USED, _MORE_WANTED = Answer.NOT_USED, Answer.USED_MORE_WANTED  # looking up a member costs more than comparing it


@dataclass(frozen=True, slots=True)
class LocalPoolStatistics:
    """The state of one local pool at one moment.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker: worker.memory.create_pool("map", required=2).statistics()
    LocalPoolStatistics(name='map', required=2, maximum=32, size=32, held=0, available=0, lent=0, waiting=0)
    """

    name: str
    required: int
    maximum: int
    size: int
    held: int  # segments taken from the network pool
    available: int  # of these, at hand
    lent: int  # views of these that user code keeps
    waiting: int  # listeners and sleeping threads

    @property
    def usage(self) -> float:
        """Share of the current size in use: 0 to 1, above while shrinking or in overdraft."""
        return (self.held - self.available) / self.size if self.size else 0.0


class LocalPool:
    """The segments of one partition or gate; made by `NetworkPool.create_pool`.

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

    # Asking.

    def try_request_locked(self, channel: int = UNCHANNELLED, overdraft: bool = False) -> Segment | None:
        """A segment for a queue, or None; with `overdraft`, also past the pool's size and the queue's limit."""
        if self._destroyed:
            raise self._gone()
        extra = self.overdraft if overdraft else 0
        if channel >= 0 and self._in_use[channel] >= self.max_per_channel + extra:
            return None
        if self._available:
            segment = self._available.pop()  # the one used last: its memory is still in the cache
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
        """As `try_request_locked`, but an empty buffer with one reader: what a writer needs for each one it fills."""
        available, in_use = self._available, self._in_use
        if available and (channel < 0 or in_use[channel] < self.max_per_channel):
            segment: Segment | None = available.pop()
            in_use[channel] += 1
        else:
            segment = self.try_request_locked(channel, overdraft)
        if segment is None:
            return None
        buffer = segment.buffer
        if buffer is None or buffer.owner is not self:
            return Buffer.over(segment, self, channel)
        buffer.channel = channel
        buffer.marker = buffer.position = buffer.reader.position = 0
        buffer.references = 2
        return buffer

    def request(
        self,
        channel: int = UNCHANNELLED,
        overdraft: bool = False,
        *,
        timeout_s: float | None = None,
        timer: TaskTimer | None = None,
    ) -> Segment:
        """A segment for a queue; the calling task thread sleeps until there is one.

        Raises:
            RequestTimeout: there was none within `timeout_s`.
            Cancelled: the pool was destroyed before or meanwhile.
        """
        self._help(timer)
        claim = None
        with self.lock:
            if self._destroyed:
                raise self._gone()  # before anybody is served whose wake-up would be lost with it
            wake = self._network.collect_returned_locked()
            segment = self.try_request_locked(channel, overdraft)
            if segment is None:
                claim = Claim(self._network.sync)
                self.listen_locked(claim, channel)
        if wake is not None:
            wake()
        if claim is None:
            assert segment is not None, "a segment was at hand"
            return segment
        return self._await(claim, channel, timeout_s, timer)

    def listen_locked(self, listener: BufferListener, channel: int = UNCHANNELLED) -> None:
        """Be offered the next segment this pool may give to `channel`."""
        if self._destroyed:
            raise self._gone()
        self._listeners.append((listener, channel))
        self._network.want_locked(self, wanted=True)

    # Giving back.

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:
        """The last user of a buffer released it."""
        in_use = self._in_use
        in_use[channel] -= 1
        if in_use[channel] < 0:
            raise InvariantViolated(f"{self!r}: {segment!r} came back to channel {channel} twice")
        if self.held > self.size or self._network.returned:
            return self._settle_locked(segment)
        if not self._listeners:
            self._available.append(segment)
            return None
        listener, wanted_for = self._listeners[0]
        if self._available or wanted_for >= 0:
            self._available.append(segment)
            return self.serve_locked()
        # It goes to the first who waits, as in `serve_locked`: at a gate, most go this way.
        answer, wake = listener.offer_locked(segment)
        if answer is _NOT_USED:
            self._available.append(segment)
            self._listeners.popleft()
            return together(wake, self.serve_locked())
        in_use[wanted_for] += 1
        if answer is _MORE_WANTED:
            self._listeners.rotate(-1)
        else:
            self._listeners.popleft()
            if not self._listeners:
                self._network.want_locked(self, wanted=False)
        return wake

    def _settle_locked(self, segment: Segment) -> Wake:
        """A segment came back while the pool was shrunk, overdrawn or destroyed, or others that were lent are back."""
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
        """See `BufferOwner`. At most half of the spare segments are lent: the rest keeps the data moving."""
        if self._destroyed or self.lent * 2 >= self.size - self.required:
            return None, None
        self.lent += 1
        wake = None
        if buffer.channel != UNCHANNELLED:
            # User code may keep it for as long as it likes: it must not hold up its queue.
            self._in_use[buffer.channel] -= 1
            self._in_use[UNCHANNELLED] += 1
            buffer.channel = UNCHANNELLED
            wake = self.serve_locked() if self._listeners else None
        return self._network.lend_locked(buffer), wake

    def serve_locked(self) -> Wake:
        """Offer what there is to the listeners, in order; those whose queue is at its limit keep their place."""
        wakes: list[Wake] = []
        blocked: list[tuple[BufferListener, int]] = []
        while self._listeners:
            listener, channel = self._listeners.popleft()
            segment = self.try_request_locked(channel)
            if segment is None:
                blocked.append((listener, channel))
                if not self._available and (self.held >= self.size or not self._network.free):
                    break  # nothing for anybody
                continue
            answer, wake = listener.offer_locked(segment)
            wakes.append(wake)
            if answer is _NOT_USED:
                self._in_use[channel] -= 1
                self._available.append(segment)
            elif answer is _MORE_WANTED:
                self._listeners.append((listener, channel))
        self._listeners.extendleft(reversed(blocked))
        self._network.want_locked(self, wanted=bool(self._listeners))
        return together(*wakes)

    # Being resized and destroyed.

    def resized_locked(self) -> Wake:
        """The network pool has shared out anew and set `size`: give back what is too much, serve who waits."""
        wakes = []
        while self._available and self.held > self.size:
            wakes.append(self._drop_locked())
        if self._listeners:
            wakes.append(self.serve_locked())
        return together(*wakes)

    def destroy(self) -> None:
        """No more requests; what is in use goes back to the network pool as it is released. May be repeated."""
        with self.lock:
            wake = self.destroy_locked()
        if wake is not None:
            wake()

    def destroy_locked(self) -> Wake:
        """As `destroy`, for callers who hold the lock already."""
        if self._destroyed:
            return None
        self._destroyed = True
        self.size = 0
        # Before anything is given back: that serves all who wait, and here nobody waits any more.
        wakes = [listener.cancel_locked() for listener, _ in self._listeners]
        self._listeners.clear()
        self._network.want_locked(self, wanted=False)
        at_hand = [*self._available]
        self._available.clear()
        self.held -= len(at_hand)
        return together(*wakes, self._network.destroy_locked(self, at_hand))

    @property
    def in_use(self) -> int:
        """Segments that are held and not at hand; without the lock, so it was true a moment ago."""
        return max(0, self.held - len(self._available))

    @property
    def destroyed(self) -> bool:
        """Whether requests are refused."""
        return self._destroyed

    def statistics(self) -> LocalPoolStatistics:
        """The pool at this moment."""
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

    def _drop_locked(self) -> Wake:
        self.held -= 1
        return self._network.give_back_locked(self._available.pop())

    def _help(self, timer: TaskTimer | None) -> None:
        """Let the network send, if nobody does: that costs less than to fall asleep until others have."""
        if timer is not None:
            timer.enter(TaskState.BACK_PRESSURED)
        try:
            self._network.sync.help()
        finally:
            if timer is not None:
                timer.leave()

    def _await(self, claim: Claim, channel: int, timeout_s: float | None, timer: TaskTimer | None) -> Segment:
        if timer is not None:
            timer.enter(TaskState.BACK_PRESSURED)
        try:
            self._sleep(claim, timeout_s)
        except BaseException:  # an interrupt must leave no claim and no segment behind
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

    def _sleep(self, claim: Claim, timeout_s: float | None) -> None:
        """Wait for a segment. While some are lent, look now and then: one may come back while the lock is taken."""
        self._network.collect_returned()
        left_s = timeout_s
        while self.lent and (left_s is None or left_s > 0):
            nap_s = _LENT_NAP_S if left_s is None else min(_LENT_NAP_S, left_s)
            if claim.waiter.wait(nap_s):
                return
            self._network.collect_returned()
            if left_s is not None:
                left_s -= nap_s
        claim.waiter.wait(left_s)  # a grant may have come with the last look

    def _gone(self) -> Cancelled:
        return Cancelled(f"{self.name}: its buffer pool was destroyed")

    def _forget_locked(self, claim: Claim) -> None:
        self._listeners = deque(entry for entry in self._listeners if entry[0] is not claim)
        self._network.want_locked(self, wanted=bool(self._listeners))

    def _withdraw(self, claim: Claim, channel: int) -> None:
        with self.lock:
            self._forget_locked(claim)
            wake = self.recycle_locked(claim.segment, channel) if claim.segment is not None else None
        if wake is not None:
            wake()
