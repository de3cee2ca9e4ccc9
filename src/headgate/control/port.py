"""The coordinator's port: it accepts the control links of workers that prove themselves in time and are still missing.

On the network thread. A stranger costs a socket, a few hundred bytes and a timer. It is dropped when the handshake
fails, takes too long, or is the oldest of too many; nothing of it reaches the job.

Invariants: at most `max_half_open` connections are in their handshake, and one more drops the oldest; the second
connection of a worker is refused at the end of its handshake, and the first one is not affected.
"""

from __future__ import annotations

import logging
import secrets
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headgate.control.link import ControlLink
from headgate.errors import ConfigError, TransportError
from headgate.net.certificates import server_context
from headgate.net.refusals import Refusals
from headgate.net.tls import TlsStream
from headgate.wire.half_open import HalfOpen
from headgate.wire.handshake import NONCE_BYTES, ServerHandshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.errors import HeadgateError
    from headgate.net import Address, Identity, ListeningPort, Stream, Transport
    from headgate.net.time_limits import ConnectionOptions

__all__ = ["ControlPort", "refuse_plaintext"]

_log = logging.getLogger(__name__)


class ControlPort:
    """Accepts the control links of workers.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net import Identity
    >>> from headgate.net.memory import MemoryTransport
    >>> from headgate.net.time_limits import ConnectionOptions
    >>> from headgate.control.link import COORDINATOR
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
        """Called with each link whose peer is a `wanted` worker; it sets the link's callbacks."""
        self.wanted: Callable[[int], bool] = lambda worker: worker >= 0
        """Returns True if a worker may connect."""
        self._identity = identity
        self._transport = transport
        self._options = options
        self._context = None if identity.credentials is None else server_context(identity.credentials)
        self._half_open: HalfOpen[ControlLink] = HalfOpen(max_half_open)
        self._refusals = Refusals(_log, transport)
        self._listener: ListeningPort | None = None

    def listen(self, host: str, port: int) -> Address:
        """Open the port.

        Raises:
            TransportError: it is in use, or the address is not this machine's.
        """
        self._listener = self._transport.listen(host, port, self._accepted)
        return self._listener.address

    @property
    def half_open(self) -> int:
        """How many connections are in their handshake."""
        return len(self._half_open)

    @property
    def refused(self) -> int:
        """How many connections were refused."""
        return self._refusals.count

    def renew(self, identity: Identity) -> None:
        """Accept only the workers of another attempt from now on; drop all handshakes."""
        self._identity = identity
        for link in self._half_open:
            link.fail(TransportError("it is of an attempt that is over", peer=link.peer))

    def close(self) -> None:
        """Close the port and drop all handshakes. May be repeated."""
        if self._listener is not None:
            self._listener.close()
        for link in self._half_open:
            link.abort()
        self._refusals.close()

    def _accepted(self, stream: Stream) -> None:
        identity, tls = self._identity, None
        if self._context is not None:
            stream = tls = TlsStream(stream, self._context, self._transport.post)
        handshake = ServerHandshake(
            identity.secret,
            identity.job,
            identity.attempt,
            worker=identity.worker,
            nonce=secrets.token_bytes(NONCE_BYTES),
            connected=lambda worker, _lane: not self.wanted(worker),
        )
        link = ControlLink(
            stream,
            handshake,
            self._transport,
            self._options,
            to_coordinator=False,
            certified=lambda: None if tls is None else tls.peer_worker,
        )
        link.on_proved = lambda: self._proved(link)
        link.on_lost = lambda error: self._lost(link, error)
        oldest = self._half_open.admit(link)
        if oldest is not None:
            oldest.fail(TransportError(self._half_open.too_many, peer=oldest.peer))
        link.start()

    def _proved(self, link: ControlLink) -> None:
        self._half_open.leave(link)
        link.on_lost = _ignore
        self.on_proved(link)

    def _lost(self, link: ControlLink, error: HeadgateError | None) -> None:
        self._half_open.leave(link)
        self._refusals.add(link.peer, error)


def refuse_plaintext(host: str) -> None:
    """Raise if an address can be reached from other machines; for a coordinator without a certificate.

    >>> refuse_plaintext("127.0.0.1")
    >>> refuse_plaintext("0.0.0.0")
    Traceback (most recent call last):
    headgate.errors.ConfigError: the coordinator's address 0.0.0.0 can be reached from other machines, and ...

    Raises:
        ConfigError: it is not a loopback address.
    """
    if not ip_address(host).is_loopback:
        raise ConfigError(
            f"the coordinator's address {host} can be reached from other machines, and it has no certificate: "
            "give it one, or set network.insecure_plaintext if everyone on the way may read the messages"
        )


def _ignore(_: object) -> None: ...
