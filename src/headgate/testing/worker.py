"""A simulated worker: the production parts of one, put together as `headgate.worker.Environment` does.

Memory, registry, network, gates and partitions are the real ones; lock, waiters, transport, clock and nonces are handed
in. Two of the parts are looked over the shoulder: the registry hands out subpartitions that remember what was polled
(`WatchedSupply`), and the network remembers how each connection ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from headgate.buffer import Arena, Kind, NetworkPool
from headgate.config import BufferTimeout
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.input import Backoff, InputGate, LocalSource, RecordReader, RemoteChannel, UnionGate
from headgate.net import Identity, Network
from headgate.output import (
    PartitionRegistry,
    PartitionType,
    PipelinedSubpartition,
    RecordWriter,
    ResultPartition,
)
from headgate.record.spanning import RecordLimits
from headgate.testing.simnet import SimNet, SimTransport
from headgate.testing.simulator import Actor
from headgate.testing.waiting import SimSync
from headgate.wire import ProducerStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice, LocalPool
    from headgate.errors import HeadgateError
    from headgate.input import Gate
    from headgate.net import Address, Stream
    from headgate.net.connection import Connection
    from headgate.net.owner import ConnectionOwner
    from headgate.output import Selector
    from headgate.output.pipelined import SubpartitionListener
    from headgate.record import Serializer
    from headgate.sync import Wake
    from headgate.testing.plan import Plan
    from headgate.testing.simulator import Simulator
    from headgate.wire.handshake import Handshake

__all__ = [
    "STRANGERS",
    "Ended",
    "SimWorker",
    "WatchedMemory",
    "WatchedNetwork",
    "WatchedRegistry",
    "WatchedSupply",
    "host_of",
]

JOB = JobId("sim")

STRANGERS: Final = "127.0.1."
"""How the addresses of those begin who only say that they are workers."""


def host_of(worker: int) -> str:
    """Where a worker of a simulation lives: on loopback, each at an address of its own.

    >>> host_of(2)
    '127.0.0.3'
    """
    return f"127.0.0.{worker + 1}"


class WatchedSupply:
    """A subpartition that remembers, for each poll over the network, what it gave and how long its queue was then.

    >>> from headgate.output.pipelined import PipelinedSubpartition
    >>> from headgate.testing.waiting import SimLock
    >>> supply = WatchedSupply(PipelinedSubpartition(SubpartitionIndex(0), SimLock(), "partition etl#1/v0.0[0]"))
    >>> supply.poll_locked(), supply.polled
    ((None, None), [])
    """

    __slots__ = ("_subpartition", "polled", "seen_backlogs")

    def __init__(self, subpartition: PipelinedSubpartition) -> None:
        self._subpartition = subpartition
        self.polled: list[tuple[int, int, bool]] = []
        """Backlog afterwards, bytes, whether it was an event: for each poll that gave something."""
        self.seen_backlogs: set[int] = set()
        """Every true length of the queue at which somebody asked for it."""

    def count(self) -> int:
        """How many data buffers are in the queue, counted one by one."""
        return sum(reader.buffer.kind is Kind.DATA for reader in self._subpartition._queue)

    @property
    def backlog(self) -> int:
        """As the subpartition says."""
        self.seen_backlogs.add(self.count())
        return self._subpartition.backlog

    def __getattr__(self, name: str) -> object:
        return getattr(self._subpartition, name)

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """As the subpartition does."""
        taken, wake = self._subpartition.poll_locked()
        if taken is not None:
            self.polled.append((self.count(), len(taken.memory), taken.kind is Kind.EVENT))
        return taken, wake


class WatchedRegistry(PartitionRegistry):
    """A registry whose subpartitions are watched when they are read over the network.

    >>> WatchedRegistry(SimSync()).watched
    {}
    """

    def __init__(self, sync: SimSync) -> None:
        super().__init__(sync.lock)
        self.watched: dict[tuple[PartitionId, int], WatchedSupply] = {}

    def attach_locked(
        self, partition_id: PartitionId, index: SubpartitionIndex, listener: SubpartitionListener
    ) -> tuple[PipelinedSubpartition, Wake]:
        """As a registry does; a reader over the network gets a subpartition that is watched."""
        subpartition, wake = super().attach_locked(partition_id, index, listener)
        assert isinstance(subpartition, PipelinedSubpartition), "nothing is on disk here"
        if not isinstance(listener, ProducerStream):
            return subpartition, wake
        supply = self.watched[partition_id, index] = WatchedSupply(subpartition)
        return supply, wake  # type: ignore[return-value] # it is all that a session asks for


class WatchedMemory(NetworkPool):
    """Network memory that knows whether its pools were ever made smaller than what they had in use.

    >>> WatchedMemory(Arena(segment_size=64, count=10), SimSync()).squeezed
    False
    """

    squeezed = False
    """Then others may have to wait for what they are sure of."""

    def _share_out_locked(self) -> Wake:
        wake = super()._share_out_locked()
        self.squeezed = self.squeezed or any(pool.held > pool.size for pool in self._pools)
        return wake


class Ended:
    """How a connection ended, and what it was.

    >>> from headgate.testing import Simulation
    >>> simulation = Simulation(seed=3, faults=[]); simulation.run()
    >>> {ended.error for worker in simulation.job.workers for ended in worker.network.history if ended.proved}
    {None}
    """

    __slots__ = ("connection", "error", "proved")

    def __init__(self, connection: Connection, error: HeadgateError | None, *, proved: bool) -> None:
        self.connection = connection
        self.error = error
        self.proved = proved


class _WatchedOwner:
    """Between a connection and its owner: everything is the owner's, but the end is remembered."""

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
        self._network.history.append(Ended(connection, error, proved=self._proved))
        self._owner.lost(connection, error)


