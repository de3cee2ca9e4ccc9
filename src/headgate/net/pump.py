"""The pump connects the sessions of the wire with partitions and gates.

One pump per connection, on the network thread. Towards the peer it has the two sessions; on this side it attaches
streams to subpartitions, gives payloads to the intake of remote channels, and queues the frames of those channels.
Received bytes go to `receive`, bytes to send come from `outgoing_locked`; the connection does the rest.

Invariant: when the connection is lost, every channel and subpartition on it fails or is released.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headgate.errors import (
    Cancelled,
    CorruptStream,
    HeadgateError,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    UnknownReceiver,
    error_from_wire,
)
from headgate.input import RemoteChannel, RemoteState
from headgate.net.context import PumpStatistics
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
    encode_frame,
)
from headgate.wire.codec import CREDIT_FRAME
from headgate.wire.decoder import MAX_CONTROL_BYTES
from headgate.wire.states import ConsumerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.net.context import ConnectionContext
    from headgate.sync import Wake
    from headgate.wire.decoder import Run
    from headgate.wire.flow import When
    from headgate.wire.producer import ProducerStream

__all__ = ["Pump"]

_log = logging.getLogger(__name__)

_RECEIVING = ConsumerState.RECEIVING
_RELEASED = RemoteState.RELEASED


class Pump:
    """Moves data between one connection and this worker's partitions and gates.

    `schedule_locked` is called when the connection should be flushed; `retry` with the channel and the delay when a
    missing partition is to be requested again; `await_credit` when a stream has flushed data and no credit.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net.context import ConnectionContext
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     exchange = ConnectionContext(JobId("etl"), AttemptId(1), worker.registry, segment_size=32768)
    ...     Pump(exchange, schedule_locked=lambda when: None, retry=print).idle
    True
    """

    def __init__(
        self,
        exchange: ConnectionContext,
        *,
        schedule_locked: Callable[[When], Wake],
        retry: Callable[[RemoteChannel, int], object],
        await_credit: Wake = None,
    ) -> None:
        self._exchange = exchange
        self._lock = exchange.lock
        self._registry = exchange.registry
        self._retry = retry
        self.producer = ProducerSession(
            max_streams=exchange.max_channels,
            schedule_locked=schedule_locked,
            checksum=exchange.checksum,
            await_credit=await_credit,
        )
        self.consumer: ConsumerSession[RemoteChannel] = ConsumerSession()
        # Without credit a payload may have no segment; with a checksum it must be verified: no runs of data then.
        plain = exchange.credited and exchange.checksum is None
        runs: dict[int, Run] = {AddCredit.TYPE: self._on_credit_run}
        if plain:
            runs[Data.TYPE] = self._on_data_run
        self._decoder = Decoder(max(exchange.segment_size, MAX_CONTROL_BYTES), runs)
        self.channels: dict[RemoteChannel, ConsumerStream[RemoteChannel]] = {}
        self._intake = Intake(exchange.lock, exchange.segment_size, exchange.checksum)
        self.accepting = True  # the peer may request
        self.events_refused = 0
        """The number of task events of this side that had no receiver."""
        self.items_in = 0
        """The number of received frames and pieces of payloads."""
        self._pieces_in = 0

    @property
    def frames_in(self) -> int:
        """The number of received frames."""
        return self.items_in - self._pieces_in

    @property
    def idle(self) -> bool:
        """True if no channel uses the connection."""
        return self.producer.idle and self.consumer.idle

    @property
    def starved(self) -> bool:
        """True if reading has stopped because the next payload has no segment. Set under the exchange lock."""
        return self._intake.starved

    @property
    def between_frames(self) -> bool:
        """True if the peer's stream may end here."""
        return self._decoder.idle

    # Receiving.

    def receive(self, data: memoryview, other: Callable[[Frame], object]) -> bytes | None:
        """Receive bytes from the peer. Frames that concern the connection, not a channel, are passed to `other`.

        If a payload has no segment, which happens only without credit, the rest of the bytes is returned: the
        connection stops reading, and begins with them when a channel is scheduled.

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
            self._intake.deliver()
        return None

    def _on_data_run(self, data: memoryview, position: int) -> tuple[int, int]:
        run, stop, missing = self.consumer.on_data_run(data, position, self._exchange.segment_size)
        if run:
            self.items_in += len(run)
            self._intake.take_run(run, missing)
        return stop, missing

    def _on_credit_run(self, data: memoryview, position: int) -> tuple[int, int]:
        self._intake.deliver()
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            stop, wake = self.producer.on_credit_locked(data, position)
        finally:
            self._lock.release()
        self.items_in += (stop - position) // CREDIT_FRAME.size
        if wake is not None:
            wake()
        return stop, 0

    def _on_item(self, item: Frame | Payload, other: Callable[[Frame], object]) -> bool:
        """Handle a frame that no run has taken, or a piece of a payload. Return False if reading must stop."""
        if type(item) is Payload:
            self._intake.fill(item)
            self._pieces_in += 1
        elif type(item) is Data:
            return self._begin(item)
        else:
            self._intake.deliver()
            self._on_frame(item, other)  # type: ignore[arg-type]
        return True

    def resume(self) -> bool:
        """Return True if the payload that had no segment has one now."""
        return self._intake.resume()

    def _begin(self, frame: Data) -> bool:
        stream = self.consumer.on_data(frame)
        dropped = stream.state is ConsumerState.CANCELLED or stream.state is ConsumerState.GONE
        return self._intake.begin(frame, None if dropped else stream.target)

    def _on_frame(self, frame: Frame, other: Callable[[Frame], object]) -> None:
        match frame:
            case RequestPartition():
                wake = self._on_request(frame)
            case AddCredit():  # it was cut in two
                with self._lock:
                    _, wake = self.producer.on_credit_locked(memoryview(encode_frame(frame)))
            case AnnounceBacklog():
                stream = self.consumer.on_backlog(frame)
                with self._lock:
                    wake = stream.target.receive_backlog_locked(frame.backlog) if stream.state is _RECEIVING else None
            case CancelRequest():
                with self._lock:
                    ended, answered = self.producer.on_cancel_locked(frame)
                    wake = together(answered, self._release_supply_locked(ended, None) if ended.supply else None)
            case SendTaskEvent():
                wake = self._on_task_event(frame)
            case ReportError(ends=False):
                self._on_refused_event(frame)
                return
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
                supply, wake = self._registry.attach_locked(which, frame.subpartition, stream, packed=frame.compressed)
            except (Cancelled, PartitionNotFound, ProducerFailed) as error:
                return self.producer.fail_locked(stream, error)
            except HeadgateError as error:  # it has another reader
                raise RemoteProtocolError(str(error)) from error
            return together(wake, self.producer.accept_locked(stream, supply))

    def _on_task_event(self, frame: SendTaskEvent) -> Wake:
        with self._lock:
            try:
                stream = self.producer.on_task_event(frame)
                return self._registry.publish_locked(stream.request.partition, frame.event)
            except UnknownReceiver as error:
                return self.producer.refuse_event_locked(frame.receiver, error)
            except CorruptStream as error:
                raise RemoteProtocolError(str(error)) from error

    def _on_refused_event(self, frame: ReportError) -> None:
        """Count a task event of this side that had no receiver, and log the first one."""
        stream = self.consumer.on_refused_event(frame)
        self.events_refused += 1
        if stream is not None and self.events_refused == 1:
            _log.warning("%s: a task event was not delivered: %s (further ones are counted only)", stream, frame.text)

    def _on_error(self, frame: ReportError) -> Wake:
        """Fail a channel whose producer has failed; or end one whose cancellation is answered."""
        stream = self.consumer.on_error(frame)
        if stream.state is ConsumerState.GONE:
            return None
        channel, error = stream.target, error_from_wire(frame.code, frame.text)
        with self._lock:
            missing = isinstance(error, PartitionNotFound) and stream.expected == 0
            delay_ns = channel.delay_request_locked() if missing else None
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
        """Return what to send, in order: requests and credit first, then data, up to `room_bytes` of it."""
        control = self.consumer.data_to_send()
        sending, wake = self.producer.data_to_send_locked(room_bytes)
        sending.pieces[:0] = control
        sending.owners[:0] = [None] * len(control)
        return sending, wake

    def queue_frames_locked(self, scheduled: Iterable[RemoteChannel]) -> list[RemoteChannel]:
        """Queue the frames of these channels: requests, credit, task events, cancellations. Return those that ended."""
        ended: list[RemoteChannel] = []
        channels = self.channels
        grants: list[tuple[ConsumerStream[RemoteChannel], int]] = []
        for channel in scheduled:
            channel.scheduled = False
            stream = channels.get(channel)
            if stream is not None and stream.state is _RECEIVING and channel.sends_only_credit:
                if credit := channel.take_credit_locked():
                    grants.append((stream, credit))
            elif self._queue_all_frames_locked(channel, stream):
                ended.append(channel)
        self.consumer.grant_all(grants)
        return ended

    def _queue_all_frames_locked(self, channel: RemoteChannel, stream: ConsumerStream[RemoteChannel] | None) -> bool:
        """Queue whatever the channel has to send. Return True if the channel ended with it."""
        if stream is None and channel.must_request and channel.state is RemoteState.REQUESTING:
            stream = self.consumer.request(
                channel.partition, channel.subpartition, channel.credit, channel, packed=channel.packed
            )
            self.channels[channel] = stream
            channel.mark_requested_locked()
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
        """Fail every channel, release every subpartition, recycle the segment that is being filled."""
        wakes = [channel.fail_locked(error) for channel in self.channels]
        self.channels.clear()
        self.consumer.streams.clear()
        wakes += [
            self._release_supply_locked(stream, error) for stream in self.producer.streams.values() if stream.supply
        ]
        self.producer.streams.clear()
        return together(*wakes, self._intake.lose_locked())

    def _release_supply_locked(self, stream: ProducerStream, cause: BaseException | None) -> Wake:
        request = stream.request
        return self._registry.release_subpartition_locked(request.partition, request.subpartition, cause, stream)

    def statistics_locked(self) -> PumpStatistics:
        """Return a snapshot of the traffic."""
        return PumpStatistics(
            sending=len(self.producer.streams),
            receiving=len(self.channels),
            bytes_in=self._intake.bytes,
            bytes_out=self.producer.bytes_out,
            buffers_in=self._intake.buffers,
            buffers_out=self.producer.buffers_out,
            events_refused=self.events_refused,
        )
