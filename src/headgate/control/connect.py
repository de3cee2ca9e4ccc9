"""How a worker opens its control link: it connects, proves itself, and tries again if the coordinator drops it."""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final

from headgate.control.link import COORDINATOR, ControlLink
from headgate.errors import TransportError
from headgate.net.certificates import client_context
from headgate.net.retry import Retry
from headgate.net.time_limits import ConnectionOptions
from headgate.net.tls import TlsStream
from headgate.wire.handshake import NONCE_BYTES, ClientHandshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.control.messages import FromCoordinator
    from headgate.errors import HeadgateError
    from headgate.net import Address, Identity, Stream, Transport
    from headgate.net.stream import Timer

__all__ = ["connect_control"]

_GRACE_S: Final = 1.0  # the network thread enforces the time limit; its caller waits this much longer


def connect_control(
    transport: Transport,
    address: Address,
    identity: Identity,
    on_message: Callable[[FromCoordinator], object],
    on_lost: Callable[[HeadgateError | None], object],
    *,
    timeout_s: float = 30.0,
    options: ConnectionOptions | None = None,
) -> ControlLink:
    """Connect to the coordinator and return the link when both sides have proved themselves. Blocks.

    Not on the network thread. If the coordinator drops the connection during the handshake, this connects again until
    `timeout_s` (`net.retry`). `on_lost` is called only after this has returned.

    Raises:
        TransportError: the coordinator cannot be reached in time, or refuses this worker.
        AuthError: the peer is not the coordinator.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Address, Identity
    >>> from headgate.net.loop import open_loop
    >>> from headgate.net.sockets import SocketTransport
    >>> with SocketTransport(open_loop()) as transport:
    ...     identity = Identity(JobId("etl"), AttemptId(1), worker=0, secret=bytes(32))
    ...     connect_control(transport, Address("127.0.0.1", 1), identity, print, print)
    Traceback (most recent call last):
    headgate.errors.TransportError: ... (127.0.0.1:1)
    """
    opening = _Opening(transport, address, identity, options or ConnectionOptions(), timeout_s)
    opening.on_message, opening.on_lost = on_message, on_lost
    return opening.wait()


class _Opening:
    """The attempts of one worker to open its link."""

    on_message: Callable[[FromCoordinator], object]
    on_lost: Callable[[HeadgateError | None], object]

    def __init__(
        self, transport: Transport, address: Address, identity: Identity, options: ConnectionOptions, timeout_s: float
    ) -> None:
        self._transport = transport
        self._address = address
        self._identity = identity
        self._options = options
        self._timeout_s = timeout_s
        self._finished = threading.Event()
        self._context = None if identity.credentials is None else client_context(identity.credentials)
        self._link: ControlLink | None = None
        self._proved_link: ControlLink | None = None  # the same, once the peer has proved itself
        self._error: Exception | None = None
        self._waiting: Timer | None = None  # until it connects again

    def wait(self) -> ControlLink:
        link = None
        self._transport.post(self._begin)
        try:
            self._finished.wait(self._timeout_s + _GRACE_S)
            link = self._proved_link
        finally:  # Ctrl-C may end the wait
            if link is None:
                self._transport.post(self._give_up)
        if link is None:
            raise self._error or self._too_late()
        return link

    def _begin(self) -> None:
        deadline_ns = self._transport.now_ns() + int(self._timeout_s * 1e9)
        self._deadline = self._transport.call_at(deadline_ns, self._on_deadline)
        self._retry = Retry(deadline_ns, self._identity.worker)
        self._connect()

    def _connect(self) -> None:
        timeout_ns = int(self._timeout_s * 1e9)  # the deadline ends it earlier
        self._waiting = None
        self._connecting = self._transport.connect(self._address, timeout_ns, self._connected)

    def _connected(self, stream: Stream | Exception) -> None:
        if isinstance(stream, Exception):
            self._finish(stream)
            return
        identity, tls = self._identity, None
        if self._context is not None:
            stream = tls = TlsStream(stream, self._context, self._transport.post, reach=COORDINATOR)
        nonce = secrets.token_bytes(NONCE_BYTES)
        link = ControlLink(
            stream,
            ClientHandshake(identity.secret, identity.job, identity.attempt, worker=identity.worker, nonce=nonce),
            self._transport,
            self._options,
            to_coordinator=True,
            certified=lambda: None if tls is None else tls.peer_worker,
        )
        self._link = link
        link.on_proved = self._proved
        link.on_message = self.on_message
        link.on_lost = lambda error: self._lost(link, error)
        link.start()

    def _proved(self) -> None:
        assert self._link is not None, "a link calls on_proved"
        self._link.on_lost = self.on_lost
        self._proved_link = self._link
        self._finish(None)

    def _lost(self, link: ControlLink, error: HeadgateError | None) -> None:
        """Connect again if the coordinator has dropped the link; otherwise fail."""
        now_ns = self._transport.now_ns()
        wait_ns = self._retry.wait_ns(now_ns, challenged=link.challenged) if link.cut_short else None
        if wait_ns is None or self._finished.is_set():
            self._finish(error)
        else:
            self._waiting = self._transport.call_at(now_ns + wait_ns, self._connect)

    def _finish(self, error: Exception | None) -> None:
        self._error = error
        self._deadline.cancel()
        self._finished.set()

    def _on_deadline(self) -> None:
        self._finish(self._too_late())

    def _too_late(self) -> TransportError:
        return TransportError(f"no control link within {self._timeout_s:g} s", peer=str(self._address))

    def _give_up(self) -> None:
        self._deadline.cancel()
        self._connecting.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._link is not None:
            self._link.on_lost = _ignore  # the caller never got it
            self._link.fail(TransportError("given up", peer=str(self._address)))


def _ignore(_: object) -> None: ...
