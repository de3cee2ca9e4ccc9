"""The port of a worker: who connects must prove itself, in time, and not with too many at once.

On the network thread. A stranger costs a socket, a few hundred bytes and a timer, and is gone when the handshake fails
or takes too long.

Invariant: at most `max_half_open` connections are in their handshake; one more is refused at once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headgate.errors import AuthError, HeadgateError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.connection import Connection
    from headgate.net.owner import ConnectionOwner
    from headgate.net.stream import Address, Stream, Transport

__all__ = ["Server"]

_log = logging.getLogger(__name__)


class Server:
    """Accepts the connections of other workers.

    `accept` makes a connection, not started yet, from a stream; `adopt` finds the owner of one whose worker is known.

    >>> from headgate.net.memory import MemoryTransport
    >>> server = Server(accept=print, adopt=print, max_half_open=64)
    >>> str(server.listen(MemoryTransport(), "127.0.0.1", 7077)), server.half_open
    ('127.0.0.1:7077', 0)
    >>> server.close()
    """

    def __init__(
        self,
        accept: Callable[[Stream, ConnectionOwner], Connection],
        adopt: Callable[[Connection], ConnectionOwner],
        *,
        max_half_open: int,
    ) -> None:
        self._accept = accept
        self._adopt = adopt
        self._max_half_open = max_half_open
        self._half_open: dict[Connection, None] = {}
        self._owners: dict[Connection, ConnectionOwner] = {}
        self.refused = 0

    def listen(self, transport: Transport, host: str, port: int) -> Address:
        """Open the port."""
        self._listener = transport.listen(host, port, self._accepted)
        return self._listener.address

    @property
    def half_open(self) -> int:
        """Connections whose peer has not proved itself yet."""
        return len(self._half_open)

    def close(self) -> None:
        """Accept no more, and drop who has not proved itself."""
        self._listener.close()
        for connection in list(self._half_open):
            connection.close_duplicate()

    def _accepted(self, stream: Stream) -> None:
        if len(self._half_open) >= self._max_half_open:
            self.refused += 1
            _log.warning("%s: refused: %d peers have not proved themselves yet", stream.peer, len(self._half_open))
            stream.start(_Nobody())
            stream.abort()
            return
        connection = self._accept(stream, self)
        self._half_open[connection] = None
        connection.start()

    # What connections call until their owner is known, and then pass on.

    def proved(self, connection: Connection) -> None:
        """A peer has proved itself."""
        self._half_open.pop(connection, None)
        owner = self._owners[connection] = self._adopt(connection)
        owner.proved(connection)

    def say_locked(self, connection: Connection) -> None:
        """See `ConnectionOwner`."""
        self._owners[connection].say_locked(connection)

    def due(self, connection: Connection) -> bool:
        """See `ConnectionOwner`."""
        return self._owners[connection].due(connection)

    def wants(self, connection: Connection) -> bool:
        """See `ConnectionOwner`."""
        return self._owners[connection].wants(connection)

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """A connection is over."""
        self._half_open.pop(connection, None)
        owner = self._owners.pop(connection, None)
        if owner is not None:
            owner.lost(connection, error)
        elif isinstance(error, AuthError | RemoteProtocolError):
            self.refused += 1
            _log.warning("%s: refused: %s", connection.peer, error)
        elif error is not None:
            self.refused += 1
            _log.info("%s: %s", connection.peer, error)


class _Nobody:
    """The handler of a stream that is refused."""

    def received(self, data: memoryview) -> None: ...

    def writable(self) -> None: ...

    def lost(self, error: Exception | None) -> None: ...
