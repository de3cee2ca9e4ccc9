"""Connections whose peer has not proved itself yet: how many there may be, and which one is dropped for a new one.

Sans-IO, used by the port of a worker (`net.data_port`) and by that of the coordinator (`control.port`).

A connection without the job's secret stays half-open until the handshake timeout. If the port refused new connections
at the limit, `limit` silent strangers would lock out every worker for that time. So the port admits the new connection
and drops the oldest: a worker's handshake takes two round trips, and a stranger must open `limit` connections within
them to interrupt it. An interrupted worker connects again (`net.retry`).

Invariant: at most `limit` connections are half-open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["HalfOpen"]

_C = TypeVar("_C", bound="Hashable")


class HalfOpen(Generic[_C]):
    """The half-open connections of one port, oldest first.

    >>> half_open = HalfOpen(limit=2)
    >>> [half_open.admit(name) for name in ("first", "second", "third")]
    [None, None, 'first']
    >>> list(half_open)
    ['second', 'third']
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: dict[_C, None] = {}

    def admit(self, connection: _C) -> _C | None:
        """Add a connection. Return the oldest one, removed, if there are more than `limit`: the caller drops it."""
        self._waiting[connection] = None
        if len(self._waiting) <= self.limit:
            return None
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        return oldest

    def leave(self, connection: _C) -> None:
        """Remove a connection: its peer has proved itself, or it has ended. Idempotent."""
        self._waiting.pop(connection, None)

    @property
    def too_many(self) -> str:
        """The reason for which a connection is dropped for a new one, for error texts."""
        return f"it had not proved itself, and {self.limit} newer connections have not either (network.max_half_open)"

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[_C]:
        """Iterate over a copy: connections may leave during the iteration."""
        return iter(tuple(self._waiting))
