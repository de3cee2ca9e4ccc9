"""Streams without sockets: a pipe inside one process, and a transport of such pipes in virtual time.

For tests and simulations: the caller runs the transport step by step, in an order that is the same every time. There is
no thread and no randomness; an error that a callback raises reaches the caller.

Invariants: at most `capacity_bytes` are in flight in each direction; `received`, `writable` and `lost` are called
through the `post` that was handed in, never from inside a call to the stream; the memory of a view is
overwritten after `received`, as the slab of a socket would be.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.errors import InvariantViolated, TransportError
from headgate.net.loop.timers import Timers
from headgate.net.stream import Address, PathStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.net.stream import Stream, StreamHandler, Timer

    Post = Callable[[Callable[[], object]], object]

__all__ = ["MemoryListener", "MemoryStream", "MemoryTransport", "pipe"]

_CAPACITY_BYTES: Final = 64 * 1024
_FIRST_PORT: Final = 49_152  # the first of the ports for private use
_MOST_STEPS: Final = 1_000_000  # at one time: more is an endless loop


class _State(enum.Enum):
    OPEN = "open"
    OVER = "over"  # `lost` was called, or is posted


def pipe(
    post: Post, capacity_bytes: int = _CAPACITY_BYTES, peers: tuple[str, str] = ("right", "left")
) -> tuple[MemoryStream, MemoryStream]:
    """Return two streams, each the other's peer: the first has `peers[0]` at its other end.

    >>> due: list[Callable[[], object]] = []
    >>> left, right = pipe(due.append, capacity_bytes=4)
    >>> left.peer, left.write([b"abc", b"def"])
    ('right', 4)
    """
    assert capacity_bytes > 0, "a pipe that takes nothing never ends"
    left = MemoryStream(post, capacity_bytes, peers[0])
    right = MemoryStream(post, capacity_bytes, peers[1])
    left.join(right)
    right.join(left)
    return left, right


class MemoryStream:
    """One end of a `pipe`.

    >>> from collections import deque
    >>> class Printer:
    ...     def received(self, data): print(bytes(data))
    ...     def writable(self): print("writable")
    ...     def lost(self, error): print("lost", error)
    >>> due = deque()
    >>> left, right = pipe(due.append)
    >>> right.start(Printer()); _ = left.write([b"hello"]); left.close()
    >>> while due: due.popleft()()
    b'hello'
    lost None
    """

    def __init__(self, post: Post, capacity_bytes: int, peer: str) -> None:
        self._post = post
        self._capacity_bytes = capacity_bytes
        self._peer = peer
        self._other: MemoryStream = self
        self._handler: StreamHandler | None = None
        self._state = _State.OPEN
        self._error: TransportError | None = None
        self._inbox = bytearray()  # sent by the other, not received yet
        self._ended = False  # the other sends no more: the inbox holds the last bytes
        self._paused = False
        self._blocked = False  # took less than it was offered; `writable` follows
        self._delivering = False  # `_deliver` is posted

    def join(self, other: MemoryStream) -> None:
        """Make another stream the other end of this one; by `pipe` only."""
        self._other = other

    @property
    def peer(self) -> str:
        """The peer, for error texts."""
        return self._peer

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        assert self._handler is None, "a stream is started once"
        self._handler = handler
        if self._state is _State.OVER:
            self._post(self._call_lost)
            return
        self._deliver_soon()
        self._unblock()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; return how many of them there was room for."""
        if self._state is _State.OVER or self._blocked:
            return 0
        if self._other._state is _State.OVER:  # it closed, and discards its input
            return sum(map(len, pieces))
        room, taken = self._capacity_bytes - len(self._other._inbox), 0
        for piece in pieces:
            self._other._inbox += (part := piece[: room - taken])
            taken += len(part)
        self._blocked = taken < sum(map(len, pieces))
        self._other._deliver_soon()
        return taken

    def pause_reading(self) -> None:
        """Stop calling `received`. May be repeated."""
        self._paused = True

    def resume_reading(self) -> None:
        """Call `received` again. May be repeated."""
        self._paused = False
        self._deliver_soon()

    def close(self) -> None:
        """End in order: the other end first receives all bytes that were taken. May be repeated."""
        if self._state is _State.OPEN:
            self._end(None)
            self._other._ended = True
            self._other._deliver_soon()
            self._other._unblock()

    def abort(self) -> None:
        """End at once: the other end receives nothing more, and its `lost` gets a reset. May be repeated."""
        if self._state is _State.OPEN:
            self._end(None)
        other = self._other
        if other._state is _State.OPEN:
            other._end(TransportError("the connection broke: reset by the peer", peer=other._peer))

    def path(self) -> PathStatistics:
        """See `Stream`: there is no kernel in between."""
        return PathStatistics()

    def _deliver_soon(self) -> None:
        due = (self._inbox or self._ended) and self._handler is not None and not self._paused
        if due and not self._delivering and self._state is _State.OPEN:
            self._delivering = True
            self._post(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        if self._paused or self._state is _State.OVER or self._handler is None:
            return
        if not self._inbox:
            self._end(None)
            return
        data, self._inbox = self._inbox, bytearray()
        self._other._unblock()
        self._handler.received(memoryview(data))
        data[:] = b"\xdd" * len(data)
        self._deliver_soon()

    def _unblock(self) -> None:
        if self._can_continue():
            self._post(self._call_writable)

    def _call_writable(self) -> None:
        if self._can_continue() and self._handler is not None:
            self._blocked = False
            self._handler.writable()

    def _can_continue(self) -> bool:
        has_room = len(self._other._inbox) < self._capacity_bytes
        return self._blocked and has_room and self._handler is not None and self._state is _State.OPEN

    def _end(self, error: TransportError | None) -> None:
        self._state, self._error = _State.OVER, error
        self._inbox.clear()
        if self._handler is not None:
            self._post(self._call_lost)

    def _call_lost(self) -> None:
        assert self._handler is not None, "only a started stream is lost"
        self._handler.lost(self._error)


class MemoryTransport:
    """A `Transport` inside one process, with a clock that `advance` moves.

    >>> transport = MemoryTransport()
    >>> _ = transport.call_at(5_000_000_000, lambda: print("five seconds later"))
    >>> transport.post(lambda: print("now"))
    >>> transport.run_until_idle()
    now
    >>> transport.advance(5_000_000_000)
    five seconds later
    """

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        self.silent: set[Address] = set()  # addresses that never answer: connecting to them times out
        self._capacity_bytes = capacity_bytes
        self._now_ns = 0
        self._timers = Timers()
        self._posted: deque[Callable[[], object]] = deque()
        self._listeners: dict[Address, MemoryListener] = {}
        self._next_port = _FIRST_PORT

    def now_ns(self) -> int:
        """Return the virtual time; it starts at 0."""
        return self._now_ns

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function at a virtual time."""
        return self._timers.add(when_ns, function)

    def post(self, callback: Callable[[], object], *, urgent: bool = True) -> None:  # noqa: ARG002 - one thread
        """Run a callback in the next step."""
        self._posted.append(callback)

    def poll_once(self, *, reply_expected: bool = False) -> None:
        """Do nothing: what arrives is delivered in the next step."""

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> MemoryListener:
        """Open a port (0: any that is free); `connect` must name the same host.

        Raises:
            TransportError: the port is in use.
        """
        address = Address(host, port or self._free_port())
        if address in self._listeners:
            raise TransportError("cannot listen: the port is in use; network.port names another", peer=str(address))
        listener = self._listeners[address] = MemoryListener(address, accepted, self._listeners)
        return listener

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener of this transport; `connected` gets a stream to start, or a TransportError."""
        if address in self.silent:
            late = TransportError(f"no connection within {timeout_ns / 1e9:g} s", peer=str(address))
            return self._timers.add(self._now_ns + timeout_ns, lambda: connected(late))
        return self._timers.add(self._now_ns, lambda: self._connect(address, connected))

    def run_until_idle(self) -> None:
        """Run all callbacks that are due, and those that they post, without advancing the time."""
        for _ in range(_MOST_STEPS):
            for timer in self._timers.take_due(self._now_ns):
                self._posted.append(timer.run)
            if not self._posted:
                return
            self._posted.popleft()()
        raise InvariantViolated(f"after {_MOST_STEPS} steps at {self._now_ns} ns callbacks are still posted")

    def advance(self, duration_ns: int) -> None:
        """Advance the time, timer by timer."""
        assert duration_ns >= 0, "time does not run backwards"
        end_ns = self._now_ns + duration_ns
        self.run_until_idle()
        while (at_ns := self._timers.next_ns()) is not None and at_ns <= end_ns:
            self._now_ns = max(self._now_ns, at_ns)
            self.run_until_idle()
        self._now_ns = end_ns

    def _free_port(self) -> int:
        in_use = {address.port for address in self._listeners}
        while (port := self._next_port) in in_use:
            self._next_port += 1
        self._next_port += 1
        return port

    def _connect(self, address: Address, connected: Callable[[Stream | Exception], object]) -> None:
        listener = self._listeners.get(address)
        if listener is None:
            connected(TransportError("cannot connect: connection refused", peer=str(address)))
            return
        here = Address(address.host, self._free_port())
        ours, theirs = pipe(self.post, self._capacity_bytes, peers=(str(address), str(here)))
        self.post(lambda: listener.accept(theirs))
        connected(ours)


class MemoryListener:
    """An open port of a `MemoryTransport`.

    >>> transport = MemoryTransport()
    >>> listener = transport.listen("127.0.0.1", 7077, accepted=lambda stream: print("accepted", stream.peer))
    >>> _ = transport.connect(listener.address, 10**9, connected=lambda stream: print("connected", stream.peer))
    >>> transport.run_until_idle()
    connected 127.0.0.1:7077
    accepted 127.0.0.1:49152
    """

    def __init__(
        self, address: Address, accepted: Callable[[Stream], object], listeners: dict[Address, MemoryListener]
    ) -> None:
        self._address = address
        self._listeners = listeners
        self._accepted = accepted

    @property
    def address(self) -> Address:
        """The address at which it listens."""
        return self._address

    def accept(self, stream: MemoryStream) -> None:
        """Pass on the stream of a new connection; called by the transport only."""
        if self._listeners.get(self._address) is self:
            self._accepted(stream)
        else:
            stream.abort()

    def close(self) -> None:
        """Stop accepting. May be repeated."""
        if self._listeners.get(self._address) is self:
            del self._listeners[self._address]
