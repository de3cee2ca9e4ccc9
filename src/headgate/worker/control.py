"""A worker's control link: how it is made, on the thread that starts the worker.

`link` says what is spoken on it.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net.certificates import client_context
from headgate.net.tls import TlsStream
from headgate.net.watch import ConnectionOptions
from headgate.wire.handshake import NONCE_BYTES, ClientHandshake
from headgate.worker.link import COORDINATOR, ControlLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.errors import HeadgateError
    from headgate.net import Address, Identity, Stream, Transport
    from headgate.worker.messages import FromCoordinator

__all__ = ["COORDINATOR", "ControlLink", "connect_control"]

_GRACE_S: Final = 1.0  # the network thread keeps the time; who waits for it waits a little longer


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
    """A worker's link to its coordinator, once both have proved themselves; not on the network thread.

    `on_lost` is called only if this has succeeded.

    Raises:
        TransportError: the coordinator cannot be reached, not in time, or does not want this worker.
        AuthError: it is not the coordinator.

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
    """A worker's connection on its way to being a link."""

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
        self._answered = threading.Event()
        self._context = None if identity.credentials is None else client_context(identity.credentials)
        self._link: ControlLink | None = None
        self._proved_link: ControlLink | None = None  # the same, when it is ready
        self._error: Exception | None = None

    def wait(self) -> ControlLink:
        link = None
        self._transport.call_soon(self._begin)
        try:
            self._answered.wait(self._timeout_s + _GRACE_S)
            link = self._proved_link
        finally:  # also when Ctrl-C ends the wait
            if link is None:
                self._transport.call_soon(self._give_up)
        if link is None:
            raise self._error or self._too_late()
        return link

    def _begin(self) -> None:
        timeout_ns = int(self._timeout_s * 1e9)
        self._deadline = self._transport.call_at(self._transport.now_ns() + timeout_ns, self._on_deadline)
        self._connecting = self._transport.connect(self._address, timeout_ns, self._connected)

    def _connected(self, stream: Stream | Exception) -> None:
        if isinstance(stream, Exception):
            self._answer(stream)
            return
        who, tls = self._identity, None
        if self._context is not None:
            stream = tls = TlsStream(stream, self._context, self._transport.call_soon, reach=COORDINATOR)
        nonce = secrets.token_bytes(NONCE_BYTES)
        link = ControlLink(
            stream,
            ClientHandshake(who.secret, who.job, who.attempt, worker=who.worker, nonce=nonce),
            self._transport,
            self._options,
            hears_coordinator=True,
            certified=lambda: None if tls is None else tls.peer_worker,
        )
        self._link = link
        link.on_proved = self._proved
        link.on_message = self.on_message
        link.on_lost = self._answer
        link.start()

    def _proved(self) -> None:
        assert self._link is not None, "that is who has proved itself"
        self._link.on_lost = self.on_lost
        self._proved_link = self._link
        self._answer(None)

    def _answer(self, error: Exception | None) -> None:
        self._error = error
        self._deadline.cancel()
        self._answered.set()

    def _on_deadline(self) -> None:
        self._answer(self._too_late())

    def _too_late(self) -> TransportError:
        return TransportError(f"no control link within {self._timeout_s:g} s", peer=str(self._address))

    def _give_up(self) -> None:
        self._deadline.cancel()
        self._connecting.cancel()
        if self._link is not None:
            self._link.on_lost = _ignore  # it was never handed over
            self._link.fail(TransportError("given up", peer=str(self._address)))


def _ignore(_: object) -> None: ...
