"""One input of a gate, and its connection to a producer in this worker.

A channel begins as a number in its gate. Once the location of its producer is known it gets a source: here a
`LocalSource`, which returns the producer's own buffers. Everything runs under the exchange lock, on the thread of the
gate's reader or (`available_locked`) of the producing task.

Invariants: a channel is in its gate's queue at most once; a notified queue is polled; release releases every buffer and
cancels the request.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headgate.errors import LocalProtocolError, PartitionNotFound, UnknownReceiver

if TYPE_CHECKING:
    from headgate.buffer import BufferQueue
    from headgate.ids import ChannelIndex, PartitionId, SubpartitionIndex
    from headgate.sync import Wake

__all__ = [
    "Backoff",
    "ChannelSource",
    "ChannelState",
    "ChannelStatistics",
    "InputChannel",
    "LocalSource",
    "Subpartitions",
]

_log = logging.getLogger(__name__)


class ChannelState(Enum):
    """The states of a channel, in their order."""

    UNKNOWN = "unknown"  # the location of the producer is not known
    REQUESTING = "requesting"  # the producer's partition does not exist yet
    READING = "reading"
    ENDED = "ended"  # the end of the partition was read
    RELEASED = "released"


_OVER = (ChannelState.ENDED, ChannelState.RELEASED)


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A snapshot of a channel."""

    state: ChannelState
    backlog: int  # data buffers waiting at the producer


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between requests for a missing partition: doubled each time, up to the longest.

    >>> Backoff(initial_ns=100, max_ns=350).after(200)
    350
    """

    initial_ns: int = 100_000_000
    max_ns: int = 10_000_000_000

    def after(self, delay_ns: int) -> int | None:
        """Return the delay after a delay of `delay_ns` (0: none yet); None after the longest: the request fails.

        >>> backoff, waits = Backoff(100, 350), [0]
        >>> while (wait := backoff.after(waits[-1])) is not None: waits.append(wait)
        >>> waits
        [0, 100, 200, 350]
        """
        if delay_ns == 0:
            return self.initial_ns
        return min(delay_ns * 2, self.max_ns) if delay_ns < self.max_ns else None


class QueueListener(Protocol):
    """The reader of a queue of buffers: a channel of a gate."""

    @property
    def reader_blocked(self) -> bool:
        """True while the reader thread is blocked."""
        ...

    def available_locked(self) -> Wake:
        """Poll the queue soon: it has data."""
        ...


class Subpartitions(Protocol):
    """The worker's partition registry."""

    def attach_locked(
        self, partition_id: PartitionId, index: SubpartitionIndex, listener: QueueListener
    ) -> tuple[BufferQueue, Wake]:
        """Become the reader of a subpartition."""
        ...

    def release_subpartition_locked(
        self,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: QueueListener | None = None,
    ) -> Wake:
        """Release a subpartition that was attached as `listener`."""
        ...

    def publish_locked(self, partition_id: PartitionId, event: bytes) -> Wake:
        """Send an event to the producing task of a partition."""
        ...


class Outlet(Protocol):
    """The connection to another worker, where channels with credit are scheduled until a trigger (`wire.flow`)."""

    def announce_to_starved_locked(self) -> Wake:
        """Announce the scheduled credit now if one of its producers has none left: the reader polls its last buffer."""
        ...

    def announce_all_locked(self) -> Wake:
        """Announce the scheduled credit after pending network work: the reader has nothing to poll."""
        ...


class ChannelSource(Protocol):
    """The connection of a channel to its producer."""

    @property
    def outlet(self) -> Outlet | None:
        """The connection to the producer's worker, if it is another one."""
        ...

    @property
    def retry_at_ns(self) -> int | None:
        """When to call `request_locked` again; None: not necessary."""
        ...

    def request_locked(self, listener: QueueListener, now_ns: int) -> tuple[BufferQueue | None, Wake]:
        """Request the partition. Return its queue, or None if it does not exist yet.

        Raises:
            PartitionNotFound: it did not exist at the last retry.
        """
        ...

    def send_event_locked(self, event: bytes) -> Wake:
        """Send an event against the stream, to the producing task."""
        ...

    def release_locked(self) -> Wake:
        """Release the partition."""
        ...


class LocalSource:
    """A producer in this worker: the gate polls its own buffers.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, worker.local_source(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(0)))
    ...     gate.channels[0].state  # the partition does not exist yet
    <ChannelState.REQUESTING: 'requesting'>
    """

    __slots__ = (
        "_backoff",
        "_delay_ns",
        "_index",
        "_listener",
        "_partition_id",
        "_refused",
        "_registry",
        "retry_at_ns",
    )

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
        self._listener: QueueListener | None = None  # as which it is attached to the partition
        self._refused = False  # a task event had no receiver
        self.retry_at_ns: int | None = None

    def request_locked(self, listener: QueueListener, now_ns: int) -> tuple[BufferQueue | None, Wake]:
        """Attach to the partition; if it is missing, set the time of the next request."""
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
        """Send an event against the stream, to the producing task; one without a receiver is logged, once."""
        try:
            return self._registry.publish_locked(self._partition_id, event)
        except UnknownReceiver as error:
            level, text = logging.DEBUG if self._refused else logging.WARNING, str(error)
            self._refused = True
            return lambda: _log.log(level, "a task event was not delivered: %s", text)

    def release_locked(self) -> Wake:
        """Release the partition."""
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
        self.source: ChannelSource | None = None
        self.polled: BufferQueue | None = None  # once connected: what the gate polls
        self.queued = False  # in the gate's queue
        self._gate = gate

    @property
    def reader_blocked(self) -> bool:
        """True while the reader thread is blocked."""
        return self._gate.reader_blocked

    def available_locked(self) -> Wake:
        """Put the channel into the gate's queue, once: its producer has data."""
        if self.queued or self.state in _OVER:
            return None
        self.queued = True
        return self._gate.enqueue_locked(self)

    def connect_locked(self, source: ChannelSource, now_ns: int) -> Wake:
        """Set the source, and request the partition."""
        if self.state is ChannelState.RELEASED:
            return source.release_locked()
        if self.state is not ChannelState.UNKNOWN:
            raise LocalProtocolError(f"channel {self.index} is connected twice")
        self.source = source
        self.state = ChannelState.REQUESTING
        try:
            return self.request_locked(now_ns)
        except BaseException:
            self.source, self.state = None, ChannelState.UNKNOWN  # there is nothing to release
            raise

    def request_locked(self, now_ns: int) -> Wake:
        """Request the partition, if it is due."""
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
        """Release the source: the end of the partition was read."""
        self.state = ChannelState.ENDED
        return None if self.source is None else self.source.release_locked()

    def release_locked(self) -> Wake:
        """Release all buffers and cancel the request. Idempotent."""
        if self.state is ChannelState.RELEASED:
            return None
        ended, self.state, self.polled = self.state is ChannelState.ENDED, ChannelState.RELEASED, None
        return None if self.source is None or ended else self.source.release_locked()

    def statistics_locked(self) -> ChannelStatistics:
        """Return a snapshot of the channel."""
        return ChannelStatistics(self.state, 0 if self.polled is None else self.polled.backlog)


class GateQueue(Protocol):
    """The gate, as its channels use it."""

    @property
    def reader_blocked(self) -> bool:
        """True while the reader thread is blocked."""
        ...

    def enqueue_locked(self, channel: InputChannel) -> Wake:
        """Put a channel with data into the queue."""
        ...
