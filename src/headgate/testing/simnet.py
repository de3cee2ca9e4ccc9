"""Workers' transports in virtual time, and the wires between them.

A `SimNet` connects the `SimTransport`s of simulated workers, one host each. Faults (`faults`) reach in from outside:
they stall a direction, let a clock jump, close a port.

Invariant: see `headgate.net.stream`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net.stream import Address
from headgate.net.watch import Watch
from headgate.testing.simstream import SimStream, Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.stream import Stream, Timer
    from headgate.testing.simulator import Actor, Scheduled, Simulator

__all__ = ["SimListener", "SimNet", "SimTransport"]

_FIRST_PORT: Final = 49_152
_LAZY_NS: Final = 1_000_000  # most that a lazy call is put off


class SimNet:
    """The wires between simulated workers.

    >>> from headgate.testing.simulator import Actor, Simulator
    >>> net = SimNet(simulator := Simulator(seed=1), Weather())
    >>> here, there = (SimTransport(net, f"127.0.0.{n}", Actor(f"worker {n}")) for n in (1, 2))
    >>> listener = there.listen("127.0.0.2", 7077, accepted=lambda stream: print("accepted", stream.peer))
    >>> _ = here.connect(listener.address, 10**9, connected=lambda stream: print("connected", stream.peer))
    >>> simulator.run()
    connected 127.0.0.2:7077
    accepted 127.0.0.1:49152
    """

    def __init__(self, simulator: Simulator, weather: Weather) -> None:
        self.simulator = simulator
        self.weather = weather
        self.random = simulator.fork("network")
        self.listeners: dict[Address, SimListener] = {}
        self.streams: list[SimStream] = []
        """Every stream that is not over, clients before their servers."""
        self.opened: Callable[[SimStream, SimStream], object] | None = None
        """Called with both ends of each new connection, the client's first."""
        self._stalled: dict[tuple[str, str], int] = {}
        self._next_port = _FIRST_PORT

    def latency_ns(self) -> int:
        """How long bytes take this time."""
        least_ns, most_ns = self.weather.latency_ns
        return least_ns + int(self.random.random() * (most_ns - least_ns))

    def loop_delay_ns(self) -> int:
        """How long a network thread takes to come this time."""
        return int(self.random.random() * self.weather.loop_delay_ns)

    def stall(self, source: str, target: str, until_ns: int) -> None:
        """Let nothing pass from one host to another for a while (`NEVER_NS`: until `heal`)."""
        self._stalled[source, target] = until_ns

    def heal(self, source: str, target: str) -> None:
        """Let bytes pass again."""
        self._stalled.pop((source, target), None)
        for stream in list(self.streams):
            stream.deliver_soon()

    def stalled_until_ns(self, source: str, target: str) -> int:
        """When bytes pass again."""
        return self._stalled.get((source, target), 0)

    def free_port(self) -> int:
        """A port that nobody uses."""
        port = self._next_port
        self._next_port += 1
        return port

    def connect(self, source: SimTransport, address: Address) -> SimStream | None:
        """A stream to a listener, which gets the other end; None if nobody listens."""
        listener = self.listeners.get(address)
        if listener is None:
            return None
        here = Address(source.host, self.free_port())
        ours, theirs = SimStream(self, source.actor, here, address), SimStream(self, listener.actor, address, here)
        ours.other, theirs.other = theirs, ours
        self.streams += (ours, theirs)
        if self.opened is not None:
            self.opened(ours, theirs)
        self.simulator.after(self.latency_ns(), lambda: listener.accept(theirs), listener.actor, "accept")
        return ours


