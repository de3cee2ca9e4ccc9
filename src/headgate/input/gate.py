"""An `InputGate` reads the channels of one input; `union` reads several gates as one.

It keeps a fair queue: who has data stands in it at most once, and goes to its end after each buffer. One task thread
reads (`waiting` says how it sleeps); producers and the network call `enqueue_locked`.

Invariant: who is in the queue has `queued` set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import Cancelled, HeadgateError, LocalProtocolError, PartitionNotFound, ProducerFailed
from headgate.ids import ChannelIndex
from headgate.input.channel import ChannelState, ChannelStatistics, InputChannel
from headgate.input.waiting import Gate
from headgate.record.element import encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from headgate.buffer import BufferSlice, LocalPool
    from headgate.clock import Clock
    from headgate.input.channel import Outlet, Source
    from headgate.input.union import UnionGate
    from headgate.meters import TaskTimer
    from headgate.record.element import Event
    from headgate.sync import Sync, Wake

__all__ = ["GateStatistics", "InputGate"]


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
        """A channel has data, and did not stand in the queue."""
        self._queue.append(channel)
        if self._union is not None:
            return self._union.enqueue_locked(self)
        return None if self._sleeper is None else self.wake_reader_locked()

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
                    hurried = self.hurry_locked()
                    return taken, wake if hurried is None else together(wake, hurried)
        except HeadgateError as error:
            self.fail_locked(error)
            if wake is None:
                raise
        return None, wake  # a failure comes with the next call, after the wake-ups

    def hurry_locked(self) -> Wake:
        """Let credit that a producer waits for be announced."""
        wake = None
        for outlet in self._outlets:  # mostly one, and mostly in no hurry
            if (hurried := outlet.hurry_locked()) is not None:
                wake = together(wake, hurried)
        return wake

    def rest_locked(self) -> Wake:
        """Let all credit that waits for more be announced."""
        return together(*[outlet.rest_locked() for outlet in self._outlets])

    @property
    def asleep(self) -> bool:
        """Whether the reader sleeps: then nobody but whoever makes credit will hurry it."""
        return (self if self._union is None else self._union)._sleeper is not None

    def waiting(self) -> tuple[int, int]:
        """Buffers that can be read, and those that wait at the producers; without the lock, true a moment ago."""
        readable = [channel.polled for channel in self._queue.copy()]  # in one step: others add to it
        connected = [channel.polled for channel in self.channels]
        return (
            sum([polled.readable for polled in readable if polled is not None]),
            sum([polled.backlog for polled in connected if polled is not None]),
        )

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
    _rest_locked = rest_locked
    _release_locked = release_channels_locked
    _retry_at_locked = retry_at_locked
    _retry_locked = retry_locked
