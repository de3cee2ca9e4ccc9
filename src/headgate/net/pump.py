"""The one place where the wire meets partitions and gates.

One pump per connection, on the network thread. Towards the peer it has the two sessions; on this side it attaches
streams to subpartitions, hands payloads to the intake of remote channels, and says for those channels what they are due
to say. Bytes come in by `receive` and go out by `outgoing_locked`; how they travel is the connection's business.

Invariant: when the connection is lost, every channel and subpartition on it learns of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import (
    Cancelled,
    CorruptStream,
    HeadgateError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    error_from_wire,
)
from headgate.input import RemoteChannel, RemoteState
from headgate.net.exchange import PumpStatistics
from headgate.net.intake import Intake
from headgate.sync import together
from headgate.wire import (
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    ConsumerSession,
    ConsumerStream,
    Data,
    Decoder,
    Frame,
    Outgoing,
    Payload,
    ProducerSession,
    ReportError,
    RequestPartition,
    SendTaskEvent,
)
from headgate.wire.codec import CREDIT_FRAME
from headgate.wire.decoder import MAX_CONTROL_BYTES
from headgate.wire.states import ConsumerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.net.exchange import Exchange
    from headgate.sync import Wake
    from headgate.wire.producer import ProducerStream
    from headgate.wire.supply import WakeLocked

__all__ = ["Pump"]

_RECEIVING = ConsumerState.RECEIVING
_RELEASED = RemoteState.RELEASED


class Pump:
    """Moves data between one connection and this worker's partitions and gates.

    `wake_locked` is called when a stream has something to send and had nothing before; `retry` when a partition that is
    not there is to be asked for again, with the channel and the wait.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net.exchange import Exchange
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     exchange = Exchange(JobId("etl"), AttemptId(1), worker.registry, segment_size=32768)
    ...     Pump(exchange, wake_locked=lambda *, urgent: None, retry=print).idle
    True
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        wake_locked: WakeLocked,
        retry: Callable[[RemoteChannel, int], object],
        starving: Wake = None,
    ) -> None:
        self._exchange = exchange
        self._lock = exchange.lock
        self._registry = exchange.registry
        self._retry = retry
        self.producer = ProducerSession(
            max_streams=exchange.max_channels,
            wake_locked=wake_locked,
            checksum=exchange.checksum,
            starving=starving,
        )
        self.consumer: ConsumerSession[RemoteChannel] = ConsumerSession()
        # Without credit there may be no place for a payload, and with a checksum it must be looked at.
        plain = exchange.credited and exchange.checksum is None
        runs = {AddCredit.TYPE: self._on_credit_run, Data.TYPE: self._on_data_run} if plain else None
        self._decoder = Decoder(max(exchange.segment_size, MAX_CONTROL_BYTES), runs)
        self.channels: dict[RemoteChannel, ConsumerStream[RemoteChannel]] = {}
        self._intake = Intake(exchange.lock, exchange.segment_size, exchange.checksum)
        self.accepting = True  # the peer may request
        self.items_in = 0
        """Frames and pieces of payloads that have come."""
        self._pieces_in = 0

    @property
    def frames_in(self) -> int:
        """Frames that have come; of those with a payload, the head."""
        return self.items_in - self._pieces_in

    @property
    def idle(self) -> bool:
        """Whether no channel uses the connection."""
        return self.producer.idle and self.consumer.idle

    @property
    def starved(self) -> bool:
        """Whether reading has stopped, because what comes next has no place. Set under the exchange lock."""
        return self._intake.starved

    @property
    def between_frames(self) -> bool:
        """Whether the peer's stream may end here."""
        return self._decoder.idle

    # Receiving.

    def receive(self, data: memoryview, other: Callable[[Frame], object]) -> bytes | None:
        """Take bytes from the peer. Frames that concern the connection, not a channel, go to `other`.

        If there is nowhere to put a payload, which only happens without credit, the rest of the bytes is returned:
        the connection stops reading, and begins with them when a channel is due.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
        """
        decoder = self._decoder
        try:
            for item in decoder.feed(data):
                self.items_in += 1
                if not self._on_item(item, other):
                    return bytes(data[decoder.position :])
        finally:
            self._intake.hand_over()
        return None

    def _on_data_run(self, data: memoryview, position: int) -> tuple[int, int]:
        run, stop, missing = self.consumer.on_data_run(data, position, self._exchange.segment_size)
        if run:
            self.items_in += len(run)
            self._intake.take_run(run, missing)
        return stop, missing

    def _on_credit_run(self, data: memoryview, position: int) -> tuple[int, int]:
        self._intake.hand_over()
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            stop, wake = self.producer.on_credit_run_locked(data, position)
        finally:
            self._lock.release()
        self.items_in += (stop - position) // CREDIT_FRAME.size
        if wake is not None:
            wake()
        return stop, 0

    def _on_item(self, item: Frame | Payload, other: Callable[[Frame], object]) -> bool:
        """Any other frame, or a piece of a payload. Whether reading may go on."""
        if type(item) is Payload:
            self._intake.fill(item)
            self._pieces_in += 1
        elif type(item) is Data:
            return self._begin(item)
        else:
            self._intake.hand_over()
            self._on_frame(item, other)  # type: ignore[arg-type]
        return True

    def resume(self) -> bool:
        """Whether the payload that had nowhere to go has a place now."""
        return self._intake.resume()

    def _begin(self, frame: Data) -> bool:
        stream = self.consumer.on_data(frame)
        dropped = stream.state is ConsumerState.CANCELLED or stream.state is ConsumerState.GONE
        return self._intake.begin(frame, None if dropped else stream.target)

    def _on_frame(self, frame: Frame, other: Callable[[Frame], object]) -> None:
        match frame:
            case RequestPartition():
                wake = self._on_request(frame)
            case AddCredit():  # one that was cut in two
                with self._lock:
                    wake = self.producer.on_credit_locked(frame)
            case AnnounceBacklog():
                stream = self.consumer.on_backlog(frame)
                with self._lock:
                    wake = stream.target.backlog_locked(frame.backlog) if stream.state is _RECEIVING else None
            case CancelRequest():
                with self._lock:
                    gone, answered = self.producer.on_cancel_locked(frame)
                    wake = together(answered, self._let_go_locked(gone, None) if gone.supply else None)
            case SendTaskEvent():
                wake = self._on_task_event(frame)
            case ReportError(receiver) if receiver in self.consumer.streams:
                wake = self._on_error(frame)
            case _:
                other(frame)
                return
        if wake is not None:
            wake()

    def _on_request(self, frame: RequestPartition) -> Wake:
        stream = self.producer.on_request(frame)
        which = frame.partition
        if not self.accepting:
            raise RemoteProtocolError(f"a request for partition {which} after the peer has closed")
        if (which.job, which.attempt) != (self._exchange.job, self._exchange.attempt):
            raise RemoteProtocolError(f"a request for partition {which} on a connection of another job or attempt")
        if (frame.credit is None) is self._exchange.credited:
            raise RemoteProtocolError("a request with another flow control (network.flow_control)")
        with self._lock:
            try:
                supply, wake = self._registry.attach_locked(which, frame.subpartition, stream)
            except (Cancelled, PartitionNotFound, ProducerFailed) as error:
                return self.producer.fail_locked(stream, error)
            except HeadgateError as error:  # it has another reader
                raise RemoteProtocolError(str(error)) from error
            return together(wake, self.producer.accept_locked(stream, supply))

    def _on_task_event(self, frame: SendTaskEvent) -> Wake:
        stream = self.producer.on_task_event(frame)
        with self._lock:
            try:
                return self._registry.publish_locked(stream.request.partition, frame.event)
            except CorruptStream as error:
                raise RemoteProtocolError(str(error)) from error

    def _on_error(self, frame: ReportError) -> Wake:
        """A channel has failed at its producer; or that is the answer to a cancellation."""
        stream = self.consumer.on_error(frame)
        if stream.state is ConsumerState.GONE:
            return None
        channel, error = stream.target, error_from_wire(frame.code, frame.text)
        with self._lock:
            missing = isinstance(error, PartitionNotFound) and stream.expected == 0
            delay_ns = channel.missing_locked() if missing else None
            if delay_ns is None:
                expected = missing or isinstance(error, Cancelled)
                wake = channel.fail_locked(error if expected else ProducerFailed(frame.text, cause=error))
            else:
                wake = None
        self.channels.pop(channel, None)
        self.consumer.cancel(stream)
        if delay_ns is not None:
            self._retry(channel, delay_ns)
        return wake

    # Sending.

    def outgoing_locked(self, room_bytes: int) -> tuple[Outgoing, Wake]:
        """What to send now, in order: requests and credit first, then data, until there are `room_bytes` of it."""
        control = self.consumer.data_to_send()
        sending, wake = self.producer.data_to_send_locked(room_bytes)
        sending.pieces[:0] = control
        sending.owners[:0] = [None] * len(control)
        return sending, wake

    def say_locked(self, due: Iterable[RemoteChannel]) -> list[RemoteChannel]:
        """Say for these channels what they are due to say. For which of them that was the last."""
        over: list[RemoteChannel] = []
        channels = self.channels
        grants: list[tuple[ConsumerStream[RemoteChannel], int]] = []
        for channel in due:
            channel.due = False
            stream, credit = channels.get(channel), channel.unannounced
            if not credit or stream is None or stream.state is not _RECEIVING or channel.speaks:
                if self._say_all_locked(channel, stream):
                    over.append(channel)
            else:  # as most do: there is credit, and nothing else
                channel.unannounced = 0
                grants.append((stream, credit))
        self.consumer.grant_all(grants)
        return over

    def _say_all_locked(self, channel: RemoteChannel, stream: ConsumerStream[RemoteChannel] | None) -> bool:
        if stream is None and channel.asks and channel.state is RemoteState.REQUESTING:
            stream = self.consumer.request(channel.partition, channel.subpartition, channel.credit, channel)
            self.channels[channel] = stream
            channel.requested_locked()
        if stream is None:
            return channel.state is _RELEASED
        credit = channel.take_credit_locked()
        if credit and stream.state is _RECEIVING:
            self.consumer.grant(stream, credit)
        while channel.task_events:
            self.consumer.send_task_event(stream, channel.task_events.popleft())
        if channel.state is not _RELEASED:
            return False
        self.consumer.cancel(stream)
        del self.channels[channel]
        return True

    # Losing the connection.

    def lose_locked(self, error: HeadgateError) -> Wake:
        """Fail every channel, let go of every subpartition, give back the segment that was being filled."""
        wakes = [channel.fail_locked(error) for channel in self.channels]
        self.channels.clear()
        self.consumer.streams.clear()
        wakes += [self._let_go_locked(stream, error) for stream in self.producer.streams.values() if stream.supply]
        self.producer.streams.clear()
        return together(*wakes, self._intake.lose_locked())

    def _let_go_locked(self, stream: ProducerStream, cause: BaseException | None) -> Wake:
        request = stream.request
        return self._registry.release_subpartition_locked(request.partition, request.subpartition, cause, stream)

    def statistics_locked(self) -> PumpStatistics:
        """What the connection carries."""
        return PumpStatistics(
            sending=len(self.producer.streams),
            receiving=len(self.channels),
            bytes_in=self._intake.bytes,
            bytes_out=self.producer.bytes_out,
            buffers_in=self._intake.buffers,
            buffers_out=self.producer.buffers_out,
        )
