"""Streams without sockets: a pipe inside one process, and a transport of such pipes in virtual time.

For tests and simulations: everything happens when the caller says so, in an order that is the same every time. There is
no thread and no randomness; what a callback raises reaches whoever runs the transport.

Invariants: at most `capacity_bytes` are on their way in each direction; `received`, `writable` and `lost` are called
through the `call_soon` that was handed in, never from inside a call to the stream; what a view showed is overwritten
after `received`, as the slab of a socket would be.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.errors import InvariantViolated, TransportError
from headgate.net.stream import Address, PathStatistics
from headgate.net.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.net.stream import Stream, StreamHandler, Timer

    CallSoon = Callable[[Callable[[], object]], object]

__all__ = ["MemoryListener", "MemoryStream", "MemoryTransport", "pipe"]

_CAPACITY_BYTES: Final = 64 * 1024
_FIRST_PORT: Final = 49_152  # where the ports that are nobody's begin
_MOST_STEPS: Final = 1_000_000  # at one moment: more is a loop without end


class _State(enum.Enum):
    OPEN = "open"
    OVER = "over"  # `lost` was told, or is on its way


def pipe(
    call_soon: CallSoon, capacity_bytes: int = _CAPACITY_BYTES, peers: tuple[str, str] = ("right", "left")
) -> tuple[MemoryStream, MemoryStream]:
    """Two streams, each the other's peer: the first has `peers[0]` at its other end.

    >>> due: list[Callable[[], object]] = []
    >>> left, right = pipe(due.append, capacity_bytes=4)
    >>> left.peer, left.write([b"abc", b"def"])
    ('right', 4)
    """
    assert capacity_bytes > 0, "a pipe that takes nothing never ends"
    left = MemoryStream(call_soon, capacity_bytes, peers[0])
    right = MemoryStream(call_soon, capacity_bytes, peers[1])
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

    def __init__(self, call_soon: CallSoon, capacity_bytes: int, peer: str) -> None:
        self._call_soon = call_soon
        self._capacity_bytes = capacity_bytes
        self._peer = peer
        self._other: MemoryStream = self
        self._handler: StreamHandler | None = None
        self._state = _State.OPEN
        self._error: TransportError | None = None
        self._inbox = bytearray()  # sent by the other, not received yet
        self._ended = False  # the other sends no more: what is in the inbox is the last
        self._paused = False
        self._blocked = False  # took less than it was offered; `writable` is owed
        self._delivering = False  # `_deliver` is on its way

    def join(self, other: MemoryStream) -> None:
        """Make another stream the other end of this one; by `pipe` only."""
        self._other = other

    @property
    def peer(self) -> str:
        """Whom error texts name."""
        return self._peer

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        assert self._handler is None, "a stream is started once"
        self._handler = handler
        if self._state is _State.OVER:
            self._call_soon(self._tell_lost)
            return
        self._deliver_soon()
        self._unblock()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; how many of them there was room for."""
        if self._state is _State.OVER or self._blocked:
            return 0
        if self._other._state is _State.OVER:  # it closed, and discards what still comes
            return sum(map(len, pieces))
        room, taken = self._capacity_bytes - len(self._other._inbox), 0
        for piece in pieces:
            self._other._inbox += (part := piece[: room - taken])
            taken += len(part)
        self._blocked = taken < sum(map(len, pieces))
        self._other._deliver_soon()
        return taken

    def pause_reading(self) -> None:
        """No more `received`. May be repeated."""
        self._paused = True

    def resume_reading(self) -> None:
        """Go on with `received`. May be repeated."""
        self._paused = False
        self._deliver_soon()

    def close(self) -> None:
        """End in order: the other end receives all that was taken first. May be repeated."""
        if self._state is _State.OPEN:
            self._end(None)
            self._other._ended = True
            self._other._deliver_soon()
            self._other._unblock()

    def abort(self) -> None:
        """End at once: the other end receives nothing more and hears of a reset. May be repeated."""
        if self._state is _State.OPEN:
            self._end(None)
        other = self._other
        if other._state is _State.OPEN:
            other._end(TransportError("the connection broke: reset by the peer", peer=other._peer))

    def path(self) -> PathStatistics:
        """See `Stream`: there is no system in between."""
        return PathStatistics()

    def _deliver_soon(self) -> None:
        due = (self._inbox or self._ended) and self._handler is not None and not self._paused
        if due and not self._delivering and self._state is _State.OPEN:
            self._delivering = True
            self._call_soon(self._deliver)

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
        if self._can_go_on():
            self._call_soon(self._tell_writable)

    def _tell_writable(self) -> None:
        if self._can_go_on() and self._handler is not None:
            self._blocked = False
            self._handler.writable()

    def _can_go_on(self) -> bool:
        has_room = len(self._other._inbox) < self._capacity_bytes
        return self._blocked and has_room and self._handler is not None and self._state is _State.OPEN

    def _end(self, error: TransportError | None) -> None:
        self._state, self._error = _State.OVER, error
        self._inbox.clear()
        if self._handler is not None:
            self._call_soon(self._tell_lost)

    def _tell_lost(self) -> None:
        assert self._handler is not None, "only a started stream is lost"
        self._handler.lost(self._error)


