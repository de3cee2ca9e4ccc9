"""The other workers, and the connections to each of them.

A `Peer` is made when a channel requests a partition of a worker, or when that worker connects. It is the outlet of the
channels that read from that worker: it opens a connection when the first of them is scheduled, queues the frames of
scheduled channels before each write, and deletes a channel after its last frame. Everything runs on the network thread,
except the calls of `RemoteOutlet`, which task threads make too.

With credit two workers have one connection. Without credit a connection is not read while one of its channels has no
buffer, and two workers whose tasks forward what they read could stop reading each other for ever. So two workers have
a connection group: one connection for each depth of the job (`graph.depths`), numbered by `lane`. What a task reads
over a lane it writes to higher lanes only: the highest is always read in the end, and then the one below.

When two workers connect to each other at the same time, the connection of the lower worker number stays: a worker whose
own connection to a higher number is being made, or is open, refuses the other one in the handshake, and the higher
number waits for it. A connection that the peer drops during the handshake is made again until `network.connect_timeout`
(`retry`).

New channels use the latest connection that both sides have accepted. An older one may still seem open: the peer has
sent `Close`, which has not arrived, or has lost it; else it would not have made or accepted another. The older
connection keeps the channels that it carries until they or it end.

Invariants: lanes share nothing but the peer's address; in each, new channels use the latest connection; a connection is
closed when no channel uses or needs it; a channel whose connection cannot be made, or is lost, fails with the peer's
address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, TransportError
from headgate.input import RemoteChannel, RemoteState
from headgate.net.connection import Connection
from headgate.net.retry import Retry
from headgate.sync import together
from headgate.wire.flow import When, should_flush
from headgate.wire.states import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.net.stream import Address, Stream, Timer, Transport
    from headgate.sync import Lock, Wake

__all__ = ["Peer", "Peers"]

_LATER, _NOW = When.LATER, When.NOW
_RECONNECT_NS: Final = 50_000_000  # until a refused connection is made again, if the peer's own has not arrived


class Peer:
    """One other worker, and one of the connections to it. Made by `Peers`.

    >>> from headgate.net.stream import Address
    >>> from headgate.sync import ThreadSync
    >>> peers = Peers(0, ThreadSync().lock, transport=None, connect_timeout_ns=10**9, connect=print)
    >>> with peers.lock:
    ...     peers.set_address_locked(3, Address("127.0.0.1", 7077))
    ...     str(peers.peer_locked(3))
    'worker 3 at 127.0.0.1:7077'
    """

    def __init__(self, worker: int, lane: int, peers: Peers) -> None:
        self.worker = worker
        self.lane = lane
        self.connection: Connection | None = None
        self.opening = False  # this side is making a connection
        self._peers = peers
        self._channels: dict[RemoteChannel, None] = {}  # that have not sent their last frame
        self._scheduled: dict[RemoteChannel, None] = {}  # that have something to send
        self._open_posted = False  # a call of `open` is posted
        self._attempt: Timer | Connection | None = None
        self.waiting: Timer | None = None  # calls `_connect`: this side's connection was refused, or dropped
        self._retired: list[Connection] = []  # earlier connections that have not ended
        self._deadline_ns = 0
        self._retry = Retry(0, peers.worker)

    @property
    def address(self) -> Address | None:
        """The address of the worker's port, if it is known."""
        return self._peers.address(self.worker)

    def __str__(self) -> str:
        return f"worker {self.worker}" + (f" at {self.address}" if self.address is not None else "")

    # Called by tasks.

    def schedule_locked(self, channel: RemoteChannel, when: When, reader_blocked: bool) -> Wake:
        """Send what the channel has to send; see `RemoteOutlet`."""
        self._scheduled[channel] = None
        self._channels[channel] = None
        if when is _LATER and should_flush(len(self._scheduled), len(self._channels), reader_blocked) is _LATER:
            return None
        return self._flush_locked(_NOW)

    def announce_to_starved_locked(self) -> Wake:
        """Flush now if the producer of a scheduled channel has no credit left; see `Outlet`."""
        for channel in self._scheduled:
            if channel.out_of_credit:
                return self._flush_locked(_NOW)
        return None

    def announce_all_locked(self) -> Wake:
        """Flush after pending network work if a channel is scheduled; see `Outlet`."""
        return self._flush_locked(_LATER) if self._scheduled else None

    def _flush_locked(self, when: When) -> Wake:
        if self._retired:
            before = [one.schedule_locked(when) for one in self._retired]
            return together(*before, self._flush_current_locked(when))
        return self._flush_current_locked(when)

    def _flush_current_locked(self, when: When) -> Wake:
        connection = self.connection
        if connection is not None and connection.usable:
            return connection.schedule_locked(when)
        if self._open_posted:
            return None
        self._open_posted = True
        return self._post_open

    def _post_open(self) -> None:
        self._peers.transport.post(self.open)

    # The network thread.

    def open(self) -> None:
        """Connect if a channel needs it, and there is no connection and none is being made."""
        with self._peers.lock:
            self._open_posted = False
            connection = self.connection
            usable = connection is not None and connection.usable
            if not usable:
                self._delete_ended_locked()
            wanted = bool(self._uncarried_locked())
        if usable:
            assert connection is not None, "it is usable"
            connection.flush()
        elif wanted and not self.opening:
            self.opening = True
            self._deadline_ns = self._peers.transport.now_ns() + self._peers.connect_timeout_ns
            self._retry = Retry(self._deadline_ns, self._peers.worker)
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
        """Use a connection whose peer has proved itself, made by either side."""
        if connection.outgoing:
            if connection.worker != self.worker:
                text = f"worker {connection.worker} answers there, not worker {self.worker}"
                connection.fail(TransportError(text, peer=str(self)))
                return
            self._attempt, self.opening = None, False
        elif self.waiting is not None:
            self.waiting.cancel()
            self.waiting, self.opening = None, False
        with self._peers.lock:
            if self.connection is not None:
                self._retired.append(self.connection)
            self.connection = connection
        connection.flush()

    def queue_frames_locked(self, connection: Connection) -> None:
        """Queue the frames of the scheduled channels that this connection carries or will carry."""
        if not self._scheduled:
            return
        if self._retired:
            carried = [channel for channel in self._scheduled if self._carrier_locked(channel) is connection]
        elif connection is self.connection:
            carried = list(self._scheduled)
        else:
            return
        if len(carried) == len(self._scheduled):
            self._scheduled.clear()
        else:
            for channel in carried:
                del self._scheduled[channel]
        for channel in connection.pump.queue_frames_locked(carried):
            self._channels.pop(channel, None)

    def _carrier_locked(self, channel: RemoteChannel) -> Connection | None:
        for one in self._retired:
            if channel in one.pump.channels:
                return one
        return self.connection

    def has_frames(self, connection: Connection) -> bool:
        """Return True if a channel is scheduled, perhaps on this connection."""
        return bool(self._scheduled) and (connection is self.connection or connection in self._retired)

    def wants(self, connection: Connection) -> bool:
        """Return True if a channel that has not requested its partition will use the connection.

        Called without the exchange lock: tasks add channels at any time.
        """
        if connection is not self.connection:
            return False
        with self._peers.lock:
            return any(one.state is RemoteState.REQUESTING for one in self._channels)

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        """Note that a connection has ended. Its channels have failed; other scheduled channels connect again."""
        if connection is self._attempt:
            self._attempt = None
            if error is None:
                self._await_peer_connection()  # it was refused as a duplicate
            elif connection.cut_short:
                self._connect_again(error, challenged=connection.challenged)
            else:
                self._fail(error)
            return
        with self._peers.lock:
            if connection in self._retired:
                self._retired.remove(connection)
            if connection is self.connection:
                self.connection = None
            scheduled = bool(self._scheduled)
        if scheduled:
            self.open()

    def _await_peer_connection(self) -> None:
        """Wait for the peer's own connection; connect again if it does not arrive."""
        transport = self._peers.transport
        now_ns = transport.now_ns()
        if self.connection is not None or not self.opening:
            self.opening = False
            self.open()
        elif now_ns >= self._deadline_ns:
            self._fail(TransportError("its own connection did not come", peer=str(self)))
        else:
            self.waiting = transport.call_at(now_ns + _RECONNECT_NS, self._on_waited)

    def _connect_again(self, error: HeadgateError, *, challenged: bool) -> None:
        """Connect again after a delay: the peer has dropped the connection during the handshake."""
        transport = self._peers.transport
        now_ns = transport.now_ns()
        wait_ns = self._retry.wait_ns(now_ns, challenged=challenged)
        if wait_ns is None:
            self._fail(error)
        else:
            self.waiting = transport.call_at(now_ns + wait_ns, self._on_waited)

    def _on_waited(self) -> None:
        self.waiting = None
        self._connect()

    def _fail(self, error: HeadgateError) -> None:
        """Fail every channel without a connection: none can be made."""
        self.opening = False
        with self._peers.lock:
            if self.connection is not None and self.connection.usable:
                return  # the peer's own connection has arrived meanwhile
            wakes = []
            for channel in self._uncarried_locked():
                wakes.append(channel.fail_locked(error))
                self._scheduled.pop(channel, None)
                channel.scheduled = False
            self._delete_ended_locked()
        wake = together(*wakes)
        if wake is not None:
            wake()

    def _delete_ended_locked(self) -> None:
        """Delete ended channels without a connection: they have no frame to send."""
        over = {RemoteState.RELEASED, RemoteState.FAILED}
        for channel in self._uncarried_locked():
            if channel.state in over:
                del self._channels[channel]
                self._scheduled.pop(channel, None)
                channel.scheduled = False

    def _uncarried_locked(self) -> list[RemoteChannel]:
        """Return the channels that have no connection, or the latest one."""
        return [channel for channel in self._channels if self._carrier_locked(channel) is self.connection]

    def close(self, error: HeadgateError) -> None:
        """End every connection with this peer, and fail its channels."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
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

    `connect` makes a connection, not started yet, from a stream to a peer.

    >>> from headgate.sync import ThreadSync
    >>> peers = Peers(0, ThreadSync().lock, transport=None, connect_timeout_ns=10**9, connect=print)
    >>> peers.connected(3, lane=0)  # worker 3 may connect
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

    def set_address_locked(self, worker: int, address: Address) -> None:
        """Set the address of a worker's port."""
        self._addresses[worker] = address

    def address(self, worker: int) -> Address | None:
        """Return the address of a worker's port, if it is known."""
        return self._addresses.get(worker)

    def peer_locked(self, worker: int, lane: int = 0) -> Peer:
        """Return the peer with that number, in that lane."""
        peer = self._peers.get((worker, lane))
        if peer is None:
            peer = self._peers[worker, lane] = Peer(worker, lane, self)
        return peer

    def connected(self, worker: int, lane: int) -> bool:
        """Return True if a connection from that worker is refused: this side's own is being made or open, and stays."""
        peer = self._peers.get((worker, lane))
        if peer is None or worker < self.worker:
            return False
        connection = peer.connection
        ours = connection is not None and connection.outgoing and connection.state is ConnectionState.OPEN
        return (peer.opening and peer.waiting is None) or ours

    def __iter__(self) -> Iterator[Peer]:
        with self.lock:
            return iter(list(self._peers.values()))
