"""One connection to another worker: frames both ways, credit and data taken from partitions, and how it closes.

`AuthenticatedStream` has the handshake, the time limits and the end. `Pump` has the meaning of the frames, and the
owner (`net.peers`) decides whether the connection is needed. Everything runs on the network thread, except
`schedule_locked` and `statistics_locked` (any thread, under the exchange lock) and `path`.

Invariants: nothing is taken from partitions while the outbox has no room, so at most the high mark and one `Data` frame
wait for the socket, and control frames beside them; the owner gets `lost` exactly once.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.errors import Cancelled, HeadgateError, RemoteProtocolError, TransportError, error_from_wire
from headgate.net.authenticated import AuthenticatedStream
from headgate.net.outbox import Outbox
from headgate.net.owner import ConnectionOwner, ConnectionStatistics
from headgate.net.pump import Pump
from headgate.wire import CONNECTION, Close, Frame, KeepAlive, ReportError, When, encode_frame
from headgate.wire.producer import error_frame
from headgate.wire.states import ConnectionState, ConnectionStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.input import RemoteChannel
    from headgate.net.context import ConnectionContext
    from headgate.net.stream import PathStatistics, Stream, Transport
    from headgate.net.time_limits import ConnectionOptions
    from headgate.sync import Wake
    from headgate.wire.handshake import Handshake

__all__ = ["Connection"]

_log = logging.getLogger(__name__)

_ROUNDS: Final = 16  # writes before the loop serves other connections and reads
_RELEASE: Final = 16  # written buffers that are recycled together while more are written: each may wake a task
_PROVING, _LOST, _CLOSED = ConnectionState.PROVING, ConnectionState.LOST, ConnectionState.CLOSED
_USABLE = (ConnectionState.OPEN, ConnectionState.THEY_CLOSED)
_LATER, _NOW = When.LATER, When.NOW


class Connection(AuthenticatedStream):
    """A connection, from its first byte to its last. Made by `Network`.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     _ = worker.join(Identity(JobId("etl"), AttemptId(1), worker=0, secret=bytes(32)))
    ...     worker.statistics().network.connections  # no channel needs one yet
    ()
    """

    kind = "connection"
    unfinished = "the peer ended the connection while channels were using it"

    def __init__(  # noqa: PLR0917 - its owner puts the parts together
        self,
        stream: Stream,
        handshake: Handshake,
        exchange: ConnectionContext,
        transport: Transport,
        owner: ConnectionOwner,
        options: ConnectionOptions,
        *,
        outgoing: bool,
        ended: Callable[[Connection], object],
        certified: Callable[[], int | None] = lambda: None,
    ) -> None:
        size = exchange.segment_size
        outbox = Outbox(options.high_mark * size, options.low_mark * size, now_ns=transport.now_ns)
        super().__init__(
            stream, handshake, transport, options, outbox, must_be_read=exchange.credited, certified=certified
        )
        self.lane = 0  # which of the connections between the two workers this is
        self.outgoing = outgoing  # this side has connected, not the peer
        expect_reply = partial(transport.poll_once, reply_expected=True)
        self.pump = Pump(exchange, schedule_locked=self.schedule_locked, retry=self._retry, await_credit=expect_reply)
        self._used = outgoing  # a channel has needed it, so it closes when no channel does
        self._lock = exchange.lock
        self._owner = owner
        self._ended = ended
        self._flush_when = When.NO  # NO: no call of `flush` is posted
        self._unread: bytes | None = None  # received, but no buffer was free: reading has stopped

    @property
    def usable(self) -> bool:
        """Return True if this side may send requests over it."""
        return self.state in _USABLE

    # Reading.

    @property
    def reads(self) -> bool:
        """Return True unless reading has stopped because no buffer is free."""
        return self._unread is None

    @property
    def items_in(self) -> int:
        """How many pieces have arrived."""
        return self.pump.items_in

    @property
    def frames_in(self) -> int:
        """How many whole frames have arrived."""
        return self.pump.frames_in

    def _on_duplicate(self) -> None:
        """Let `flush` end the connection once its last handshake frame is written."""

    def _check_role(self, worker: int) -> None:
        """Accept every worker of the job."""

    def _on_proved(self) -> None:
        self.lane = self._handshake.lane
        self._owner.proved(self)

    def _receive(self, data: memoryview) -> None:
        self._unread = self.pump.receive(data, self._on_frame)
        if self._unread is not None:
            self._stream.pause_reading()
        if self.pump.consumer.has_work:
            self.flush()  # sends errors; credit is announced when the reader has read its buffers
        elif self.pump.idle:
            self._close_if_unused()

    def _resume(self, unread: bytes) -> None:
        """Continue to read if a buffer is free now."""
        if not self.pump.resume():
            return
        self._unread = None
        if unread:
            self.received(memoryview(unread))
        if self.reads and self.state is not _LOST:
            self._stream.resume_reading()

    def _on_frame(self, frame: Frame) -> None:
        if self.state is _CLOSED:
            raise RemoteProtocolError(f"{type(frame).__name__} after both have closed the connection")
        match frame:
            case KeepAlive():
                pass
            case Close():
                self._used, self.pump.accepting = True, False
                self._move(ConnectionStep.THEY_CLOSE, ours=False)
                self._close_if_unused()
            case ReportError(receiver, _, text) if receiver == CONNECTION:
                raise TransportError(f"the peer gave the connection up: {text}", peer=self.peer)
            case ReportError(receiver):
                raise RemoteProtocolError(f"an error for receiver {receiver}, which is over or was never requested")
            case _:
                raise RemoteProtocolError(f"unexpected {type(frame).__name__}")

    # Writing.

    def schedule_locked(self, when: When) -> Wake:
        """Post a call of `flush`, unless one is posted that comes as soon. From any thread.

        LATER: it may wait for other network work. While the stream is blocked none is needed, for `writable` flushes;
        unless the connection has to resume reading.
        """
        posted = self._flush_when
        if posted is _NOW or posted is when or (self._outbox.blocked and not self.pump.starved):
            return None
        if when is _LATER:
            self._flush_when = when
            return self._post_lazily
        self._flush_when = _NOW
        return self._post if when is _NOW else self._poll_and_post

    def _post(self) -> None:
        self._transport.post(self.flush)

    def _poll_and_post(self) -> None:
        # The first part of a flush would wake the peer's reader, which would then wait for the rest.
        self._transport.poll_once()
        self._transport.post(self.flush)

    def _post_lazily(self) -> None:
        self._transport.post(self._flush_if_posted, urgent=False)

    def _flush_if_posted(self) -> None:
        if self._flush_when is not When.NO:  # else an urgent flush was faster
            self.flush()

    def flush(self) -> None:
        """Send what there is, as far as the stream takes it; go on reading, if that had stopped."""
        if self.state is _LOST:
            return
        outbox = self._outbox
        for _ in range(_ROUNDS):
            self._fill()
            if not outbox.waiting_bytes or outbox.blocked:
                break
            self._outbox.write(self._stream)
            if not self._has_more():
                break
        else:
            self._post()
        self._release_sent()
        if self._unread is not None:
            self._resume(self._unread)
        if self._handshake.duplicate and not outbox.waiting_bytes:
            self.close_duplicate()
        else:
            self._close_if_unused()

    def _has_more(self) -> bool:
        """Whether the last `_fill` left something for want of room; what came after it has called for a `flush`."""
        if self.state is _PROVING:
            return False
        return self.pump.producer.has_work or self.pump.consumer.has_work or self._owner.has_frames(self)

    def _fill(self) -> None:
        """Release what was written, and take what is to be written next, if there is room."""
        outbox = self._outbox
        wakes: list[Callable[[], object]] = []
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            self._flush_when = When.NO
            if len(outbox.sent) >= _RELEASE:
                self._release_sent_locked(wakes)
            if self.state is not _PROVING and (room_bytes := outbox.room_bytes) > 0:
                if self.usable:
                    self._owner.queue_frames_locked(self)
                sending, wake = self.pump.outgoing_locked(room_bytes)
                outbox.put(sending)
                if wake is not None:
                    wakes.append(wake)
        finally:
            self._lock.release()
        for wake in wakes:
            wake()

    def _release_sent(self) -> None:
        if not self._outbox.sent:
            return
        wakes: list[Callable[[], object]] = []
        with self._lock:
            self._release_sent_locked(wakes)
        for wake in wakes:
            wake()

    def _release_sent_locked(self, wakes: list[Callable[[], object]]) -> None:
        """Recycle the written buffers. Add the wake-ups that the caller owes to `wakes`."""
        sent = self._outbox.sent
        wakes += [wake for taken in sent if (wake := taken.release_locked()) is not None]
        sent.clear()

    # Time.

    def keep_alive(self) -> None:
        """Send a `KeepAlive` frame, unless other bytes wait."""
        if not self._outbox.waiting_bytes:
            self._put(encode_frame(KeepAlive()))
        self.flush()

    def _retry(self, channel: RemoteChannel, delay_ns: int) -> None:
        """Request the partition of a channel again after `delay_ns`: its producer does not have it yet."""

        def again() -> None:
            with self._lock:
                wake = channel.retry_locked()
            if wake is not None:
                wake()

        self._transport.call_at(self._transport.now_ns() + delay_ns, again)

    # The end.

    def _close_if_unused(self) -> None:
        """Send `Close` when no channel uses the connection any more; end it when both sides have sent it."""
        idle = self.pump.idle
        self._used = self._used or not idle
        if self.usable and idle and self._used and not self._outbox.waiting_bytes and not self._owner.wants(self):
            self._move(ConnectionStep.WE_CLOSE, ours=True)
            self._put(encode_frame(Close()))
            self._outbox.write(self._stream)
        if self.state is _CLOSED and not self._outbox.waiting_bytes:
            self._stream.close()

    def close_duplicate(self) -> None:
        """End a connection that has not been used: there is another between the two workers."""
        self._stream.close()
        self._end(None)

    def fail(self, error: HeadgateError) -> None:
        """End the connection with an error. A peer that has proved itself gets the error, if the stream accepts it."""
        reported = self.state not in (_PROVING, _LOST) and not isinstance(error, TransportError)
        if reported and not self._outbox.waiting_bytes:
            self._put(error_frame(CONNECTION, error))
        super().fail(error)

    def _is_complete(self, error: Exception | None) -> bool:
        unused = self.worker >= 0 and self.pump.idle and self.pump.between_frames
        return error is None and (self.state is _CLOSED or unused)

    def _on_end(self, error: HeadgateError | None) -> None:
        self._unread = None
        self._release_sent()
        named = None if error is None else self._named(error)
        with self._lock:
            wake = self.pump.lose_locked(named or TransportError("the connection was closed", peer=self.peer))
        if wake is not None:
            wake()
        self._owner.lost(self, named)
        self._ended(self)

    def _named(self, error: HeadgateError) -> HeadgateError:
        """Return the error with the peer's address in it. Log it if the peer had proved itself."""
        named = error
        if not isinstance(error, TransportError | Cancelled):
            named = error_from_wire(error.code, f"{error} ({self.peer})")
            named.__cause__ = error
        if self.worker >= 0 and not isinstance(error, Cancelled):
            level = logging.INFO if isinstance(error, TransportError) else logging.WARNING
            _log.log(level, "connection with worker %d lost: %s", self.worker, named)
        return named

    def statistics_locked(self) -> ConnectionStatistics:
        """Return the connection's counters."""
        return ConnectionStatistics(
            peer=self.peer,
            worker=self.worker,
            state=self.state,
            waiting_bytes=self._outbox.waiting_bytes,
            traffic=self.pump.statistics_locked(),
            written_bytes=self._outbox.written_bytes,
            blocked_ns=self._outbox.blocked_ns,
            lane=self.lane,
        )

    def path(self) -> PathStatistics:
        """Return what the system measures on the way to the peer. From any thread, not under the exchange lock."""
        return self._stream.path()
