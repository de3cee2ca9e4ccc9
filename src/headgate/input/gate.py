"""An `InputGate` reads the channels of one input; `union` reads several gates as one.

The gate keeps a fair queue: a channel with data is in it at most once, and is put at its end after each buffer. One
task thread reads (`waiting` has the blocking part); producers and the network thread call `enqueue_locked`.

Invariant: exactly the channels in the queue have `queued` set.
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
    from headgate.input.channel import ChannelSource, Outlet
    from headgate.input.union import UnionGate
    from headgate.meters import TaskTimer
    from headgate.record.element import Event
    from headgate.sync import Sync, Wake

__all__ = ["GateStatistics", "InputGate"]


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot of a gate."""

    name: str
    channels: tuple[ChannelStatistics, ...]
    queued: int  # channels with data


class InputGate(Gate):
    """Reads the channels of one input in rounds, one buffer each.

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
        self.queued = False  # in its union's queue
        self._queue: deque[InputChannel] = deque()
        self._open = channels
        self._requesting: dict[InputChannel, None] = {}
        self._union: UnionGate | None = None
        self._outlets: dict[Outlet, None] = {}  # the connections to other workers that its channels use
        self.pool: LocalPool | None = None  # the floating buffers of its remote channels

    @property
    def channel_count(self) -> int:
        """The number of channels."""
        return len(self.channels)

    @property
    def finished(self) -> bool:
        """True once every channel has ended."""
        return self._open == 0

    @property
    def has_data(self) -> bool:
        """True if a channel is in the queue."""
        return bool(self._queue)

    def connect(self, index: int, source: ChannelSource) -> None:
        """Connect a channel to its producer. Until then the channel has no data."""
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
                # A blocked reader must compute its next retry again.
                wake = together(wake, (self._union or self).wake_reader_locked())
        if wake is not None:
            wake()

    def send_task_event(self, index: int, event: Event) -> None:
        """Send an event against the stream: to the producing task of a channel.

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
        """Set the pool of floating buffers; it is destroyed when all channels have ended or the gate is released."""
        with self.lock:
            if isinstance(self.failure, Cancelled):
                wake = pool.destroy_locked()
            else:
                self.pool, wake = pool, None
        if wake is not None:
            wake()

    def join_locked(self, union: UnionGate) -> None:
        """Let a union read this gate."""
        self._union = union

    def enqueue_locked(self, channel: InputChannel) -> Wake:
        """Put a channel with data into the queue; the caller has checked that it is not in it."""
        self._queue.append(channel)
        if self._union is not None:
            return self._union.enqueue_locked(self)
        return None if self._blocked_reader is None else self.wake_reader_locked()

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return one buffer of the first channel in the queue, or None, and a wake-up to perform after the lock."""
        queue = self._queue
        wake = None
        try:
            while queue:
                channel = queue.popleft()
                polled = channel.polled
                if polled is None:
                    continue  # released
                taken, woken = polled.poll_locked()
                if polled.notified:
                    queue.append(channel)
                else:
                    channel.queued = False
                if woken is not None:
                    wake = together(wake, woken)
                if taken is not None:
                    taken.channel = channel.index
                    if queue or not self._outlets:
                        return taken, wake
                    # The user's function may take long with the last buffer: trigger 2 of `wire.flow`.
                    announced = self.announce_to_starved_locked()
                    return taken, wake if announced is None else together(wake, announced)
        except HeadgateError as error:
            self.fail_locked(error)
            if wake is None:
                raise
        return None, wake  # the next call raises the failure, after the wake-ups

    def announce_to_starved_locked(self) -> Wake:
        """Announce scheduled credit now, on each connection where a producer has none left."""
        wake = None
        for outlet in self._outlets:  # mostly one
            if (announced := outlet.announce_to_starved_locked()) is not None:
                wake = together(wake, announced)
        return wake

    def announce_all_locked(self) -> Wake:
        """Announce all scheduled credit: the reader has nothing to poll."""
        return together(*[outlet.announce_all_locked() for outlet in self._outlets])

    @property
    def reader_blocked(self) -> bool:
        """True while the reader is blocked; new credit must then be announced by the thread that created it."""
        return (self if self._union is None else self._union)._blocked_reader is not None

    def waiting(self) -> tuple[int, int]:
        """Return the number of buffers to poll, and of those at the producers. Without the lock: it may be outdated."""
        readable = [channel.polled for channel in self._queue.copy()]  # one atomic step: other threads change the queue
        connected = [channel.polled for channel in self.channels]
        return (
            sum([polled.readable for polled in readable if polled is not None]),
            sum([polled.backlog for polled in connected if polled is not None]),
        )

    def statistics(self) -> GateStatistics:
        """Return a snapshot of the gate."""
        with self.lock:
            return GateStatistics(
                name=self.name,
                channels=tuple(channel.statistics_locked() for channel in self.channels),
                queued=len(self._queue),
            )

    def end_locked(self, number: int) -> Wake:
        """Note that a channel has ended; with the last one, destroy the pool."""
        channel = self.channels[number]
        if channel.state is not ChannelState.READING:
            return None
        self._open -= 1
        ended = channel.end_locked()
        return ended if self._open or self.pool is None else together(ended, self.pool.destroy_locked())

    def release_channels_locked(self) -> Wake:
        """Release every channel, and the pool."""
        self._queue.clear()
        self._requesting.clear()
        released = together(*[channel.release_locked() for channel in self.channels])
        return released if self.pool is None else together(released, self.pool.destroy_locked())

    def retry_at_locked(self) -> int | None:
        """Return when the next missing partition is to be requested."""
        times = [channel.source.retry_at_ns for channel in self._requesting if channel.source is not None]
        return min((time for time in times if time is not None), default=None)

    def retry_locked(self, now_ns: int) -> Wake:
        """Request again the missing partitions that are due."""
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
        """Let the reader of this gate, or of its union, get the error."""
        wake = self.fail_locked(error)
        return wake if self._union is None else together(wake, self._union.fail_locked(error))

    def _has_data_locked(self) -> bool:
        return bool(self._queue)

    _end_locked = end_locked
    _announce_all_locked = announce_all_locked
    _release_locked = release_channels_locked
    _retry_at_locked = retry_at_locked
    _retry_locked = retry_locked
