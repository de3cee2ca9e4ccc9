"""The control link: one authenticated connection between a worker and the coordinator, for typed messages.

The same class is at both ends. After the handshake of `wire.handshake`, in TLS if there are certificates, each message
is a length (u32, little endian) and that many bytes of msgpack. The decoder accepts only the message types of the other
side. The coordinator has the worker number `COORDINATOR`, in its handshake and in its certificate.

`connect` makes the worker's link, `port` those of the coordinator. `send`, `close` and `abort` may be called by any
thread. With the shared loop the thread that calls `send` may dispatch network events, so `on_message` can run inside
`send`: call it without a lock.

Invariants: no message is accepted before the peer has proved itself; a message over `MAX_MESSAGE_BYTES` is refused by
its length; at most `MAX_WAITING_BYTES` wait to be written; `on_lost` is called once, last, also after `close`.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.control.messages import FromCoordinator, FromWorker, Ping
from headgate.errors import AuthError, HeadgateError, LocalProtocolError, RemoteProtocolError, TransportError
from headgate.net.authenticated import AuthenticatedStream
from headgate.net.outbox import Outbox
from headgate.wire.states import ConnectionState, ConnectionStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net import Stream, Transport
    from headgate.net.time_limits import ConnectionOptions
    from headgate.record.peer import AuthenticatedPeer
    from headgate.wire.handshake import Handshake

__all__ = ["COORDINATOR", "MAX_MESSAGE_BYTES", "MAX_WAITING_BYTES", "ControlLink"]

COORDINATOR: Final = 2**32 - 1
"""The coordinator's number among the workers of its job; no worker has it."""

MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_WAITING_BYTES: Final = 8 * MAX_MESSAGE_BYTES

_LENGTH = struct.Struct("<I")

_encode = msgspec.msgpack.Encoder().encode
_decode_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator | Ping).decode
_decode_from_worker = msgspec.msgpack.Decoder(FromWorker | Ping).decode


def _ignore(*_: object) -> None: ...


