"""The time limits of one connection: handshake, silence, one frame, and a peer that accepts no bytes.

On the network thread. A timer checks six times per idle time-out, so a failure is noticed at most a sixth of it late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError

if TYPE_CHECKING:
    from headgate.net.authenticated import AuthenticatedStream
    from headgate.net.outbox import Outbox
    from headgate.net.stream import Timer, Transport

__all__ = ["ConnectionOptions", "TimeLimits"]

_CHECKS: Final = 6  # per idle time-out
_SLOWEST_FRAME: Final = 10  # idle time-outs that one frame may take while parts of it arrive


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Time limits of a connection, and how many segments may wait for its socket.

    >>> ConnectionOptions().handshake_timeout_ns
    5000000000
    """

    handshake_timeout_ns: int = 5_000_000_000
    idle_timeout_ns: int = 60_000_000_000
    high_mark: int = 16  # segments: with so many waiting, no more are taken from partitions
    low_mark: int = 1  # with fewer than these waiting, more are taken again


class TimeLimits:
    """Fails a connection that exceeds a time limit, and keeps a silent one alive.

    `must_be_read`: the peer fails if it accepts no bytes for the idle time-out. With credit it always has room.

    >>> from headgate.net.memory import MemoryTransport
    >>> from unittest.mock import Mock
    >>> connection, transport = Mock(peer="127.0.0.1:7077"), MemoryTransport()
    >>> limits = TimeLimits(connection, Mock(), transport, ConnectionOptions(1000), must_be_read=True)
    >>> transport.advance(1000)
    >>> connection.fail.call_args.args[0]
    TransportError('the handshake took more than 1e-06 s (127.0.0.1:7077)')
    """

    def __init__(
        self,
        connection: AuthenticatedStream,
        outbox: Outbox,
        transport: Transport,
        options: ConnectionOptions,
        *,
        must_be_read: bool,
    ) -> None:
        self._connection = connection
        self._outbox = outbox
        self._must_be_read = must_be_read
        self._transport = transport
        self._options = options
        self._frames = self._items = self._written = -1  # at the last check
        self._frame_ns = self._item_ns = self._write_ns = self._accepted_ns = 0  # when each last changed
        now_ns = transport.now_ns()
        self._timer: Timer = transport.call_at(now_ns + options.handshake_timeout_ns, self._on_slow_handshake)

    def begin_idle(self) -> None:
        """Replace the handshake's limit by the idle time-out: the peer has proved itself."""
        self._timer.cancel()
        self._frame_ns = self._item_ns = self._write_ns = self._accepted_ns = self._transport.now_ns()
        self._check()

    def cancel(self) -> None:
        """Stop checking. May be repeated."""
        self._timer.cancel()

    def _on_slow_handshake(self) -> None:
        self._fail(f"the handshake took more than {self._options.handshake_timeout_ns / 1e9:g} s")

    def _check(self) -> None:
        connection, now_ns, limit_ns = self._connection, self._transport.now_ns(), self._options.idle_timeout_ns
        limit = f"{limit_ns / 1e9:g} s (network.idle_timeout)"
        self._timer = self._transport.call_at(now_ns + max(1, limit_ns // _CHECKS), self._check)
        outbox, reads = self._outbox, connection.reads
        if connection.frames_in != self._frames or not reads:
            self._frames, self._frame_ns = connection.frames_in, now_ns
        if connection.items_in != self._items or not reads:
            self._items, self._item_ns = connection.items_in, now_ns
        if outbox.written_bytes != self._written:
            self._written, self._write_ns, self._accepted_ns = outbox.written_bytes, now_ns, now_ns
        if not outbox.waiting_bytes or not self._must_be_read:
            self._accepted_ns = now_ns
        if now_ns - self._item_ns >= limit_ns:
            self._fail(f"nothing was received for {limit}")
        elif now_ns - self._frame_ns >= limit_ns * _SLOWEST_FRAME:
            self._fail(f"no frame was completed in {_SLOWEST_FRAME} times {limit}")
        elif now_ns - self._accepted_ns >= limit_ns:
            self._fail(f"it accepted no bytes for {limit}")
        elif now_ns - self._write_ns >= limit_ns // 3:
            connection.keep_alive()

    def _fail(self, text: str) -> None:
        self._connection.fail(TransportError(text, peer=self._connection.peer))
