"""Gates: where a task waits for input, one of the two places where it blocks.

An `InputGate` reads the channels of one input, a `UnionGate` several gates as one. Both keep a fair queue: who
has data stands in it at most once, and goes to its end after each buffer. One task thread reads; producers
call `enqueue_locked`. Retries of missing partitions happen on the reader's thread, while it waits.

Invariants: the reader sleeps only while the queue is empty, and is woken only when it ceases to be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headgate.buffer import Kind
from headgate.errors import Cancelled
from headgate.ids import ChannelIndex
from headgate.input.channel import ChannelState, ChannelStatistics, InputChannel
from headgate.meters import TaskState
from headgate.record.element import EndOfPartition, Event, decode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.buffer import BufferSlice
    from headgate.clock import Clock
    from headgate.input.channel import Source
    from headgate.meters import TaskTimer
    from headgate.sync import Lock, Sync, Waiter, Wake

__all__ = ["Delivery", "Gate", "GateStatistics", "InputGate", "UnionGate"]


class Delivery(NamedTuple):
    """What came out of a gate: bytes of a channel, to be released by the reader, or an event."""

    channel: int
    data: BufferSlice | None
    event: Event | None


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A gate at one moment."""

    name: str
    channels: tuple[ChannelStatistics, ...]
    queued: int  # channels with data


class Gate:
    """What all gates share: blocking and non-blocking reads by one task thread."""

    def __init__(self, name: str, sync: Sync, clock: Clock, timer: TaskTimer | None) -> None:
        self.name = name
        self.lock: Lock = sync.lock
        self._sync = sync
        self._clock = clock
        self._timer = timer
        self._sleeper: Waiter | None = None
        self._released = False
        self._failure: BaseException | None = None

    @property
    def channel_count(self) -> int:
        """How many channels there are."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether every channel has ended."""
        raise NotImplementedError

    def poll(self) -> Delivery | None:
        """What is at hand; None if nothing is, or all has ended.

        Raises:
            ProducerFailed: a producer's task failed; the same again at every further read.
            PartitionNotFound: a partition did not appear in time.
            Cancelled: the gate was released.
        """
        with self.lock:
            taken, wake = self._poll_or_fail_locked()
        if wake is not None:
            wake()
        return None if taken is None else self._deliver(*taken)

    def read(
        self, timeout_s: float | None = None, *, before_wait: Callable[[], object] | None = None
    ) -> Delivery | None:
        """What comes next, asleep until it does; None if all channels have ended, or after `timeout_s`.

        `before_wait` is called when there is nothing at hand, before the thread goes to sleep: a task flushes
        its outputs there.
        """
        delivery = self.poll()
        if delivery is not None or self.finished:
            return delivery
        if before_wait is not None:
            before_wait()
        deadline_ns = None if timeout_s is None else self._clock.now_ns() + int(timeout_s * 1e9)
        while True:
            waiter, until_ns = None, None
            with self.lock:
                taken, wake = self._poll_or_fail_locked()
                if taken is None and not self.finished:
                    self._sleeper = waiter = self._sync.waiter()
                    until_ns = self._retry_at_locked()
            if wake is not None:
                wake()
            if taken is not None:
                return self._deliver(*taken)
            if waiter is None:
                return None
            if until_ns is None or (deadline_ns is not None and deadline_ns < until_ns):
                until_ns = deadline_ns
            self._sleep(waiter, until_ns)
            now_ns = self._clock.now_ns()
            if deadline_ns is not None and now_ns >= deadline_ns:
                return self.poll()
            self._retry(now_ns)

    def release(self) -> None:
        """Give everything back; a reader asleep here gets Cancelled. May be repeated."""
        with self.lock:
            self._released = True
            wake = together(self._release_locked(), self._wake_reader_locked())
        if wake is not None:
            wake()

    def _sleep(self, waiter: Waiter, until_ns: int | None) -> None:
        timer = self._timer
        if timer is not None:
            timer.enter(TaskState.IDLE)
        try:
            waiter.wait(None if until_ns is None else (until_ns - self._clock.now_ns()) / 1e9)
        finally:
            if timer is not None:
                timer.leave()
            with self.lock:
                self._sleeper = None

    def _wake_reader_locked(self) -> Wake:
        sleeper, self._sleeper = self._sleeper, None
        return None if sleeper is None else sleeper.wake

    def _poll_or_fail_locked(self) -> tuple[tuple[InputChannel, int, BufferSlice] | None, Wake]:
        if self._released:
            raise Cancelled(f"gate {self.name} was released")
        if self._failure is not None:
            raise self._failure
        try:
            return self.poll_locked()
        except BaseException as error:
            self._failure = error
            raise

    def _deliver(self, channel: InputChannel, number: int, data: BufferSlice) -> Delivery:
        if data.buffer.kind is Kind.DATA:
            return Delivery(number, data, None)
        event = decode_event(data.memory, f"gate {self.name}, channel {number}")
        data.release()
        if isinstance(event, EndOfPartition):
            with self.lock:
                wake = self._end_locked(channel)
            if wake is not None:
                wake()
        return Delivery(number, None, event)

    def poll_locked(self) -> tuple[tuple[InputChannel, int, BufferSlice] | None, Wake]:
        """The next bytes with their channel and its number here, and whom to wake."""
        raise NotImplementedError

    def _end_locked(self, channel: InputChannel) -> Wake:
        raise NotImplementedError

    def _release_locked(self) -> Wake:
        raise NotImplementedError

    def _retry_at_locked(self) -> int | None:
        raise NotImplementedError

    def _retry(self, now_ns: int) -> None:
        raise NotImplementedError


