"""A channel whose producer is in another worker: the buffers that wait for its data.

A remote channel is a gate's source and its own queue of what has arrived. It keeps a few segments that are its own
(exclusive) and claims more from the gate's pool (floating) when the producer has a backlog. Every segment set aside is
a credit to announce. Its own are a number: all channels of the worker keep theirs on one shelf, where what was used
last is used next, for that memory is still in the processor's cache. The gate's reader polls and recycles; the network
thread puts data in; both under the exchange lock. What is to be said to the producer is not said here: the channel
reports to its `Outlet` that it is due, once, and the network thread asks it what for.

Invariants: ready segments >= credit at the producer + credit not announced yet; wanted = backlog + exclusive; credit
waits no longer than there is something to read; a channel stands in its outlet's queue at most once; after release
everything goes back to where it came from.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from headgate.buffer import UNCHANNELLED, Answer, Buffer, BufferSlice, Kind
from headgate.errors import Cancelled, HeadgateError, InvariantViolated, LocalProtocolError
from headgate.input.channel import Backoff, Outlet
from headgate.input.remote_state import RemoteState, RemoteStatistics
from headgate.record.element import MAX_TASK_EVENT_BYTES
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.buffer import BufferOwner, LocalPool, NetworkPool, Segment
    from headgate.ids import PartitionId, SubpartitionIndex
    from headgate.input.channel import Listener, Polled
    from headgate.sync import Lock, Wake

    Arrival = tuple["RemoteChannel", int, int, memoryview]

__all__ = ["RemoteChannel", "RemoteOutlet", "arrive_run_locked"]


class RemoteOutlet(Outlet, Protocol):
    """The way to the producer's worker, as far as a channel knows it."""

    def due_locked(self, channel: RemoteChannel, urgent: bool) -> Wake:
        """The channel has something to say: let the network thread ask it what, at once or when there is more."""
        ...


_RECEIVING = RemoteState.RECEIVING
_DATA = Kind.DATA
_NOT_USED, _ENOUGH, _MORE_WANTED = Answer.NOT_USED, Answer.USED_ENOUGH, Answer.USED_MORE_WANTED
_ENOUGH_CREDIT: Final = 4  # of one channel: the producer goes on with it while the reader has more to read
_MAX_EVENT_BYTES: Final = 1024 * 1024
_EVENT_OVERHEAD_BYTES: Final = 256