class MemoryTransport:
    """A `Transport` inside one process, with a clock that moves when told to.

    >>> transport = MemoryTransport()
    >>> _ = transport.call_at(5_000_000_000, lambda: print("five seconds later"))
    >>> transport.call_soon(lambda: print("now"))
    >>> transport.run_until_idle()
    now
    >>> transport.advance(5_000_000_000)
    five seconds later
    """

    def __init__(self, capacity_bytes: int = _CAPACITY_BYTES) -> None:
        self.silent: set[Address] = set()  # addresses that never answer: connecting to them runs into the timeout
        self._capacity_bytes = capacity_bytes
        self._now_ns = 0
        self._timers = Timers()
        self._soon: deque[Callable[[], object]] = deque()
        self._listeners: dict[Address, MemoryListener] = {}
        self._next_port = _FIRST_PORT

    def now_ns(self) -> int:
        """The virtual time: it starts at 0."""
        return self._now_ns

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function at a virtual time."""
        return self._timers.add(when_ns, function)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the next step."""
        self._soon.append(function)

    def call_lazily(self, function: Callable[[], object]) -> None:
        """As `call_soon`: there is only one thread."""
        self.call_soon(function)

    def attend(self) -> None:
        """Nothing waits here: what happens is seen in the next step."""

    glance = attend

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> MemoryListener:
        """Open a port (0: any that is free); who connects must name the same host.

        Raises:
            TransportError: the port is in use.
        """
        address = Address(host, port or self._free_port())
        if address in self._listeners:
            raise TransportError("cannot listen: the port is in use; network.port names another", peer=str(address))
        listener = self._listeners[address] = MemoryListener(address, accepted, self._listeners)
        return listener

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener of this transport; `connected` gets a stream to start, or the TransportError."""
        if address in self.silent:
            late = TransportError(f"no connection within {timeout_ns / 1e9:g} s", peer=str(address))
            return self._timers.add(self._now_ns + timeout_ns, lambda: connected(late))
        return self._timers.add(self._now_ns, lambda: self._connect(address, connected))

    def run_until_idle(self) -> None:
        """Do all that is due, and all that follows from it, without time passing."""
        for _ in range(_MOST_STEPS):
            for timer in self._timers.take_due(self._now_ns):
                self._soon.append(timer.run)
            if not self._soon:
                return
            self._soon.popleft()()
        raise InvariantViolated(f"after {_MOST_STEPS} steps at {self._now_ns} ns there is still something to do")

    def advance(self, duration_ns: int) -> None:
        """Let time pass, timer by timer."""
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
        ours, theirs = pipe(self.call_soon, self._capacity_bytes, peers=(str(address), str(here)))
        self.call_soon(lambda: listener.accept(theirs))
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
        """Where it listens."""
        return self._address

    def accept(self, stream: MemoryStream) -> None:
        """Hand over a stream of somebody who has connected; by the transport only."""
        if self._listeners.get(self._address) is self:
            self._accepted(stream)
        else:
            stream.abort()

    def close(self) -> None:
        """Accept no more. May be repeated."""
        if self._listeners.get(self._address) is self:
            del self._listeners[self._address]
