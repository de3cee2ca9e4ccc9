"""The log of a port's refused connections: one line a minute, however many strangers connect.

On the network thread. The first refusal is logged at once with its reason. Those of the next minute are counted, and a
second line reports their number, with the last warning among them. Each of them has a line of its own at level DEBUG.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headgate.errors import AuthError, RemoteProtocolError

if TYPE_CHECKING:
    from headgate.errors import HeadgateError
    from headgate.net.stream import Timer, Transport

__all__ = ["Refusals"]

_MINUTE_NS: Final = 60_000_000_000


class Refusals:
    """Counts and logs the refused connections of one port.

    >>> from headgate.errors import AuthError
    >>> from headgate.net.memory import MemoryTransport
    >>> refusals = Refusals(logging.getLogger("headgate.example"), MemoryTransport())
    >>> refusals.add("10.0.0.7:4711", AuthError("the peer did not prove that it belongs to this job"))
    >>> refusals.count
    1
    """

    def __init__(self, log: logging.Logger, transport: Transport) -> None:
        self.count = 0
        """All refused connections so far."""
        self._log = log
        self._transport = transport
        self._minute: Timer | None = None  # runs from a line on: until it ends, refusals are counted
        self._more = 0
        self._level = logging.INFO
        self._last = ""

    def add(self, peer: str, error: HeadgateError | None) -> None:
        """Note that a connection was refused: at level WARNING if its peer could not prove itself, else INFO."""
        self.count += 1
        level = logging.WARNING if isinstance(error, AuthError | RemoteProtocolError) else logging.INFO
        if self._minute is None:
            self._log.log(level, "%s: refused: %s", peer, error)
            self._begin_minute()
            return
        self._log.debug("%s: refused: %s", peer, error)
        self._more += 1
        if level >= self._level:
            self._level, self._last = level, f"{peer}: {error}"

    def close(self) -> None:
        """Log the number of refusals that no line reports yet. May be repeated."""
        if self._minute is not None:
            self._minute.cancel()
        self._report()

    def _begin_minute(self) -> None:
        self._minute = self._transport.call_at(self._transport.now_ns() + _MINUTE_NS, self._on_minute)

    def _on_minute(self) -> None:
        self._minute = None
        if self._more:
            self._report()
            self._begin_minute()

    def _report(self) -> None:
        if self._more:
            self._log.log(self._level, "refused %d more in the last minute, among them %s", self._more, self._last)
        self._more, self._level = 0, logging.INFO
