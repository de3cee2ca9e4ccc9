"""One input of a gate, and how it reaches its producer inside this worker.

A channel begins as a number in its gate. Once the place of its producer is known it gets a source: here a
`LocalSource`, which hands over the producer's buffers themselves. Everything runs under the exchange lock, on
the thread of the gate's reader or (`available_locked`) of whoever produces.

Invariants: a channel stands in its gate's queue at most once; what was announced is polled; release gives
everything back and is told to the producer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headgate.errors import LocalProtocolError, PartitionNotFound

if TYPE_CHECKING:
    from headgate.buffer import BufferSlice
    from headgate.ids import ChannelIndex, PartitionId, SubpartitionIndex
    from headgate.sync import Wake

__all__ = [
    "Backoff",
    "ChannelState",
    "ChannelStatistics",
    "InputChannel",
    "LocalSource",
    "Polled",
    "Source",
    "Subpartitions",
]


class ChannelState(Enum):
    """Where a channel is in its life.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     worker.gate("words", channels=1).channels[0].state
    <ChannelState.UNKNOWN: 'unknown'>
    """

    UNKNOWN = "unknown"  # nobody has said yet where the producer is
    REQUESTING = "requesting"  # the producer's partition is not there yet
    READING = "reading"
    ENDED = "ended"  # the end of the partition was read
    RELEASED = "released"


_OVER = (ChannelState.ENDED, ChannelState.RELEASED)


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A channel at one moment.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     worker.gate("words", channels=1).statistics().channels
    (ChannelStatistics(state=<ChannelState.UNKNOWN: 'unknown'>, backlog=0),)
    """

    state: ChannelState
    backlog: int  # data buffers waiting at the producer


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before asking again for a missing partition: doubled at each miss up to the longest.

    >>> Backoff(initial_ns=100, max_ns=350).after(200)
    350
    """

    initial_ns: int = 100_000_000
    max_ns: int = 10_000_000_000

    def after(self, delay_ns: int) -> int | None:
        """The wait after a wait of `delay_ns` (0: none yet); None: it is time to give up.

        >>> backoff, waits = Backoff(100, 350), [0]
        >>> while (wait := backoff.after(waits[-1])) is not None: waits.append(wait)
        >>> waits
        [0, 100, 200, 350]
        """
        if delay_ns == 0:
            return self.initial_ns
        return min(delay_ns * 2, self.max_ns) if delay_ns < self.max_ns else None


class Listener(Protocol):
    """What is told about data: the channel."""

    @property
    def asleep(self) -> bool:
        """Whether the reader sleeps."""
        ...

    def available_locked(self) -> Wake:
        """There is something to poll."""
        ...


class Polled(Protocol):
    """One reader's share of a partition, from the reader's side."""

    @property
    def backlog(self) -> int:
        """Data buffers waiting."""
        ...

    @property
    def readable(self) -> int:
        """Buffers that could be polled; without the lock, it was true a moment ago."""
        ...

    @property
    def announced(self) -> bool:
        """Whether there is more: it stays in the gate's queue, and will not call `available_locked`."""
        ...

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next bytes, and whom to wake."""
        ...


class Subpartitions(Protocol):
    """Where local producers are found: the worker's partition registry."""

    def attach_locked(
        self, partition_id: PartitionId, index: SubpartitionIndex, listener: Listener
    ) -> tuple[Polled, Wake]:
        """Become the reader of a subpartition."""
        ...

    def release_subpartition_locked(
        self,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: Listener | None = None,
    ) -> Wake:
        """Want no more of it; it was attached as `listener`."""
        ...

    def publish_locked(self, partition_id: PartitionId, event: bytes) -> Wake:
        """Hand an event to the task that produces the partition."""
        ...


class Outlet(Protocol):
    """The way to another worker: where credit waits a little, so that it is announced in few messages."""

    def hurry_locked(self) -> Wake:
        """The reader takes the last that it has at hand: what a producer waits for must go now."""
        ...

    def rest_locked(self) -> Wake:
        """The reader has nothing at hand: all that waits is to go, after what the network has for it."""
        ...


class Source(Protocol):
    """How a channel gets to its producer."""

    @property
    def outlet(self) -> Outlet | None:
        """The way to the producer's worker, if it is another one."""
        ...

    @property
    def retry_at_ns(self) -> int | None:
        """When to call `request_locked` again; None if there is no need."""
        ...

    def request_locked(self, listener: Listener, now_ns: int) -> tuple[Polled | None, Wake]:
        """Try to connect; None: not yet. PartitionNotFound after the last try."""
        ...

    def send_event_locked(self, event: bytes) -> Wake:
        """Send an event against the stream, to the task that produces."""
        ...

    def release_locked(self) -> Wake:
        """Want no more."""
        ...


