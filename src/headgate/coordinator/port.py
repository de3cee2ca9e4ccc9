"""The coordinator's port: who connects must prove itself, in time, and be a worker that is still missing.

On the network thread. A stranger costs a socket, a few hundred bytes and a timer, and is gone when the handshake fails
or takes too long; nothing of it reaches the job.

Invariants: at most `max_half_open` connections are in their handshake; a worker's second connection is refused at the
end of its handshake, with the first unharmed.
"""

from __future__ import annotations

import logging
import secrets
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headgate.errors import AuthError, ConfigError, HeadgateError, RemoteProtocolError, TransportError
from headgate.net.certificates import server_context
from headgate.net.tls import TlsStream
from headgate.wire.handshake import NONCE_BYTES, ServerHandshake
from headgate.worker.link import ControlLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net import Address, Identity, Listener, Stream, Transport
    from headgate.net.watch import ConnectionOptions

__all__ = ["ControlPort", "refuse_plaintext"]

_log = logging.getLogger(__name__)


class ControlPort:
    """Accepts the control links of workers.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.net.memory import MemoryTransport
    >>> from headgate.net.watch import ConnectionOptions
    >>> from headgate.worker.link import COORDINATOR
    >>> identity = Identity(JobId("etl"), AttemptId(1), COORDINATOR, secret=bytes(32))
    >>> port = ControlPort(identity, MemoryTransport(), ConnectionOptions())
    >>> str(port.listen("127.0.0.1", 7077)), port.half_open
    ('127.0.0.1:7077', 0)
    >>> port.close()
    """

    def __init__(
        self, identity: Identity, transport: Transport, options: ConnectionOptions, *, max_half_open: int = 64
    ) -> None:
        self.on_proved: Callable[[ControlLink], object] = _ignore
        """Called with each link whose peer is a worker that was `wanted`; sets the link's callbacks."""
        self.wanted: Callable[[int], bool] = lambda worker: worker >= 0
        """Whether a worker may connect."""
        self.refused = 0
        """Connections that came to nothing."""
        self._identity = identity
        self._transport = transport
        self._options = options
        self._max_half_open = max_half_open
        self._context = None if identity.credentials is None else server_context(identity.credentials)
        self._half_open: dict[ControlLink, None] = {}
        self._listener: Listener | None = None

    def listen(self, host: str, port: int) -> Address:
        """Open the port.

        Raises:
            TransportError: it is in use, or the address is not this machine's.
        """
        self._listener = self._transport.listen(host, port, self._accepted)
        return self._listener.address

    @property
    def half_open(self) -> int:
        """Connections whose peer has not proved itself yet."""
        return len(self._half_open)

    def renew(self, identity: Identity) -> None:
        """Accept the workers of another attempt, and nobody of an earlier one, however far its handshake is."""
        self._identity = identity
        for link in list(self._half_open):
            link.fail(TransportError("it is of an attempt that is over", peer=link.address))

    def close(self) -> None:
        """Accept no more, and drop who has not proved itself. May be repeated."""
        if self._listener is not None:
            self._listener.close()
        for link in list(self._half_open):
            link.abort()

    def _accepted(self, stream: Stream) -> None:
        if len(self._half_open) >= self._max_half_open:
            self.refused += 1
            _log.warning("%s: refused: %d peers have not proved themselves yet", stream.peer, len(self._half_open))
            stream.start(_Nobody())
            stream.abort()
            return
        who, tls = self._identity, None
        if self._context is not None:
            stream = tls = TlsStream(stream, self._context, self._transport.call_soon)
        handshake = ServerHandshake(
            who.secret,
            who.job,
            who.attempt,
            worker=who.worker,
            nonce=secrets.token_bytes(NONCE_BYTES),
            connected=lambda worker, _lane: not self.wanted(worker),
        )
        link = ControlLink(
            stream,
            handshake,
            self._transport,
            self._options,
            hears_coordinator=False,
            certified=lambda: None if tls is None else tls.peer_worker,
        )
        link.on_proved = lambda: self._proved(link)
        link.on_lost = lambda error: self._lost(link, error)
        self._half_open[link] = None
        link.start()

    def _proved(self, link: ControlLink) -> None:
        del self._half_open[link]
        link.on_lost = _ignore
        self.on_proved(link)

    def _lost(self, link: ControlLink, error: HeadgateError | None) -> None:
        del self._half_open[link]
        self.refused += 1
        level = logging.WARNING if isinstance(error, AuthError | RemoteProtocolError) else logging.INFO
        _log.log(level, "%s: refused: %s", link.address, error)


def refuse_plaintext(host: str) -> None:
    """Raise, if an address without a certificate can be reached from elsewhere.

    >>> refuse_plaintext("127.0.0.1")
    >>> refuse_plaintext("0.0.0.0")
    Traceback (most recent call last):
    headgate.errors.ConfigError: the coordinator's address 0.0.0.0 can be reached from other machines, and ...

    Raises:
        ConfigError: it can.
    """
    if not ip_address(host).is_loopback:
        raise ConfigError(
            f"the coordinator's address {host} can be reached from other machines, and it has no certificate: "
            "give it one, or set network.insecure_plaintext if everyone on the way may read what is said"
        )


def _ignore(_: object) -> None: ...


class _Nobody:
    """The handler of a stream that is refused."""

    def received(self, data: memoryview) -> None: ...

    def writable(self) -> None: ...

    def lost(self, error: Exception | None) -> None: ...