class InputGate(Gate):
    """Reads the channels of one input, in turns."""

    def __init__(self, name: str, channels: int, *, sync: Sync, clock: Clock, timer: TaskTimer | None = None) -> None:
        super().__init__(name, sync, clock, timer)
        assert channels >= 1, "a gate has at least one channel"
        self.channels = tuple(InputChannel(ChannelIndex(index), self) for index in range(channels))
        self.queued = False  # stands in its union's queue
        self._queue: deque[InputChannel] = deque()
        self._open = channels
        self._requesting: set[InputChannel] = set()
        self._union: UnionGate | None = None

    @property
    def channel_count(self) -> int:
        """How many channels there are."""
        return len(self.channels)

    @property
    def finished(self) -> bool:
        """Whether every channel has ended."""
        return self._open == 0

    def connect(self, index: int, source: Source) -> None:
        """Say where the producer of a channel is. Until then the channel just has no data."""
        now_ns = self._clock.now_ns()
        with self.lock:
            channel = self.channels[index]
            wake = channel.connect_locked(source, now_ns)
            if channel.state is ChannelState.REQUESTING:
                self._requesting.add(channel)
                # A reader asleep without knowing of the retry must look again.
                wake = together(wake, (self._union or self)._wake_reader_locked())
        if wake is not None:
            wake()

    def join_locked(self, union: UnionGate) -> None:
        """Become part of a union; before anything was read."""
        self._union = union

    def enqueue_locked(self, channel: InputChannel) -> Wake:
        """A channel has data and does not stand in the queue."""
        channel.queued = True
        self._queue.append(channel)
        if self._union is not None:
            return self._union.enqueue_locked(self)
        return self._wake_reader_locked()

    @property
    def has_data(self) -> bool:
        """Whether a channel stands in the queue."""
        return bool(self._queue)

    def poll_locked(self) -> tuple[tuple[InputChannel, int, BufferSlice] | None, Wake]:
        """One buffer of the channel whose turn it is."""
        queue, wake = self._queue, None
        while queue:
            channel = queue.popleft()
            channel.queued = False
            taken, woken = channel.poll_locked()
            if woken is not None:
                wake = together(wake, woken)
            source = channel.source
            if source is not None and source.available_locked() and not channel.queued:
                channel.queued = True
                queue.append(channel)
            if taken is not None:
                return (channel, channel.index, taken), wake
        return None, wake

    def statistics(self) -> GateStatistics:
        """The gate at this moment."""
        with self.lock:
            return GateStatistics(
                name=self.name,
                channels=tuple(channel.statistics_locked() for channel in self.channels),
                queued=len(self._queue),
            )

    def retry_at_locked(self) -> int | None:
        """When the next missing partition is to be asked for."""
        times = [channel.source.retry_at_ns for channel in self._requesting if channel.source is not None]
        return min((time for time in times if time is not None), default=None)

    def retry_locked(self, now_ns: int) -> Wake:
        """Ask again for the partitions whose time has come."""
        wakes = []
        for channel in list(self._requesting):
            wakes.append(channel.request_locked(now_ns))
            if channel.state is not ChannelState.REQUESTING:
                self._requesting.discard(channel)
        return together(*wakes)

    def end_locked(self, channel: InputChannel) -> Wake:
        """A channel has ended."""
        if channel.state is not ChannelState.READING:
            return None
        self._open -= 1
        return channel.end_locked()

    def release_channels_locked(self) -> Wake:
        """Release every channel."""
        self._queue.clear()
        self._requesting.clear()
        return together(*[channel.release_locked() for channel in self.channels])

    _end_locked = end_locked
    _release_locked = release_channels_locked
    _retry_at_locked = retry_at_locked

    def _retry(self, now_ns: int) -> None:
        if not self._requesting:
            return
        with self.lock:
            try:
                wake = self.retry_locked(now_ns)
            except BaseException as error:
                self._failure = error
                raise
        if wake is not None:
            wake()