class LocalSource:
    """A producer in this worker: its buffers are handed over as they are.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, worker.local_source(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(0)))
    ...     gate.channels[0].state  # the producer is not there yet
    <ChannelState.REQUESTING: 'requesting'>
    """

    __slots__ = ("_backoff", "_delay_ns", "_index", "_listener", "_partition_id", "_registry", "retry_at_ns")

    outlet = None

    def __init__(
        self,
        registry: Subpartitions,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        backoff: Backoff | None = None,
    ) -> None:
        self._registry = registry
        self._partition_id = partition_id
        self._index = index
        self._backoff = backoff if backoff is not None else Backoff()
        self._delay_ns = 0
        self._listener: Listener | None = None  # as which it is known to the partition
        self.retry_at_ns: int | None = None

    def request_locked(self, listener: Listener, now_ns: int) -> tuple[Polled | None, Wake]:
        """Try to connect; if the partition is missing, set the time of the next try."""
        try:
            subpartition, wake = self._registry.attach_locked(self._partition_id, self._index, listener)
        except PartitionNotFound:
            delay_ns = self._backoff.after(self._delay_ns)
            if delay_ns is None:
                raise
            self._delay_ns, self.retry_at_ns = delay_ns, now_ns + delay_ns
            return None, None
        self._listener, self.retry_at_ns = listener, None
        return subpartition, wake

    def send_event_locked(self, event: bytes) -> Wake:
        """Send an event against the stream, to the task that produces."""
        return self._registry.publish_locked(self._partition_id, event)

    def release_locked(self) -> Wake:
        """Want no more."""
        return self._registry.release_subpartition_locked(self._partition_id, self._index, None, self._listener)


class InputChannel:
    """One input of a gate. Made by the gate.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     channel = worker.gate("words", channels=2).channels[1]
    ...     channel.index, channel.state
    (1, <ChannelState.UNKNOWN: 'unknown'>)
    """

    __slots__ = ("_gate", "index", "polled", "queued", "source", "state")

    def __init__(self, index: ChannelIndex, gate: GateQueue) -> None:
        self.index = index
        self.state = ChannelState.UNKNOWN
        self.source: Source | None = None
        self.polled: Polled | None = None  # once connected: what the gate takes buffers from
        self.queued = False  # stands in the gate's queue
        self._gate = gate

    @property
    def asleep(self) -> bool:
        """Whether the reader sleeps."""
        return self._gate.asleep

    def available_locked(self) -> Wake:
        """The producer says that there is something to poll."""
        if self.queued or self.state in _OVER:
            return None
        self.queued = True
        return self._gate.enqueue_locked(self)

    def connect_locked(self, source: Source, now_ns: int) -> Wake:
        """The place of the producer is known now."""
        if self.state is ChannelState.RELEASED:
            return source.release_locked()
        if self.state is not ChannelState.UNKNOWN:
            raise LocalProtocolError(f"channel {self.index} is connected twice")
        self.source = source
        self.state = ChannelState.REQUESTING
        try:
            return self.request_locked(now_ns)
        except BaseException:
            self.source, self.state = None, ChannelState.UNKNOWN  # there is nothing to give back
            raise

    def request_locked(self, now_ns: int) -> Wake:
        """Ask for the partition, if it is time."""
        source = self.source
        if self.state is not ChannelState.REQUESTING or source is None:
            return None
        if source.retry_at_ns is not None and source.retry_at_ns > now_ns:
            return None
        self.polled, wake = source.request_locked(self, now_ns)
        if self.polled is not None:
            self.state = ChannelState.READING
        return wake

    def end_locked(self) -> Wake:
        """The end of the partition was read."""
        self.state = ChannelState.ENDED
        return None if self.source is None else self.source.release_locked()

    def release_locked(self) -> Wake:
        """Give everything back and tell the producer to stop. May be repeated."""
        if self.state is ChannelState.RELEASED:
            return None
        ended, self.state, self.polled = self.state is ChannelState.ENDED, ChannelState.RELEASED, None
        return None if self.source is None or ended else self.source.release_locked()

    def statistics_locked(self) -> ChannelStatistics:
        """The channel at this moment."""
        return ChannelStatistics(self.state, 0 if self.polled is None else self.polled.backlog)


class GateQueue(Protocol):
    """The gate, as far as its channels know it."""

    @property
    def asleep(self) -> bool:
        """Whether the reader sleeps."""
        ...

    def enqueue_locked(self, channel: InputChannel) -> Wake:
        """A channel has data and does not stand in the queue."""
        ...
