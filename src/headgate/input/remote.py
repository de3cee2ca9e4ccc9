"""A channel whose producer is in another worker: the segments reserved for its data, and what was received.

A remote channel is a gate's source and its own queue of received buffers. It has a few exclusive segments and claims
floating ones from the gate's pool while the producer has a backlog. Each reserved segment is a credit; `wire.flow` has
the whole mechanism and decides when credit is announced. The gate's reader polls and recycles; the network thread puts
received buffers in; both hold the exchange lock. The channel sends no frame itself: it is scheduled at its `Outlet`,
once, and the network thread then collects what it has to send.

Exclusive segments are a count, not a list: all channels of the worker keep theirs on one free list, and the segment
used last is used next, while its memory is in the processor's cache.

Invariants: ready segments = credit at the producer + unannounced credit; wanted = backlog + exclusive; a channel is
scheduled at its outlet at most once; after release every segment is back where it came from.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from headgate.buffer import UNCHANNELLED, Answer, Buffer, BufferSlice, Kind
from headgate.errors import Cancelled, HeadgateError, InvariantViolated, LocalProtocolError
from headgate.input.channel import Backoff, Outlet
from headgate.input.remote_state import RemoteState, RemoteStatistics
from headgate.record.element import MAX_TASK_EVENT_BYTES
from headgate.sync import together
from headgate.wire.flow import (
    EVENT_OVERHEAD_BYTES,
    MAX_UNREAD_EVENT_BYTES,
    When,
    answer_backlog,
    can_receive_events_again,
    has_room_for_event,
    has_surplus,
    is_out_of_credit,
    missing_buffers,
    should_announce,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.buffer import BufferOwner, BufferQueue, LocalPool, NetworkPool, Segment
    from headgate.ids import PartitionId, SubpartitionIndex
    from headgate.input.channel import QueueListener
    from headgate.sync import Lock, Wake

    Arrival = tuple["RemoteChannel", int, int, memoryview, Buffer | None]

__all__ = ["RemoteChannel", "RemoteOutlet", "receive_run_locked"]


class RemoteOutlet(Outlet, Protocol):
    """The connection to the producer's worker, as its channels use it."""

    def schedule_locked(self, channel: RemoteChannel, when: When, reader_blocked: bool) -> Wake:
        """Let the network thread collect what the channel has to send: NOW, or LATER with what other channels have.

        `reader_blocked`: the reader of the channel is blocked and triggers nothing.
        """
        ...


_RECEIVING = RemoteState.RECEIVING
_DATA = Kind.DATA
_NOT_USED, _ENOUGH, _MORE_WANTED = Answer.NOT_USED, Answer.USED_ENOUGH, Answer.USED_MORE_WANTED
_NO, _LATER, _NOW = When.NO, When.LATER, When.NOW


