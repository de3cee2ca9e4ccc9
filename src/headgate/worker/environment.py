"""What all tasks of a worker share: network memory, the partition registry, the flusher, clock and randomness.

Made once per worker by whoever runs it; tasks ask it for partitions, writers, gates and readers, wired with the
worker's settings. `close` ends everything and gives all memory back.
"""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar, cast, overload

from headgate.buffer import Arena, Limits, LocalPool, NetworkPool, NetworkPoolStatistics
from headgate.clock import SystemClock
from headgate.config import BufferTimeout, FlushMode, Settings
from headgate.errors import Cancelled, LocalProtocolError
from headgate.input import Backoff, InputGate, LocalSource, RecordReader, RemoteChannel, UnionGate
from headgate.net import Address, ConnectionStatistics, Identity, Network, NetworkStatistics
from headgate.net.loop import open_loop
from headgate.net.shared_loop import SharedLoop
from headgate.net.sockets import SocketOptions, SocketTransport
from headgate.output import (
    AnyPartition,
    BlockingPartition,
    HotKeys,
    PartitionRegistry,
    PartitionStatistics,
    PartitionType,
    RecordWriter,
    ResultPartition,
)
from headgate.record.spanning import RecordLimits
from headgate.switching import Pace, switching
from headgate.sync import ThreadSync, Ticker
from headgate.worker.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.clock import Clock
    from headgate.ids import JobId, PartitionId, SubpartitionIndex
    from headgate.input import Gate
    from headgate.meters import TaskTimer
    from headgate.output import Selector
    from headgate.record.serializer import Serializer
    from headgate.worker.storage import Storage

__all__ = ["Environment", "EnvironmentStatistics"]

T = TypeVar("T")

_NEVER: Final = BufferTimeout(FlushMode.NEVER, 0)
_GOODBYE_S: Final = 2.0  # how long `close` waits for peers to end their connections in order


@dataclass(frozen=True, slots=True)
class EnvironmentStatistics:
    """A worker's exchange at one moment.

    >>> with Environment(memory_bytes=2**20) as environment:
    ...     environment.statistics()
    EnvironmentStatistics(memory=NetworkPoolStatistics(total=32, free=32, ...), partitions=(), network=None)
    """

    memory: NetworkPoolStatistics
    partitions: tuple[PartitionStatistics, ...]
    network: NetworkStatistics | None  # None: this worker knows no others


