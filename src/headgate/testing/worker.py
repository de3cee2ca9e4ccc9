"""A simulated worker: the assembly of a real one (`WorkerExchange`), in virtual time.

Memory, registry, network, gates and partitions are the production classes. Lock, signals, transport, clock and nonces
are simulated. Two parts record what happens: the registry returns subpartitions that record every poll
(`WatchedSupply`), and the network records how each connection ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from headgate.buffer import Arena, Kind, NetworkPool
from headgate.config import BufferTimeout
from headgate.errors import Cancelled, InvariantViolated
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Identity, Network
from headgate.output import PartitionRegistry, PipelinedSubpartition
from headgate.testing.simnet import SimNet, SimTransport
from headgate.testing.simulator import Actor
from headgate.testing.waiting import SimSync
from headgate.wire import ProducerStream
from headgate.worker.exchange import WorkerExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.buffer import BufferSlice, LocalPool
    from headgate.buffer.budget import PoolBounds
    from headgate.errors import HeadgateError
    from headgate.input import InputGate, RemoteChannel, UnionGate
    from headgate.input.channel import ChannelSource
    from headgate.meters import TaskTimer
    from headgate.net import Address, Stream
    from headgate.net.connection import Connection
    from headgate.net.owner import ConnectionOwner
    from headgate.output import RecordWriter, ResultPartition, Selector
    from headgate.output.pipelined import SubpartitionListener
    from headgate.record import Serializer
    from headgate.sync import Wake
    from headgate.testing.plan import SimPlan
    from headgate.testing.simulator import Simulator
    from headgate.wire.handshake import Handshake

__all__ = [
    "STRANGERS",
    "EndedConnection",
    "SimWorker",
    "WatchedMemory",
    "WatchedNetwork",
    "WatchedRegistry",
    "WatchedSupply",
    "host_of",
]

JOB = JobId("sim")

STRANGERS: Final = "127.0.1."
"""The start of the addresses of processes that do not belong to the job: see `strangers`."""


def host_of(worker: int) -> str:
    """Return the address of a worker: on loopback, one for each.

    >>> host_of(2)
    '127.0.0.3'
    """
    return f"127.0.0.{worker + 1}"


class WatchedSupply:
    """A subpartition that records every poll over the network: the buffer, and the length of the queue."""

    __slots__ = ("_most", "_passed", "_stream", "_subpartition", "polled", "seen_backlogs")

    def __init__(self, subpartition: PipelinedSubpartition, stream: ProducerStream | None = None) -> None:
        self._subpartition = subpartition
        self._stream = stream
        self._passed = 0  # polls of other streams while it was queued and could send
        self._most = 0  # most streams of the connection meanwhile
        self.polled: list[tuple[int, int, bool]] = []
        """For each buffer that was polled: the backlog after it, its bytes, and True if it is an event."""
        self.seen_backlogs: set[int] = set()
        """The true length of the queue at each access to `backlog`."""

    def count(self) -> int:
        """Return the number of data buffers in the queue, counted one by one."""
        return sum(reader.buffer.kind is Kind.DATA for reader in self._subpartition._queue)

    @property
    def backlog(self) -> int:
        """The backlog of the subpartition."""
        self.seen_backlogs.add(self.count())
        return self._subpartition.backlog

    def __getattr__(self, name: str) -> object:
        return getattr(self._subpartition, name)

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Poll the subpartition, and count the poll for every other stream that could have sent instead.

        Raises:
            InvariantViolated: A stream that could send was passed over more often than there are streams.
        """
        if self._stream is not None:
            self._count_poll(self._stream)
        taken, wake = self._subpartition.poll_locked()
        if taken is not None:
            self.polled.append((self.count(), len(taken.memory), taken.kind is Kind.EVENT))
        return taken, wake

    def _count_poll(self, stream: ProducerStream) -> None:
        self._passed = self._most = 0
        streams = stream.session.streams
        for other in streams.values():
            supply, ledger = cast("object", other.supply), other.ledger
            if other is stream or not isinstance(supply, WatchedSupply):
                continue
            credited = ledger is None or ledger.sent < ledger.granted
            if not other.queued or not (credited or not supply._subpartition.next_is_data):
                supply._passed = supply._most = 0
                continue
            supply._passed, supply._most = supply._passed + 1, max(supply._most, len(streams))
            if supply._passed > supply._most:
                raise InvariantViolated(
                    f"{other} could send, and was passed over {supply._passed} times, with {supply._most} streams"
                )