class UnionGate(Gate):
    """Reads several gates as one; a channel's number is offset by the channels of the gates before its own."""

    def __init__(
        self, name: str, gates: Sequence[InputGate], *, sync: Sync, clock: Clock, timer: TaskTimer | None = None
    ) -> None:
        super().__init__(name, sync, clock, timer)
        assert gates, "a union has at least one gate"
        self.gates = tuple(gates)
        self._queue: deque[InputGate] = deque()
        self._offsets: dict[InputGate, int] = {}
        self._gate_of: dict[InputChannel, InputGate] = {}
        offset = 0
        with self.lock:
            for gate in self.gates:
                self._offsets[gate] = offset
                offset += gate.channel_count
                self._gate_of.update(dict.fromkeys(gate.channels, gate))
                gate.join_locked(self)
                if gate.has_data:
                    self.enqueue_locked(gate)
        self._channel_count = offset

    @property
    def channel_count(self) -> int:
        """How many channels there are in all gates."""
        return self._channel_count

    @property
    def finished(self) -> bool:
        """Whether every channel of every gate has ended."""
        return all(gate.finished for gate in self.gates)

    def enqueue_locked(self, gate: InputGate) -> Wake:
        """A gate has data."""
        if gate.queued:
            return None
        gate.queued = True
        self._queue.append(gate)
        return self._wake_reader_locked()

    def poll_locked(self) -> tuple[tuple[InputChannel, int, BufferSlice] | None, Wake]:
        """One buffer of the gate whose turn it is."""
        queue, wake = self._queue, None
        while queue:
            gate = queue.popleft()
            gate.queued = False
            taken, woken = gate.poll_locked()
            wake = together(wake, woken)
            if gate.has_data and not gate.queued:
                gate.queued = True
                queue.append(gate)
            if taken is not None:
                channel, index, data = taken
                return (channel, self._offsets[gate] + index, data), wake
        return None, wake

    def statistics(self) -> tuple[GateStatistics, ...]:
        """The gates at this moment."""
        return tuple(gate.statistics() for gate in self.gates)

    def _end_locked(self, channel: InputChannel) -> Wake:
        return self._gate_of[channel].end_locked(channel)

    def _release_locked(self) -> Wake:
        self._queue.clear()
        return together(*[gate.release_channels_locked() for gate in self.gates])

    def _retry_at_locked(self) -> int | None:
        times = [gate.retry_at_locked() for gate in self.gates]
        return min((time for time in times if time is not None), default=None)

    def _retry(self, now_ns: int) -> None:
        with self.lock:
            try:
                wake = together(*[gate.retry_locked(now_ns) for gate in self.gates])
            except BaseException as error:
                self._failure = error
                raise
        if wake is not None:
            wake()
