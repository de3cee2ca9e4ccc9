"""The owner of a connection, and the statistics of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headgate.net.stream import PathStatistics

if TYPE_CHECKING:
    from headgate.errors import HeadgateError
    from headgate.net.connection import Connection
    from headgate.net.context import PumpStatistics
    from headgate.wire.states import ConnectionState

__all__ = ["ConnectionOwner", "ConnectionStatistics"]

_UNKNOWN_PATH = PathStatistics()


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """The figures of one connection.

    >>> from headgate.net.context import PumpStatistics
    >>> from headgate.wire.states import ConnectionState
    >>> traffic = PumpStatistics(sending=1, receiving=0, bytes_in=0, bytes_out=0, buffers_in=0, buffers_out=0)
    >>> ConnectionStatistics("127.0.0.1:7077", 3, ConnectionState.OPEN, waiting_bytes=0, traffic=traffic).worker
    3
    """

    peer: str
    worker: int
    state: ConnectionState
    waiting_bytes: int  # taken from partitions and not written yet
    traffic: PumpStatistics
    written_bytes: int = 0  # taken by the stream
    blocked_ns: int = 0  # the time in which the stream has taken nothing
    path: PathStatistics = _UNKNOWN_PATH
    lane: int = 0  # the number of the connection among those of the two workers: see `peers`


class ConnectionOwner(Protocol):
    """The object that needs a connection, and is called when its state changes. On the network thread."""

    def proved(self, connection: Connection) -> None:
        """Begin to use the connection: the peer has proved its identity."""
        ...

    def queue_frames_locked(self, connection: Connection) -> None:
        """Queue the frames of the scheduled channels. Called before each write."""
        ...

    def has_frames(self, connection: Connection) -> bool:
        """Return True if a channel has something to send."""
        ...

    def wants(self, connection: Connection) -> bool:
        """Return True if a channel is about to use the connection."""
        ...

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """Note the end of the connection; None: both sides wanted it, or it was a duplicate."""
        ...