class WatchedRegistry(PartitionRegistry):
    """A registry that returns a `WatchedSupply` to readers over the network."""

    def __init__(self, sync: SimSync) -> None:
        super().__init__(sync.lock)
        self.watched: dict[tuple[PartitionId, int], WatchedSupply] = {}

    def attach_locked(
        self,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        listener: SubpartitionListener,
        *,
        packed: bool = False,
    ) -> tuple[PipelinedSubpartition, Wake]:
        """Attach a reader; one over the network gets a `WatchedSupply`."""
        subpartition, wake = super().attach_locked(partition_id, index, listener, packed=packed)
        assert isinstance(subpartition, PipelinedSubpartition), "nothing is on disk here"
        if not isinstance(listener, ProducerStream):
            return subpartition, wake
        supply = self.watched[partition_id, index] = WatchedSupply(subpartition, listener)
        return supply, wake  # type: ignore[return-value] # a session uses no more of it


class WatchedMemory(NetworkPool):
    """Network memory that records if a pool was ever resized below the number of buffers that it holds."""

    squeezed = False
    """True once that happened: other pools may then wait for buffers that they require."""

    def _share_out_locked(self) -> Wake:
        wake = super()._share_out_locked()
        self.squeezed = self.squeezed or any(pool.held > pool.size for pool in self._pools)
        return wake


class EndedConnection:
    """A connection that has ended, with its error."""

    __slots__ = ("connection", "error", "proved")

    def __init__(self, connection: Connection, error: HeadgateError | None, *, proved: bool) -> None:
        self.connection = connection
        self.error = error
        self.proved = proved


class _WatchedOwner:
    """Forwards all calls to the owner of a connection, and records the end of the connection."""

    def __init__(self, owner: ConnectionOwner, network: WatchedNetwork) -> None:
        self._owner = owner
        self._network = network
        self._proved = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._owner, name)

    def proved(self, connection: Connection) -> None:
        self._proved = True
        self._network.on_proved(connection)
        self._owner.proved(connection)

    def lost(self, connection: Connection, error: HeadgateError | None) -> None:
        self._network.history.append(EndedConnection(connection, error, proved=self._proved))
        self._owner.lost(connection, error)


class WatchedNetwork(Network):
    """A network that records how its connections ended."""

    history: list[EndedConnection]
    on_proved: Callable[[Connection], object]

    def _new_connection(
        self, lower: Stream, handshake: Handshake, owner: ConnectionOwner, *, reach: int | None
    ) -> Connection:
        watched = cast("ConnectionOwner", _WatchedOwner(owner, self))
        return super()._new_connection(lower, handshake, watched, reach=reach)


