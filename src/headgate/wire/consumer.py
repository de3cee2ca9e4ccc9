"""The consumer's half of a connection: it requests, announces credit, and receives.

One per connection, called by the pump on the network thread. Sans-IO: frames in by `on_*`, bytes out by
`data_to_send`. What belongs to a channel above the wire (its buffers) hangs on the stream as its `target`, which is
not looked at here.

Invariants: receivers are numbered upwards and never again; a stream's sequence numbers follow one another; every
buffer received was promised before (`Book`); every pair of state and step is in `states.CONSUMER_STEPS` or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from headgate.errors import LocalProtocolError, RemoteProtocolError
from headgate.wire.codec import CREDIT_FRAME, PLAIN_DATA, encode_frame
from headgate.wire.credit import Book
from headgate.wire.frames import (
    ALIGNMENT,
    CONNECTION,
    MAX_BACKLOG,
    AddCredit,
    CancelRequest,
    Data,
    RequestPartition,
    SendTaskEvent,
)
from headgate.wire.states import CONSUMER_STEPS, ConsumerState, ConsumerStep, step

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.ids import PartitionId, SubpartitionIndex
    from headgate.wire.frames import AnnounceBacklog, ReportError

__all__ = ["Arrived", "ConsumerSession", "ConsumerStream"]

T = TypeVar("T")

Arrived = tuple[T, int, int, memoryview]
"""A plain buffer that has come: the target of its stream, the backlog behind it, its skew, its bytes."""

_RECEIVING = ConsumerState.RECEIVING
_SEQUENCE_MASK: Final = 0xFFFF_FFFF
_PLAIN: Final = Data.TYPE  # and no flags
_CREDIT: Final = AddCredit.TYPE
_LENGTH_BYTES: Final = 4
_HEAD_BYTES: Final = PLAIN_DATA.size
_CREDIT_LENGTH: Final = CREDIT_FRAME.size - _LENGTH_BYTES


class ConsumerStream(Generic[T]):
    """One channel that is read over the connection. Made by `ConsumerSession.request`.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0)
    >>> stream = ConsumerSession().request(partition, SubpartitionIndex(0), credit=2, target="channel 0")
    >>> stream.state, stream.book.outstanding
    (<ConsumerState.RECEIVING: 1>, 2)
    """

    __slots__ = ("attempt", "book", "expected", "partition", "receiver", "state", "target")

    def __init__(self, receiver: int, partition: PartitionId, credit: int | None, target: T) -> None:
        self.receiver = receiver
        self.partition = partition
        self.attempt = partition.attempt
        self.target = target
        self.state = ConsumerState.RECEIVING
        self.book = None if credit is None else Book(credit)  # None: the producer sends without credit
        self.expected = 0  # the next sequence number

    def __str__(self) -> str:
        return f"receiver {self.receiver} of partition {self.partition}"

    def move(self, what: ConsumerStep, *, ours: bool) -> None:
        """Take a step of the table."""
        self.state = step(CONSUMER_STEPS, self.state, what, self, ours=ours)


class ConsumerSession(Generic[T]):
    """All channels that this side reads over one connection.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.wire import Data
    >>> session = ConsumerSession()
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0)
    >>> stream = session.request(partition, SubpartitionIndex(0), credit=2, target="channel 0")
    >>> session.on_data(Data(receiver=0, sequence=0, backlog=1, size=100)) is stream, stream.book.outstanding
    (True, 1)
    >>> session.on_data(Data(receiver=0, sequence=7, backlog=1, size=100))
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: receiver 0 of partition etl#1/v0.0[0]: buffer reordering: expected sequence \
number 1, received 7
    """

    def __init__(self) -> None:
        self.streams: dict[int, ConsumerStream[T]] = {}
        self._next_receiver = 0
        self._to_send: list[bytes] = []

    @property
    def idle(self) -> bool:
        """Whether no channel is left, and nothing is owed to the peer."""
        return not self.streams and not self._to_send

    @property
    def has_work(self) -> bool:
        """Whether there is something to send."""
        return bool(self._to_send)

    def data_to_send(self) -> list[bytes]:
        """What to send now, in order; each byte is returned once."""
        sending, self._to_send = self._to_send, []
        return sending

    # What this side does.

    def request(
        self, partition: PartitionId, subpartition: SubpartitionIndex, credit: int | None, target: T
    ) -> ConsumerStream[T]:
        """Ask for a subpartition, with this much credit to begin with (None: without flow control of ours)."""
        receiver = self._next_receiver
        if receiver >= CONNECTION:
            raise LocalProtocolError("a connection has run out of receiver numbers")
        self._to_send.append(encode_frame(RequestPartition(receiver, partition, subpartition, credit)))
        self._next_receiver += 1
        self.streams[receiver] = stream = ConsumerStream(receiver, partition, credit, target)
        return stream

    def grant(self, stream: ConsumerStream[T], credit: int) -> None:
        """Announce that more buffers were set aside."""
        self.grant_all([(stream, credit)])

    def grant_all(self, grants: Iterable[tuple[ConsumerStream[T], int]]) -> None:
        """As `grant`, for many streams; all in one piece."""
        frames: list[bytes] = []
        pack = CREDIT_FRAME.pack
        for stream, credit in grants:
            book = stream.book
            if book is None:
                raise LocalProtocolError(f"{stream}: credit, where there is none")
            if stream.state is not _RECEIVING:
                stream.move(ConsumerStep.CREDIT, ours=True)
            book.promise(credit)
            frames.append(pack(_CREDIT_LENGTH, _CREDIT, stream.receiver, stream.attempt, credit))
        if frames:
            self._to_send.append(b"".join(frames))

    def send_task_event(self, stream: ConsumerStream[T], event: bytes) -> None:
        """Send an event against the stream, to the task that produces."""
        stream.move(ConsumerStep.TASK_EVENT, ours=True)
        self._to_send.append(encode_frame(SendTaskEvent(stream.receiver, stream.partition.attempt, event)))

    def cancel(self, stream: ConsumerStream[T]) -> None:
        """Say the last on a channel: everything is read, or nothing more is wanted."""
        stream.move(ConsumerStep.CANCEL, ours=True)
        self._to_send.append(encode_frame(CancelRequest(stream.receiver, stream.partition.attempt)))
        self._forget_if_gone(stream)

    # What the peer does.

    def on_data(self, frame: Data) -> ConsumerStream[T]:
        """The head of a buffer or event. If the stream is cancelled or gone, its payload is to be dropped.

        Raises:
            RemoteProtocolError: it has no receiver, no credit, or not the next sequence number.
        """
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "data")
        if frame.sequence != stream.expected:
            raise RemoteProtocolError(
                f"{stream}: buffer reordering: expected sequence number {stream.expected}, received {frame.sequence}"
            )
        if frame.last and not frame.event:
            raise RemoteProtocolError(f"{stream}: data that claims to be the end")
        if frame.compressed:
            raise RemoteProtocolError(f"{stream}: compressed data, which was not asked for")
        stream.expected = (frame.sequence + 1) & _SEQUENCE_MASK
        if not frame.event and stream.book is not None:
            stream.book.receive()
        if frame.last:
            stream.move(ConsumerStep.LAST, ours=False)
            self._forget_if_gone(stream)
        elif stream.state is not _RECEIVING:
            stream.move(ConsumerStep.DATA, ours=False)
        return stream

    def on_data_run(self, data: memoryview, position: int, max_bytes: int) -> tuple[list[Arrived[T]], int, int]:
        """As `on_data`, for all plain frames in `data` from `position` on; where they end, and what the last lacks.

        The run ends before the first that is anything else: with flags, too long for a segment of `max_bytes`, not what
        its stream expects, or without credit. Of the last the end may be missing, but not its head.
        """
        run: list[Arrived[T]] = []
        streams, unpack, end = self.streams, PLAIN_DATA.unpack_from, len(data)
        last = end - _HEAD_BYTES
        while position <= last:
            length, kind, receiver, sequence, backlog, skew = unpack(data, position)
            start, stop = position + _HEAD_BYTES, position + _LENGTH_BYTES + length
            stream = streams.get(receiver)
            if (
                kind != _PLAIN
                or stream is None
                or stream.expected != sequence
                or stream.state is not _RECEIVING
                or not 0 <= stop - start <= max_bytes - skew
                or skew >= ALIGNMENT
                or backlog > MAX_BACKLOG
            ):
                break
            book = stream.book
            if book is None or book.received >= book.promised:
                break
            book.received += 1
            stream.expected = (sequence + 1) & _SEQUENCE_MASK
            run.append((stream.target, backlog, skew, data[start:stop]))
            position = stop
        return (run, position, 0) if position <= end else (run, end, position - end)

    def on_backlog(self, frame: AnnounceBacklog) -> ConsumerStream[T]:
        """The producer has buffers waiting and no credit."""
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "a backlog")
        if stream.book is None:
            raise RemoteProtocolError(f"{stream}: a backlog without flow control by credit")
        stream.move(ConsumerStep.BACKLOG, ours=False)
        return stream

    def on_error(self, frame: ReportError) -> ConsumerStream[T]:
        """The producer's direction has failed, or answers a cancellation."""
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "an error")
        stream.move(ConsumerStep.ERROR, ours=False)
        self._forget_if_gone(stream)
        return stream

    def _forget_if_gone(self, stream: ConsumerStream[T]) -> None:
        if stream.state is ConsumerState.GONE:
            del self.streams[stream.receiver]

    def _unknown(self, receiver: int, what: str) -> RemoteProtocolError:
        known = "is over" if receiver < self._next_receiver else "was never requested"
        return RemoteProtocolError(f"{what} for receiver {receiver}, which {known}")
