"""One end of a connection in virtual time, and how bytes travel to it.

A `SimStream` is what a `SimNet` gives to connections. Its `Weather` says how long bytes take, how they are cut and put
together again, how many a write takes. Faults reach in from outside: they break or half-close a stream, or change what
passes its `Tap`.

Invariants: see `headgate.net.stream`; bytes of one direction keep their order; at most `capacity_bytes` are on their
way in each; what a view showed is overwritten after `received`, as the slab of a socket would be.
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

_SMALL_CUTS: Final = 100  # so many small deliveries per stream; then larger ones, or large buffers would take for ever


class Cut(Enum):
    """In what pieces bytes are received.

    >>> Cut.BYTES.value
    'one at a time'
    """

    WHOLE = "all that has come"
    RANDOM = "cut anywhere"
    TINY = "a few at a time"
    BYTES = "one at a time"


@dataclass(frozen=True, slots=True)
class Weather:
    """How bytes travel.

    >>> Weather(cut=Cut.BYTES).capacity_bytes
    65536
    """

    latency_ns: tuple[int, int] = (20_000, 80_000)
    loop_delay_ns: int = 5_000  # most that a network thread takes to come
    capacity_bytes: int = 64 * 1024
    cut: Cut = Cut.WHOLE
    short_writes: float = 0.0  # share of writes that take less than there is room for


class Tap(Protocol):
    """Sees, and may change, what a stream sends."""

    def sends(self, data: bytes) -> bytes:
        """These bytes were taken; what is returned is what arrives."""
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
        """`lost` was told, or is on its way."""
        self.handler: StreamHandler | None = None
        self.breaks_after: int | None = None
        """How many bytes are still received before the connection breaks."""
        self._simulator = net.simulator
        self._error: TransportError | None = None
        self._flight: deque[tuple[int, bytes]] = deque()  # sent by the other, with the time of arrival
        self._inbox = bytearray()  # arrived, not received yet
        self._held_bytes = 0  # in both
        self._last_arrival_ns = 0
        self._ended = False  # the other sends no more
        self._paused = False
        self._broken = False  # nothing more is received
        self._blocked = False  # took less than it was offered; `writable` is owed
        self._delivery: Scheduled | None = None
        self._unblocking = False
        self._small_cuts = 0

    # What a connection calls.

    @property
    def peer(self) -> str:
        """Whom error texts name."""
        return str(self.there)

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        assert self.handler is None, "a stream is started once"
        self.handler = handler
        if self.over:
            self._soon(self._tell_lost, "lost")
            return
        self.deliver_soon()
        self._unblock_soon()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; how many were taken."""
        if self.over or self._blocked:
            return 0
        data, net, other = b"".join(pieces), self.net, self.other
        if other.over:  # it closed, and discards what still comes
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
        """No more `received`. May be repeated."""
        self._paused = True

    def resume_reading(self) -> None:
        """Go on with `received`. May be repeated."""
        self._paused = False
        self.deliver_soon()

    def close(self) -> None:
        """End in order: the other end receives all that was taken first. May be repeated."""
        if not self.over:
            self.end(None)
            self.other.half_close()
            self.other._unblock_soon()

    def abort(self) -> None:
        """End at once: the other end hears of a reset. May be repeated."""
        if not self.over:
            self.end(None)
        other = self.other
        if not other.over:
            self._simulator.after(self.net.latency_ns(), other.reset, other.actor, "reset")

    def path(self) -> PathStatistics:
        """See `Stream`: a simulated system says nothing."""
        return PathStatistics()

    # What the wire does to this end.

    def arrive(self, data: bytes) -> None:
        """Bytes are on their way here."""
        arrival_ns = max(self._last_arrival_ns, self._simulator.now_ns + self.net.latency_ns())
        self._last_arrival_ns = arrival_ns
        self._flight.append((arrival_ns, data))
        self._held_bytes += len(data)
        self.deliver_soon()

    def half_close(self) -> None:
        """The other end sends no more: what is on its way is the last."""
        self._ended = True
        self.deliver_soon()

    def reset(self) -> None:
        """The connection breaks, as seen from here; what has not been received is gone."""
        until_ns = self.net.stalled_until_ns(self.there.host, self.here.host)
        if until_ns > self._simulator.now_ns:  # nobody learns of anything through a wire that carries nothing
            if until_ns < NEVER_NS:
                self._simulator.at(until_ns, self.reset, self.actor, "reset")
            return
        self.end(TransportError("the connection broke: reset by the peer", peer=self.peer))

    def break_off(self) -> None:
        """The connection breaks in the middle of whatever is on its way; each end learns of it in its own time."""
        for stream in (self, self.other):
            self._simulator.after(self.net.latency_ns(), stream.reset, stream.actor, "reset")

    def vanish(self) -> None:
        """This end is gone without a word."""
        if not self.over:
            self.over = True
            self.net.streams.remove(self)

    def end(self, error: TransportError | None) -> None:
        """This end is over."""
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
        """See to it that what there is to receive is received."""
        if self.over or self._paused or self._broken or self._delivery is not None or self.handler is None:
            return
        now_ns = self._simulator.now_ns
        if self._inbox:
            when_ns = now_ns + self.net.loop_delay_ns()
        elif self._flight:
            # Sometimes a little later than the first of them arrives: others come with it.
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
        """How many bytes to receive at once."""
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