class Environment:
    """The exchange of one worker.

    >>> from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
    >>> from headgate.output import Forward
    >>> from headgate.record.serializer import StrSerializer
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     partition = environment.partition(PartitionId(JobId("job"), AttemptId(1), 0, 0, 0), subpartitions=1)
    ...     gate = environment.gate("words", channels=1)
    ...     gate.connect(0, environment.local_source(partition.id, SubpartitionIndex(0)))
    ...     writer = environment.writer(partition, Forward(), StrSerializer())
    ...     reader = environment.reader(gate, StrSerializer())
    ...     writer.emit_batch(["to", "be"])
    ...     writer.finish()
    ...     list(reader)
    [Batch(values=['to', 'be'], timestamps_ms=None), EndOfPartition()]
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        memory_bytes: int,
        clock: Clock | None = None,
        seed: int | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings()
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.sync = ThreadSync()
        segment_size = self.settings.memory.segment_size
        self.memory = NetworkPool(Arena(segment_size, memory_bytes // segment_size), self.sync)
        self.registry = PartitionRegistry(self.sync.lock)
        self.random = random.Random(seed)  # noqa: S311 - it spreads load; it keeps no secret
        self.ticker = Ticker("headgate-flusher")
        network, record = self.settings.network, self.settings.record
        self.limits = Limits.of(network)
        self.disk = Disk(self.memory, self.registry, self.limits, read_ahead=self.settings.batch.read_ahead)
        self.record_limits = RecordLimits(
            max_size_bytes=record.max_size,
            spill_threshold_bytes=record.spill_threshold,
            spill_directory=str(record.spill_directory) or None,
        )
        backoff = network.partition_request_backoff
        self._backoff = Backoff(backoff.initial.ns, backoff.max.ns)
        self._gates: weakref.WeakSet[Gate] = weakref.WeakSet()
        self._gate_pools: list[LocalPool] = []
        self._network: Network | None = None
        self._transport: SocketTransport | None = None
        self._pace: Pace | None = None
        self._closed = False

    @overload
    def partition(
        self,
        partition_id: PartitionId,
        *,
        subpartitions: int,
        kind: Literal[PartitionType.PIPELINED, PartitionType.PIPELINED_BOUNDED] = ...,
        timer: TaskTimer | None = None,
        patient: bool = False,
    ) -> ResultPartition: ...

    @overload
    def partition(
        self,
        partition_id: PartitionId,
        *,
        subpartitions: int,
        kind: PartitionType,
        timer: TaskTimer | None = None,
        patient: bool = False,
    ) -> AnyPartition: ...

    def partition(
        self,
        partition_id: PartitionId,
        *,
        subpartitions: int,
        kind: PartitionType = PartitionType.PIPELINED_BOUNDED,
        timer: TaskTimer | None = None,
        patient: bool = False,
    ) -> AnyPartition:
        """A registered partition with a pool of its own; a BLOCKING one is in a file of `storage`.

        A writer waits for a buffer as long as `network.buffers_request_timeout` says; a `patient` one, as the tasks of
        a job are, as long as its reader takes.

        Raises:
            StorageError: the file cannot be made.
        """
        self._refuse_if_closed()
        timeout_s = None if patient else self.settings.network.buffers_request_timeout.seconds
        if not kind.pipelined:
            return self.disk.partition(partition_id, subpartitions, timeout_s, timer)
        bounds = self.limits.partition_pool(subpartitions, bounded=kind.bounded)
        pool = self.memory.create_pool(
            f"partition {partition_id}",
            required=bounds.required,
            maximum=bounds.maximum,
            channels=subpartitions,
            max_per_channel=self.limits.max_buffers_per_channel if kind.bounded else None,
            overdraft=self.limits.max_overdraft_buffers,
        )
        partition = ResultPartition(partition_id, kind, subpartitions, pool, request_timeout_s=timeout_s, timer=timer)
        try:
            self.registry.register(partition)
        except BaseException:
            pool.destroy()
            raise
        return partition

    def adopt(self, partition_id: PartitionId, *, subpartitions: int | None = None) -> BlockingPartition:
        """A registered blocking partition from a finished file of `storage`, which this process need not have written.

        Raises:
            StorageError: there is none, it is damaged, or it has another number of subpartitions.
        """
        self._refuse_if_closed()
        return self.disk.adopt(partition_id, subpartitions)

    @property
    def storage(self) -> Storage | None:
        """Where blocking partitions are kept; set by whoever runs a job in BATCH mode, closed with the environment."""
        return self.disk.storage

    @storage.setter
    def storage(self, storage: Storage | None) -> None:
        self.disk.storage = storage

    def writer(
        self,
        partition: AnyPartition,
        selector: Selector[T],
        serializer: Serializer[T],
        *,
        buffer_timeout: BufferTimeout | None = None,
        hot_keys: bool = False,
    ) -> RecordWriter[T]:
        """A writer into a partition, flushed as `buffer_timeout` or else `execution.buffer_timeout` says.

        With `hot_keys` it looks for keys that many records have: see `RecordWriter.hot_keys`.
        """
        self._refuse_if_closed()
        if hot_keys:
            selector.watch_keys(HotKeys(self.clock.now_ns, self.random.randrange))
        timeout = buffer_timeout if buffer_timeout is not None else self.settings.execution.buffer_timeout
        if not partition.type.pipelined:
            timeout = _NEVER  # nobody reads before the end
        writer = _writer_class(serializer)(
            partition,
            selector,
            serializer,
            sync=self.sync,
            below=self.random.randrange,
            limits=self.record_limits,
            buffer_timeout=timeout,
            batch_size=self.settings.record.batch_size,
        )
        if timeout.mode in {FlushMode.AUTO, FlushMode.INTERVAL}:
            self.ticker.every(timeout.interval_ns / 1e9, writer.tick)
            writer.on_close = lambda: self.ticker.cancel(writer.tick)
        return writer

    def gate(self, name: str, *, channels: int, timer: TaskTimer | None = None) -> InputGate:
        """A gate whose channels are not connected yet."""
        self._refuse_if_closed()
        gate = InputGate(name, channels, sync=self.sync, clock=self.clock, timer=timer)
        self._gates.add(gate)
        return gate

    def union(self, name: str, gates: Sequence[InputGate], *, timer: TaskTimer | None = None) -> UnionGate:
        """Several gates read as one."""
        self._refuse_if_closed()
        union = UnionGate(name, gates, sync=self.sync, clock=self.clock, timer=timer)
        self._gates.add(union)
        return union

    def local_source(self, partition_id: PartitionId, index: SubpartitionIndex) -> LocalSource:
        """The way to a partition of this worker."""
        return LocalSource(self.registry, partition_id, index, self._backoff)

    def join(self, identity: Identity) -> Address:
        """Take this worker's place in a job: open its port, so that others can read from it and it from others.

        Raises:
            ConfigError: the settings forbid it: an address beyond loopback without a certificate, an unknown driver.
            TransportError: the port is in use.

        >>> from headgate.ids import AttemptId, JobId
        >>> with Environment(memory_bytes=2**20) as worker:
        ...     worker.join(Identity(JobId("etl"), AttemptId(1), worker=0, secret=bytes(32))).host
        '127.0.0.1'
        """
        self._refuse_if_closed()
        if self._network is not None:
            raise LocalProtocolError("a worker joins one job")
        settings = self.settings.network
        options = SocketOptions(
            keepalive=settings.keepalive,
            send_buffer_bytes=settings.send_buffer,
            receive_buffer_bytes=settings.receive_buffer,
        )
        loop = open_loop(settings.transport)
        if isinstance(loop, SharedLoop):
            self.sync.driver = loop
        pace = switching.begin(self.settings.execution.switch_interval.seconds)
        transport = SocketTransport(loop, options, pace)
        transport.start()
        try:
            network = Network(identity, self.registry, settings, transport, segment_size=self.memory.segment_size)
            address = transport.call(network.listen)
        except BaseException:
            transport.close()
            pace.end()
            raise
        self._network, self._transport, self._pace = network, transport, pace
        return address

    def remote_source(
        self,
        gate: InputGate,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        *,
        worker: int,
        address: Address | None = None,
        lane: int = 0,
    ) -> RemoteChannel:
        """The way to a partition of another worker, for a channel of this gate; without an address, it must connect.

        Without credit, channels of different lanes do not stop each other: see `graph.depths`.

        Raises:
            InsufficientBuffers: there is no memory for the channel's own buffers.
        """
        self._refuse_if_closed()
        if self._network is None:
            raise LocalProtocolError("this worker has not joined a job: it knows no others")
        if gate.pool is None:
            bounds = self.limits.gate_pool(gate.channel_count)
            pool = self.memory.create_pool(f"gate {gate.name}", required=bounds.required, maximum=bounds.maximum)
            self._gate_pools = [one for one in self._gate_pools if not one.destroyed] + [pool]
            gate.use_pool(pool)
        assert gate.pool is not None, "it has one now"
        exclusive = None
        if self.limits.credit_based:
            timeout_s = self.settings.network.buffers_request_timeout.seconds
            name, count = f"gate {gate.name}, a remote channel", self.limits.buffers_per_channel
            exclusive = self.memory.request_exclusive(name, count, timeout_s=timeout_s)
        outlet = self._network.outlet(worker, address, lane)
        return RemoteChannel(
            partition_id, index, outlet, self.memory, gate.pool, exclusive=exclusive, backoff=self._backoff
        )

    def know(self, worker: int, address: Address) -> None:
        """Where another worker is, for channels that were made before that was known."""
        assert self._network is not None, "a worker that has joined a job knows others"
        self._network.know(worker, address)

    @property
    def transport(self) -> SocketTransport:
        """What carries this worker's connections; only after `join`."""
        if self._transport is None:
            raise LocalProtocolError("this worker has not joined a job")
        return self._transport

    def reader(self, gate: Gate, serializer: Serializer[T] | Sequence[Serializer[T]]) -> RecordReader[T]:
        """A reader of a gate's elements; the serializer, or those of the channels."""
        return RecordReader(gate, serializer, limits=self.record_limits)

    def release_job(self, job: JobId, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Release all partitions of a job; their readers learn the cause. With `keep`, finished files stay."""
        self.registry.release_job(job, cause, keep=keep)

    def statistics(self) -> EnvironmentStatistics:
        """The exchange at this moment."""
        network = None if self._network is None else self._network.statistics()
        return EnvironmentStatistics(self.memory.statistics(), self.registry.statistics(), network)

    def connections(self) -> tuple[ConnectionStatistics, ...]:
        """Those to other workers at this moment."""
        return () if self._network is None else self._network.statistics().connections

    def close(self, *, keep: bool = False) -> None:
        """Stop the flusher, release every partition and gate, leave the network, give the memory back. May be repeated.

        Peers are given a moment to end their connections in order. With `keep`, finished partitions stay on disk.
        """
        self._closed = True
        self.ticker.close()
        self.registry.release_all(keep=keep)
        self.disk.close(keep=keep)
        for gate in list(self._gates):
            gate.release()
        self._leave()
        for pool in self._gate_pools:  # of gates that were dropped without being released
            pool.destroy()
        self.memory.close()

    def _leave(self) -> None:
        network, transport, pace = self._network, self._transport, self._pace
        if network is None or transport is None or pace is None:
            return
        self._transport = None
        quiet = self.sync.waiter()
        transport.call_soon(lambda: network.close(quiet.wake))
        quiet.wait(_GOODBYE_S)
        transport.call(network.abort)
        self.sync.driver = None
        transport.close()
        pace.end()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Cancelled("the worker is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _writer_class(serializer: Serializer[T]) -> type[RecordWriter[T]]:
    """Record batches, the values that want aligned bytes, have a writer of their own; it needs pyarrow."""
    if serializer.alignment == 1:
        return RecordWriter
    from headgate.output.columns import ColumnWriter  # noqa: PLC0415 - only whoever moves Arrow pays for importing it

    return cast("type[RecordWriter[T]]", ColumnWriter)
