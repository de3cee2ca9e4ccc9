"""The control link: one authenticated connection between a worker and the coordinator, for typed messages.

The same class stands at both ends. First the handshake of `wire.handshake`, in TLS where there are certificates; then
messages, each a length (u32, little endian) and that many bytes of msgpack, decoded by their type or not at all. The
coordinator is the worker `COORDINATOR` of the job, in its handshake as in its certificate. `control` makes the link of
a worker, `coordinator.port` those of the coordinator.

A link is the handler of a stream, on the network thread; `send`, `close` and `wait_ended` are for any thread. With a
shared loop that thread may be whoever calls `send`, so that `on_message` runs inside it: hold no lock meanwhile.

Invariants: no message before the peer has proved itself; a message over `MAX_MESSAGE_BYTES` is refused by its length;
at most `MAX_WAITING_BYTES` wait to be written; `on_lost` is called once, last, and also when `close` has been called.
"""

from __future__ import annotations

import logging
import struct
import threading
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from headgate.errors import (
    AuthError,
    HeadgateError,
    InvariantViolated,
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from headgate.net.outbox import Outbox
from headgate.net.watch import ConnectionOptions, Watch
from headgate.wire import Outgoing
from headgate.worker.messages import FromCoordinator, FromWorker, Ping

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net import Stream, Transport
    from headgate.net.pump import Pump
    from headgate.record.peer import AuthenticatedPeer
    from headgate.wire.handshake import Handshake

__all__ = ["COORDINATOR", "MAX_MESSAGE_BYTES", "MAX_WAITING_BYTES", "ControlLink"]

COORDINATOR: Final = 2**32 - 1
"""The coordinator's number among the workers of its job: no worker has it."""

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_WAITING_BYTES: Final = 8 * MAX_MESSAGE_BYTES

_LENGTH = struct.Struct("<I")

_log = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decoders: Final = {  # what the side that has this number says
    True: msgspec.msgpack.Decoder(FromCoordinator | Ping),
    False: msgspec.msgpack.Decoder(FromWorker | Ping),
}


class _State(Enum):
    """How far a link is. None leads back."""

    PROVING = "both sides prove themselves"
    OPEN = "messages move"
    CLOSING = "closed by this side; what was sent before is still being written"
    LOST = "over"


class _Pulse:
    """A link, as far as its watch knows it."""

    def __init__(self, link: ControlLink) -> None:
        self.peer = link.address
        self.reads = True  # a link never stops to read
        self.items_in = 0  # pieces of any size
        self.frames_in = 0  # whole messages
        self.fail = link.fail
        self.keep_alive = link.keep_alive


def _ignore(*_: object) -> None: ...


class ControlLink:
    """One end of a control connection. `connect_control` makes the worker's, the coordinator's port its own.

    >>> from headgate.coordinator.port import ControlPort
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.net.memory import MemoryTransport
    >>> from headgate.worker.messages import Deploy
    >>> from headgate.wire.handshake import ClientHandshake
    >>> transport, (job, attempt, secret) = MemoryTransport(), (JobId("etl"), AttemptId(1), bytes(32))
    >>> port = ControlPort(Identity(job, attempt, COORDINATOR, secret), transport, ConnectionOptions())
    >>> port.on_proved = lambda link: link.send(Deploy())
    >>> address = port.listen("127.0.0.1", 0)
    >>> def connected(stream):
    ...     handshake = ClientHandshake(secret, job, attempt, worker=3, nonce=bytes(32))
    ...     link = ControlLink(stream, handshake, transport, ConnectionOptions(), hears_coordinator=True)
    ...     link.on_message = print
    ...     link.start()
    >>> _ = transport.connect(address, 10**9, connected); transport.run_until_idle()
    Deploy()
    """

    def __init__(
        self,
        stream: Stream,
        handshake: Handshake,
        transport: Transport,
        options: ConnectionOptions,
        *,
        hears_coordinator: bool,
        certified: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.address = stream.peer
        """Where the peer is, for error texts."""
        self.worker = -1
        """The peer's number, once it has proved itself."""
        self.peer: AuthenticatedPeer | None = None
        """Who the peer is, once it has proved itself."""
        self.on_proved: Callable[[], object] = _ignore
        """Called when the peer has proved itself."""
        self.on_message: Callable[[Any], object] = _ignore
        """Called with each message; what it raises ends the link."""
        self.on_lost: Callable[[HeadgateError | None], object] = _ignore
        """Called at the end, with None if either side has closed the link."""
        self._stream = stream
        self._handshake = handshake
        self._transport = transport
        self._certified = certified  # the worker that the peer's certificate names, if it has one
        self._hears_coordinator = hears_coordinator
        self._decode = _decoders[hears_coordinator].decode
        self._state = _State.PROVING
        self._arrived = bytearray()  # the beginning of a message
        self._outbox = Outbox(MAX_WAITING_BYTES, MAX_WAITING_BYTES, MAX_WAITING_BYTES)
        self._lock = threading.Lock()  # of the three below
        self._said: list[bytes] = []  # by any thread; the network thread puts it into the outbox
        self._said_bytes = 0
        self._closed = False  # nothing is said any more
        self._ended = threading.Event()
        self._pulse = _Pulse(self)
        counters = cast("Pump", self._pulse)  # a watch looks at nothing else of it
        self._watch = Watch(self._pulse, counters, self._outbox, transport, options, must_be_read=True)

    def start(self) -> None:
        """Begin the handshake; on the network thread."""
        self._stream.start(self)
        self._put(self._handshake.data_to_send())
        self._write()

    @property
    def over(self) -> bool:
        """Whether it is lost."""
        return self._state is _State.LOST

    # For any thread.

    def send(self, message: FromWorker | FromCoordinator | Ping) -> None:
        """Send a message; without effect when the link is closed or lost.

        Raises:
            LocalProtocolError: the message is too large.
        """
        body = _encode(message)
        if len(body) > MAX_MESSAGE_BYTES:
            limit = f"the limit is {MAX_MESSAGE_BYTES}"
            raise LocalProtocolError(f"a {type(message).__name__} message takes {len(body)} bytes; {limit}")
        with self._lock:
            if self._closed:
                return
            if self._said_bytes <= MAX_WAITING_BYTES:  # else the link fails as soon as the network thread sees it
                self._said.append(_LENGTH.pack(len(body)) + body)
            self._said_bytes += _LENGTH.size + len(body)
            first = len(self._said) == 1
        if first:
            self._transport.call_soon(self._flush)

    def close(self) -> None:
        """Send what was said until now, then end; `on_lost` follows. May be repeated."""
        with self._lock:
            self._closed = True
        self._transport.call_soon(self._close)

    def abort(self) -> None:
        """End at once; `on_lost` follows. May be repeated."""
        self._transport.call_soon(lambda: self.fail(TransportError("given up", peer=self.address)))

    def wait_ended(self, timeout_s: float | None) -> bool:
        """Wait until the link is lost; not on the network thread. Whether it is."""
        return self._ended.wait(timeout_s)

    # What the stream calls.

    def received(self, data: memoryview) -> None:
        """Bytes came."""
        self._pulse.items_in += 1
        try:
            if self._state is _State.PROVING:
                data = memoryview(self._prove(data))
            if data and self._state is _State.OPEN:
                self._receive(data)
        except HeadgateError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - our bug must not leave anybody waiting for ever
            _log.exception("control link with %s: a bug in headgate", self.address)
            self.fail(InvariantViolated(f"control link with {self.address}: {type(error).__name__}: {error}"))

    def writable(self) -> None:
        """The stream takes bytes again."""
        self._outbox.unblock()
        if self._state is not _State.LOST:
            self._write()

    def lost(self, error: Exception | None) -> None:
        """The stream is over."""
        in_order = error is None and self._state is _State.OPEN and not self._arrived
        if in_order or (self._state is _State.CLOSING and not self._outbox.waiting_bytes):
            self._end(None)
        elif self._state is _State.PROVING and (error is None or isinstance(error, TransportError)):
            why = "" if error is None else f" ({error})"
            text = f"the peer ended the connection during the handshake: is it of this job and attempt?{why}"
            self._end(TransportError(text, peer=self.address))
        elif isinstance(error, HeadgateError):
            self._end(error)
        else:
            text = "the peer ended the connection in mid-message" if error is None else str(error)
            self._end(TransportError(text, peer=self.address))

    # Reading.

    def _prove(self, data: memoryview) -> bytes:
        """The handshake's share of the bytes; what is behind it is returned."""
        handshake = self._handshake
        try:
            rest = handshake.receive(data)
        finally:
            self._put(handshake.data_to_send())
        if handshake.duplicate:
            who = "this worker" if self._hears_coordinator else f"worker {handshake.peer_worker}"
            text = f"{who} is refused by the coordinator: it is not one of the job's, or is connected already"
            raise TransportError(text, peer=self.address)
        self._write()
        if not handshake.done:
            return b""
        if self._certified() not in {None, handshake.peer_worker}:
            raise AuthError("the peer's certificate is that of another worker")
        if self._hears_coordinator != (handshake.peer_worker == COORDINATOR):
            raise AuthError("the peer is not the one that was meant: one of two is the coordinator")
        self._state = _State.OPEN
        self.worker, self.peer = handshake.peer_worker, handshake.peer
        self._watch.proved()
        self.on_proved()
        return rest

    def _receive(self, data: memoryview) -> None:
        arrived = self._arrived
        arrived += data
        while len(arrived) >= _LENGTH.size and self._state is _State.OPEN:
            (size,) = _LENGTH.unpack_from(arrived)
            if not 0 < size <= MAX_MESSAGE_BYTES:
                raise RemoteProtocolError(
                    f"a control message of {size} bytes: from 1 to {MAX_MESSAGE_BYTES} are allowed"
                )
            end = _LENGTH.size + size
            if len(arrived) < end:
                return
            try:
                message = self._decode(arrived[_LENGTH.size : end])
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise RemoteProtocolError(f"a control message that cannot be read: {str(error)[:200]}") from None
            del arrived[:end]
            self._pulse.frames_in += 1
            if not isinstance(message, Ping):
                self.on_message(message)

    # Writing.

    def _flush(self) -> None:
        with self._lock:
            said, self._said, said_bytes, self._said_bytes = self._said, [], self._said_bytes, 0
        if self._state is not _State.OPEN:
            return
        if self._outbox.waiting_bytes + said_bytes > MAX_WAITING_BYTES:
            self.fail(TransportError(f"more than {MAX_WAITING_BYTES} bytes of messages wait for it", peer=self.address))
            return
        for one in said:
            self._put(one)
        self._write()

    def _put(self, data: bytes) -> None:
        if data:
            self._outbox.put(Outgoing([data], [None]))

    def _write(self) -> None:
        outbox = self._outbox
        if outbox.waiting_bytes and not outbox.blocked:
            outbox.write(self._stream)
        if self._state is _State.CLOSING and not outbox.waiting_bytes:
            self._stream.close()

    def keep_alive(self) -> None:
        """Say something, for nothing was said for a while."""
        if self._state is _State.OPEN:
            self.send(Ping())

    # The end.

    def _close(self) -> None:
        if self._state is _State.PROVING:
            self.fail(TransportError("closed during the handshake", peer=self.address))
        elif self._state is _State.OPEN:
            self._flush()
        if self._state is _State.OPEN:
            self._state = _State.CLOSING
            self._write()

    def fail(self, error: HeadgateError) -> None:
        """Give the link up; on the network thread. Only a handshake's last frame is still sent."""
        if self._state is _State.LOST:
            return
        outbox = self._outbox
        owed = self._state is _State.PROVING and outbox.waiting_bytes > 0 and not outbox.blocked
        if owed:
            outbox.write(self._stream)
        if owed and not outbox.waiting_bytes:
            self._stream.close()
        else:
            self._stream.abort()  # a stranger's socket is not worth keeping
        self._end(error)

    def _end(self, error: HeadgateError | None) -> None:
        if self._state is _State.LOST:
            return
        self._state = _State.LOST
        self._watch.cancel()
        self._outbox.drop()
        self._arrived.clear()
        self._ended.set()
        self.on_lost(error)
