"""The producer's half of a connection: it receives requests and credit, and sends data.

One per connection, called by the pump on the network thread under the exchange lock; task threads call only
`available_locked` of a stream, when they have produced something. Sans-IO: frames in by `on_*`, pieces of bytes out by
`data_to_send_locked`. When a stream sends, and when it announces its backlog, is decided by `flow`.

Invariants: a data buffer is sent against a credit and spends one, an event needs none; queued streams send in rounds,
one buffer each, and each is in the queue at most once; every pair of state and step is in `states.PRODUCER_STEPS` or an
error.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.buffer import Kind, PackedSlice
from headgate.errors import (
    Cancelled,
    HeadgateError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    UnknownReceiver,
)
from headgate.sync import together
from headgate.wire.codec import (
    CHECKSUM_FLAG,
    CREDIT_FRAME,
    EVENT_FLAG,
    LAST_FLAG,
    PLAIN_DATA,
    PREFIX,
    data_head_bytes,
    encode_data_head,
    encode_frame,
)
from headgate.wire.flow import (
    BACKLOG_GROWTH,
    Ledger,
    SendState,
    When,
    can_send,
    enough_streams,
    is_backlog_announcement_due,
    should_send,
)
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
    from collections.abc import Callable

    from headgate.buffer import BufferSlice
    from headgate.sync import Wake
    from headgate.wire.frames import Frame
    from headgate.wire.supply import Supply

__all__ = ["ProducerSession", "ProducerStream", "error_frame"]

_DATA = Kind.DATA
_SENDING = ProducerState.SENDING
_IDLE, _STARVED, _QUEUED = SendState.IDLE, SendState.STARVED, SendState.QUEUED
_NO, _NOW = When.NO, When.NOW
_SEQUENCE_MASK: Final = 0xFFFF_FFFF
_PLAIN: Final = Data.TYPE  # without flags
_CREDIT: Final = AddCredit.TYPE
_LENGTH_BYTES: Final = 4
_HEAD_LENGTH: Final = PLAIN_DATA.size - _LENGTH_BYTES
_CREDIT_LENGTH: Final = CREDIT_FRAME.size - _LENGTH_BYTES
_CREDIT_RUN_BYTES: Final = 256 * CREDIT_FRAME.size  # copied at once: megabytes of data may follow the credit
_MAX_USELESS: Final = 100_000  # requests of one connection cancelled before anything was sent, and lost task events
_MAX_ANSWERS: Final = 1_000  # that wait to be sent: beyond, task events without a receiver are not answered


class ProducerStream:
    """One channel that is written over the connection: the reader of its subpartition. Made by the session.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0)
    >>> session = ProducerSession(max_streams=10, schedule_locked=lambda when: None)
    >>> stream = session.on_request(RequestPartition(0, partition, SubpartitionIndex(0), credit=2))
    >>> stream.state, stream.ledger.available
    (<ProducerState.SENDING: 1>, 2)
    """

    __slots__ = (
        "announced_backlog",
        "attempt",
        "ledger",
        "receiver",
        "request",
        "send_state",
        "sequence",
        "session",
        "state",
        "supply",
    )

    def __init__(self, session: ProducerSession, request: RequestPartition) -> None:
        self.session = session
        self.request = request
        self.receiver = request.receiver
        self.attempt = request.partition.attempt
        self.state = ProducerState.SENDING
        self.send_state = _IDLE
        self.ledger = None if request.credit is None else Ledger(request.credit)  # None: sends without credit
        self.supply: Supply | None = None
        self.sequence = 0
        self.announced_backlog = 0  # of which the consumer knows

    def __str__(self) -> str:
        return f"receiver {self.receiver} of partition {self.request.partition}"

    @property
    def queued(self) -> bool:
        """True if the stream is in the session's queue."""
        return self.send_state is _QUEUED

    def available_locked(self) -> Wake:
        """Queue the stream: its subpartition has something to poll, or has failed. Called by task threads too."""
        supply, ledger, session = self.supply, self.ledger, self.session
        if supply is None or self.state is not _SENDING:
            return None
        urgent, queued = supply.urgent, 0
        if self.send_state is not _QUEUED:
            if not can_send(ledger, supply) and not self.must_announce_backlog(supply):
                self.send_state = _STARVED
                return session.await_credit if urgent else None
            self.send_state = _QUEUED
            session.queue.append(self)
            queued = len(session.queue)
        short = urgent and ledger is not None and ledger.available < supply.backlog
        when = should_send(urgent, short, queued, session.enough_streams)
        return None if when is _NO else session.schedule_locked(when)

    def must_announce_backlog(self, supply: Supply) -> bool:
        """Return True if the stream, which has no credit, should announce its backlog.

        If it returns False, `supply` calls `available_locked` when that changes.
        """
        announced = self.announced_backlog
        if is_backlog_announcement_due(announced, supply.backlog):
            return True
        supply.notify_at_backlog_locked(BACKLOG_GROWTH * announced)
        return False

    def move(self, what: ProducerStep, *, ours: bool) -> None:
        """Take a step of the table, or raise."""
        self.state = step(PRODUCER_STEPS, self.state, what, self, ours=ours)


