"""The transports of simulated workers, and the network between them, in virtual time.

A `SimNet` connects the `SimTransport`s of simulated workers, one host each. Faults (`faults`) stall a direction, let a
clock jump, or close a port.

Invariant: see `headgate.net.stream`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net.stream import Address
from headgate.net.time_limits import TimeLimits
from headgate.testing.simstream import SimStream, Weather

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.stream import Stream, Timer
    from headgate.testing.simulator import Actor, Scheduled, Simulator

__all__ = ["SimListener", "SimNet", "SimTransport"]

_FIRST_PORT: Final = 49_152
_LAZY_NS: Final = 1_000_000  # longest delay of a lazy call


class SimNet:
    """The network between simulated workers.

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
        """Every open stream; the client's end before the server's."""
        self.opened: Callable[[SimStream, SimStream], object] | None = None
        """Called with both ends of each new connection, the client's end first."""
        self._stalled: dict[tuple[str, str], int] = {}
        self._next_port = _FIRST_PORT

    def latency_ns(self) -> int:
        """Draw the time that bytes take."""
        least_ns, most_ns = self.weather.latency_ns
        return least_ns + int(self.random.random() * (most_ns - least_ns))

    def loop_delay_ns(self) -> int:
        """Draw the time until a network thread runs."""
        return int(self.random.random() * self.weather.loop_delay_ns)

    def stall(self, source: str, target: str, until_ns: int) -> None:
        """Deliver nothing from one host to another until then (`NEVER_NS`: for ever)."""
        self._stalled[source, target] = until_ns

    def stalled_until_ns(self, source: str, target: str) -> int:
        """Return the time until which nothing is delivered from one host to another."""
        return self._stalled.get((source, target), 0)

    def free_port(self) -> int:
        """Return a port that is not in use."""
        port = self._next_port
        self._next_port += 1
        return port

    def connect(self, source: SimTransport, address: Address) -> SimStream | None:
        """Return a stream to a listener, which accepts the other end; None if the port is closed."""
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
    """The `Transport` of one simulated host: its network thread, its clock, and its connections in a `SimNet`.

    >>> from headgate.testing.simulator import Actor, Simulator
    >>> transport = SimTransport(SimNet(Simulator(seed=1), Weather()), "127.0.0.1", Actor("worker 0"))
    >>> _ = transport.call_at(5_000_000_000, lambda: print("five seconds later"))
    >>> transport.post(lambda: print("now"))
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
        self._ahead_ns = 0  # of the simulator's time
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: dict[_SimTimer, None] = {}

    def now_ns(self) -> int:
        """Return the time of this host's clock."""
        return self._simulator.now_ns + self._ahead_ns

    def jump(self, duration_ns: int) -> None:
        """Advance this host's clock; timers that are due by then fire at once."""
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

    def post(self, callback: Callable[[], object], *, urgent: bool = True) -> None:
        """Run a callback on the network thread, after those posted before; a little later if it is not urgent."""
        if not urgent:
            delay_ns = self._random.randint(0, _LAZY_NS)
            self._simulator.after(delay_ns, lambda: self.post(callback), self.actor, f"lazily {_name(callback)}")
            return
        self._ready.append(callback)
        if len(self._ready) == 1:
            self._run_next_soon()

    def poll_once(self, *, reply_expected: bool = False) -> None:
        """Do nothing: what arrives is delivered when it arrives."""

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> SimListener:
        """Open a port (0: any free one).

        Raises:
            TransportError: The port is in use.
        """
        address = Address(host, port or self.net.free_port())
        if address in self.net.listeners:
            raise TransportError("cannot listen: the port is in use; network.port names another", peer=str(address))
        listener = self.net.listeners[address] = SimListener(self.net, self.actor, address, accepted)
        return listener

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener. `connected` is called with a stream to start, or with the TransportError."""
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
        """Remove a timer. Called by the timer itself."""
        self._timers.pop(timer, None)

    def arm(self, timer: _SimTimer, when_ns: int) -> Scheduled:
        """Schedule a timer. Called by the timer itself."""
        return self._simulator.at(when_ns, timer.fire, self.actor, f"timer {timer.name}", work=timer.work)

    def _run_next_soon(self) -> None:
        delay_ns = int(self._random.random() * self.net.weather.loop_delay_ns)
        self._simulator.after(delay_ns, self._run_next, self.actor, f"soon {_name(self._ready[0])}")

    def _run_next(self) -> None:
        self._ready[0]()
        self._ready.popleft()
        if self._ready:
            self._run_next_soon()


class _SimTimer:
    """A function that is called at a time of one host's clock."""

    __slots__ = ("_function", "_scheduled", "_transport", "name", "when_ns", "work")

    def __init__(self, transport: SimTransport, when_ns: int, function: Callable[[], object]) -> None:
        self.when_ns = when_ns
        self.name = _name(function)
        self.work = not isinstance(getattr(function, "__self__", None), TimeLimits)  # a time limit moves no record
        self._transport = transport
        self._function = function
        self._scheduled: Scheduled | None = None

    def arm(self, when_ns: int) -> None:
        """Set the simulator's time at which it fires."""
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = self._transport.arm(self, when_ns)

    def fire(self) -> None:
        """Call the function."""
        self._transport.forget(self)
        self._function()

    def cancel(self) -> None:
        """Do not call the function. May be repeated, also after the call."""
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
        """The address of the port."""
        return self._address

    def accept(self, stream: SimStream) -> None:
        """Pass the stream of a new connection on, or abort it if the port is closed. Called by the `SimNet`."""
        if self._net.listeners.get(self._address) is self:
            self._accepted(stream)
        else:
            stream.abort()

    def close(self) -> None:
        """Close the port. May be repeated."""
        if self._net.listeners.get(self._address) is self:
            del self._net.listeners[self._address]


def _name(function: Callable[[], object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