class RemoteChannel:
    """One subpartition of another worker.

    `exclusive` are its own segments, got by `NetworkPool.request_exclusive`; without credit-based flow control there
    are none, and it takes what it needs from the gate's pool as data comes.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.worker import Environment
    >>> class Recorder:
    ...     def due_locked(self, channel, urgent): print("due:", channel.state.value)
    ...     def hurry_locked(self): return None
    ...     def rest_locked(self): return None
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     pool, segments = worker.memory.create_pool("gate", required=0), worker.memory.request_exclusive("gate", 2)
    ...     where = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), SubpartitionIndex(0)
    ...     channel = RemoteChannel(*where, Recorder(), worker.memory, pool, exclusive=segments)
    ...     gate = worker.gate("words", channels=1)
    ...     gate.connect(0, channel)
    ...     channel.credit
    due: requesting
    2
    due: released
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
    ) -> None:
        self.partition = partition
        self.subpartition = subpartition
        self.lock: Lock = memory.lock
        self.state = RemoteState.NEW
        self.credited = exclusive is not None
        self.exclusive = 0 if exclusive is None else len(exclusive)
        self.backlog = 0
        self.unannounced = 0
        self.asks = False  # the producer is to be asked now, and not after a while
        self.due = False  # stands in the outlet's queue
        self.announced = False
        """Whether there is something to poll, which the reader knows."""
        self.task_events: deque[bytes] = deque()
        self.retry_at_ns: int | None = None  # what a gate asks of its sources; here the network thread tries again
        self.outlet: RemoteOutlet = outlet
        self._memory = memory
        self._pool = pool
        self._own = self.exclusive  # how many of those on the shelf are its own
        self._shelf = memory.shelf
        self._floating: deque[Segment] = deque()
        self._listening = False  # the pool will offer what comes back
        self._arrived: deque[BufferSlice] = deque()
        self._came = False  # something has arrived: it cannot be asked for again from its start
        self._event_bytes = 0  # of events that have arrived and were not read yet
        self._crowded = False  # an event waits for room
        self._failure: HeadgateError | None = None
        self._listener: Listener | None = None
        self._backoff = backoff if backoff is not None else Backoff()
        self._delay_ns = 0
        if exclusive:
            with self.lock:
                self._shelf += exclusive

    def __str__(self) -> str:
        return f"subpartition {self.subpartition} of partition {self.partition}"

    # The gate's side.

    def request_locked(self, listener: Listener, now_ns: int) -> tuple[Polled | None, Wake]:  # noqa: ARG002 - a Source
        """Begin: the producer is asked as soon as there is a connection."""
        self._listener = listener
        self.state, self.asks = RemoteState.REQUESTING, True
        return self, self._due_locked()

    @property
    def readable(self) -> int:
        """Buffers that have arrived and were not read yet; without the lock."""
        return len(self._arrived)

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next of what has arrived."""
        arrived = self._arrived
        if arrived:
            taken, wake = arrived.popleft(), None
            if not arrived:
                self.announced = self._failure is not None
                if self.unannounced and not self.due:  # it has waited for more, and these were events
                    wake = self._due_locked(urgent=False)
            if taken.buffer.kind is _DATA:
                return taken, wake
            self._event_bytes -= len(taken.memory) + _EVENT_OVERHEAD_BYTES
            # The network may have stopped reading for want of room.
            return taken, self._due_locked() if self._crowded and self._event_bytes <= _MAX_EVENT_BYTES // 2 else wake
        if self._failure is not None:
            raise self._failure
        return None, None

    def send_event_locked(self, event: bytes) -> Wake:
        """Send an event against the stream, to the task that produces."""
        if len(event) > MAX_TASK_EVENT_BYTES:
            raise LocalProtocolError(f"{self}: a task event of {len(event)} bytes; the limit is {MAX_TASK_EVENT_BYTES}")
        if self.state is RemoteState.FAILED or self.state is RemoteState.RELEASED:
            raise Cancelled(f"{self} is not read any more: its producer cannot be told anything")
        self.task_events.append(event)
        return self._due_locked()

    def release_locked(self) -> Wake:
        """Give everything back; the producer is told to stop. May be repeated."""
        if self.state is RemoteState.RELEASED:
            return None
        self.state = RemoteState.RELEASED
        self._listener = self._failure = None
        self.announced = False
        wakes = [taken.release_locked() for taken in self._arrived]
        self._arrived.clear()
        wakes.append(self._give_back_locked())
        return together(*wakes, self._due_locked())

    # Segments that come back: see `BufferOwner` and `BufferListener`.

    def recycle_locked(self, segment: Segment, channel: int) -> Wake:  # noqa: ARG002 - a BufferOwner
        """An exclusive segment is free again: one more credit, unless there are enough; then a floating one goes."""
        if self.state is not _RECEIVING and self.state is not RemoteState.REQUESTING:
            return self._memory.recycle_exclusive_locked([segment])
        self._shelf.append(segment)
        self._own += 1
        if self._floating and self._own + len(self._floating) > self.backlog + self.exclusive:
            return self._pool.recycle_locked(self._floating.popleft(), UNCHANNELLED)
        self.unannounced += 1
        return None if self._credit_waits() else self._due_locked(urgent=False)

    def lend_locked(self, buffer: Buffer) -> tuple[memoryview | None, Wake]:
        """See `BufferOwner`: the gate's pool takes the buffer over, if it has another segment to give for it."""
        spare = None if self._pool.destroyed else self._pool.try_request_locked()
        if spare is None:
            return None, None
        buffer.owner, buffer.channel = self._pool, UNCHANNELLED
        wake = self.recycle_locked(spare, UNCHANNELLED)
        memory, lent_wake = self._pool.lend_locked(buffer)
        return memory, together(wake, lent_wake)

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """The pool has a floating segment."""
        floating = self._floating
        missing = self.backlog + self.exclusive - self._own - len(floating) if self.credited else self._missing()
        if missing <= 0 or self.state is not _RECEIVING:
            self._listening = False
            return _NOT_USED, None
        floating.append(segment)
        self.unannounced += 1
        self._listening = missing > 1
        answer = _MORE_WANTED if missing > 1 else _ENOUGH
        if self.credited and self._credit_waits():
            return answer, None
        return answer, self._due_locked(urgent=not self.credited)

    def cancel_locked(self) -> Wake:
        """The pool is gone."""
        self._listening = False
        return None

    # The network's side.

    @property
    def credit(self) -> int | None:
        """Credit to begin with; None where there is no credit."""
        return self.exclusive if self.credited else None

    @property
    def starves(self) -> bool:
        """Whether the producer has no credit left, of which there is some to announce."""
        return self._own + len(self._floating) <= self.unannounced or not self.credited

    @property
    def speaks(self) -> bool:
        """Whether it has more to say to its producer than credit."""
        return self.state is not _RECEIVING or bool(self.task_events) or not self.credited

    def take_credit_locked(self) -> int:
        """Credit to announce now; it counts as announced from here on."""
        credit, self.unannounced = self.unannounced, 0
        return credit if self.credited and self.state is _RECEIVING else 0

    def take_buffer_locked(self) -> Buffer | None:
        """Where the next buffer goes.

        None, only without flow control by credit: there is none, and reading must stop until the channel is due.
        """
        if self._floating:
            return Buffer.awaiting(self._floating.pop(), self._pool)
        if self._own:
            self._own -= 1
            return Buffer.awaiting(self._shelf.pop(), self)
        if self.credited:
            raise InvariantViolated(f"{self}: no segment is set aside for a credit that was announced")
        segment = None if self._pool.destroyed else self._pool.try_request_locked()
        if segment is not None:
            return Buffer.awaiting(segment, self._pool)
        self._listen_locked()
        return None

    def arrive_locked(self, buffer: Buffer, size: int, skew: int, backlog: int) -> Wake:
        """A buffer is complete: `size` bytes in its memory, from `skew` on."""
        if self.state is not _RECEIVING:
            return buffer.give_back_locked()
        self.backlog = backlog
        self._arrived.append(buffer.received(skew, skew + size))
        # First the reader, who announces what is claimed here when it has read what it has.
        wake = self._tell_locked()
        return together(wake, self._due_locked(urgent=False)) if self.credited and self._claim_locked() else wake

    def _tell_locked(self) -> Wake:
        """There is something to poll: the reader must know."""
        if self.announced:
            return None
        self.announced = self._came = True
        return None if self._listener is None else self._listener.available_locked()

    def has_room_for_event_locked(self) -> bool:
        """Whether another event may come: they need no credit, so this is their limit. If not, as for segments."""
        self._crowded = self._event_bytes > _MAX_EVENT_BYTES
        return not self._crowded

    def event_locked(self, data: bytes, backlog: int, *, last: bool) -> Wake:
        """An event is complete; with the last one, nothing more needs to be set aside."""
        if self.state is not _RECEIVING:
            return None
        self._event_bytes += len(data) + _EVENT_OVERHEAD_BYTES
        event = Buffer.event(data)
        self._arrived.append(BufferSlice(event, event.memory, 0))
        told = self._tell_locked()
        if last:
            self.state, self.backlog = RemoteState.ENDED, 0
            changed = self._give_back_locked()
        else:
            self.backlog = backlog
            changed = self._due_locked(urgent=False) if self.credited and self._claim_locked() else None
        return together(changed, told)

    def backlog_locked(self, backlog: int) -> Wake:
        """The producer has said how much it has waiting."""
        self.backlog = backlog
        if self.state is not _RECEIVING:
            return None
        self._claim_locked()
        return self._due_locked() if self.unannounced else None  # at once: it would not say so if it had credit left

    def requested_locked(self) -> None:
        """The producer is being asked."""
        if self.state is RemoteState.REQUESTING:
            self.state, self.asks = _RECEIVING, False

    def missing_locked(self) -> int | None:
        """The partition is not there: how long to wait before asking again; None: it was there, or too often not."""
        if self.state is not _RECEIVING or self._came:
            return None
        delay_ns = self._backoff.after(self._delay_ns)
        if delay_ns is None:
            return None
        self._delay_ns, self.state = delay_ns, RemoteState.REQUESTING
        self.unannounced = 0
        return delay_ns

    def retry_locked(self) -> Wake:
        """It is time to ask again."""
        if self.state is not RemoteState.REQUESTING:
            return None
        self.asks = True
        return self._due_locked()

    def fail_locked(self, error: HeadgateError) -> Wake:
        """Nothing more will come; the reader learns why after what has arrived."""
        if self.state in {RemoteState.FAILED, RemoteState.RELEASED, RemoteState.ENDED}:
            return None
        self.state, self._failure, self.announced = RemoteState.FAILED, error, True
        wake = self._listener.available_locked() if self._listener is not None else None
        return together(self._give_back_locked(), wake)

    def statistics(self) -> RemoteStatistics:
        """The channel at this moment."""
        with self.lock:
            return self.statistics_locked()

    def statistics_locked(self) -> RemoteStatistics:
        """The channel at this moment."""
        return RemoteStatistics(
            state=self.state,
            backlog=self.backlog,
            queued=len(self._arrived),
            ready=self._own + len(self._floating),
            floating=len(self._floating),
            unannounced=self.unannounced,
        )

    # Inside.

    def _missing(self) -> int:
        if not self.credited:
            return 0 if self._floating else 1
        return self.backlog + self.exclusive - self._own - len(self._floating)

    def _credit_waits(self) -> bool:
        """Whether credit need not be said now: it will be, or the reader still has more than was given back."""
        return self.unannounced < _ENOUGH_CREDIT and (self.due or self.unannounced < len(self._arrived))

    def _claim_locked(self) -> bool:
        """Take as many floating segments as are free and wanted; listen for the rest. Whether there were any."""
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

    def _listen_locked(self) -> None:
        if not self._listening and not self._pool.destroyed:
            self._listening = True
            self._pool.listen_locked(self)

    def _due_locked(self, *, urgent: bool = True) -> Wake:
        if self.due and not urgent and self.unannounced < _ENOUGH_CREDIT:
            return None
        self.due = True
        # Where a reader sleeps, nobody comes by who would hurry what waits: another thread gave a buffer back.
        listener = self._listener
        asleep = listener is not None and listener.asleep
        return self.outlet.due_locked(self, urgent or asleep or self.unannounced >= _ENOUGH_CREDIT)

    def _give_back_locked(self) -> Wake:
        own, floating = [self._shelf.pop() for _ in range(self._own)], list(self._floating)
        self._floating.clear()
        self._own = self.unannounced = 0
        wakes = [self._pool.recycle_locked(segment, UNCHANNELLED) for segment in floating]
        if own:
            wakes.append(self._memory.recycle_exclusive_locked(own))
        return together(*wakes)


