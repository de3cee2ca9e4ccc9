"""The consumer's half of a connection: it requests, announces credit, and receives.

One per connection, called by the pump on the network thread. Sans-IO: frames in by `on_*`, bytes out by
`data_to_send`. The channel above the wire, with its buffers, is the `target` of a stream; the session does not use it.

Invariants: receivers are numbered upwards, each once; a stream's sequence numbers follow one another; every received
buffer was promised before (`Book`); every pair of state and step is in `states.CONSUMER_STEPS` or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from headgate.errors import LocalProtocolError, RemoteProtocolError
from headgate.wire.codec import CREDIT_FRAME, PLAIN_DATA, encode_frame
from headgate.wire.flow import Book
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

    from headgate.buffer import Buffer
    from headgate.ids import PartitionId, SubpartitionIndex
    from headgate.wire.frames import AnnounceBacklog, ReportError

__all__ = ["Arrived", "ConsumerSession", "ConsumerStream"]

T = TypeVar("T")

Arrived = tuple[T, int, int, memoryview, "Buffer | None"]
"""A received buffer: the target of its stream, the backlog behind it, its skew, its bytes, and the buffer they are in
if they were copied already."""

_RECEIVING = ConsumerState.RECEIVING
_SEQUENCE_MASK: Final = 0xFFFF_FFFF
_PLAIN: Final = Data.TYPE  # without flags
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

    __slots__ = ("attempt", "book", "expected", "packed", "partition", "receiver", "state", "target")

    def __init__(
        self, receiver: int, partition: PartitionId, credit: int | None, target: T, *, packed: bool = False
    ) -> None:
        self.receiver = receiver
        self.packed = packed  # compressed data was requested
        self.partition = partition
        self.attempt = partition.attempt
        self.target = target
        self.state = ConsumerState.RECEIVING
        self.book = None if credit is None else Book(credit)  # None: the producer sends without credit
        self.expected = 0  # the next sequence number

    def __str__(self) -> str:
        return f"receiver {self.receiver} of partition {self.partition}"

    def receive(self, sequence: int, *, credited: bool) -> None:
        """Count a frame. `credited`: it is data of a channel with credit, and uses one that was promised.

        Raises:
            RemoteProtocolError: another sequence number is expected, or no credit was left. Nothing has changed.
        """
        if sequence != self.expected:
            raise RemoteProtocolError(
                f"{self}: buffer reordering: expected sequence number {self.expected}, received {sequence}"
            )
        if credited and self.book is not None:
            self.book.receive()
        self.expected = (sequence + 1) & _SEQUENCE_MASK

    def move(self, what: ConsumerStep, *, ours: bool) -> None:
        """Take a step of the table, or raise."""
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
        """True if there is no channel, and nothing to send."""
        return not self.streams and not self._to_send

    @property
    def has_work(self) -> bool:
        """True if there is something to send."""
        return bool(self._to_send)

    def data_to_send(self) -> list[bytes]:
        """Return what to send, in order, each byte once."""
        sending, self._to_send = self._to_send, []
        return sending

    # Calls of this side.

    def request(
        self,
        partition: PartitionId,
        subpartition: SubpartitionIndex,
        credit: int | None,
        target: T,
        *,
        packed: bool = False,
    ) -> ConsumerStream[T]:
        """Request a subpartition with this much credit at first; None: without flow control by credit.

        With `packed`, data may be sent compressed.
        """
        receiver = self._next_receiver
        if receiver >= CONNECTION:
            raise LocalProtocolError("a connection has run out of receiver numbers")
        self._to_send.append(encode_frame(RequestPartition(receiver, partition, subpartition, credit, packed)))
        self._next_receiver += 1
        self.streams[receiver] = stream = ConsumerStream(receiver, partition, credit, target, packed=packed)
        return stream

    def grant(self, stream: ConsumerStream[T], credit: int) -> None:
        """Announce reserved buffers of one stream."""
        self.grant_all([(stream, credit)])

    def grant_all(self, grants: Iterable[tuple[ConsumerStream[T], int]]) -> None:
        """Announce reserved buffers of many streams, in one piece of bytes."""
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
        """Send an event against the stream, to the producing task."""
        stream.move(ConsumerStep.TASK_EVENT, ours=True)
        self._to_send.append(encode_frame(SendTaskEvent(stream.receiver, stream.partition.attempt, event)))

    def cancel(self, stream: ConsumerStream[T]) -> None:
        """Send the last frame of a channel: it has read the end, or is released."""
        stream.move(ConsumerStep.CANCEL, ours=True)
        self._to_send.append(encode_frame(CancelRequest(stream.receiver, stream.partition.attempt)))
        self._forget_if_gone(stream)

    # Frames of the peer.

    def on_data(self, frame: Data) -> ConsumerStream[T]:
        """Return the stream of a buffer or event that no run has taken. If it has ended, the payload is dropped.

        Raises:
            RemoteProtocolError: it has no receiver, no credit, or not the next sequence number.
        """
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "data")
        if frame.last and not frame.event:
            raise RemoteProtocolError(f"{stream}: data that claims to be the end")
        if frame.compressed and (frame.event or not stream.packed):
            raise RemoteProtocolError(f"{stream}: compressed data, which was not asked for")
        stream.receive(frame.sequence, credited=not frame.event)
        if frame.last:
            stream.move(ConsumerStep.LAST, ours=False)
            self._forget_if_gone(stream)
        elif stream.state is not _RECEIVING:
            stream.move(ConsumerStep.DATA, ours=False)
        return stream

    def on_data_run(self, data: memoryview, position: int, max_bytes: int) -> tuple[list[Arrived[T]], int, int]:
        """Count the plain `Data` frames in `data` from `position` on. Return them, where they end, and what is missing.

        The run ends before the first frame that is anything else: with flags, too long for a segment of `max_bytes`,
        not the expected one, or without credit. The end of the last payload may be missing: so many bytes.
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
                or stream.book is None
                or stream.state is not _RECEIVING
                or not 0 <= stop - start <= max_bytes - skew
                or skew >= ALIGNMENT
                or backlog > MAX_BACKLOG
            ):
                break
            try:
                stream.receive(sequence, credited=True)
            except RemoteProtocolError:
                break  # the decoder reads the frame again, and `on_data` raises after the run is delivered
            run.append((stream.target, backlog, skew, data[start:stop], None))
            position = stop
        return (run, position, 0) if position <= end else (run, end, position - end)

    def on_backlog(self, frame: AnnounceBacklog) -> ConsumerStream[T]:
        """Return the stream that announces a backlog."""
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "a backlog")
        if stream.book is None:
            raise RemoteProtocolError(f"{stream}: a backlog without flow control by credit")
        stream.move(ConsumerStep.BACKLOG, ours=False)
        return stream

    def on_error(self, frame: ReportError) -> ConsumerStream[T]:
        """Return the stream that failed at its producer, or whose cancellation is answered."""
        stream = self.streams.get(frame.receiver)
        if stream is None:
            raise self._unknown(frame.receiver, "an error")
        stream.move(ConsumerStep.ERROR, ours=False)
        self._forget_if_gone(stream)
        return stream

    def on_refused_event(self, frame: ReportError) -> ConsumerStream[T] | None:
        """Return the stream of a task event that had no receiver; None if the stream has ended.

        Raises:
            RemoteProtocolError: there was never such a stream.
        """
        if frame.receiver >= self._next_receiver:
            raise self._unknown(frame.receiver, "the answer to a task event")
        return self.streams.get(frame.receiver)

    def _forget_if_gone(self, stream: ConsumerStream[T]) -> None:
        if stream.state is ConsumerState.GONE:
            del self.streams[stream.receiver]

    def _unknown(self, receiver: int, what: str) -> RemoteProtocolError:
        known = "is over" if receiver < self._next_receiver else "was never requested"
        return RemoteProtocolError(f"{what} for receiver {receiver}, which {known}")
