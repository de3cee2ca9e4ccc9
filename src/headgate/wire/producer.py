"""The producer's half of a connection: it is asked, is given credit, and sends.

One per connection, called by the pump on the network thread under the exchange lock; only `available_locked` of a
stream is called by task threads, when they have produced something. Sans-IO: frames in by `on_*`, pieces of bytes out
by `data_to_send_locked`.

Invariants: a data buffer is sent against a credit and uses one, an event needs none; streams that can send take turns,
one buffer each, and each stands in the queue at most once; a stream that has data and no credit says so once; every
pair of state and step is in `states.PRODUCER_STEPS` or an error.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.buffer import Kind
from headgate.errors import (
    Cancelled,
    HeadgateError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
)
from headgate.sync import together
from headgate.wire.codec import CREDIT_FRAME, EVENT_FLAG, LAST_FLAG, PLAIN_DATA, encode_data_head, encode_frame
from headgate.wire.credit import Ledger
from headgate.wire.frames import (
    ALIGNMENT,
    MAX_BACKLOG,
    MAX_CREDIT,
    MAX_ERROR_TEXT_BYTES,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Data,
    ReportError,
    RequestPartition,
    SendTaskEvent,
)
from headgate.wire.states import PRODUCER_STEPS, ProducerState, ProducerStep, step
from headgate.wire.supply import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.buffer import BufferSlice
    from headgate.sync import Wake
    from headgate.wire.frames import Frame
    from headgate.wire.supply import Supply, WakeLocked

__all__ = ["ProducerSession", "ProducerStream", "error_frame"]

_DATA = Kind.DATA
_SENDING = ProducerState.SENDING
_SEQUENCE_MASK: Final = 0xFFFF_FFFF
_PLAIN: Final = Data.TYPE  # and no flags
_CREDIT: Final = AddCredit.TYPE
_LENGTH_BYTES: Final = 4
_HEAD_LENGTH: Final = PLAIN_DATA.size - _LENGTH_BYTES
_CREDIT_LENGTH: Final = CREDIT_FRAME.size - _LENGTH_BYTES
_CREDIT_RUN_BYTES: Final = 256 * CREDIT_FRAME.size  # looked at at once: data may follow, which is none of it
_ENOUGH_TURNS: Final = 8  # streams with something to send, so that waiting for more does not pay;
_SHARE: Final = 32  # but not fewer than this part of all: where there are many, more will have something soon
_MAX_FRUITLESS: Final = 100_000  # requests of one connection that ended before anything was sent


class ProducerStream:
    """One channel that is written over the connection; the reader of its subpartition. Made by the session.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0)
    >>> session = ProducerSession(max_streams=10, wake_locked=lambda *, urgent: None)
    >>> stream = session.on_request(RequestPartition(0, partition, SubpartitionIndex(0), credit=2))
    >>> stream.state, stream.ledger.available
    (<ProducerState.SENDING: 1>, 2)
    """

    __slots__ = (
        "attempt",
        "ledger",
        "queued",
        "receiver",
        "request",
        "sequence",
        "session",
        "state",
        "supply",
        "told_backlog",
    )

    def __init__(self, session: ProducerSession, request: RequestPartition) -> None:
        self.session = session
        self.request = request
        self.receiver = request.receiver
        self.attempt = request.partition.attempt
        self.state = ProducerState.SENDING
        self.ledger = None if request.credit is None else Ledger(request.credit)  # None: sends without credit
        self.supply: Supply | None = None
        self.sequence = 0
        self.told_backlog = 0  # what the consumer knows to be waiting
        self.queued = False  # waits for its turn

    def __str__(self) -> str:
        return f"receiver {self.receiver} of partition {self.request.partition}"

    def available_locked(self) -> Wake:
        """The subpartition has something, or has failed: it takes its turn, once."""
        supply, ledger, session = self.supply, self.ledger, self.session
        if supply is None or self.state is not _SENDING:
            return None
        if self.queued:  # but perhaps in no hurry until now
            return self._press_locked(supply) if supply.pressing else None
        if ledger is not None and ledger.sent >= ledger.granted and self.told_backlog and supply.next_is_data:
            return session.starving if supply.pressing else None  # the consumer knows that it waits
        self.queued = True
        turns = session.turns
        turns.append(self)
        if supply.pressing:
            return self._press_locked(supply)
        # Who is not the first relies on the call of the first.
        if len(turns) == session.enough_turns:
            session.look_first = True  # a task with many channels does not wait for buffers, and would never look
            return session.wake_locked(urgent=True)
        return session.wake_locked(urgent=False) if len(turns) == 1 else None

    def _press_locked(self, supply: Supply) -> Wake:
        """Something was flushed, and goes now; all of it at once, if the credit for that has come."""
        if self.ledger is not None and self.ledger.available < supply.backlog:
            self.session.look_first = True
        return self.session.wake_locked(urgent=True)

    def move(self, what: ProducerStep, *, ours: bool) -> None:
        """Take a step of the table."""
        self.state = step(PRODUCER_STEPS, self.state, what, self, ours=ours)


class ProducerSession:
    """All channels that this side writes over one connection.

    `wake_locked` is called when a stream has something to send and had nothing before; `starving`, after the lock, when
    it has something that was flushed, and no credit for it: that should be read as soon as it comes.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> session = ProducerSession(max_streams=10, wake_locked=lambda *, urgent: None)
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0)
    >>> stream = session.on_request(RequestPartition(0, partition, SubpartitionIndex(0), credit=2))
    >>> session.on_request(RequestPartition(0, partition, SubpartitionIndex(0), credit=2))
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: a request as receiver 0, which was used before
    """

    def __init__(
        self,
        *,
        max_streams: int,
        wake_locked: WakeLocked,
        checksum: Callable[[memoryview], int] | None = None,
        starving: Wake = None,
    ) -> None:
        self.streams: dict[int, ProducerStream] = {}
        self._max_streams = max_streams
        self.wake_locked = wake_locked
        self.starving = starving
        self._checksum = checksum
        self._last_receiver = -1
        self._fruitless = 0
        self.turns: deque[ProducerStream] = deque()
        """Streams that have something to send."""
        self.enough_turns = _ENOUGH_TURNS
        """With so many of them it does not pay to wait for more."""
        self.look_first = False
        """Who comes to send should first read what has come: there may be credit for more, in one write."""
        self._control: list[bytes] = []  # to send before any data
        self.buffers_out = 0
        self.bytes_out = 0

    @property
    def idle(self) -> bool:
        """Whether no channel is left, and nothing is owed to the peer."""
        return not self.streams and not self._control

    @property
    def has_work(self) -> bool:
        """Whether there may be something to send."""
        return bool(self.turns or self._control)

    # What the peer does.

    def on_request(self, frame: RequestPartition) -> ProducerStream:
        """A new channel; the caller attaches it to its subpartition, then `accept_locked` or `fail_locked`."""
        if frame.receiver <= self._last_receiver:
            raise RemoteProtocolError(f"a request as receiver {frame.receiver}, which was used before")
        if len(self.streams) >= self._max_streams:
            raise RemoteProtocolError(
                f"more than {self._max_streams} channels on one connection (network.max_channels_per_connection)"
            )
        self._last_receiver = frame.receiver
        self.streams[frame.receiver] = stream = ProducerStream(self, frame)
        self.enough_turns = max(_ENOUGH_TURNS, len(self.streams) // _SHARE)
        return stream

    def on_credit_locked(self, frame: AddCredit) -> Wake:
        """More buffers are set aside for a channel."""
        _, wake = self._grant_locked([(_CREDIT_LENGTH, _CREDIT, frame.receiver, frame.attempt, frame.credit)])
        return wake

    def on_credit_run_locked(self, data: memoryview, position: int) -> tuple[int, Wake]:
        """As `on_credit_locked`, for such frames that lie whole in `data` from `position` on; where they end."""
        stop = min(len(data), position + _CREDIT_RUN_BYTES)
        stop -= (stop - position) % CREDIT_FRAME.size
        # A copy: the iterator of a view, left in a frame by an error, makes CPython 3.11 crash when that is collected.
        granted, wake = self._grant_locked(CREDIT_FRAME.iter_unpack(bytes(data[position:stop])))
        return position + granted * CREDIT_FRAME.size, wake

    def _grant_locked(self, frames: Iterable[tuple[int, ...]]) -> tuple[int, Wake]:
        """How many of them, up to the first that is something else, are credit. Each is granted."""
        streams, turns = self.streams, self.turns
        granted, waiting = 0, len(turns)
        for length, kind, receiver, attempt, credit in frames:
            if kind != _CREDIT or length != _CREDIT_LENGTH or not 1 <= credit <= MAX_CREDIT:
                break
            stream = streams.get(receiver)
            if stream is None or stream.attempt != attempt:
                stream = self._stream(AddCredit, receiver, attempt)
            if stream.state is not _SENDING:
                stream.move(ProducerStep.CREDIT, ours=False)
            ledger, supply = stream.ledger, stream.supply
            if ledger is None:
                raise RemoteProtocolError(f"{stream}: credit, where there is none")
            ledger.grant(credit)
            granted += 1
            if not stream.queued and supply is not None and supply.announced and stream.state is _SENDING:
                stream.queued = True
                turns.append(stream)
        # Whoever reads this can send as well, if a stream takes a turn that had none.
        return granted, self.wake_locked(urgent=True) if len(turns) > waiting else None

    def on_cancel_locked(self, frame: CancelRequest) -> tuple[ProducerStream, Wake]:
        """The consumer wants no more, or has read the end; the caller releases the subpartition."""
        stream = self._stream(CancelRequest, frame.receiver, frame.attempt)
        answer = stream.state is ProducerState.SENDING
        stream.move(ProducerStep.CANCEL, ours=False)
        del self.streams[stream.receiver]
        if stream.sequence == 0:
            self._fruitless += 1
            if self._fruitless > _MAX_FRUITLESS:
                raise RemoteProtocolError(f"{self._fruitless} requests were cancelled before anything was sent")
        return stream, self._say_locked(error_frame(stream.receiver, Cancelled("as asked"))) if answer else None

    def on_task_event(self, frame: SendTaskEvent) -> ProducerStream:
        """An event for the task that produces."""
        stream = self._stream(SendTaskEvent, frame.receiver, frame.attempt)
        stream.move(ProducerStep.TASK_EVENT, ours=False)
        return stream

    # What this side does.

    def accept_locked(self, stream: ProducerStream, supply: Supply) -> Wake:
        """The stream reads this subpartition from now on."""
        stream.supply = supply
        return stream.available_locked() if supply.announced else None

    def fail_locked(self, stream: ProducerStream, error: HeadgateError) -> Wake:
        """Tell the consumer that there is nothing (more), and why."""
        stream.move(ProducerStep.ERROR, ours=True)
        return self._say_locked(error_frame(stream.receiver, error))

    # Sending.

    def data_to_send_locked(self, room_bytes: int) -> tuple[Outgoing, Wake]:
        """What to send now, in order: what is owed to the peer, then a buffer of each stream in turn.

        Stops once it has `room_bytes` or more.
        """
        pieces: list[bytes | memoryview] = [*self._control]
        owners: list[BufferSlice | None] = [None] * len(pieces)
        self._control.clear()
        wakes: list[Wake] = []
        turns, plainly, pack = self.turns, self._checksum is None, PLAIN_DATA.pack
        sent_buffers = sent_bytes = 0
        while turns and sent_bytes < room_bytes:
            stream = turns.popleft()
            stream.queued = False
            supply, ledger = stream.supply, stream.ledger
            if supply is None or stream.state is not _SENDING:
                continue
            if ledger is not None and ledger.sent >= ledger.granted and supply.next_is_data:
                frames = self._without_credit(stream, supply, wakes)
                pieces += frames
                owners += [None] * len(frames)
                continue
            try:
                taken, wake = supply.poll_locked()
            except (Cancelled, ProducerFailed, PartitionNotFound) as error:
                stream.move(ProducerStep.ERROR, ours=True)
                pieces.append(error_frame(stream.receiver, error))
                owners.append(None)
                continue
            if wake is not None:
                wakes.append(wake)
            if taken is not None:
                memory, sequence, plain = taken.memory, stream.sequence, taken.buffer.kind is _DATA
                size = len(memory)
                stream.told_backlog = backlog = min(supply.backlog, MAX_BACKLOG)
                if plain and ledger is not None:
                    ledger.spend()
                head = (
                    pack(_HEAD_LENGTH + size, _PLAIN, stream.receiver, sequence, backlog, taken.offset % ALIGNMENT)
                    if plain and plainly
                    else self._head(stream, supply, taken)
                )
                pieces += (head, memory)
                owners += (None, taken)
                stream.sequence = (sequence + 1) & _SEQUENCE_MASK
                sent_buffers += 1
                sent_bytes += size
            if not supply.announced or stream.state is not _SENDING:
                continue
            if ledger is None or ledger.sent < ledger.granted or not stream.told_backlog or not supply.next_is_data:
                stream.queued = True
                turns.append(stream)
            elif supply.pressing:  # the backlog went with the buffer
                wakes.append(self.starving)
        self.buffers_out += sent_buffers
        self.bytes_out += sent_bytes
        return Outgoing(pieces, owners), together(*wakes) if wakes else None

    def _head(self, stream: ProducerStream, supply: Supply, taken: BufferSlice) -> bytes:
        """What stands before the bytes of an event, or before those that have a checksum."""
        memory, flags = taken.memory, 0
        if taken.buffer.kind is not _DATA:
            flags = EVENT_FLAG
            if supply.drained:
                flags |= LAST_FLAG
                stream.move(ProducerStep.LAST, ours=True)
        checksum = None if self._checksum is None else self._checksum(memory)
        skew = taken.offset % ALIGNMENT
        return encode_data_head(
            stream.receiver, stream.sequence, stream.told_backlog, len(memory), skew, flags, checksum
        )

    def _without_credit(self, stream: ProducerStream, supply: Supply, wakes: list[Wake]) -> list[bytes]:
        """The consumer learns once that there is something; each buffer after that tells the rest."""
        if supply.pressing:
            wakes.append(self.starving)
        backlog = min(supply.backlog, MAX_BACKLOG)
        if not backlog or stream.told_backlog:
            return []
        stream.told_backlog = backlog
        return [encode_frame(AnnounceBacklog(stream.receiver, backlog))]

    def _say_locked(self, frame: bytes) -> Wake:
        self._control.append(frame)
        return self.wake_locked(urgent=True)

    def _stream(self, what: type[Frame], receiver: int, attempt: int) -> ProducerStream:
        stream = self.streams.get(receiver)
        if stream is not None and attempt == stream.attempt:
            return stream
        name = what.__name__
        if stream is None:
            raise RemoteProtocolError(f"{name} for receiver {receiver}, which is over or was never requested")
        raise RemoteProtocolError(f"{stream}: {name} of attempt {attempt}")


def error_frame(receiver: int, error: BaseException) -> bytes:
    """An error as the peer gets it: the code of its class, or of its cause, and a text cut to size.

    >>> error_frame(5, PartitionNotFound("no partition etl#1/v0.0[0]"))[12:].decode()
    'no partition etl#1/v0.0[0]'
    """
    cause = error.cause if isinstance(error, ProducerFailed) else None
    # A producer that failed for want of its own input has failed: to its consumers nothing is missing or cancelled.
    source = error if cause is None or isinstance(cause, PartitionNotFound | Cancelled) else cause
    code = source.code if isinstance(source, HeadgateError) else ProducerFailed.code
    text = str(error).encode(errors="replace")[:MAX_ERROR_TEXT_BYTES].decode(errors="ignore")
    return encode_frame(ReportError(receiver, code, text))
