"""Gates: where a task waits for input, one of the two places where it blocks.

An `InputGate` reads the channels of one input (`union` reads several gates as one). It keeps a fair queue: who has
data stands in it at most once, and goes to its end after each buffer. One task thread reads; producers call
`enqueue_locked`. Missing partitions are asked for again on the reader's thread, while it waits.

Invariants: the reader sleeps only while the queue is empty, and is woken only when it ceases to be; who is in
the queue has `queued` set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.buffer import Kind
from headgate.errors import Cancelled, HeadgateError, LocalProtocolError, PartitionNotFound, ProducerFailed
from headgate.ids import ChannelIndex
from headgate.input.channel import ChannelState, ChannelStatistics, InputChannel
from headgate.meters import TaskState
from headgate.record.element import EndOfPartition, decode_event, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice, LocalPool
    from headgate.clock import Clock
    from headgate.input.channel import Outlet, Source
    from headgate.input.union import UnionGate
    from headgate.meters import TaskTimer
    from headgate.record.element import Event
    from headgate.sync import Lock, Sync, Waiter, Wake

__all__ = ["Gate", "GateStatistics", "InputGate"]

_DATA = Kind.DATA


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A gate at one moment.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     worker.gate("words", channels=1).statistics()
    GateStatistics(name='words', channels=(ChannelStatistics(...),), queued=0)
    """

    name: str
    channels: tuple[ChannelStatistics, ...]
    queued: int  # channels with data


class Gate(ABC):
    """What all gates share: blocking and non-blocking reads by one task thread.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     gate = worker.gate("words", channels=1)
    ...     gate.poll(), gate.read(timeout_s=0), gate.finished
    (None, None, False)
    """

    def __init__(self, name: str, sync: Sync, clock: Clock, timer: TaskTimer | None) -> None:
        self.name = name
        self.lock: Lock = sync.lock
        self._sync = sync
        self._clock = clock
        self._timer = timer
        self._sleeper: Waiter | None = None
        self.failure: HeadgateError | None = None
        """What every further read raises."""

    @property
    @abstractmethod
    def channel_count(self) -> int:
        """How many channels there are."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether every channel has ended."""

    def poll(self, done: BufferSlice | None = None) -> BufferSlice | None:
        """What is at hand, with its `channel` and, for an event, its `event`; None if nothing is, or all has ended.

        The caller releases what it gets, or hands it to its next call as `done`, which costs less.

        Raises:
            ProducerFailed: a producer's task failed; the same again at every further read.
            PartitionNotFound: a partition did not appear in time.
            Cancelled: the gate was released.
        """
        freed = None
        self.lock.acquire()  # see the note on locks in `sync`
        try:
            if done is not None:
                freed = done.release_locked()
            if self.failure is not None:
                raise self.failure
            taken, wake = self.poll_locked()
        finally:
            self.lock.release()
            if freed is not None:
                freed()
        if wake is not None:
            wake()
        if taken is not None and taken.buffer.kind is not _DATA:
            self._on_event(taken)
        return taken

    def read(
        self,
        timeout_s: float | None = None,
        *,
        done: BufferSlice | None = None,
        before_wait: Callable[[], object] | None = None,
    ) -> BufferSlice | None:
        """As `poll`, but asleep until something comes; None if all channels have ended, or after `timeout_s`.

        `before_wait` is called when there is nothing at hand, before the thread goes to sleep: a task flushes
        its outputs there.
        """
        taken = self.poll(done)
        if taken is not None or self.finished:
            return taken
        if before_wait is not None:
            before_wait()
        deadline_ns = None if timeout_s is None else self._clock.now_ns() + int(timeout_s * 1e9)
        while True:
            self._sleep(deadline_ns)
            taken = self.poll()
            if taken is not None or self.finished:
                return taken
            if deadline_ns is not None and self._clock.now_ns() >= deadline_ns:
                return None

    def release(self) -> None:
        """Give everything back; a reader asleep here gets Cancelled. May be repeated."""
        with self.lock:
            error = Cancelled(f"gate {self.name} was released")
            wake = together(self._fail_all_locked(error), self._release_locked())
        if wake is not None:
            wake()

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Let every further read raise this, or what it raised before."""
        if self.failure is None or isinstance(error, Cancelled):
            self.failure = error
        return self.wake_reader_locked()

    def _fail_all_locked(self, error: HeadgateError) -> Wake:
        """As `fail_locked`, also for a union that this gate is part of."""
        return self.fail_locked(error)

    @property
    def has_sleeper(self) -> bool:
        """Whether the reader sleeps."""
        return self._sleeper is not None

    def wake_reader_locked(self) -> Wake:
        """Let the reader look again, if it is asleep."""
        sleeper, self._sleeper = self._sleeper, None
        return None if sleeper is None else sleeper.wake

    @abstractmethod
    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next bytes of whoever's turn it is, and whom to wake; a failure is remembered."""

    def _sleep(self, deadline_ns: int | None) -> None:
        """Wait for a wake-up, the deadline or the next retry, whatever is first; then retry what is due."""
        with self.lock:
            if self._has_data_locked() or self.finished or self.failure is not None:
                return
            self._sleeper = waiter = self._sync.waiter()
            until_ns = self._retry_at_locked()
            hurried = self._hurry_locked()
        if hurried is not None:
            hurried()
        if until_ns is None or (deadline_ns is not None and deadline_ns < until_ns):
            until_ns = deadline_ns
        if self._timer is not None:
            self._timer.enter(TaskState.IDLE)
        try:
            waiter.wait(None if until_ns is None else (until_ns - self._clock.now_ns()) / 1e9)
        finally:
            if self._timer is not None:
                self._timer.leave()
            now_ns = self._clock.now_ns()
            with self.lock:
                self._sleeper = None
                wake = self._retry_locked(now_ns)
            if wake is not None:
                wake()

    def _on_event(self, taken: BufferSlice) -> None:
        event = decode_event(taken.memory, f"gate {self.name}, channel {taken.channel}")
        taken.buffer.event_read = event
        if isinstance(event, EndOfPartition):
            with self.lock:
                wake = self._end_locked(taken.channel)
            if wake is not None:
                wake()

    @abstractmethod
    def _has_data_locked(self) -> bool: ...

    @abstractmethod
    def _hurry_locked(self) -> Wake:
        """Let credit that waits for more be announced: the reader has nothing at hand."""

    @abstractmethod
    def _end_locked(self, number: int) -> Wake: ...

    @abstractmethod
    def _release_locked(self) -> Wake: ...

    @abstractmethod
    def _retry_at_locked(self) -> int | None: ...

    @abstractmethod
    def _retry_locked(self, now_ns: int) -> Wake: ...