class SimTransport:
    """A `Transport` of one simulated host: its network thread, its clock, its way into the `SimNet`.

    >>> from headgate.testing.simulator import Actor, Simulator
    >>> transport = SimTransport(SimNet(Simulator(seed=1), Weather()), "127.0.0.1", Actor("worker 0"))
    >>> _ = transport.call_at(5_000_000_000, lambda: print("five seconds later"))
    >>> transport.call_soon(lambda: print("now"))
    >>> transport.net.simulator.run()
    now
    five seconds later
    """

    def __init__(self, net: SimNet, host: str, actor: Actor) -> None:
        self.net = net
        self.host = host
        self.actor = actor
        self._simulator = net.simulator
        self._random = net.simulator.fork(f"threads/{actor.name}")
        self._ahead_ns = 0  # of true time
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: dict[_SimTimer, None] = {}

    def now_ns(self) -> int:
        """What this host's clock says."""
        return self._simulator.now_ns + self._ahead_ns

    def jump(self, duration_ns: int) -> None:
        """Let this host's clock jump forward; timers that are due by then come at once."""
        assert duration_ns >= 0, "a monotonic clock does not run backwards"
        self._ahead_ns += duration_ns
        for timer in list(self._timers):
            timer.arm(timer.when_ns - self._ahead_ns)

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function when this host's clock shows a time."""
        timer = _SimTimer(self, when_ns, function)
        self._timers[timer] = None
        timer.arm(when_ns - self._ahead_ns)
        return timer

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the network thread, after those that wait already."""
        self._ready.append(function)
        if len(self._ready) == 1:
            self._turn_soon()

    def call_lazily(self, function: Callable[[], object]) -> None:
        """As `call_soon`, but perhaps a little later."""
        delay_ns = self._random.randint(0, _LAZY_NS)
        self._simulator.after(delay_ns, lambda: self.call_soon(function), self.actor, f"lazily {_name(function)}")

    def attend(self) -> None:
        """What comes is seen when it comes."""

    glance = attend

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> SimListener:
        """Open a port (0: any that is free).

        Raises:
            TransportError: the port is in use.
        """
        address = Address(host, port or self.net.free_port())
        if address in self.net.listeners:
            raise TransportError("cannot listen: the port is in use; network.port names another", peer=str(address))
        listener = self.net.listeners[address] = SimListener(self.net, self.actor, address, accepted)
        return listener

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener; `connected` gets a stream to start, or the TransportError."""
        simulator, net = self._simulator, self.net
        way_ns = max(net.stalled_until_ns(self.host, address.host), net.stalled_until_ns(address.host, self.host))
        when_ns = max(simulator.now_ns + 2 * net.latency_ns(), way_ns)
        if when_ns > simulator.now_ns + timeout_ns:
            late = TransportError(f"no connection within {timeout_ns / 1e9:g} s", peer=str(address))
            return simulator.after(timeout_ns, lambda: connected(late), self.actor, "connect in vain")

        def arrive() -> None:
            stream = net.connect(self, address)
            refused = TransportError("cannot connect: connection refused", peer=str(address))
            connected(refused if stream is None else stream)

        return simulator.at(when_ns, arrive, self.actor, "connect")

    def forget(self, timer: _SimTimer) -> None:
        """A timer is over; called by the timer itself."""
        self._timers.pop(timer, None)

    def arm(self, timer: _SimTimer, when_ns: int) -> Scheduled:
        """Wait for a timer's time; called by the timer itself."""
        return self._simulator.at(when_ns, timer.fire, self.actor, f"timer {timer.name}", work=timer.work)

    def _turn_soon(self) -> None:
        delay_ns = int(self._random.random() * self.net.weather.loop_delay_ns)
        self._simulator.after(delay_ns, self._turn, self.actor, f"soon {_name(self._ready[0])}")

    def _turn(self) -> None:
        self._ready[0]()
        self._ready.popleft()
        if self._ready:
            self._turn_soon()


class _SimTimer:
    """A function that waits for its time on one host's clock."""

    __slots__ = ("_function", "_scheduled", "_transport", "name", "when_ns", "work")

    def __init__(self, transport: SimTransport, when_ns: int, function: Callable[[], object]) -> None:
        self.when_ns = when_ns
        self.name = _name(function)
        self.work = not isinstance(getattr(function, "__self__", None), Watch)  # a time limit moves nothing by itself
        self._transport = transport
        self._function = function
        self._scheduled: Scheduled | None = None

    def arm(self, when_ns: int) -> None:
        """Set the true time at which it comes."""
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = self._transport.arm(self, when_ns)

    def fire(self) -> None:
        """Its time has come."""
        self._transport.forget(self)
        self._function()

    def cancel(self) -> None:
        """Let it not happen. May be repeated, also when it has happened."""
        self._transport.forget(self)
        if self._scheduled is not None:
            self._scheduled.cancel()


class SimListener:
    """An open port of a `SimTransport`.

    >>> from headgate.testing.simulator import Actor, Simulator
    >>> transport = SimTransport(SimNet(Simulator(seed=1), Weather()), "127.0.0.1", Actor("worker 0"))
    >>> listener = transport.listen("127.0.0.1", 7077, accepted=print)
    >>> listener.close(); transport.net.listeners
    {}
    """

    def __init__(self, net: SimNet, actor: Actor, address: Address, accepted: Callable[[Stream], object]) -> None:
        self._net = net
        self.actor = actor
        self._address = address
        self._accepted = accepted

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._address

    def accept(self, stream: SimStream) -> None:
        """Hand over a stream of somebody who has connected; by the net only."""
        if self._net.listeners.get(self._address) is self:
            self._accepted(stream)
        else:
            stream.abort()

    def close(self) -> None:
        """Accept no more. May be repeated."""
        if self._net.listeners.get(self._address) is self:
            del self._net.listeners[self._address]


def _name(function: Callable[[], object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
