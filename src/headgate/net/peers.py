"""The other workers, and the one connection to each, or one in each lane.

A `Peer` is made when a channel wants to read from a worker, or when that worker connects. It is the outlet of those
channels: it opens a connection when the first of them is due, lets them speak before each write, and forgets them when
they have said their last. Everything runs on the network thread, except `due_locked` and `channel`, which tasks call.

With credit there is one lane. Without, a connection is not read while one of its channels has no buffer, and two
workers whose tasks pass on what they read could stop reading each other for ever. So what is read over a lane goes to
tasks that write to higher lanes only (`graph.depths`): the highest is always read in the end, and then the one below.

When two workers connect to each other at the same time, the connection of the lower number stays: a worker that has one
of its own under way, or open, to a higher number refuses that one's in the handshake, and that one waits for it.

A connection that both have accepted is the one that new channels use. There may be an older one that looks open still:
the peer has said `Close` there, which is on its way, or has lost it, for else it would not have made or accepted
another. It goes on with the channels that it carries until they end, or it does.

Invariants: lanes have nothing in common but the peer's address; in each, new channels use the newest connection; a
connection is closed when no channel uses or wants it; a channel whose connection cannot be made, or is lost, is failed
with the peer's address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, TransportError
from headgate.input import RemoteChannel, RemoteState
from headgate.net.connection import Connection
from headgate.sync import together
from headgate.wire.states import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.net.stream import Address, Stream, Timer, Transport
    from headgate.sync import Lock, Wake

__all__ = ["Peer", "Peers"]

_ENOUGH_CREDIT: Final = 8  # channels with credit to announce: their producers go on while the reader reads
_SHARE: Final = 16  # but not fewer than this part of all channels: where there are many, no producer is at its end
_LOOK_AGAIN_NS: Final = 50_000_000  # while the other side's connection is awaited


class Peer:
    """One other worker, in one lane. Made by `Peers`.

    >>> from headgate.net.stream import Address
    >>> from headgate.sync import ThreadSync
    >>> peers = Peers(0, ThreadSync().lock, transport=None, connect_timeout_ns=10**9, connect=print)
    >>> peers.know_locked(3, Address("127.0.0.1", 7077))
    >>> str(peers.peer_locked(3))
    'worker 3 at 127.0.0.1:7077'
    """

    def __init__(self, worker: int, lane: int, peers: Peers) -> None:
        self.worker = worker
        self.lane = lane
        self.connection: Connection | None = None
        self.opening = False  # a connection of our own is under way
        self._peers = peers
        self._channels: dict[RemoteChannel, None] = {}  # that have not said their last
        self._due: dict[RemoteChannel, None] = {}
        self._scheduled = False  # `open` will be called
        self._attempt: Timer | Connection | None = None
        self._awaited: Timer | None = None  # ours was refused for the peer's own, which has not come yet
        self._retired: list[Connection] = []  # connections before this one, until they have ended
        self._deadline_ns = 0

    @property
    def address(self) -> Address | None:
        """Where it listens, if that is known."""
        return self._peers.address(self.worker)

    def __str__(self) -> str:
        return f"worker {self.worker}" + (f" at {self.address}" if self.address is not None else "")

    # Called by tasks.

    def due_locked(self, channel: RemoteChannel, urgent: bool) -> Wake:
        """A channel has something to say; see `RemoteOutlet`."""
        self._due[channel] = None
        self._channels[channel] = None
        count = len(self._due)
        if not urgent and (count < _ENOUGH_CREDIT or count * _SHARE < len(self._channels)):
            return None
        return self._hurry_locked()

    def hurry_locked(self) -> Wake:
        """What waits goes now, if a producer waits for it; else it can wait until the reader has more."""
        for channel in self._due:
            if channel.starves:
                return self._hurry_locked()
        return None

    def rest_locked(self) -> Wake:
        """All that waits goes with the next turn of the network, after what has come."""
        return self._hurry_locked(urgent=False) if self._due else None

    def _hurry_locked(self, *, urgent: bool = True) -> Wake:
        if self._retired:
            before = [one.schedule_locked(urgent=urgent) for one in self._retired]
            return together(*before, self._hurry_current_locked(urgent=urgent))
        return self._hurry_current_locked(urgent=urgent)

    def _hurry_current_locked(self, *, urgent: bool) -> Wake:
        connection = self.connection
        if connection is not None and connection.usable:
            return connection.schedule_locked(urgent=urgent)
        if self._scheduled:
            return None
        self._scheduled = True
        return self._come

    def _come(self) -> None:
        self._peers.transport.call_soon(self.open)

    # The network thread.

    def open(self) -> None:
        """Connect, if a channel wants that and there is no connection and none under way."""
        with self._peers.lock:
            self._scheduled = False
            connection = self.connection
            usable = connection is not None and connection.usable
            if not usable:
                self._forget_released_locked()
            wanted = bool(self._uncarried_locked())
        if usable:
            assert connection is not None, "it is usable"
            connection.flush()
        elif wanted and not self.opening:
            self.opening = True
            self._deadline_ns = self._peers.transport.now_ns() + self._peers.connect_timeout_ns
            self._connect()

    def _connect(self) -> None:
        transport, address = self._peers.transport, self.address
        if address is None:
            self._fail(TransportError("its address is not known, and it has not connected", peer=str(self)))
            return
        left_ns = max(1, self._deadline_ns - transport.now_ns())
        self._attempt = transport.connect(address, left_ns, self._connected)

    def _connected(self, found: Stream | Exception) -> None:
        self._attempt = None
        if isinstance(found, Exception):
            error = found if isinstance(found, HeadgateError) else TransportError(str(found), peer=str(self))
            self._fail(error)
            return
        self._attempt = connection = self._peers.connect(found, self)
        connection.start()

    def proved(self, connection: Connection) -> None:
        """Our connection is open, or the peer's to us is."""
        if connection.outgoing:
            if connection.worker != self.worker:
                text = f"worker {connection.worker} answers there, not worker {self.worker}"
                connection.fail(TransportError(text, peer=str(self)))
                return
            self._attempt, self.opening = None, False
        elif self._awaited is not None:
            self._awaited.cancel()
            self._awaited, self.opening = None, False
        with self._peers.lock:
            if self.connection is not None:
                self._retired.append(self.connection)
            self.connection = connection
        connection.flush()

    def say_locked(self, connection: Connection) -> None:
        """Let the channels that are due speak, if it is this connection that carries them or will."""
        if not self._due:
            return
        if self._retired:
            due = [channel for channel in self._due if self._carrier_locked(channel) is connection]
        elif connection is self.connection:
            due = list(self._due)
        else:
            return
        if len(due) == len(self._due):
            self._due.clear()
        else:
            for channel in due:
                del self._due[channel]
        for channel in connection.pump.say_locked(due):
            self._channels.pop(channel, None)

    def _carrier_locked(self, channel: RemoteChannel) -> Connection | None:
        for one in self._retired:
            if channel in one.pump.channels:
                return one
        return self.connection

    def due(self, connection: Connection) -> bool:
        """Whether a channel has something to say, perhaps over this connection."""
        return bool(self._due) and (connection is self.connection or connection in self._retired)

    def wants(self, connection: Connection) -> bool:
        """Whether a channel will use the connection that does not yet."""
        return connection is self.connection and any(one.state is RemoteState.REQUESTING for one in self._channels)

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """A connection is over. Channels that it carried know; others try again."""
        if connection is self._attempt:
            self._attempt = None
            if error is not None:
                self._fail(error)
            else:
                self._await_theirs()  # it was refused as a duplicate
            return
        with self._peers.lock:
            if connection in self._retired:
                self._retired.remove(connection)
            if connection is self.connection:
                self.connection = None
            due = bool(self._due)
        if due:
            self.open()

    def _await_theirs(self) -> None:
        """The peer's own connection is on its way; if it does not come, try again."""
        transport = self._peers.transport
        now_ns = transport.now_ns()
        if self.connection is not None or not self.opening:
            self.opening = False
            self.open()
        elif now_ns >= self._deadline_ns:
            self._fail(TransportError("its own connection did not come", peer=str(self)))
        else:
            self._awaited = transport.call_at(now_ns + _LOOK_AGAIN_NS, self._look_again)

    def _look_again(self) -> None:
        self._awaited = None
        self._connect()

    def _fail(self, error: HeadgateError) -> None:
        """No connection can be had: every channel that has none learns why."""
        self.opening = False
        with self._peers.lock:
            if self.connection is not None and self.connection.usable:
                return  # the peer's own has come meanwhile
            wakes = []
            for channel in self._uncarried_locked():
                wakes.append(channel.fail_locked(error))
                self._due.pop(channel, None)
                channel.due = False
            self._forget_released_locked()
        wake = together(*wakes)
        if wake is not None:
            wake()

    def _forget_released_locked(self) -> None:
        """Without a connection there is nobody to tell."""
        over = {RemoteState.RELEASED, RemoteState.FAILED}
        for channel in self._uncarried_locked():
            if channel.state in over:
                del self._channels[channel]
                self._due.pop(channel, None)
                channel.due = False

    def _uncarried_locked(self) -> list[RemoteChannel]:
        """The channels that have no connection, or the one that takes new ones."""
        return [channel for channel in self._channels if self._carrier_locked(channel) is self.connection]

    def close(self, error: HeadgateError) -> None:
        """End whatever there is with this peer."""
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            if isinstance(attempt, Connection):
                attempt.fail(error)
            else:
                attempt.cancel()
        for connection in (*self._retired, self.connection):
            if connection is not None:
                connection.fail(error)
        self._fail(error)