class InputGate(Gate):
    """Reads the channels of one input, in turns.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     partition = worker.partition(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), subpartitions=1)
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, worker.local_source(partition.id, SubpartitionIndex(0)))
    ...     partition.finish()
    ...     gate.read().event, gate.finished
    (EndOfPartition(), True)
    """

    def __init__(self, name: str, channels: int, *, sync: Sync, clock: Clock, timer: TaskTimer | None = None) -> None:
        super().__init__(name, sync, clock, timer)
        assert channels >= 1, "a gate has at least one channel"
        self.channels = tuple(InputChannel(ChannelIndex(index), self) for index in range(channels))
        self.queued = False  # stands in its union's queue
        self._queue: deque[InputChannel] = deque()
        self._open = channels
        self._requesting: dict[InputChannel, None] = {}
        self._union: UnionGate | None = None
        self._outlets: dict[Outlet, None] = {}  # the ways to other workers that its channels use
        self.pool: LocalPool | None = None  # what its remote channels share

    @property
    def channel_count(self) -> int:
        """How many channels there are."""
        return len(self.channels)

    @property
    def finished(self) -> bool:
        """Whether every channel has ended."""
        return self._open == 0

    @property
    def has_data(self) -> bool:
        """Whether a channel stands in the queue."""
        return bool(self._queue)

    def connect(self, index: int, source: Source) -> None:
        """Say where the producer of a channel is. Until then the channel just has no data."""
        now_ns = self._clock.now_ns()
        with self.lock:
            channel = self.channels[index]
            if source.outlet is not None:
                self._outlets[source.outlet] = None
            try:
                wake = channel.connect_locked(source, now_ns)
            except (Cancelled, PartitionNotFound, ProducerFailed) as error:
                wake = self._fail_all_locked(error)
            if channel.state is ChannelState.REQUESTING:
                self._requesting[channel] = None
                # A reader asleep without knowing of the retry must look again.
                wake = together(wake, (self._union or self).wake_reader_locked())
        if wake is not None:
            wake()

    def send_task_event(self, index: int, event: Event) -> None:
        """Send an event against the stream: to the task that produces what a channel reads.

        Raises:
            LocalProtocolError: the channel is not connected yet.
            Cancelled: the channel is not read any more.
        """
        data = encode_event(event)
        with self.lock:
            source = self.channels[index].source
            if source is None:
                raise LocalProtocolError(f"gate {self.name}, channel {index}: its producer is not known yet")
            wake = source.send_event_locked(data)
        if wake is not None:
            wake()

    def use_pool(self, pool: LocalPool) -> None:
        """Let the remote channels share a pool, which is destroyed when all have ended or the gate is released."""
        with self.lock:
            if isinstance(self.failure, Cancelled):
                wake = pool.destroy_locked()
            else:
                self.pool, wake = pool, None
        if wake is not None:
            wake()

    def join_locked(self, union: UnionGate) -> None:
        """Become part of a union."""
        self._union = union

    def enqueue_locked(self, channel: InputChannel) -> Wake:
        """A channel has data and does not stand in the queue."""
        channel.queued = True
        self._queue.append(channel)
        return self.wake_reader_locked() if self._union is None else self._union.enqueue_locked(self)

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """One buffer of the channel whose turn it is."""
        queue = self._queue
        wake = None
        try:
            while queue:
                channel = queue.popleft()
                polled = channel.polled
                if polled is None:
                    continue  # released
                taken, woken = polled.poll_locked()
                if polled.announced:
                    queue.append(channel)
                else:
                    channel.queued = False
                if woken is not None:
                    wake = together(wake, woken)
                if taken is not None:
                    taken.channel = channel.index
                    if queue or not self._outlets:
                        return taken, wake
                    return taken, together(wake, self.hurry_locked())
        except HeadgateError as error:
            self.fail_locked(error)
            if wake is None:
                raise
        if self._outlets:
            wake = together(wake, self.hurry_locked())
        return None, wake  # a failure comes with the next call, after the wake-ups

    def hurry_locked(self) -> Wake:
        """Let credit that waits for more be announced."""
        return together(*[outlet.hurry_locked() for outlet in self._outlets])

    @property
    def asleep(self) -> bool:
        """Whether the reader sleeps: then nobody but whoever makes credit will hurry it."""
        return (self if self._union is None else self._union).has_sleeper

    def statistics(self) -> GateStatistics:
        """The gate at this moment."""
        with self.lock:
            return GateStatistics(
                name=self.name,
                channels=tuple(channel.statistics_locked() for channel in self.channels),
                queued=len(self._queue),
            )

    def end_locked(self, number: int) -> Wake:
        """A channel has ended."""
        channel = self.channels[number]
        if channel.state is not ChannelState.READING:
            return None
        self._open -= 1
        ended = channel.end_locked()
        return ended if self._open or self.pool is None else together(ended, self.pool.destroy_locked())

    def release_channels_locked(self) -> Wake:
        """Release every channel."""
        self._queue.clear()
        self._requesting.clear()
        released = together(*[channel.release_locked() for channel in self.channels])
        return released if self.pool is None else together(released, self.pool.destroy_locked())

    def retry_at_locked(self) -> int | None:
        """When the next missing partition is to be asked for."""
        times = [channel.source.retry_at_ns for channel in self._requesting if channel.source is not None]
        return min((time for time in times if time is not None), default=None)

    def retry_locked(self, now_ns: int) -> Wake:
        """Ask again for the partitions whose time has come."""
        wakes = []
        for channel in list(self._requesting):
            try:
                wakes.append(channel.request_locked(now_ns))
            except (Cancelled, PartitionNotFound, ProducerFailed) as error:
                wakes.append(self._fail_all_locked(error))
            if channel.state is not ChannelState.REQUESTING:
                del self._requesting[channel]
        return together(*wakes)

    def _fail_all_locked(self, error: HeadgateError) -> Wake:
        """Let whoever reads, here or through the union, learn of it."""
        wake = self.fail_locked(error)
        return wake if self._union is None else together(wake, self._union.fail_locked(error))

    def _has_data_locked(self) -> bool:
        return bool(self._queue)

    _end_locked = end_locked
    _hurry_locked = hurry_locked
    _release_locked = release_channels_locked
    _retry_at_locked = retry_at_locked
    _retry_locked = retry_locked
