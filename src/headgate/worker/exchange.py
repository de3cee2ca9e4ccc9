"""One worker's side of the exchange: the assembly that production and the simulator share.

`WorkerExchange` puts network memory, partitions, writers, gates and channels together. The parts that touch the
machine are handed in: the lock (`sync`), the clock, the randomness, and the network with its transport.
`headgate.worker.Environment` adds threads, sockets and files; `headgate.testing.SimWorker` adds virtual time, and
records what it makes for the simulator's invariants. So the simulator runs the assembly that a job runs.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from headgate.buffer import Limits
from headgate.errors import Cancelled, LocalProtocolError
from headgate.input import Backoff, InputGate, LocalSource, RecordReader, RemoteChannel, UnionGate
from headgate.output import HotKeys, PartitionType, RecordWriter, ResultPartition
from headgate.record.spanning import RecordLimits
from headgate.wire.flow import MAX_UNREAD_EVENT_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from headgate.buffer import LocalPool, NetworkPool
    from headgate.buffer.budget import PoolBounds
    from headgate.clock import Clock
    from headgate.config import BufferTimeout, NetworkSettings
    from headgate.config.table import RecordSettings
    from headgate.ids import PartitionId, SubpartitionIndex
    from headgate.input import Gate
    from headgate.meters import TaskTimer
    from headgate.net import Address, Network
    from headgate.output import AnyPartition, PartitionRegistry, Selector
    from headgate.record.serializer import Serializer
    from headgate.sync import Sync

__all__ = ["WorkerExchange"]

T = TypeVar("T")


class WorkerExchange:
    """The pools, partitions, writers, gates and channels of one worker. Called by its tasks, on their threads.

    Arguments:
        memory: The network memory; its lock is the one of `sync`.
        registry: The partitions of this worker, under the same lock.
        chance: Spreads records over channels. It keeps no secret.
        max_event_bytes: Bytes of unread events at which a remote channel stops the reading of its connection.
    """

    def __init__(
        self,
        network: NetworkSettings,
        record: RecordSettings,
        *,
        memory: NetworkPool,
        registry: PartitionRegistry,
        sync: Sync,
        clock: Clock,
        chance: random.Random,
        max_event_bytes: int = MAX_UNREAD_EVENT_BYTES,
    ) -> None:
        self.memory = memory
        self.registry = registry
        self.clock = clock
        self.random = chance
        self.limits = Limits.of(network)
        self.record_limits = RecordLimits(
            max_size_bytes=record.max_size,
            spill_threshold_bytes=record.spill_threshold,
            spill_directory=str(record.spill_directory) or None,
        )
        self._sync = sync
        self._batch_size = record.batch_size
        self._request_timeout_s = network.buffers_request_timeout.seconds
        backoff = network.partition_request_backoff
        self._backoff = Backoff(backoff.initial.ns, backoff.max.ns)
        self._max_event_bytes = max_event_bytes
        self._network: Network | None = None  # None until the worker joins a job
        # In the order of their creation: the simulator has to release them in the same order in every run.
        self._gates: weakref.WeakKeyDictionary[Gate, None] = weakref.WeakKeyDictionary()
        self._channels: weakref.WeakKeyDictionary[RemoteChannel, None] = weakref.WeakKeyDictionary()
        self._gate_pools: list[LocalPool] = []
        self._writers: set[RecordWriter[Any]] = set()  # that are not closed
        self._closed = False

    def use_network(self, network: Network) -> None:
        """Set the network that remote channels use. Called once, when the worker has joined a job."""
        self._network = network

    # Output.

    def partition(
        self,
        partition_id: PartitionId,
        *,
        subpartitions: int,
        kind: Literal[PartitionType.PIPELINED, PartitionType.PIPELINED_BOUNDED] = PartitionType.PIPELINED_BOUNDED,
        timer: TaskTimer | None = None,
        patient: bool = False,
    ) -> ResultPartition:
        """Return a registered pipelined partition with a pool of its own.

        Its writer blocks for a buffer for at most `network.buffers_request_timeout`; if `patient`, as the tasks of a
        job are, without a limit.

        Raises:
            InsufficientBuffers: The network memory has too few buffers left.
            LocalProtocolError: A partition with this id is registered.
        """
        self._refuse_if_closed()
        bounds = self.limits.partition_pool(subpartitions, bounded=kind.bounded)
        pool = self._create_pool(
            f"partition {partition_id}",
            bounds,
            channels=subpartitions,
            max_per_channel=self.limits.max_buffers_per_channel if kind.bounded else None,
            overdraft=self.limits.max_overdraft_buffers,
        )
        timeout_s = None if patient else self._request_timeout_s
        partition = ResultPartition(partition_id, kind, subpartitions, pool, request_timeout_s=timeout_s, timer=timer)
        try:
            self.registry.register(partition)
        except BaseException:
            pool.destroy()
            raise
        return partition

    def _build_writer(
        self,
        partition: AnyPartition,
        selector: Selector[T],
        serializer: Serializer[T],
        *,
        buffer_timeout: BufferTimeout,
        hot_keys: bool = False,
    ) -> RecordWriter[T]:
        self._refuse_if_closed()
        if hot_keys:
            selector.watch_keys(HotKeys(self.clock.now_ns, self.random.randrange))
        writer = _writer_class(serializer)(
            partition,
            selector,
            serializer,
            sync=self._sync,
            below=self.random.randrange,
            limits=self.record_limits,
            buffer_timeout=buffer_timeout,
            batch_size=self._batch_size,
        )
        self._writers.add(writer)
        writer.on_close = lambda: self._forget(writer)
        return writer

    def _forget(self, writer: RecordWriter[Any]) -> None:
        """Called when the writer is closed."""
        self._writers.discard(writer)

    # Input.

    def gate(self, name: str, *, channels: int, timer: TaskTimer | None = None) -> InputGate:
        """Return a gate whose channels are not connected yet."""
        self._refuse_if_closed()
        gate = InputGate(name, channels, sync=self._sync, clock=self.clock, timer=timer)
        self._gates[gate] = None
        return gate

    def union(self, name: str, gates: Sequence[InputGate], *, timer: TaskTimer | None = None) -> UnionGate:
        """Return several gates as one."""
        self._refuse_if_closed()
        union = UnionGate(name, gates, sync=self._sync, clock=self.clock, timer=timer)
        self._gates[union] = None
        return union

    def reader(self, gate: Gate, serializer: Serializer[T] | Sequence[Serializer[T]]) -> RecordReader[T]:
        """Return a reader of a gate's elements; `serializer` is one for all channels, or one per channel."""
        return RecordReader(gate, serializer, limits=self.record_limits)

    def local_source(self, partition_id: PartitionId, index: SubpartitionIndex) -> LocalSource:
        """Return the source of a channel that reads a partition of this worker."""
        return LocalSource(self.registry, partition_id, index, self._backoff)

    def remote_source(
        self,
        gate: InputGate,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        *,
        worker: int,
        address: Address | None = None,
        lane: int = 0,
        packed: bool = False,
    ) -> RemoteChannel:
        """Return the source of a channel of `gate` that reads a partition of another worker.

        Without an address, the other worker has to connect. Without credit, channels of different connection groups
        (`lane`) do not stop each other: see `graph.depths`. With `packed`, buffers that are compressed on the
        producer's disk are sent compressed, and this worker decompresses them.

        Raises:
            InsufficientBuffers: The network memory has too few buffers for the channel's exclusive ones.
            LocalProtocolError: The worker has not joined a job.
        """
        self._refuse_if_closed()
        if self._network is None:
            raise LocalProtocolError("this worker has not joined a job: it knows no others")
        pool, exclusive = self._pool_of(gate), None
        if self.limits.credit_based:
            exclusive = self.memory.request_exclusive(
                f"gate {gate.name}, a remote channel",
                self.limits.buffers_per_channel,
                timeout_s=self._request_timeout_s,
            )
        channel = RemoteChannel(
            partition_id,
            index,
            self._network.outlet(worker, address, lane),
            self.memory,
            pool,
            exclusive=exclusive,
            backoff=self._backoff,
            max_event_bytes=self._max_event_bytes,
            packed=packed,
        )
        self._channels[channel] = None
        return channel

    def _pool_of(self, gate: InputGate) -> LocalPool:
        """Return the pool that the gate's remote channels share. The first of them creates it."""
        if gate.pool is None:
            pool = self._create_pool(f"gate {gate.name}", self.limits.gate_pool(gate.channel_count))
            self._gate_pools = [one for one in self._gate_pools if not one.destroyed] + [pool]
            gate.use_pool(pool)
        assert gate.pool is not None, "it has one now"
        return gate.pool

    def _create_pool(
        self,
        name: str,
        bounds: PoolBounds,
        *,
        channels: int = 0,
        max_per_channel: int | None = None,
        overdraft: int = 0,
    ) -> LocalPool:
        return self.memory.create_pool(
            name,
            required=bounds.required,
            maximum=bounds.maximum,
            channels=channels,
            max_per_channel=max_per_channel,
            overdraft=overdraft,
        )

    # The end.

    def _release_inputs(self) -> None:
        """Release every gate, and the channels that no gate was connected to. Blocked readers raise `Cancelled`."""
        for gate in list(self._gates):
            gate.release()
        for channel in list(self._channels):
            with self._sync.lock:
                wake = channel.release_locked()
            if wake is not None:
                wake()

    def _release_memory(self) -> None:
        """Destroy the pools of gates that were dropped without being released, and give all memory back."""
        for pool in self._gate_pools:
            pool.destroy()
        self.memory.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Cancelled("the worker is closed")


def _writer_class(serializer: Serializer[T]) -> type[RecordWriter[T]]:
    """Return the writer for record batches, whose values need aligned bytes, or the one for all other values."""
    if serializer.alignment == 1:
        return RecordWriter
    from headgate.output.columns import ColumnWriter  # noqa: PLC0415 - needs pyarrow, which takes long to import

    return cast("type[RecordWriter[T]]", ColumnWriter)
