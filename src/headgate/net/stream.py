"""The interfaces under a connection: a stream of bytes to one peer, timers, and a transport that opens streams.

Implemented by sockets under an event loop (`sockets`), an in-process pipe (`memory`), and the simulator. Everything
here is called on one thread, the network thread, except `post`, `poll_once` and `path`, which any thread may call.

Invariants: after `start`, `lost` is called exactly once, as the last call to the handler, and never from inside a call
to the stream; a view given to `received` is valid during that call only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Address", "ListeningPort", "PathStatistics", "Stream", "StreamHandler", "Timer", "Transport"]


class Address(NamedTuple):
    """The address at which a worker listens.

    >>> str(Address("127.0.0.1", 7077)), str(Address("::1", 7077))
    ('127.0.0.1:7077', '[::1]:7077')
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PathStatistics:
    """The kernel's figures of the path to a peer; -1: not known.

    >>> PathStatistics(round_trip_us=80).unsent_bytes
    -1
    """

    round_trip_us: int = -1
    unsent_bytes: int = -1  # taken by the kernel and not sent yet


class StreamHandler(Protocol):
    """The user of a stream: a connection."""

    def received(self, data: memoryview) -> None:
        """Receive bytes. Not called while reading is paused."""
        ...

    def writable(self) -> None:
        """Continue writing: the stream takes bytes again, after a `write` that took fewer than it was offered."""
        ...

    def lost(self, error: Exception | None) -> None:
        """Note the end of the stream: by `close` or the peer's orderly end (None), or by an error."""
        ...


class Stream(Protocol):
    """A reliable, ordered, two-way stream of bytes."""

    @property
    def peer(self) -> str:
        """The peer's address, for error texts."""
        ...

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        ...

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; return how many of them were taken, in order: the caller need not keep those.

        The caller offers the rest again after `writable`. A broken stream takes none; `lost` follows.
        """
        ...

    def pause_reading(self) -> None:
        """Stop calling `received`; the peer is blocked once buffers are full. May be repeated."""
        ...

    def resume_reading(self) -> None:
        """Call `received` again. May be repeated."""
        ...

    def close(self) -> None:
        """Send the bytes that were taken, then end; `lost` follows. Nothing more is received. May be repeated."""
        ...

    def abort(self) -> None:
        """End at once; `lost` follows. May be repeated."""
        ...

    def path(self) -> PathStatistics:
        """Return the kernel's figures of the path to the peer; from any thread."""
        ...


class Timer(Protocol):
    """A call that is made later unless it is cancelled."""

    def cancel(self) -> None:
        """Cancel the call. May be repeated, also after the call."""
        ...


class ListeningPort(Protocol):
    """An open port."""

    @property
    def address(self) -> Address:
        """The address at which it listens."""
        ...

    def close(self) -> None:
        """Stop accepting. May be repeated."""
        ...


class Transport(Protocol):
    """Timers and streams, on one thread."""

    def now_ns(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function on the network thread at a time; from that thread only."""
        ...

    def post(self, callback: Callable[[], object], *, urgent: bool = True) -> None:
        """Run a callback on the network thread; urgent ones in the order of posting. From any thread.

        A callback that is not urgent is delayed by about a millisecond rather than cause a thread switch.
        """
        ...

    def poll_once(self, *, reply_expected: bool = False) -> object:
        """Receive what has arrived, without blocking, unless another thread polls. From any thread.

        With `reply_expected`, receive without delay also what arrives next.
        """
        ...

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> ListeningPort:
        """Open a port (0: any that is free); `accepted` gets a stream for each connection, and starts it.

        Raises:
            TransportError: the port is in use, or the address is not this machine's.
        """
        ...

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener; `connected` gets a stream to start, or a TransportError. Cancel the result to stop."""
        ...
