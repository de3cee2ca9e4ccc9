"""What a connection needs of the world: a stream of bytes to one peer, a clock with timers, and a way to get streams.

Sockets under an event loop are one such world (`sockets`), an in-process pipe another (`memory`), the simulator a
third. Everything here is called on one thread, the network thread, except `call_soon` and `path`, which any thread may
call.

Invariants: after `start` a handler hears `lost` exactly once, last, and never from inside a call of its own to the
stream; a view given to `received` is valid during that call only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Address", "Listener", "PathStatistics", "Stream", "StreamHandler", "Timer", "Transport"]


class Address(NamedTuple):
    """Where a worker listens.

    >>> str(Address("127.0.0.1", 7077)), str(Address("::1", 7077))
    ('127.0.0.1:7077', '[::1]:7077')
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PathStatistics:
    """What the system knows of the way to a peer; -1: it does not say.

    >>> PathStatistics(round_trip_us=80).unsent_bytes
    -1
    """

    round_trip_us: int = -1
    unsent_bytes: int = -1  # that it has taken and not put on the network yet


class StreamHandler(Protocol):
    """Who uses a stream: a connection."""

    def received(self, data: memoryview) -> None:
        """Bytes came. Not called while reading is paused."""
        ...

    def writable(self) -> None:
        """The stream takes bytes again, after a `write` that took fewer than it was offered."""
        ...

    def lost(self, error: Exception | None) -> None:
        """The stream is over: by `close` or the peer's orderly end (None), or by an error."""
        ...


class Stream(Protocol):
    """A reliable, ordered, two-way stream of bytes."""

    @property
    def peer(self) -> str:
        """Whom error texts name: an address."""
        ...

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        ...

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; how many of them were taken, in order, and need not be kept any more.

        Who is left with some offers them again after `writable`. A broken stream takes none; `lost` follows.
        """
        ...

    def pause_reading(self) -> None:
        """No more `received`, so that the peer cannot send for long. May be repeated."""
        ...

    def resume_reading(self) -> None:
        """Go on with `received`. May be repeated."""
        ...

    def close(self) -> None:
        """Send what was taken, then end; `lost` follows. Nothing is received any more. May be repeated."""
        ...

    def abort(self) -> None:
        """End at once; `lost` follows. May be repeated."""
        ...

    def path(self) -> PathStatistics:
        """What the system says of the way to the peer; from any thread."""
        ...


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None:
        """Let it not happen. May be repeated, also when it has happened."""
        ...


class Listener(Protocol):
    """An open port."""

    @property
    def address(self) -> Address:
        """Where it listens."""
        ...

    def close(self) -> None:
        """Accept no more. May be repeated."""
        ...


class Transport(Protocol):
    """Time and streams, on one thread."""

    def now_ns(self) -> int:
        """The time, on a clock that only goes forward."""
        ...

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function on the network thread at a time; from that thread only."""
        ...

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the network thread as soon as it is free; from any thread."""
        ...

    def call_lazily(self, function: Callable[[], object]) -> None:
        """As `call_soon`, but within a moment: not worth a change of threads. From any thread."""
        ...

    def attend(self) -> None:
        """What the peers say next is waited for: not within a moment, but at once. From any thread."""
        ...

    def glance(self) -> None:
        """Hear what the peers have said by now, unless somebody is about to. From any thread."""
        ...

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> Listener:
        """Open a port (0: any that is free); `accepted` gets a stream for each who connects, and starts it.

        Raises:
            TransportError: the port is in use, or the address is not this machine's.
        """
        ...

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener; `connected` gets a stream to start, or the TransportError. Cancel it to give up."""
        ...
