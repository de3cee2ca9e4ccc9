"""A worker's exchange in production: threads, sockets and files around `WorkerExchange`.

The process that runs a worker creates one `Environment`. Tasks request partitions, writers, gates and readers from it;
`close` ends all of them and gives all memory back.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from headgate.buffer import Arena, NetworkPool, NetworkPoolStatistics
from headgate.clock import SystemClock
from headgate.config import BufferTimeout, FlushMode, Settings
from headgate.errors import LocalProtocolError
from headgate.net import Address, ConnectionStatistics, Identity, Network, NetworkStatistics
from headgate.net.loop import SharedLoop, open_loop
from headgate.net.sockets import SocketOptions, SocketTransport
from headgate.output import (
    AnyPartition,
    BlockingPartition,
    PartitionRegistry,
    PartitionStatistics,
    PartitionType,
    RecordWriter,
    ResultPartition,
)
from headgate.switch_interval import SwitchInterval
from headgate.sync import ThreadSync, Ticker
from headgate.worker.disk import Disk
from headgate.worker.exchange import WorkerExchange

if TYPE_CHECKING:
    from headgate.clock import Clock
    from headgate.ids import JobId, PartitionId
    from headgate.meters import TaskTimer
    from headgate.output import Selector
    from headgate.record.serializer import Serializer
    from headgate.worker.storage import Storage

__all__ = ["Environment", "EnvironmentStatistics"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NEVER: Final = BufferTimeout(FlushMode.NEVER, 0)
_WRITER_S: Final = 1.0  # how long `close` waits for tasks to leave their writers
_GOODBYE_S: Final = 2.0  # how long `close` waits for peers to end their connections in order


@dataclass(frozen=True, slots=True)
class EnvironmentStatistics:
    """A snapshot of a worker's exchange."""

    memory: NetworkPoolStatistics
    partitions: tuple[PartitionStatistics, ...]
    network: NetworkStatistics | None  # None: this worker has not joined a job


