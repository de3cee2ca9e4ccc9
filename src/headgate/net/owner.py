"""Who wants a connection, and how a connection looks from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headgate.net.stream import PathStatistics

if TYPE_CHECKING:
    from headgate.errors import HeadgateError
    from headgate.net.connection import Connection
    from headgate.net.exchange import PumpStatistics
    from headgate.wire.states import ConnectionState

__all__ = ["ConnectionOwner", "ConnectionStatistics"]

_NOTHING_SAID = PathStatistics()


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """A connection at one moment.

    >>> from headgate.net.exchange import PumpStatistics
    >>> from headgate.wire.states import ConnectionState
    >>> traffic = PumpStatistics(sending=1, receiving=0, bytes_in=0, bytes_out=0, buffers_in=0, buffers_out=0)
    >>> ConnectionStatistics("127.0.0.1:7077", 3, ConnectionState.OPEN, waiting_bytes=0, traffic=traffic).worker
    3
    """

    peer: str
    worker: int
    state: ConnectionState
    waiting_bytes: int  # taken from partitions and not yet written
    traffic: PumpStatistics
    written_bytes: int = 0  # all that the stream has taken
    blocked_ns: int = 0  # for how long it has taken nothing
    path: PathStatistics = _NOTHING_SAID
    lane: int = 0  # two workers have one connection in each: see `peers`


class ConnectionOwner(Protocol):
    """Who wants a connection, and is told what becomes of it. On the network thread."""

    def proved(self, connection: Connection) -> None:
        """The peer has proved itself: the connection may be used."""
        ...

    def say_locked(self, connection: Connection) -> None:
        """Before each write: let channels that are due say what they have to."""
        ...

    def due(self, connection: Connection) -> bool:
        """Whether a channel has something to say."""
        ...

    def wants(self, connection: Connection) -> bool:
        """Whether a channel will use the connection that does not yet."""
        ...

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """The connection is over; None: as both wanted, or as a duplicate that is not needed."""
        ...
