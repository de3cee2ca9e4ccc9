"""One connection to another worker: handshake, frames both ways, watermarks, time limits, and how it ends.

The handler of a byte stream, on the network thread; only `schedule_locked` is called by others, under the exchange
lock. What frames mean is the pump's business; who wants the connection is its owner's.

Invariants: no byte is given to the pump before the peer has proved itself; nothing is taken from partitions while the
outbox has no room; the owner hears of the end exactly once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headgate.errors import (
    AuthError,
    Cancelled,
    HeadgateError,
    InvariantViolated,
    RemoteProtocolError,
    TransportError,
    error_from_wire,
)
from headgate.net.outbox import Outbox
from headgate.net.owner import ConnectionOwner, ConnectionStatistics
from headgate.net.pump import Pump
from headgate.net.watch import ConnectionOptions, Watch
from headgate.wire import CONNECTION, Close, Frame, KeepAlive, Outgoing, ReportError, encode_frame
from headgate.wire.producer import error_frame
from headgate.wire.states import CONNECTION_STEPS, ConnectionState, ConnectionStep, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.input import RemoteChannel
    from headgate.net.exchange import Exchange
    from headgate.net.stream import PathStatistics, Stream, Transport
    from headgate.sync import Wake
    from headgate.wire.handshake import Handshake

__all__ = ["Connection"]

_log = logging.getLogger(__name__)

_HIGH_SEGMENTS: Final = 2
_LOW_SEGMENTS: Final = 1
_GATHER_SEGMENTS: Final = 16
_ROUNDS: Final = 16  # of writing before other connections and reading get their turn
_RELEASE: Final = 16  # written buffers to give back at once while there is more to write: each may wake a task
_PROVING, _LOST, _CLOSED = ConnectionState.PROVING, ConnectionState.LOST, ConnectionState.CLOSED
_USABLE = (ConnectionState.OPEN, ConnectionState.THEY_CLOSED)


class Connection:
    """A connection, from its first byte to its last. Made by `Network`.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     _ = worker.join(Identity(JobId("etl"), AttemptId(1), worker=0, secret=bytes(32)))
    ...     worker.statistics().network.connections  # nobody wants one yet
    ()
    """

    def __init__(  # noqa: PLR0917 - its owner puts the parts together
        self,
        stream: Stream,
        handshake: Handshake,
        exchange: Exchange,
        transport: Transport,
        owner: ConnectionOwner,
        options: ConnectionOptions,
        *,
        outgoing: bool,
        ended: Callable[[Connection], object],
        certified: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.peer = stream.peer
        self.state = ConnectionState.PROVING
        self.worker = -1
        self.lane = 0
        self.outgoing = outgoing  # this side has connected, not the peer
        self._used = outgoing  # somebody wanted it, so that it may be closed when nobody does
        self.pump = Pump(exchange, wake_locked=self.schedule_locked, retry=self._retry, starving=transport.attend)
        self._stream = stream
        self._handshake = handshake
        self._lock = exchange.lock
        self._transport = transport
        self._owner = owner
        self._ended = ended
        self._certified = certified  # the worker that the peer's certificate names, if it has one
        size = exchange.segment_size
        marks = (_HIGH_SEGMENTS * size, _LOW_SEGMENTS * size, _GATHER_SEGMENTS * size)
        self._outbox = Outbox(*marks, now_ns=transport.now_ns)
        self._scheduled = False  # `flush` will be called
        self._hurried = False  # and that at once
        self._watch = Watch(self, self.pump, self._outbox, transport, options, must_be_read=exchange.credited)
        self._unread: bytes | None = None  # read, but there was no buffer for it: reading has stopped

    def start(self) -> None:
        """Begin the handshake."""
        self._stream.start(self)
        self._put(self._handshake.data_to_send())
        self.flush()

    @property
    def usable(self) -> bool:
        """Whether this side may request over it."""
        return self.state in _USABLE

    # What the stream calls.

    def received(self, data: memoryview) -> None:
        """Bytes came."""
        try:
            if self.state is _PROVING:
                data = memoryview(self._prove(data))
            if self.state is not _LOST and data:
                self._receive(data)
        except HeadgateError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - our bug must not leave tasks waiting for ever
            _log.exception("connection with %s: a bug in headgate", self.peer)
            self.fail(InvariantViolated(f"connection with {self.peer}: {type(error).__name__}: {error}"))

    def writable(self) -> None:
        """The stream takes bytes again."""
        self._outbox.unblock()
        self.flush()

    def lost(self, error: Exception | None) -> None:
        """The stream is over."""
        if self.state is _PROVING and (error is None or isinstance(error, TransportError)):
            why = "" if error is None else f" ({error})"
            text = f"the peer ended the connection during the handshake: is it of this job and attempt?{why}"
            self._end(TransportError(text, peer=self.peer))
        elif isinstance(error, HeadgateError):
            self._end(error)
        elif error is not None:
            self._end(TransportError(str(error), peer=self.peer))
        elif self.state is _CLOSED or (self.pump.idle and self.pump.between_frames and self.worker >= 0):
            self._end(None)
        else:
            self._end(TransportError("the peer ended the connection while channels were using it", peer=self.peer))

    # Reading.

    def _prove(self, data: memoryview) -> bytes:
        """The handshake's share of the bytes; what is behind it is returned."""
        handshake = self._handshake
        try:
            rest = handshake.receive(data)
        except (AuthError, RemoteProtocolError):
            self._put(handshake.data_to_send())
            raise
        self._put(handshake.data_to_send())
        self.flush()
        if not handshake.done:
            return b""
        if self._certified() not in {None, handshake.peer_worker}:
            raise AuthError("the peer's certificate is that of another worker")
        self._move(ConnectionStep.PROVED, ours=True)
        self.worker, self.lane = handshake.peer_worker, handshake.lane
        self._watch.proved()
        self._owner.proved(self)
        return rest

    def _receive(self, data: memoryview) -> None:
        self._unread = self.pump.receive(data, self._on_frame)
        if self._unread is not None:
            self._stream.pause_reading()
        if self.pump.consumer.has_work:
            self.flush()  # errors are answered; credit is announced when the reader has read what has come
        elif self.pump.idle:
            self._close_if_unused()

    def _resume(self, unread: bytes) -> None:
        """Go on reading, which had stopped for want of a buffer, if there is one now."""
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

    def schedule_locked(self, *, urgent: bool = True) -> Wake:
        """There is something to send: let the network thread come, unless it is on its way.

        What is not urgent may wait a moment for more. While the stream is blocked there is no need to come: it will
        when the stream is writable, unless it has to go on reading.
        """
        if self._hurried or (self._scheduled and not urgent) or (self._outbox.blocked and not self.pump.starved):
            return None
        self._scheduled = True
        if not urgent:
            return self._come_lazily
        self._hurried = True
        return self._come

    def _come(self) -> None:
        producer = self.pump.producer
        if producer.look_first:  # the first part of a flush would wake the peer's reader, which then waits for the rest
            producer.look_first = False
            self._transport.glance()
        self._transport.call_soon(self.flush)

    def _come_lazily(self) -> None:
        self._transport.call_lazily(self._flush_if_due)

    def _flush_if_due(self) -> None:
        if self._scheduled:  # else it was done in a hurry meanwhile
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
            self._come()
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
        return self.pump.producer.has_work or self.pump.consumer.has_work or self._owner.due(self)

    def _fill(self) -> None:
        """Release what was written, and take what is to be written next, if there is room."""
        outbox = self._outbox
        wakes: list[Callable[[], object]] = []
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            self._scheduled = self._hurried = False
            if len(outbox.sent) >= _RELEASE:
                self._release_sent_locked(wakes)
            if self.state is not _PROVING and (room_bytes := outbox.room_bytes) > 0:
                if self.usable:
                    self._owner.say_locked(self)
                sending, wake = self.pump.outgoing_locked(room_bytes)
                outbox.put(sending)
                if wake is not None:
                    wakes.append(wake)
        finally:
            self._lock.release()
        for wake in wakes:
            wake()

    def _put(self, frame: bytes) -> None:
        if frame:
            self._outbox.put(Outgoing([frame], [None]))

    def _release_sent(self) -> None:
        if not self._outbox.sent:
            return
        wakes: list[Callable[[], object]] = []
        with self._lock:
            self._release_sent_locked(wakes)
        for wake in wakes:
            wake()

    def _release_sent_locked(self, wakes: list[Callable[[], object]]) -> None:
        """Give back what was written; whom to wake is added to `wakes`."""
        sent = self._outbox.sent
        wakes += [wake for taken in sent if (wake := taken.release_locked()) is not None]
        sent.clear()

    # Time.

    @property
    def reads(self) -> bool:
        """Whether it reads, and has not stopped for want of a place."""
        return self._unread is None

    def keep_alive(self) -> None:
        """Say something, for nothing was said for a while."""
        if not self._outbox.waiting_bytes:
            self._put(encode_frame(KeepAlive()))
        self.flush()

    def _retry(self, channel: RemoteChannel, delay_ns: int) -> None:
        """Let a channel whose partition is missing be due again after a while."""

        def again() -> None:
            with self._lock:
                wake = channel.retry_locked()
            if wake is not None:
                wake()

        self._transport.call_at(self._transport.now_ns() + delay_ns, again)

    # The end.

    def _close_if_unused(self) -> None:
        """Say `Close` when nothing uses the connection any more; end it when both have."""
        idle = self.pump.idle
        self._used = self._used or not idle
        if self.usable and idle and self._used and not self._outbox.waiting_bytes and not self._owner.wants(self):
            self._move(ConnectionStep.WE_CLOSE, ours=True)
            self._put(encode_frame(Close()))
            self._outbox.write(self._stream)
        if self.state is _CLOSED and not self._outbox.waiting_bytes:
            self._stream.close()

    def close_duplicate(self) -> None:
        """End a connection that has not been used, because there is another."""
        self._stream.close()
        self._end(None)

    def fail(self, error: HeadgateError) -> None:
        """Give the connection up; the peer is told why if that is possible, except before it has proved itself."""
        if self.state is _LOST:
            return
        told = not isinstance(error, TransportError)
        outbox = self._outbox
        if self.state is not _PROVING and told and not outbox.waiting_bytes:
            self._put(error_frame(CONNECTION, error))
        owed = outbox.waiting_bytes > 0  # else it ends at once: a stranger's socket is not worth keeping
        if outbox.waiting_bytes and not outbox.blocked:
            self._outbox.write(self._stream)
        if outbox.waiting_bytes or not owed:
            self._stream.abort()
        else:
            self._stream.close()
        self._end(error)

    def _end(self, error: HeadgateError | None) -> None:
        if self.state is _LOST:
            return
        self._move(ConnectionStep.LOSE, ours=True)
        self._watch.cancel()
        self._outbox.drop()
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
        """The error as this side sees it: with the peer's address. It is logged if the peer had proved itself."""
        named = error
        if not isinstance(error, TransportError | Cancelled):
            named = error_from_wire(error.code, f"{error} ({self.peer})")
            named.__cause__ = error
        if self.worker >= 0 and not isinstance(error, Cancelled):
            level = logging.INFO if isinstance(error, TransportError) else logging.WARNING
            _log.log(level, "connection with worker %d lost: %s", self.worker, named)
        return named

    def _move(self, what: ConnectionStep, *, ours: bool) -> None:
        self.state = step(CONNECTION_STEPS, self.state, what, f"connection with {self.peer}", ours=ours)

    def statistics_locked(self) -> ConnectionStatistics:
        """The connection at this moment."""
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
        """What the system says of the way to the peer; from any thread, and not under the exchange lock."""
        return self._stream.path()