class ControlLink(AuthenticatedStream):
    """One end of a control connection. `connect_control` makes the worker's, `ControlPort` the coordinator's.

    >>> from headgate.control.messages import Deploy
    >>> from headgate.control.port import ControlPort
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.net.memory import MemoryTransport
    >>> from headgate.net.time_limits import ConnectionOptions
    >>> from headgate.wire.handshake import ClientHandshake
    >>> transport, (job, attempt, secret) = MemoryTransport(), (JobId("etl"), AttemptId(1), bytes(32))
    >>> port = ControlPort(Identity(job, attempt, COORDINATOR, secret), transport, ConnectionOptions())
    >>> port.on_proved = lambda link: link.send(Deploy())
    >>> address = port.listen("127.0.0.1", 0)
    >>> def connected(stream):
    ...     handshake = ClientHandshake(secret, job, attempt, worker=3, nonce=bytes(32))
    ...     link = ControlLink(stream, handshake, transport, ConnectionOptions(), to_coordinator=True)
    ...     link.on_message = print
    ...     link.start()
    >>> _ = transport.connect(address, 10**9, connected); transport.run_until_idle()
    Deploy()
    """

    kind = "control link"
    unfinished = "the peer ended the connection in mid-message"

    def __init__(
        self,
        stream: Stream,
        handshake: Handshake,
        transport: Transport,
        options: ConnectionOptions,
        *,
        to_coordinator: bool,
        certified: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Make one end; `to_coordinator`: the peer must be the coordinator, otherwise a worker."""
        outbox = Outbox(MAX_WAITING_BYTES, MAX_WAITING_BYTES)
        super().__init__(stream, handshake, transport, options, outbox, must_be_read=True, certified=certified)
        self.authenticated_peer: AuthenticatedPeer | None = None
        """The proof that the peer belongs to the job, once it has proved itself; serializers need it."""
        self.on_proved: Callable[[], object] = _ignore
        """Called when the peer has proved itself."""
        self.on_message: Callable[[Any], object] = _ignore
        """Called with each message; an exception ends the link."""
        self.on_lost: Callable[[HeadgateError | None], object] = _ignore
        """Called at the end, with None if either side has closed the link."""
        self._to_coordinator = to_coordinator
        self._decode: Callable[[bytearray], Any] = _decode_from_coordinator if to_coordinator else _decode_from_worker
        self._items_in = 0
        self._frames_in = 0
        self._arrived = bytearray()  # the beginning of a message
        self._lock = threading.Lock()  # guards the three fields below
        self._queued: list[bytes] = []  # by any thread; the network thread moves them to the outbox
        self._queued_bytes = 0
        self._closed = False  # `send` has no effect any more

    @property
    def over(self) -> bool:
        """Return True if the link has ended."""
        return self.state is ConnectionState.LOST

    # For any thread.

    def send(self, message: FromWorker | FromCoordinator | Ping) -> None:
        """Send a message; do nothing if the link is closed or lost.

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
            if self._queued_bytes <= MAX_WAITING_BYTES:  # else `_send_queued` fails the link
                self._queued.append(_LENGTH.pack(len(body)) + body)
            self._queued_bytes += _LENGTH.size + len(body)
            first = len(self._queued) == 1
        if first:
            self._transport.post(self._send_queued)

    def close(self) -> None:
        """Send the messages queued until now, then end; `on_lost` follows. May be repeated."""
        with self._lock:
            self._closed = True
        self._transport.post(self._close)

    def abort(self) -> None:
        """End at once; `on_lost` follows. May be repeated."""
        self._transport.post(lambda: self.fail(TransportError("given up", peer=self.peer)))

    # Reading.

    @property
    def reads(self) -> bool:
        """Return True: a link never stops to read."""
        return True

    @property
    def items_in(self) -> int:
        """How many pieces have arrived."""
        return self._items_in

    @property
    def frames_in(self) -> int:
        """How many whole messages have arrived."""
        return self._frames_in

    def _on_duplicate(self) -> None:
        refused = "this worker" if self._to_coordinator else f"worker {self._handshake.peer_worker}"
        text = f"{refused} is refused by the coordinator: it is not one of the job's, or is connected already"
        raise TransportError(text, peer=self.peer)

    def _check_role(self, worker: int) -> None:
        if self._to_coordinator != (worker == COORDINATOR):
            raise AuthError("the peer is not the one that was meant: one of two is the coordinator")

    def _on_proved(self) -> None:
        self.authenticated_peer = self._handshake.peer
        self.on_proved()

    def _receive(self, data: memoryview) -> None:
        self._items_in += 1
        if self.state is not ConnectionState.OPEN:  # closed by this side: nothing is read any more
            return
        arrived = self._arrived
        arrived += data
        while len(arrived) >= _LENGTH.size and self.state is ConnectionState.OPEN:
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
            self._frames_in += 1
            if not isinstance(message, Ping):
                self.on_message(message)

    # Writing.

    def _send_queued(self) -> None:
        with self._lock:
            queued, self._queued, queued_bytes, self._queued_bytes = self._queued, [], self._queued_bytes, 0
        if self.state is not ConnectionState.OPEN:
            return
        if self._outbox.waiting_bytes + queued_bytes > MAX_WAITING_BYTES:
            self.fail(TransportError(f"more than {MAX_WAITING_BYTES} bytes of messages wait for it", peer=self.peer))
            return
        for one in queued:
            self._put(one)
        self.flush()

    def flush(self) -> None:
        """Write what the outbox holds; end the stream if this side has closed the link and all is written."""
        outbox = self._outbox
        if self.state is ConnectionState.LOST:
            return
        if outbox.waiting_bytes and not outbox.blocked:
            outbox.write(self._stream)
        if self.state is ConnectionState.WE_CLOSED and not outbox.waiting_bytes:
            self._stream.close()

    def keep_alive(self) -> None:
        """Send a `Ping`."""
        if self.state is ConnectionState.OPEN:
            self.send(Ping())

    # Ending.

    def _close(self) -> None:
        if self.state is ConnectionState.PROVING:
            self.fail(TransportError("closed during the handshake", peer=self.peer))
        elif self.state is ConnectionState.OPEN:
            self._send_queued()
        if self.state is ConnectionState.OPEN:  # else the messages were too many, and the link has failed
            self._move(ConnectionStep.WE_CLOSE, ours=True)
            self.flush()

    def _is_complete(self, error: Exception | None) -> bool:
        in_order = error is None and self.state is ConnectionState.OPEN and not self._arrived
        return in_order or (self.state is ConnectionState.WE_CLOSED and not self._outbox.waiting_bytes)

    def _on_end(self, error: HeadgateError | None) -> None:
        self._arrived.clear()
        self.on_lost(error)