class WatchedNetwork(Network):
    """A network that remembers how its connections ended.

    >>> from headgate.testing import Simulation
    >>> simulation = Simulation(seed=3, faults=[]); simulation.run()
    >>> any(worker.network.history for worker in simulation.job.workers)
    True
    """

    history: list[Ended]
    on_proved: Callable[[Connection], object]

    def _made(self, lower: Stream, handshake: Handshake, owner: ConnectionOwner, *, reach: int | None) -> Connection:
        watched = cast("ConnectionOwner", _WatchedOwner(owner, self))
        return super()._made(lower, handshake, watched, reach=reach)


class SimWorker:
    """One worker.

    >>> from headgate.testing.plan import draw_plan
    >>> from headgate.testing.simstream import Weather
    >>> from headgate.testing.simulator import Simulator, fork
    >>> worker = SimWorker(0, draw_plan(fork(1, "plan")), SimNet(Simulator(seed=1), Weather()))
    >>> worker.address.host, len(worker.memory.free) == worker.memory.total
    ('127.0.0.1', True)
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
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
        self.deceived = False  # somebody else says that it is this worker, or a peer of it
        self.sync = SimSync()
        count = segments if segments is not None else plan.segments(number)
        self.memory = WatchedMemory(Arena(plan.segment_size, count), self.sync)
        self.pools: list[LocalPool] = []
        """Every pool that was ever made."""
        self.registry = WatchedRegistry(self.sync)
        self.partitions: list[ResultPartition] = []
        self.gates: list[InputGate] = []
        self.unions: list[UnionGate] = []
        self.remotes: list[RemoteChannel] = []
        """Every way to another worker, from when it has its segments."""
        self.transport = SimTransport(net, self.host, self.actor)
        self.wake_delay_ns = net.weather.loop_delay_ns
        self.record_limits = RecordLimits(plan.max_record_bytes, plan.spill_bytes)
        self._random = net.simulator.fork(f"nonces/{self.actor.name}")
        self._chance = net.simulator.fork(f"selector/{self.actor.name}")
        secret = net.simulator.fork("secret").randbytes(32)
        self.network = WatchedNetwork(
            Identity(JOB, self.attempt, number, secret),
            self.registry,
            replace(plan.settings(), bind_address=self.host, port=port),
            self.transport,
            segment_size=plan.segment_size,
            nonce=lambda: self._random.randbytes(32),
        )
        self.network.history = []
        self.network.on_proved = lambda _connection: None
        self.address: Address = self.network.listen()
        initial_ms, max_ms = plan.backoff_ms
        self._backoff = Backoff(initial_ms * 1_000_000, max_ms * 1_000_000)

    def partition_id(self, producer: int) -> PartitionId:
        """The partition of a producing task."""
        return PartitionId(JOB, self.attempt, 0, 0, producer)

    def pool(self, name: str, required: int, maximum: int | None, channels: int = 0) -> LocalPool:
        """A pool that the invariants look at."""
        limits = self.plan.limits
        pool = self.memory.create_pool(
            name,
            required=required,
            maximum=maximum,
            channels=channels,
            max_per_channel=limits.max_buffers_per_channel if channels else None,
            overdraft=limits.max_overdraft_buffers if channels else 0,
        )
        self.pools.append(pool)
        return pool

    def partition(self, producer: int, subpartitions: int) -> ResultPartition:
        """A registered partition."""
        partition_id = self.partition_id(producer)
        bounds = self.plan.limits.partition_pool(subpartitions, bounded=True)
        pool = self.pool(f"partition {partition_id}", bounds.required, bounds.maximum, channels=subpartitions)
        partition = ResultPartition(partition_id, PartitionType.PIPELINED_BOUNDED, subpartitions, pool)
        self.registry.register(partition)
        self.partitions.append(partition)
        return partition

    def writer(
        self, partition: ResultPartition, selector: Selector[bytes], serializer: Serializer[bytes]
    ) -> RecordWriter[bytes]:
        """A writer that is flushed by its task's flusher."""
        return RecordWriter(
            partition,
            selector,
            serializer,
            sync=self.sync,
            below=self._chance.randrange,
            limits=self.record_limits,
            buffer_timeout=BufferTimeout.parse("100ms"),
        )

    def gate(self, name: str, channels: int) -> InputGate:
        """A gate whose channels are not connected yet."""
        gate = InputGate(name, channels, sync=self.sync, clock=self.transport)
        self.gates.append(gate)
        return gate

    def union(self, name: str, gates: list[InputGate]) -> UnionGate:
        """Several gates read as one."""
        union = UnionGate(name, gates, sync=self.sync, clock=self.transport)
        self.unions.append(union)
        return union

    def reader(self, gate: Gate, serializer: Serializer[bytes]) -> RecordReader[bytes]:
        """A reader of a gate."""
        return RecordReader(gate, serializer, limits=self.record_limits)

    def local_source(self, producer: int, subpartition: int) -> LocalSource:
        """The way to a partition of this worker."""
        return LocalSource(self.registry, self.partition_id(producer), SubpartitionIndex(subpartition), self._backoff)

    def remote_source(
        self, gate: InputGate, producer: int, subpartition: int, worker: SimWorker, remote_channels: int, *, lane: int
    ) -> RemoteChannel:
        """The way to a partition of another worker."""
        limits = self.plan.limits
        if gate.pool is None:
            bounds = limits.gate_pool(remote_channels)
            gate.use_pool(self.pool(f"gate {gate.name}", bounds.required, bounds.maximum))
        assert gate.pool is not None, "it has one now"
        exclusive = None
        if limits.credit_based:
            exclusive = self.memory.request_exclusive(f"gate {gate.name}", limits.buffers_per_channel, timeout_s=0)
        outlet = self.network.outlet(worker.number, worker.address, lane)
        index = SubpartitionIndex(subpartition)
        remote = RemoteChannel(
            self.partition_id(producer),
            index,
            outlet,
            self.memory,
            gate.pool,
            exclusive=exclusive,
            backoff=self._backoff,
        )
        self.remotes.append(remote)
        return remote
