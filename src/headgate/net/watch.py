"""The clock of one connection: who does not prove itself, falls silent, or takes nothing, in time, has failed.

On the network thread. It looks a few times per idle time-out, so a failure is noticed at most that much later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headgate.errors import TransportError

if TYPE_CHECKING:
    from headgate.errors import HeadgateError
    from headgate.net.outbox import Outbox
    from headgate.net.pump import Pump
    from headgate.net.stream import Timer, Transport

__all__ = ["ConnectionOptions", "Watch", "Watched"]

_LOOKS: Final = 6  # per idle time-out
_SLOWEST_FRAME: Final = 10  # idle time-outs that one frame may take, as long as some of it comes


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Time limits of a connection.

    >>> ConnectionOptions().handshake_timeout_ns
    5000000000
    """

    handshake_timeout_ns: int = 5_000_000_000
    idle_timeout_ns: int = 60_000_000_000


class Watched(Protocol):
    """A connection, as far as its watch knows it."""

    peer: str

    @property
    def reads(self) -> bool:
        """Whether it reads: where it has stopped, silence means nothing."""
        ...

    def keep_alive(self) -> None:
        """Say something, for nothing was said for a while."""
        ...

    def fail(self, error: HeadgateError) -> None:
        """Give up."""
        ...


class Watch:
    """Keeps a connection to its time limits. `must_be_read`: a peer that takes nothing has failed, for it has credit.

    >>> from headgate.net.memory import MemoryTransport
    >>> from unittest.mock import Mock
    >>> connection, transport = Mock(peer="127.0.0.1:7077"), MemoryTransport()
    >>> limits = ConnectionOptions(handshake_timeout_ns=1000)
    >>> watch = Watch(connection, Mock(), Mock(), transport, limits, must_be_read=True)
    >>> transport.advance(1000)
    >>> connection.fail.call_args.args[0]
    TransportError('the handshake took more than 1e-06 s (127.0.0.1:7077)')
    """

    def __init__(
        self,
        connection: Watched,
        pump: Pump,
        outbox: Outbox,
        transport: Transport,
        options: ConnectionOptions,
        *,
        must_be_read: bool,
    ) -> None:
        self._connection = connection
        self._pump = pump
        self._outbox = outbox
        self._must_be_read = must_be_read
        self._transport = transport
        self._options = options
        self._frames = self._items = self._out = -1
        self._framed_ns = self._heard_ns = self._spoke_ns = self._took_ns = 0
        now_ns = transport.now_ns()
        self._timer: Timer = transport.call_at(now_ns + options.handshake_timeout_ns, self._on_slow_handshake)

    def proved(self) -> None:
        """The handshake is done: from now on the idle time-out counts."""
        self._timer.cancel()
        self._framed_ns = self._heard_ns = self._spoke_ns = self._took_ns = self._transport.now_ns()
        self._look()

    def cancel(self) -> None:
        """Look no more. May be repeated."""
        self._timer.cancel()

    def _on_slow_handshake(self) -> None:
        self._fail(f"the handshake took more than {self._options.handshake_timeout_ns / 1e9:g} s")

    def _look(self) -> None:
        connection, now_ns, limit_ns = self._connection, self._transport.now_ns(), self._options.idle_timeout_ns
        limit = f"{limit_ns / 1e9:g} s (network.idle_timeout)"
        self._timer = self._transport.call_at(now_ns + max(1, limit_ns // _LOOKS), self._look)
        pump, outbox = self._pump, self._outbox
        if pump.frames_in != self._frames or not connection.reads:
            self._frames, self._framed_ns = pump.frames_in, now_ns
        if pump.items_in != self._items or not connection.reads:
            self._items, self._heard_ns = pump.items_in, now_ns
        if outbox.written_bytes != self._out:
            self._out, self._spoke_ns, self._took_ns = outbox.written_bytes, now_ns, now_ns
        if not outbox.waiting_bytes or not self._must_be_read:
            self._took_ns = now_ns
        if now_ns - self._heard_ns >= limit_ns:
            self._fail(f"nothing was heard for {limit}")
        elif now_ns - self._framed_ns >= limit_ns * _SLOWEST_FRAME:
            self._fail(f"no frame was completed in {_SLOWEST_FRAME} times {limit}")
        elif now_ns - self._took_ns >= limit_ns:
            self._fail(f"it took nothing for {limit}")
        elif now_ns - self._spoke_ns >= limit_ns // 3:
            connection.keep_alive()

    def _fail(self, text: str) -> None:
        self._connection.fail(TransportError(text, peer=self._connection.peer))