def arrive_run_locked(run: Iterable[Arrival], wakes: list[Callable[[], object]]) -> tuple[int, int]:
    """Buffers with credit that have come whole, each with its channel, backlog, skew and bytes; how many, of what size.

    For each of them `take_buffer_locked`, the copy, and `arrive_locked`, in one loop: under load all data comes so.
    What is for a channel that was released meanwhile is dropped: its producer will be told.

    >>> arrive_run_locked([], wakes=[])
    (0, 0)
    """
    buffers = total = 0
    for channel, backlog, skew, payload in run:
        if channel.state is not _RECEIVING:
            continue
        size = len(payload)
        buffers += 1
        total += size
        floating = channel._floating
        owner: BufferOwner
        if floating:
            segment, owner = floating.pop(), channel._pool
        elif channel._own:
            segment, owner = channel._shelf.pop(), channel
            channel._own -= 1
        else:
            raise InvariantViolated(f"{channel}: no segment is set aside for a credit that was announced")
        buffer, memory, end = segment.buffer, segment.memory, skew + size
        if buffer is None:
            buffer = Buffer.over(segment, owner, UNCHANNELLED)
        else:
            buffer.owner, buffer.channel = owner, UNCHANNELLED
        if size != buffer.capacity:
            memory = memory[skew:end]
        memory[:] = payload
        buffer.position, buffer.marker, buffer.references = end, ~end, 1  # as `Buffer.received`
        channel._arrived.append(BufferSlice(buffer, memory, skew))
        channel.backlog = backlog
        if not channel.announced and (wake := channel._tell_locked()) is not None:
            wakes.append(wake)
        if channel._listening or backlog + channel.exclusive <= channel._own + len(floating):
            continue
        if channel._claim_locked() and (wake := channel._due_locked(urgent=False)) is not None:
            wakes.append(wake)
    return buffers, total