class ProducerSession:
    """All channels that this side writes over one connection.

    `schedule_locked` is called when the connection should be flushed, with the `When` of `should_send`; `await_credit`,
    after the lock, when a stream has flushed data and no credit: the transport should read the credit without delay.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> session = ProducerSession(max_streams=10, schedule_locked=lambda when: None)
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
        schedule_locked: Callable[[When], Wake],
        checksum: Callable[[memoryview], int] | None = None,
        await_credit: Wake = None,
    ) -> None:
        self.streams: dict[int, ProducerStream] = {}
        self._max_streams = max_streams
        self.schedule_locked = schedule_locked
        self.await_credit = await_credit
        self._checksum = checksum
        self._head_bytes = PREFIX.size + data_head_bytes(0 if checksum is None else CHECKSUM_FLAG)
        self._last_receiver = -1
        self._useless = 0
        self.queue: deque[ProducerStream] = deque()
        """The streams that are QUEUED."""
        self.enough_streams = enough_streams(0)
        """With so many of them queued the connection is flushed."""
        self._control: list[bytes] = []  # to send before any data
        self.buffers_out = 0
        self.bytes_out = 0

    @property
    def idle(self) -> bool:
        """True if there is no channel, and nothing to send."""
        return not self.streams and not self._control

    @property
    def has_work(self) -> bool:
        """True if there may be something to send."""
        return bool(self.queue or self._control)

    # Frames of the peer.

    def on_request(self, frame: RequestPartition) -> ProducerStream:
        """Return a stream for a new channel. The caller attaches it, then calls `accept_locked` or `fail_locked`."""
        if frame.receiver <= self._last_receiver:
            raise RemoteProtocolError(f"a request as receiver {frame.receiver}, which was used before")
        if len(self.streams) >= self._max_streams:
            raise RemoteProtocolError(
                f"more than {self._max_streams} channels on one connection (network.max_channels_per_connection)"
            )
        self._last_receiver = frame.receiver
        self.streams[frame.receiver] = stream = ProducerStream(self, frame)
        self.enough_streams = enough_streams(len(self.streams))
        return stream

    def on_credit_locked(self, data: memoryview, position: int = 0) -> tuple[int, Wake]:
        """Grant the whole `AddCredit` frames in `data` from `position` on, up to the first other frame.

        Return where they end, and a wake-up to perform after the lock.
        """
        streams, queue = self.streams, self.queue
        waiting = len(queue)
        stop = min(len(data), position + _CREDIT_RUN_BYTES)
        stop -= (stop - position) % CREDIT_FRAME.size
        # A copy: the iterator of a view, left in a frame by an error, makes CPython 3.11 crash when that is collected.
        for length, kind, receiver, attempt, credit in CREDIT_FRAME.iter_unpack(bytes(data[position:stop])):
            if kind != _CREDIT or length != _CREDIT_LENGTH or not 1 <= credit <= MAX_CREDIT:
                break
            stream = streams.get(receiver)
            if stream is None or stream.attempt != attempt:
                stream = self._stream(AddCredit, receiver, attempt)
            if stream.state is not _SENDING:
                stream.move(ProducerStep.CREDIT, ours=False)
            ledger = stream.ledger
            if ledger is None:
                raise RemoteProtocolError(f"{stream}: credit, where there is none")
            ledger.grant(credit)
            position += CREDIT_FRAME.size
            if stream.send_state is _STARVED and stream.state is _SENDING:
                stream.send_state = _QUEUED
                queue.append(stream)
        # NOW: the thread that reads this credit can send as well.
        return position, self.schedule_locked(_NOW) if len(queue) > waiting else None

    def on_cancel_locked(self, frame: CancelRequest) -> tuple[ProducerStream, Wake]:
        """End a stream: it was cancelled, or its end was read. Return it; the caller releases the subpartition."""
        stream = self._stream(CancelRequest, frame.receiver, frame.attempt)
        answer = stream.state is ProducerState.SENDING
        stream.move(ProducerStep.CANCEL, ours=False)
        del self.streams[stream.receiver]
        if stream.sequence == 0:
            self._useless += 1
            if self._useless > _MAX_USELESS:
                raise RemoteProtocolError(f"{self._useless} requests were cancelled before anything was sent")
        return stream, self._send_control_locked(
            error_frame(stream.receiver, Cancelled("as asked"))
        ) if answer else None

    def on_task_event(self, frame: SendTaskEvent) -> ProducerStream:
        """Return the stream to whose task an event is addressed.

        Raises:
            UnknownReceiver: there is none; the caller answers with `refuse_event_locked`.
            RemoteProtocolError: it is of another attempt, or there were too many without a stream.
        """
        if frame.receiver not in self.streams:
            self._useless += 1
            if self._useless > _MAX_USELESS:
                raise RemoteProtocolError(f"{self._useless} requests and task events came to nothing")
            raise UnknownReceiver(f"receiver {frame.receiver} of a task event is over or was never requested")
        stream = self._stream(SendTaskEvent, frame.receiver, frame.attempt)
        stream.move(ProducerStep.TASK_EVENT, ours=False)
        return stream

    def refuse_event_locked(self, receiver: int, error: UnknownReceiver) -> Wake:
        """Answer that a task event has no receiver; its channel continues.

        While 1,000 answers wait to be sent, further ones are dropped: the peer sends events, and reads nothing.
        """
        if len(self._control) >= _MAX_ANSWERS:
            return None
        return self._send_control_locked(error_frame(receiver, error, ends=False))

    # Calls of this side.

    def accept_locked(self, stream: ProducerStream, supply: Supply) -> Wake:
        """Let the stream poll this subpartition."""
        stream.supply = supply
        return stream.available_locked() if supply.notified else None

    def fail_locked(self, stream: ProducerStream, error: HeadgateError) -> Wake:
        """End the stream with an error, which is sent to the consumer."""
        stream.move(ProducerStep.ERROR, ours=True)
        return self._send_control_locked(error_frame(stream.receiver, error))

    # Sending.

    def data_to_send_locked(self, room_bytes: int) -> tuple[Outgoing, Wake]:
        """Return what to send, in order: control frames, then one buffer per queued stream and round.

        Stops once there are `room_bytes` or more of `Data` frames, so it exceeds them by less than one frame.
        """
        pieces: list[bytes | memoryview] = [*self._control]
        owners: list[BufferSlice | None] = [None] * len(pieces)
        self._control.clear()
        wakes: list[Wake] = []
        queue, plainly, pack = self.queue, self._checksum is None, PLAIN_DATA.pack
        head_bytes = self._head_bytes
        sent_buffers = sent_bytes = 0
        while queue and sent_bytes + sent_buffers * head_bytes < room_bytes:
            stream = queue.popleft()
            stream.send_state = _IDLE
            supply, ledger = stream.supply, stream.ledger
            if supply is None or stream.state is not _SENDING:
                continue
            if not can_send(ledger, supply):
                self._announce_backlog(stream, supply, pieces, owners, wakes)
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
                stream.announced_backlog = backlog = min(supply.backlog, MAX_BACKLOG)
                if plain and ledger is not None:
                    ledger.spend()
                head = (
                    pack(_HEAD_LENGTH + size, _PLAIN, stream.receiver, sequence, backlog, taken.offset % ALIGNMENT)
                    if plain and plainly and not taken.codec
                    else self._head(stream, supply, taken)
                )
                pieces += (head, memory)
                owners += (None, taken)
                stream.sequence = (sequence + 1) & _SEQUENCE_MASK
                sent_buffers += 1
                sent_bytes += size
            if not supply.notified or stream.state is not _SENDING:
                continue
            if can_send(ledger, supply) or stream.must_announce_backlog(supply):
                stream.send_state = _QUEUED
                queue.append(stream)
            else:  # the backlog was sent with the buffer
                stream.send_state = _STARVED
                if supply.urgent:
                    wakes.append(self.await_credit)
        self.buffers_out += sent_buffers
        self.bytes_out += sent_bytes
        return Outgoing(pieces, owners), together(*wakes) if wakes else None

    def _head(self, stream: ProducerStream, supply: Supply, taken: BufferSlice) -> bytes:
        """Return the head of an event, or of data with a checksum or compression."""
        memory, flags = taken.memory, 0
        if taken.buffer.kind is not _DATA:
            flags = EVENT_FLAG
            if supply.drained:
                flags |= LAST_FLAG
                stream.move(ProducerStep.LAST, ours=True)
        checksum = None if self._checksum is None else self._checksum(memory)
        codec, unpacked = (taken.codec, taken.unpacked) if isinstance(taken, PackedSlice) else (0, 0)
        return encode_data_head(
            stream.receiver,
            stream.sequence,
            stream.announced_backlog,
            len(memory),
            taken.offset % ALIGNMENT,
            flags,
            checksum,
            codec=codec,
            unpacked=unpacked,
        )

    def _announce_backlog(
        self,
        stream: ProducerStream,
        supply: Supply,
        pieces: list[bytes | memoryview],
        owners: list[BufferSlice | None],
        wakes: list[Wake],
    ) -> None:
        """Announce the backlog of a stream without credit, unless the consumer knows of it."""
        stream.send_state = _STARVED
        if supply.urgent:
            wakes.append(self.await_credit)
        if stream.must_announce_backlog(supply):
            stream.announced_backlog = backlog = min(supply.backlog, MAX_BACKLOG)
            supply.notify_at_backlog_locked(BACKLOG_GROWTH * backlog)
            pieces.append(encode_frame(AnnounceBacklog(stream.receiver, backlog)))
            owners.append(None)

    def _send_control_locked(self, frame: bytes) -> Wake:
        self._control.append(frame)
        return self.schedule_locked(_NOW)

    def _stream(self, what: type[Frame], receiver: int, attempt: int) -> ProducerStream:
        stream = self.streams.get(receiver)
        if stream is not None and attempt == stream.attempt:
            return stream
        name = what.__name__
        if stream is None:
            raise RemoteProtocolError(f"{name} for receiver {receiver}, which is over or was never requested")
        raise RemoteProtocolError(f"{stream}: {name} of attempt {attempt}")


def error_frame(receiver: int, error: BaseException, *, ends: bool = True) -> bytes:
    """Return an error as a frame: the code of its class, or of its cause, and its text cut to the limit.

    `ends`: the channel ends with it; False only for a task event without a receiver.

    >>> error_frame(5, PartitionNotFound("no partition etl#1/v0.0[0]"))[12:].decode()
    'no partition etl#1/v0.0[0]'
    """
    cause = error.cause if isinstance(error, ProducerFailed) else None
    # A producer whose own input is missing or cancelled has failed: for its consumers nothing is missing or cancelled.
    source = error if cause is None or isinstance(cause, PartitionNotFound | Cancelled) else cause
    code = source.code if isinstance(source, HeadgateError) else ProducerFailed.code
    text = str(error).encode(errors="replace")[:MAX_ERROR_TEXT_BYTES].decode(errors="ignore")
    return encode_frame(ReportError(receiver, code, text, ends))