class RemoteChannel:
    """One subpartition of another worker.

    `exclusive` are its own segments, granted by `NetworkPool.request_exclusive`. None means no flow control by credit:
    the channel then takes a segment from the gate's pool for each buffer that arrives.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.worker import Environment
    >>> class Recorder:
    ...     def schedule_locked(self, channel, when, reader_blocked): print(when.name, channel.state.value)
    ...     def announce_to_starved_locked(self): return None
    ...     def announce_all_locked(self): return None
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     pool, segments = worker.memory.create_pool("gate", required=0), worker.memory.request_exclusive("gate", 2)
    ...     where = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(0)
    ...     channel = RemoteChannel(*where, Recorder(), worker.memory, pool, exclusive=segments)
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, channel)
    ...     channel.credit
    NOW requesting
    2
    NOW released
    """

    def __init__(
        self,
        partition: PartitionId,
        subpartition: SubpartitionIndex,
        outlet: RemoteOutlet,
        memory: NetworkPool,
        pool: LocalPool,
        *,
        exclusive: list[Segment] | None,
        backoff: Backoff | None = None,
        max_event_bytes: int = MAX_UNREAD_EVENT_BYTES,
        packed: bool = False,
    ) -> None:
        self.partition = partition
        self.subpartition = subpartition
        self.lock: Lock = memory.lock
        self.state = RemoteState.NEW
        self.credited = exclusive is not None
        self.packed = packed
        """True if data may be sent compressed; it is decompressed before the channel receives it."""
        self.exclusive = 0 if exclusive is None else len(exclusive)
        self.backlog = 0
        self.unannounced = 0
        self.must_request = False  # the partition is to be requested now, not after a delay
        self.scheduled = False  # the outlet will collect what the channel has to send
        self.notified = False
        """True if there is something to poll, and the reader was notified."""
        self.task_events: deque[bytes] = deque()
        self.retry_at_ns: int | None = None  # of a `ChannelSource`; here the network thread requests again
        self.outlet: RemoteOutlet = outlet
        self._memory = memory
        self._pool = pool
        self._own = self.exclusive  # how many segments of the free list are its own
        self._free_list = memory.exclusive_free
        self._floating: deque[Segment] = deque()
        self._listening = False  # the pool will offer the next recycled segment
        self._unread: deque[BufferSlice] = deque()
        self._received_any = False  # then the partition cannot be requested again from its start
        self._event_bytes = 0  # of unread events
        self._max_event_bytes = max_event_bytes
        self._event_waits = False  # the connection has stopped reading for want of room
        self._failure: HeadgateError | None = None
        self._listener: QueueListener | None = None
        self._backoff = backoff if backoff is not None else Backoff()
        self._delay_ns = 0
        if exclusive:
            with self.lock:
                self._free_list += exclusive

    def __str__(self) -> str:
        return f"subpartition {self.subpartition} of partition {self.partition}"

    # Called by the gate.

    def request_locked(self, listener: QueueListener, now_ns: int) -> tuple[BufferQueue | None, Wake]:  # noqa: ARG002 - a ChannelSource
        """Request the partition as soon as there is a connection."""
        self._listener = listener
        self.state, self.must_request = RemoteState.REQUESTING, True
        return self, self._schedule_locked(_NOW)

    @property
    def readable(self) -> int:
        """The number of unread buffers; read without the lock, so it may be out of date by one change."""
        return len(self._unread)

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return the next received buffer, or None."""
        unread = self._unread
        if unread:
            taken, wake = unread.popleft(), None
            if not unread:
                self.notified = self._failure is not None
                # Credit below the number of unread buffers waits for their polling; the last ones may be events.
                if self.unannounced and not self.scheduled:
                    wake = self._schedule_locked(should_announce(self.unannounced, 0, scheduled=False))
            if taken.buffer.kind is _DATA:
                return taken, wake
            self._event_bytes -= len(taken.memory) + EVENT_OVERHEAD_BYTES
            if self._event_waits and can_receive_events_again(self._event_bytes, self._max_event_bytes):
                return taken, self._schedule_locked(_NOW)
            return taken, wake
        if self._failure is not None:
            raise self._failure
        return None, None

    def send_event_locked(self, event: bytes) -> Wake:
        """Send an event against the stream, to the producing task."""
        if len(event) > MAX_TASK_EVENT_BYTES:
            raise LocalProtocolError(f"{self}: a task event of {len(event)} bytes; the limit is {MAX_TASK_EVENT_BYTES}")
        if self.state is RemoteState.FAILED or self.state is RemoteState.RELEASED:
            raise Cancelled(f"{self} is not read any more: its producer cannot be told anything")
        self.task_events.append(event)
        return self._schedule_locked(_NOW)

    def release_locked(self) -> Wake:
        """Release every segment and cancel the request. Idempotent."""
        if self.state is RemoteState.RELEASED:
            return None
        self.state = RemoteState.RELEASED
        self._listener = self._failure = None
        self.notified = False
        wakes = [taken.release_locked() for taken in self._unread]
        self._unread.clear()
        wakes.append(self._release_segments_locked())
        return together(*wakes, self._schedule_locked(_NOW))

    # Recycled segments: see `BufferOwner` and `BufferListener`.

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:  # noqa: ARG002 - a BufferOwner
        """Reserve an exclusive segment again: one more credit, or a floating segment goes back to the gate's pool."""
        if self.state is not _RECEIVING and self.state is not RemoteState.REQUESTING:
            return self._memory.recycle_exclusive_locked([segment])
        floating = self._floating
        self._free_list.append(segment)
        self._own += 1
        if floating and has_surplus(self.backlog, self.exclusive, self._own + len(floating)):
            return self._pool.recycle_locked(floating.popleft(), UNCHANNELLED)
        self.unannounced += 1
        when = should_announce(self.unannounced, len(self._unread), self.scheduled)
        return None if when is _NO else self._schedule_locked(when)

    def lend_locked(self, buffer: Buffer) -> tuple[memoryview | None, Wake]:
        """See `BufferOwner`: the gate's pool takes the buffer over if it has another segment to give for it."""
        spare = None if self._pool.destroyed else self._pool.try_request_locked()
        if spare is None:
            return None, None
        buffer.owner, buffer.channel = self._pool, UNCHANNELLED
        wake = self.recycle_locked(spare, UNCHANNELLED)
        memory, lent_wake = self._pool.lend_locked(buffer)
        return memory, together(wake, lent_wake)

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """Take a floating segment that the pool offers, if one is missing."""
        missing = self._missing()
        if missing <= 0 or self.state is not _RECEIVING:
            self._listening = False
            return _NOT_USED, None
        self._floating.append(segment)
        self.unannounced += 1
        self._listening = missing > 1
        answer = _MORE_WANTED if missing > 1 else _ENOUGH
        # Without credit the connection has stopped reading for want of this segment.
        when = should_announce(self.unannounced, len(self._unread), self.scheduled) if self.credited else _NOW
        return answer, None if when is _NO else self._schedule_locked(when)

    def cancel_locked(self) -> Wake:
        """Stop waiting for a segment: the pool is destroyed."""
        self._listening = False
        return None

    # Called by the network thread.

    @property
    def credit(self) -> int | None:
        """The credit of the request; None without flow control by credit."""
        return self.exclusive if self.credited else None

    @property
    def out_of_credit(self) -> bool:
        """True if the producer has no credit left, and there is some to announce."""
        return not self.credited or is_out_of_credit(self._own + len(self._floating), self.unannounced)

    @property
    def sends_only_credit(self) -> bool:
        """True if the channel has nothing to send but credit."""
        return self.state is _RECEIVING and not self.task_events and self.credited

    def take_credit_locked(self) -> int:
        """Return the credit to announce; it counts as announced from then on."""
        credit, self.unannounced = self.unannounced, 0
        return credit if self.credited and self.state is _RECEIVING else 0

    def take_buffer_locked(self) -> Buffer | None:
        """Return a buffer for the payload that arrives.

        None, only without flow control by credit: the pool has none, and the connection stops reading until the
        channel is scheduled.
        """
        owner: BufferOwner
        if self._floating:
            segment, owner = self._floating.pop(), self._pool
        elif self._own:
            segment, owner = self._free_list.pop(), self
            self._own -= 1
        else:
            return self._take_uncredited_locked()
        buffer = segment.buffer
        if buffer is None:
            return Buffer.over(segment, owner, UNCHANNELLED)
        buffer.owner, buffer.channel = owner, UNCHANNELLED
        return buffer

    def _take_uncredited_locked(self) -> Buffer | None:
        if self.credited:
            raise InvariantViolated(f"{self}: no segment is set aside for a credit that was announced")
        segment = None if self._pool.destroyed else self._pool.try_request_locked()
        if segment is not None:
            return Buffer.awaiting(segment, self._pool)
        self._listen_locked()
        return None

    def _notify_reader_locked(self) -> Wake:
        if self.notified:
            return None
        self.notified = self._received_any = True
        return None if self._listener is None else self._listener.available_locked()

    def has_room_for_event_locked(self) -> bool:
        """Return True if another event may be received. If not, the connection stops reading, as for segments."""
        room = has_room_for_event(self._event_bytes, self._max_event_bytes)
        self._event_waits = not room
        return room

    def receive_event_locked(self, data: bytes, backlog: int, *, last: bool) -> Wake:
        """Queue a complete event. After the last one no segment needs to be reserved."""
        if self.state is not _RECEIVING:
            return None
        self._event_bytes += len(data) + EVENT_OVERHEAD_BYTES
        event = Buffer.event(data)
        self._unread.append(BufferSlice(event, event.memory, 0))
        notified = self._notify_reader_locked()
        if last:
            self.state, self.backlog = RemoteState.ENDED, 0
            changed = self._release_segments_locked()
        else:
            self.backlog = backlog
            changed = self._announce_claimed_locked() if self.credited and self._claim_locked() else None
        return together(changed, notified)

    def receive_backlog_locked(self, backlog: int) -> Wake:
        """Claim floating segments for a backlog that the producer has announced for want of credit."""
        self.backlog = backlog
        if self.state is not _RECEIVING:
            return None
        self._claim_locked()
        when = answer_backlog(self.unannounced)
        return None if when is _NO else self._schedule_locked(when)

    def mark_requested_locked(self) -> None:
        """Note that the request is written."""
        if self.state is RemoteState.REQUESTING:
            self.state, self.must_request = _RECEIVING, False

    def delay_request_locked(self) -> int | None:
        """Return after how many nanoseconds to request a missing partition again.

        None if the channel must fail instead: it has received data, or the last retry is over.
        """
        if self.state is not _RECEIVING or self._received_any:
            return None
        delay_ns = self._backoff.after(self._delay_ns)
        if delay_ns is None:
            return None
        self._delay_ns, self.state = delay_ns, RemoteState.REQUESTING
        self.unannounced = 0
        return delay_ns

    def retry_locked(self) -> Wake:
        """Request the partition again."""
        if self.state is not RemoteState.REQUESTING:
            return None
        self.must_request = True
        return self._schedule_locked(_NOW)

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Receive nothing more; the reader gets the error after the unread buffers."""
        if self.state in {RemoteState.FAILED, RemoteState.RELEASED, RemoteState.ENDED}:
            return None
        self.state, self._failure, self.notified = RemoteState.FAILED, error, True
        wake = self._listener.available_locked() if self._listener is not None else None
        return together(self._release_segments_locked(), wake)

    def statistics(self) -> RemoteStatistics:
        """Return a snapshot of the channel."""
        with self.lock:
            return self.statistics_locked()

    def statistics_locked(self) -> RemoteStatistics:
        """Return a snapshot of the channel."""
        return RemoteStatistics(
            state=self.state,
            backlog=self.backlog,
            queued=len(self._unread),
            ready=self._own + len(self._floating),
            floating=len(self._floating),
            unannounced=self.unannounced,
        )

    # Segments and announcements.

    def _missing(self) -> int:
        if not self.credited:
            return 0 if self._floating else 1
        return missing_buffers(self.backlog, self.exclusive, self._own + len(self._floating))

    def _claim_locked(self) -> bool:
        """Claim the missing floating segments, and listen for those that are not free. Return True if any was."""
        missing = self._missing()
        if missing <= 0 or self._listening or self._pool.destroyed:
            return False
        claimed = 0
        while claimed < missing and (segment := self._pool.try_request_locked()) is not None:
            self._floating.append(segment)
            claimed += 1
        if claimed < missing:
            self._listen_locked()
        self.unannounced += claimed
        return claimed > 0

    def _announce_claimed_locked(self) -> Wake:
        # Unread buffers do not count: the backlog says that the producer has use for the credit now.
        when = should_announce(self.unannounced, 0, self.scheduled)
        return None if when is _NO else self._schedule_locked(when)

    def _listen_locked(self) -> None:
        if not self._listening and not self._pool.destroyed:
            self._listening = True
            self._pool.listen_locked(self)

    def _schedule_locked(self, when: When) -> Wake:
        self.scheduled = True
        listener = self._listener
        blocked = when is _LATER and listener is not None and listener.reader_blocked
        return self.outlet.schedule_locked(self, when, blocked)

    def _release_segments_locked(self) -> Wake:
        own, floating = [self._free_list.pop() for _ in range(self._own)], list(self._floating)
        self._floating.clear()
        self._own = self.unannounced = 0
        wakes = [self._pool.recycle_locked(segment, UNCHANNELLED) for segment in floating]
        if own:
            wakes.append(self._memory.recycle_exclusive_locked(own))
        return together(*wakes)


def receive_run_locked(run: Iterable[Arrival], wakes: list[Callable[[], object]]) -> tuple[int, int]:
    """Receive whole buffers, each with its channel, backlog, skew and bytes. Return their number and size.

    A buffer that has arrived in pieces is given with its bytes; for others a segment is taken here, and the bytes are
    copied. Buffers of a released channel are dropped: its request will be cancelled.
    """
    buffers = total = 0
    for channel, backlog, skew, payload, filled in run:
        if channel.state is not _RECEIVING:
            if filled is not None and (wake := filled.give_back_locked()) is not None:
                wakes.append(wake)
            continue
        size = len(payload)
        end = skew + size
        buffers += 1
        total += size
        if filled is None:
            buffer = channel.take_buffer_locked()
            assert buffer is not None, "with credit there is a segment"
            memory = buffer.memory if size == buffer.capacity else buffer.memory[skew:end]
            memory[:] = payload
        else:
            buffer, memory = filled, payload
        buffer.position, buffer.marker, buffer.references = end, ~end, 1  # inlined `Buffer.received`
        channel._unread.append(BufferSlice(buffer, memory, skew))
        channel.backlog = backlog
        # First the reader: it announces the claimed credit when it has polled what it has.
        if not channel.notified and (wake := channel._notify_reader_locked()) is not None:
            wakes.append(wake)
        if channel._listening or not channel.credited:
            continue
        if missing_buffers(backlog, channel.exclusive, channel._own + len(channel._floating)) <= 0:
            continue
        if channel._claim_locked() and (wake := channel._announce_claimed_locked()) is not None:
            wakes.append(wake)
    return buffers, total