class SimWorker(WorkerExchange):
    """A worker of a simulation: the exchange of a real one, with virtual time, a virtual network and no threads.

    It keeps every part that it makes, for the invariants.
    """

    def __init__(
        self,
        number: int,
        plan: SimPlan,
        net: SimNet,
        *,
        attempt: int = 1,
        host: str | None = None,
        port: int = 0,
        segments: int | None = None,
    ) -> None:
        self.number = number
        self.host = host if host is not None else host_of(number)
        self.plan = plan
        self.attempt = AttemptId(attempt)
        self.simulator: Simulator = net.simulator
        self.actor = Actor(f"{self.host}#{attempt}")
        self.crashed = False
        self.deceived = False  # another process has connected with the identity of this worker, or of a peer of it
        self.sync = SimSync()
        self.transport = SimTransport(net, self.host, self.actor)
        self.wake_delay_ns = net.weather.loop_delay_ns
        self.memory: WatchedMemory
        self.registry: WatchedRegistry
        settings = replace(plan.network_settings(), bind_address=self.host, port=port)
        count = segments if segments is not None else plan.segments(number)
        super().__init__(
            settings,
            plan.record_settings(),
            memory=WatchedMemory(Arena(plan.segment_size, count), self.sync),
            registry=WatchedRegistry(self.sync),
            sync=self.sync,
            clock=self.transport,
            chance=net.simulator.fork(f"selector/{self.actor.name}"),
            max_event_bytes=plan.max_event_bytes,
        )
        self.pools: list[LocalPool] = []
        self.partitions: list[ResultPartition] = []
        self.gates: list[InputGate] = []
        self.unions: list[UnionGate] = []
        self.remotes: list[RemoteChannel] = []
        nonces = net.simulator.fork(f"nonces/{self.actor.name}")
        secret = net.simulator.fork("secret").randbytes(32)
        self.network = WatchedNetwork(
            Identity(JOB, self.attempt, number, secret),
            self.registry,
            settings,
            self.transport,
            segment_size=plan.segment_size,
            nonce=lambda: nonces.randbytes(32),
        )
        self.use_network(self.network)
        self.network.history = []
        self.network.on_proved = lambda _connection: None
        self.address: Address = self.network.listen()

    def partition_id(self, producer: int) -> PartitionId:
        """Return the id of the partition of a producing task."""
        return PartitionId(JOB, self.attempt, 0, 0, producer)

    def partition_of(self, producer: int, subpartitions: int) -> ResultPartition:
        """Return a registered partition of a producing task."""
        partition = self.partition(self.partition_id(producer), subpartitions=subpartitions, patient=True)
        self.partitions.append(partition)
        return partition

    def writer(
        self, partition: ResultPartition, selector: Selector[bytes], serializer: Serializer[bytes]
    ) -> RecordWriter[bytes]:
        """Return a writer that its task flushes, as the flusher thread of an environment does."""
        return self._build_writer(partition, selector, serializer, buffer_timeout=BufferTimeout.parse("100ms"))

    def gate(self, name: str, *, channels: int, timer: TaskTimer | None = None) -> InputGate:
        """Return a gate, see `WorkerExchange`."""
        gate = super().gate(name, channels=channels, timer=timer)
        self.gates.append(gate)
        return gate

    def union(self, name: str, gates: Sequence[InputGate], *, timer: TaskTimer | None = None) -> UnionGate:
        """Return several gates as one, see `WorkerExchange`."""
        union = super().union(name, gates, timer=timer)
        self.unions.append(union)
        return union

    def source(
        self, gate: InputGate, producer: int, subpartition: int, there: SimWorker, *, lane: int = 0
    ) -> ChannelSource:
        """Return the source of a channel of `gate` that reads a producer of the worker `there`."""
        partition_id, index = self.partition_id(producer), SubpartitionIndex(subpartition)
        if there is self:
            return self.local_source(partition_id, index)
        remote = self.remote_source(gate, partition_id, index, worker=there.number, address=there.address, lane=lane)
        self.remotes.append(remote)
        return remote

    def close_network(self) -> None:
        """Release all partitions and gates, and accept no more connections; those that are open end in order."""
        self.registry.release_all(Cancelled("the job is over"))
        self._release_inputs()
        self.network.close(lambda: None)

    def close(self) -> None:
        """Give all memory back, after `close_network`."""
        self._release_memory()

    def create_pool(self, name: str, bounds: PoolBounds) -> LocalPool:
        """Return a pool that belongs to no partition and no gate."""
        return self._create_pool(name, bounds)

    def _create_pool(
        self,
        name: str,
        bounds: PoolBounds,
        *,
        channels: int = 0,
        max_per_channel: int | None = None,
        overdraft: int = 0,
    ) -> LocalPool:
        pool = super()._create_pool(
            name, bounds, channels=channels, max_per_channel=max_per_channel, overdraft=overdraft
        )
        self.pools.append(pool)
        return pool
