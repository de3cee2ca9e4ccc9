"""The network of one worker: its port, its peers and its connections.

Created by the worker's environment when it joins a job; tasks get the outlets of their remote channels from it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headgate.config import FlowControl
from headgate.errors import Cancelled, ConfigError
from headgate.net.certificates import Credentials, client_context, server_context
from headgate.net.connection import Connection
from headgate.net.context import ConnectionContext
from headgate.net.data_port import DataPort
from headgate.net.peers import Peer, Peers
from headgate.net.time_limits import ConnectionOptions
from headgate.net.tls import TlsStream
from headgate.wire.handshake import MAX_LANES, NONCE_BYTES, SECRET_BYTES, ClientHandshake, ServerHandshake

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.config import NetworkSettings
    from headgate.ids import AttemptId, JobId
    from headgate.input import RemoteOutlet
    from headgate.net.owner import ConnectionOwner, ConnectionStatistics
    from headgate.net.stream import Address, Stream, Transport
    from headgate.output import PartitionRegistry
    from headgate.wire.handshake import Handshake

__all__ = ["Identity", "Network", "NetworkStatistics"]


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker, and the secrets that prove it.

    >>> from headgate.ids import AttemptId, JobId
    >>> Identity(JobId("etl"), AttemptId(1), worker=3, secret=bytes(32))
    Identity(job='etl', attempt=1, worker=3)
    """

    job: JobId
    attempt: AttemptId
    worker: int
    secret: bytes = field(repr=False)
    credentials: Credentials | None = field(default=None, repr=False)  # for TLS

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ConfigError(f"the secret of a job has {SECRET_BYTES} bytes, not {len(self.secret)}")


@dataclass(frozen=True, slots=True)
class NetworkStatistics:
    """The figures of a worker's connections.

    >>> NetworkStatistics(address=None, connections=(), half_open=0, refused=0).connections
    ()
    """

    address: Address | None
    connections: tuple[ConnectionStatistics, ...]
    half_open: int  # peers that have not proved their identity yet
    refused: int  # peers that could not prove it