class Peers:
    """All other workers, by number and lane.

    `connect` makes a connection, not started yet, from a stream that leads to a peer.

    >>> from headgate.sync import ThreadSync
    >>> peers = Peers(0, ThreadSync().lock, transport=None, connect_timeout_ns=10**9, connect=print)
    >>> peers.connected(3, lane=0)  # so worker 3 may connect
    False
    """

    def __init__(
        self,
        worker: int,
        lock: Lock,
        transport: Transport,
        connect_timeout_ns: int,
        connect: Callable[[Stream, Peer], Connection],
    ) -> None:
        self.worker = worker
        self.lock = lock
        self.transport = transport
        self.connect_timeout_ns = connect_timeout_ns
        self.connect = connect
        self._addresses: dict[int, Address] = {}
        self._peers: dict[tuple[int, int], Peer] = {}

    def know_locked(self, worker: int, address: Address) -> None:
        """Where that worker listens."""
        self._addresses[worker] = address

    def address(self, worker: int) -> Address | None:
        """Where that worker listens, if that is known."""
        return self._addresses.get(worker)

    def peer_locked(self, worker: int, lane: int = 0) -> Peer:
        """The peer of that number, in that lane."""
        peer = self._peers.get((worker, lane))
        if peer is None:
            peer = self._peers[worker, lane] = Peer(worker, lane, self)
        return peer

    def connected(self, worker: int, lane: int) -> bool:
        """Whether a connection from that worker is not needed: ours to it is under way or open, and has precedence."""
        peer = self._peers.get((worker, lane))
        if peer is None or worker < self.worker:
            return False
        connection = peer.connection
        ours = connection is not None and connection.outgoing and connection.state is ConnectionState.OPEN
        return peer.opening or ours

    def __iter__(self) -> Iterator[Peer]:
        with self.lock:
            return iter(list(self._peers.values()))
