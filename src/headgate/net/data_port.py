"""The port of a worker: it accepts connections of workers that prove themselves in time.

On the network thread. A stranger costs a socket, a few hundred bytes and a timer. It is dropped when the handshake
fails, takes too long, or is the oldest of too many.

Invariant: at most `max_half_open` connections are in their handshake, and one more drops the oldest.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headgate.errors import TransportError
from headgate.net.refusals import Refusals
from headgate.wire.half_open import HalfOpen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.errors import HeadgateError
    from headgate.net.connection import Connection
    from headgate.net.owner import ConnectionOwner
    from headgate.net.stream import Address, Stream, Transport

__all__ = ["DataPort"]

_log = logging.getLogger(__name__)


class DataPort:
    """Accepts the connections of other workers.

    `accept` makes a connection from a stream, not started; `adopt` returns its owner once its worker is known.

    >>> from headgate.net.memory import MemoryTransport
    >>> port = DataPort(MemoryTransport(), accept=print, adopt=print, max_half_open=64)
    >>> str(port.listen("127.0.0.1", 7077)), port.half_open
    ('127.0.0.1:7077', 0)
    >>> port.close()
    """

    def __init__(
        self,
        transport: Transport,
        accept: Callable[[Stream, ConnectionOwner], Connection],
        adopt: Callable[[Connection], ConnectionOwner],
        *,
        max_half_open: int,
    ) -> None:
        self._transport = transport
        self._accept = accept
        self._adopt = adopt
        self._half_open: HalfOpen[Connection] = HalfOpen(max_half_open)
        self._owners: dict[Connection, ConnectionOwner] = {}
        self._refusals = Refusals(_log, transport)

    def listen(self, host: str, port: int) -> Address:
        """Open the port."""
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

    def close(self) -> None:
        """Close the port and drop all handshakes. May be repeated."""
        self._listener.close()
        for connection in self._half_open:
            connection.close_duplicate()
        self._refusals.close()

    def _accepted(self, stream: Stream) -> None:
        connection = self._accept(stream, self)
        oldest = self._half_open.admit(connection)
        if oldest is not None:
            oldest.fail(TransportError(self._half_open.too_many, peer=oldest.peer))
        connection.start()

    # `ConnectionOwner` of connections in their handshake; later calls are passed to the real owner.

    def proved(self, connection: Connection) -> None:
        """Find the connection's owner: its peer has proved itself."""
        self._half_open.leave(connection)
        owner = self._owners[connection] = self._adopt(connection)
        owner.proved(connection)

    def queue_frames_locked(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        self._owners[connection].queue_frames_locked(connection)

    def has_frames(self, connection: Connection) -> bool:
        """See `ConnectionOwner`."""
        return self._owners[connection].has_frames(connection)

    def wants(self, connection: Connection) -> bool:
        """See `ConnectionOwner`."""
        return self._owners[connection].wants(connection)

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """Pass the end on to the owner, or count a refusal."""
        self._half_open.leave(connection)
        owner = self._owners.pop(connection, None)
        if owner is not None:
            owner.lost(connection, error)
        elif error is not None:
            self._refusals.add(connection.peer, error)
