"""One end of a connection in virtual time.

A `SimStream` is the stream of a connection in a `SimNet`. The `Weather` (the conditions on the network) decides how
long bytes take, in which pieces they are received, and how many of them a write accepts. Faults break or half-close a
stream, or change the bytes that pass its `Tap`.

Invariants: see `headgate.net.stream`; the bytes of one direction keep their order; at most `capacity_bytes` are in
flight in each direction; the memory of a view is overwritten after `received`, as the buffer of a socket is.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from headgate.errors import TransportError
from headgate.net.stream import PathStatistics
from headgate.testing.simulator import NEVER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.net.stream import Address, StreamHandler
    from headgate.testing.simnet import SimNet
    from headgate.testing.simulator import Actor, Scheduled

__all__ = ["Cut", "SimStream", "Tap", "Weather"]

_SMALL_CUTS: Final = 100  # small deliveries per stream; then larger ones, or large buffers would take too many actions


class Cut(Enum):
    """The pieces in which bytes are received."""

    WHOLE = "all that has arrived"
    RANDOM = "cut anywhere"
    TINY = "a few at a time"
    BYTES = "one at a time"


@dataclass(frozen=True, slots=True)
class Weather:
    """The conditions on the network."""

    latency_ns: tuple[int, int] = (20_000, 80_000)
    loop_delay_ns: int = 5_000  # longest time until a network thread runs
    capacity_bytes: int = 64 * 1024
    cut: Cut = Cut.WHOLE
    short_writes: float = 0.0  # share of writes that accept less than there is room for


class Tap(Protocol):
    """Receives, and may change, the bytes that a stream sends."""

    def sends(self, data: bytes) -> bytes:
        """Called with the accepted bytes. Returns the bytes that arrive."""
        ...


class SimStream:
    """One end of a connection in a `SimNet`.

    >>> from headgate.testing import Actor, SimNet, SimTransport, Simulator
    >>> net = SimNet(Simulator(seed=1), Weather())
    >>> here, there = (SimTransport(net, f"127.0.0.{n}", Actor(f"worker {n}")) for n in (1, 2))
    >>> class Echo:
    ...     def received(self, data): print(bytes(data))
    ...     def lost(self, error): print("lost", error)
    >>> listener = there.listen("127.0.0.2", 7077, accepted=lambda stream: stream.start(Echo()))
    >>> _ = here.connect(listener.address, 10**9, connected=lambda stream: (stream.write([b"hello"]), stream.close()))
    >>> net.simulator.run()
    b'hello'
    lost None
    """

    def __init__(self, net: SimNet, actor: Actor, here: Address, there: Address) -> None:
        self.net = net
        self.actor = actor
        self.here = here
        self.there = there
        self.other: SimStream = self
        self.tap: Tap | None = None
        self.over = False
        """True once `lost` was called or is scheduled."""
        self.handler: StreamHandler | None = None
        self.breaks_after: int | None = None
        """The number of bytes still to be received before the connection breaks."""
        self._simulator = net.simulator
        self._error: TransportError | None = None
        self._flight: deque[tuple[int, bytes]] = deque()  # sent by the other end, with the time of arrival
        self._inbox = bytearray()  # arrived, not received yet
        self._held_bytes = 0  # in both
        self._last_arrival_ns = 0
        self._ended = False  # the other end sends no more
        self._paused = False
        self._broken = False  # nothing more is received
        self._blocked = False  # accepted less than it was offered; `writable` has to be called
        self._delivery: Scheduled | None = None
        self._unblocking = False
        self._small_cuts = 0

    # Called by the connection.

    @property
    def peer(self) -> str:
        """The peer's address, for error texts."""
        return str(self.there)

    def start(self, handler: StreamHandler) -> None:
        """Start reading. Called once."""
        assert self.handler is None, "a stream is started once"
        self.handler = handler
        if self.over:
            self._soon(self._tell_lost, "lost")
            return
        self.deliver_soon()
        self._unblock_soon()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes. Return how many were accepted."""
        if self.over or self._blocked:
            return 0
        data, net, other = b"".join(pieces), self.net, self.other
        if other.over:  # it closed, and discards further bytes
            return len(data)
        room = net.weather.capacity_bytes - other._held_bytes
        if net.weather.short_writes and net.random.random() < net.weather.short_writes:
            room = min(room, net.random.randint(0, len(data)))
        if room < len(data):
            self._blocked = True
            data = data[:room]
        if data:
            other.arrive(data if self.tap is None else self.tap.sends(data))
        self._unblock_soon()
        return len(data)

    def pause_reading(self) -> None:
        """Stop calling `received`. May be repeated."""
        self._paused = True

    def resume_reading(self) -> None:
        """Call `received` again. May be repeated."""
        self._paused = False
        self.deliver_soon()

    def close(self) -> None:
        """End in order: the other end first receives all accepted bytes. May be repeated."""
        if not self.over:
            self.end(None)
            self.other.half_close()
            self.other._unblock_soon()

    def abort(self) -> None:
        """End at once: the other end is reset. May be repeated."""
        if not self.over:
            self.end(None)
        other = self.other
        if not other.over:
            self._simulator.after(self.net.latency_ns(), other.reset, other.actor, "reset")

    def path(self) -> PathStatistics:
        """Return empty statistics: there is no kernel."""
        return PathStatistics()

    # Called by the other end and by faults.

    def arrive(self, data: bytes) -> None:
        """Deliver bytes to this end after the latency."""
        arrival_ns = max(self._last_arrival_ns, self._simulator.now_ns + self.net.latency_ns())
        self._last_arrival_ns = arrival_ns
        self._flight.append((arrival_ns, data))
        self._held_bytes += len(data)
        self.deliver_soon()

    def half_close(self) -> None:
        """End the other end's direction after the bytes in flight."""
        self._ended = True
        self.deliver_soon()

    def reset(self) -> None:
        """Break the connection at this end; bytes that were not received are lost."""
        until_ns = self.net.stalled_until_ns(self.there.host, self.here.host)
        if until_ns > self._simulator.now_ns:  # a stalled direction delivers no reset either
            if until_ns < NEVER_NS:
                self._simulator.at(until_ns, self.reset, self.actor, "reset")
            return
        self.end(TransportError("the connection broke: reset by the peer", peer=self.peer))

    def break_off(self) -> None:
        """Break the connection; each end is reset after its own latency."""
        for stream in (self, self.other):
            self._simulator.after(self.net.latency_ns(), stream.reset, stream.actor, "reset")

    def vanish(self) -> None:
        """Remove this end; the other end is not notified."""
        if not self.over:
            self.over = True
            self.net.streams.remove(self)

    def end(self, error: TransportError | None) -> None:
        """End this end."""
        if self.over:
            return
        self.over, self._error = True, error
        self._inbox.clear()
        self._flight.clear()
        self._held_bytes = 0
        self.net.streams.remove(self)
        if self.handler is not None:
            self._soon(self._tell_lost, "lost")

    def deliver_soon(self) -> None:
        """Schedule `received` if there is anything to receive."""
        if self.over or self._paused or self._broken or self._delivery is not None or self.handler is None:
            return
        now_ns = self._simulator.now_ns
        if self._inbox:
            when_ns = now_ns + self.net.loop_delay_ns()
        elif self._flight:
            # At the arrival of any of them, drawn at random: bytes that arrive before it are received with it.
            when_ns = self._flight[int(self.net.random.random() * len(self._flight))][0]
        elif self._ended:
            when_ns = now_ns + self.net.latency_ns()
        else:
            return
        when_ns = max(when_ns, self.net.stalled_until_ns(self.there.host, self.here.host))
        if when_ns < NEVER_NS:
            self._delivery = self._simulator.at(when_ns, self._deliver, self.actor, "receive")

    def _deliver(self) -> None:
        self._delivery = None
        if self._paused or self.over or self.handler is None:
            return
        now_ns = self._simulator.now_ns
        if self.net.stalled_until_ns(self.there.host, self.here.host) > now_ns:
            self.deliver_soon()
            return
        flight = self._flight
        while flight and flight[0][0] <= now_ns:
            self._inbox += flight.popleft()[1]
        if not self._inbox:
            if not flight and self._ended:
                self.end(None)
            else:
                self.deliver_soon()
            return
        data = self._inbox[: self._size()]
        del self._inbox[: len(data)]
        self._held_bytes -= len(data)
        self._simulator.note(self.actor.name, f"{len(data)} bytes {zlib.crc32(data):08x} from {self.there}")
        self.other._unblock_soon()
        self.handler.received(memoryview(data))
        data[:] = b"\xdd" * len(data)
        if self.breaks_after is not None:
            self.breaks_after -= len(data)
            if self.breaks_after <= 0:
                self._broken = True
                self.break_off()
        self.deliver_soon()

    def _size(self) -> int:
        """Return how many bytes to receive at once."""
        most, cut = len(self._inbox), self.net.weather.cut
        if self.breaks_after is not None:
            return min(most, max(1, self.breaks_after))
        if cut is Cut.WHOLE:
            return most
        self._small_cuts += 1
        if cut is Cut.RANDOM or self._small_cuts > _SMALL_CUTS:
            return 1 + int(self.net.random.random() * most)
        return 1 if cut is Cut.BYTES else min(most, 1 + int(self.net.random.random() * 16))

    def _unblock_soon(self) -> None:
        if self._can_go_on() and not self._unblocking:
            self._unblocking = True
            self._simulator.after(self.net.latency_ns(), self._tell_writable, self.actor, "writable")

    def _tell_writable(self) -> None:
        self._unblocking = False
        if self._can_go_on() and self.handler is not None:
            self._blocked = False
            self.handler.writable()

    def _can_go_on(self) -> bool:
        has_room = self.other._held_bytes < self.net.weather.capacity_bytes
        return self._blocked and has_room and self.handler is not None and not self.over

    def _tell_lost(self) -> None:
        assert self.handler is not None, "only a started stream is lost"
        self.handler.lost(self._error)

    def _soon(self, action: Callable[[], object], label: str) -> None:
        self._simulator.after(self.net.loop_delay_ns(), action, self.actor, label)