class Environment(WorkerExchange):
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
        self.sync = ThreadSync()
        segment_size = self.settings.memory.segment_size
        super().__init__(
            self.settings.network,
            self.settings.record,
            memory=NetworkPool(Arena(segment_size, memory_bytes // segment_size), self.sync),
            registry=PartitionRegistry(self.sync.lock),
            sync=self.sync,
            clock=clock if clock is not None else SystemClock(),
            chance=random.Random(seed),  # noqa: S311 - it spreads load; it keeps no secret
        )
        self.ticker = Ticker("headgate-flusher")
        self.disk = Disk(self.memory, self.registry, self.limits, read_ahead=self.settings.batch.read_ahead)
        self._transport: SocketTransport | None = None
        self._switch_interval: SwitchInterval | None = None

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
        """Return a registered partition with a pool of its own; a BLOCKING one is in a file of `storage`.

        Raises:
            StorageError: The file cannot be created.
        """
        if kind is not PartitionType.BLOCKING:
            return super().partition(partition_id, subpartitions=subpartitions, kind=kind, timer=timer, patient=patient)
        self._refuse_if_closed()
        timeout_s = None if patient else self._request_timeout_s
        return self.disk.partition(partition_id, subpartitions, timeout_s, timer)

    def adopt(self, partition_id: PartitionId, *, subpartitions: int | None = None) -> BlockingPartition:
        """Return a registered blocking partition from a finished file of `storage`, written by any process.

        Raises:
            StorageError: There is no such file, it is damaged, or it has another number of subpartitions.
        """
        self._refuse_if_closed()
        return self.disk.adopt(partition_id, subpartitions)

    @property
    def storage(self) -> Storage | None:
        """The files of blocking partitions. A job in BATCH mode sets it; `close` closes it."""
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
        """Return a writer into a partition, flushed by `buffer_timeout`, or else by `execution.buffer_timeout`.

        With `hot_keys` it detects keys with many records: see `RecordWriter.hot_keys`.
        """
        timeout = buffer_timeout if buffer_timeout is not None else self.settings.execution.buffer_timeout
        if not partition.type.pipelined:
            timeout = _NEVER  # a blocking partition is read only when it is finished
        writer = self._build_writer(partition, selector, serializer, buffer_timeout=timeout, hot_keys=hot_keys)
        if timeout.mode in {FlushMode.AUTO, FlushMode.INTERVAL}:
            self.ticker.every(timeout.interval_ns / 1e9, writer.tick)
        return writer

    def _forget(self, writer: RecordWriter[Any]) -> None:
        super()._forget(writer)
        self.ticker.cancel(writer.tick)

    def join(self, identity: Identity) -> Address:
        """Open this worker's port for the other workers of a job. Return its address.

        Raises:
            ConfigError: The address is not on loopback and there is no certificate, or the driver is unknown.
            TransportError: The port is in use.

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
        switch_interval = SwitchInterval(self.settings.execution.switch_interval.seconds)
        transport = SocketTransport(loop, options)
        transport.start()
        try:
            network = Network(identity, self.registry, settings, transport, segment_size=self.memory.segment_size)
            address = transport.call(network.listen)
        except BaseException:
            transport.close()
            switch_interval.end()
            raise
        self.use_network(network)
        self._transport, self._switch_interval = transport, switch_interval
        return address

    def know(self, worker: int, address: Address) -> None:
        """Set the address of another worker, for channels that were created without one."""
        assert self._network is not None, "a worker that has joined a job knows others"
        self._network.know(worker, address)

    @property
    def transport(self) -> SocketTransport:
        """The transport of this worker's connections.

        Raises:
            LocalProtocolError: The worker has not joined a job, or has left it.
        """
        if self._transport is None:
            raise LocalProtocolError("this worker has not joined a job")
        return self._transport

    def release_job(self, job: JobId, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Release all partitions of a job; their readers raise the cause. With `keep`, finished files stay."""
        self.registry.release_job(job, cause, keep=keep)

    def statistics(self) -> EnvironmentStatistics:
        """Return a snapshot of memory, partitions and connections."""
        network = None if self._network is None else self._network.statistics()
        return EnvironmentStatistics(self.memory.statistics(), self.registry.statistics(), network)

    def connections(self) -> tuple[ConnectionStatistics, ...]:
        """Return a snapshot of the connections to other workers."""
        return () if self._network is None else self._network.statistics().connections

    def close(self, *, keep: bool = False) -> None:
        """Stop the flusher, release all partitions and gates, leave the network, and give all memory back.

        Threads that block in a gate or for a buffer wake and raise `Cancelled`, and so does each later use of a writer
        or reader. Open writers give back their buffers, within `_WRITER_S` for all of them: a writer that is inside the
        user's serializer for longer gives them back when its task closes it. A reader keeps the buffer that it reads
        until it is closed. Peers have `_GOODBYE_S` to end their connections in order. With `keep`, finished partitions
        stay on disk. May be repeated.
        """
        self._closed = True
        self.ticker.close()
        self.registry.release_all(keep=keep)
        self.disk.close(keep=keep)
        self._release_inputs()
        self._abandon_writers()
        self._leave()
        self._release_memory()

    def _abandon_writers(self) -> None:
        """Give back the buffers of open writers; their partitions are released, so that none blocks for memory."""
        deadline_ns = self.clock.now_ns() + int(_WRITER_S * 1e9)
        for writer in list(self._writers):
            left_s = max(0.0, (deadline_ns - self.clock.now_ns()) / 1e9)
            if not writer.abandon(left_s):
                _log.warning("partition %s: its writer is still in use while its worker closes", writer.partition.id)

    def _leave(self) -> None:
        network, transport, switch_interval = self._network, self._transport, self._switch_interval
        if network is None or transport is None or switch_interval is None:
            return
        self._transport = None
        quiet = self.sync.new_signal()
        transport.post(lambda: network.close(quiet.wake))
        quiet.wait(_GOODBYE_S)
        transport.call(network.abort)
        self.sync.driver = None
        transport.close()
        switch_interval.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