class Network:
    """All connections of one worker. Used on the network thread, except `outlet`, `know` and `statistics`.

    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.net.memory import MemoryTransport
    >>> from headgate.config import NetworkSettings
    >>> from headgate.output import PartitionRegistry
    >>> from headgate.sync import ThreadSync
    >>> identity, registry = Identity(JobId("etl"), AttemptId(1), 0, bytes(32)), PartitionRegistry(ThreadSync().lock)
    >>> network = Network(identity, registry, NetworkSettings(), MemoryTransport(), segment_size=32768)
    >>> network.listen() == network.statistics().address
    True
    """

    def __init__(
        self,
        identity: Identity,
        registry: PartitionRegistry,
        settings: NetworkSettings,
        transport: Transport,
        *,
        segment_size: int,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        self.identity = identity
        self.address: Address | None = None
        self.transport = transport
        self._settings = settings
        self._lock = registry.lock
        self._nonce = nonce
        self._exchange = ConnectionContext(
            identity.job,
            identity.attempt,
            registry,
            segment_size,
            max_channels=settings.max_channels_per_connection,
            credited=settings.flow_control is FlowControl.CREDIT,
            checksum=_checksum() if settings.checksum else None,
        )
        self._options = ConnectionOptions(
            settings.handshake_timeout.ns,
            settings.idle_timeout.ns,
            high_mark=settings.write_high_mark,
            low_mark=settings.write_low_mark,
        )
        self._contexts = None
        if identity.credentials is not None:
            self._contexts = client_context(identity.credentials), server_context(identity.credentials)
        self.peers = Peers(identity.worker, self._lock, transport, settings.connect_timeout.ns, self._outgoing)
        self._port = DataPort(transport, self._incoming, self._owner, max_half_open=settings.max_half_open)
        self.connections: dict[Connection, None] = {}
        self._on_quiet: Callable[[], object] | None = None

    def listen(self) -> Address:
        """Open this worker's port.

        Raises:
            ConfigError: the address is not on loopback, and connections would not be encrypted.
            TransportError: the port is in use.
        """
        host = self._settings.bind_address
        if not ip_address(host).is_loopback and self._contexts is None and not self._settings.insecure_plaintext:
            raise ConfigError(
                f"network.bind_address = {host} can be reached from other machines, and this worker has no "
                "certificate: give it one, or set network.insecure_plaintext if everyone on the way may read the data"
            )
        self.address = self._port.listen(host, self._settings.port)
        return self.address

    def outlet(self, worker: int, address: Address | None = None, lane: int = 0) -> RemoteOutlet:
        """Return the outlet to another worker, for a remote channel. Without an address that worker must connect.

        With credit all channels share connection 0: no channel blocks another.
        """
        with self._lock:
            if address is not None:
                self.peers.set_address_locked(worker, address)
            return self.peers.peer_locked(worker, 0 if self._exchange.credited else lane)

    def know(self, worker: int, address: Address) -> None:
        """Store the address at which another worker listens."""
        with self._lock:
            self.peers.set_address_locked(worker, address)

    def close(self, quiet: Callable[[], object]) -> None:
        """Stop accepting; call `quiet` when the last connection has ended, which both sides must agree to."""
        self._port.close()
        self._on_quiet = quiet
        self._call_quiet()

    def abort(self) -> None:
        """End every connection at once."""
        error = Cancelled(f"worker {self.identity.worker} is closed")
        self._port.close()
        for peer in self.peers:
            peer.close(error)
        for connection in list(self.connections):
            connection.fail(error)

    def statistics(self) -> NetworkStatistics:
        """Return the figures of all connections; from any thread."""
        with self._lock:
            found = [(one, one.statistics_locked()) for one in self.connections]
        connections = tuple(replace(statistics, path=one.path()) for one, statistics in found)  # a system call
        return NetworkStatistics(self.address, connections, self._port.half_open, self._port.refused)

    # Creating connections.

    def _outgoing(self, stream: Stream, peer: Peer) -> Connection:
        identity = self.identity
        handshake = ClientHandshake(
            identity.secret, identity.job, identity.attempt, worker=identity.worker, nonce=self._nonce(), lane=peer.lane
        )
        return self._new_connection(stream, handshake, peer, reach=peer.worker)

    def _incoming(self, stream: Stream, owner: ConnectionOwner) -> Connection:
        identity = self.identity
        handshake = ServerHandshake(
            identity.secret,
            identity.job,
            identity.attempt,
            worker=identity.worker,
            nonce=self._nonce(),
            lanes=1 if self._exchange.credited else MAX_LANES,
            connected=self.peers.connected,
        )
        return self._new_connection(stream, handshake, owner, reach=None)

    def _new_connection(
        self, lower: Stream, handshake: Handshake, owner: ConnectionOwner, *, reach: int | None
    ) -> Connection:
        """Return a connection over a stream: to the worker `reach`, or from a peer that is not known yet."""
        stream, tls = lower, None
        if self._contexts is not None:
            context = self._contexts[1 if reach is None else 0]
            stream = tls = TlsStream(lower, context, self.transport.post, reach=reach)
        connection = Connection(
            stream,
            handshake,
            self._exchange,
            self.transport,
            owner,
            self._options,
            outgoing=reach is not None,
            ended=self.ended,
            certified=lambda: None if tls is None else tls.peer_worker,
        )
        with self._lock:
            self.connections[connection] = None
        return connection

    def _owner(self, connection: Connection) -> ConnectionOwner:
        with self._lock:
            return self.peers.peer_locked(connection.worker, connection.lane)

    def ended(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self.connections.pop(connection, None)
        self._call_quiet()

    def _call_quiet(self) -> None:
        if self._on_quiet is not None and not self.connections:
            quiet, self._on_quiet = self._on_quiet, None
            quiet()


def _checksum() -> Callable[[memoryview], int]:
    try:
        from crc32c import crc32c  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("network.checksum needs the package crc32c: pip install 'headgate[checksum]'") from error
    compute: Callable[[memoryview], int] = crc32c
    return compute
