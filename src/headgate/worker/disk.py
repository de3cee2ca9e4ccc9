"""The blocking partitions of a worker: their files, and the thread that reads them ahead.

The environment has one `Disk`; a BATCH job sets its `Storage`. The thread `headgate-disk` starts with the first reader
and calls `ReadAhead.step` until the disk is closed. It does not poll the network while it waits, because it must return
at once when a reader wants more.

Invariant: a partition that could not be registered leaves no file, no pool and no descriptor behind.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headgate.errors import LocalProtocolError, StorageError
from headgate.graph.plan import Partition
from headgate.output import BlockingPartition, ReadAhead, StepResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import Limits, NetworkPool
    from headgate.errors import HeadgateError
    from headgate.ids import PartitionId
    from headgate.meters import TaskTimer
    from headgate.output import PartitionRegistry
    from headgate.output.disk.file import PartitionFile
    from headgate.worker.storage import Storage

__all__ = ["Disk", "DiskThread"]

_POLL_S: Final = 0.05  # while memory is lent: the garbage collector returns it without a wake-up


class DiskThread:
    """The thread that reads ahead. `wake` starts it.

    >>> from headgate.buffer import Limits
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     thread = DiskThread(environment.memory, Limits(), most=8)
    ...     thread.wake(); thread.alive
    ...     thread.close(); thread.alive
    True
    False
    """

    def __init__(self, memory: NetworkPool, limits: Limits, *, most: int) -> None:
        self.read_ahead = ReadAhead(memory, limits.read_ahead_pool(), most=most, wake=self.wake)
        self._memory = memory
        self._awake = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def alive(self) -> bool:
        """Return True if the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Let the thread read: a reader wants more."""
        if self._thread is None:
            self._start()
        self._awake.set()

    def close(self) -> None:
        """End the thread after its current read. May be repeated."""
        with self._starting:
            self._closed = True
        self.read_ahead.close()
        self._awake.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="headgate-disk", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        step, awake = self.read_ahead.step, self._awake
        while (result := step()) is not StepResult.CLOSED:
            if result is StepResult.READ:
                continue
            if not awake.wait(_POLL_S if result is StepResult.POLL else None):
                self._memory.collect_returned()
            awake.clear()


class Disk:
    """Makes and registers the blocking partitions of a worker.

    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     environment.disk.storage is None  # until a BATCH job sets it
    True
    """

    def __init__(self, memory: NetworkPool, registry: PartitionRegistry, limits: Limits, *, read_ahead: int) -> None:
        self.storage: Storage | None = None
        self.on_unreadable: Callable[[Partition, HeadgateError], object] | None = None
        """Called when the file of a finished partition cannot be read; the partition is still registered."""
        self._memory = memory
        self._registry = registry
        self._limits = limits
        self._most = read_ahead
        self._thread: DiskThread | None = None

    def partition(
        self, partition_id: PartitionId, subpartitions: int, timeout_s: float | None, timer: TaskTimer | None
    ) -> BlockingPartition:
        """Return a new partition to write; see `Environment.partition`."""
        storage, read_ahead = self._storage(), self._read_ahead()
        self._registry.refuse_known(partition_id)  # a new file would replace that of a registered one
        bounds = self._limits.partition_pool(subpartitions, bounded=False)
        pool = self._memory.create_pool(
            f"partition {partition_id}",
            required=bounds.required,
            maximum=bounds.maximum,
            channels=subpartitions,
        )
        writer = None
        try:
            writer = storage.writer(
                _name(partition_id), subpartitions=subpartitions, segment_size=self._memory.segment_size
            )
            partition = BlockingPartition(
                partition_id, subpartitions, pool, writer, read_ahead, request_timeout_s=timeout_s, timer=timer
            )
            self._register(partition)
        except BaseException:
            pool.destroy()
            if writer is not None:
                writer.discard()
            raise
        return partition

    def adopt(self, partition_id: PartitionId, subpartitions: int | None) -> BlockingPartition:
        """Return a finished partition that is on disk; see `Environment.adopt`."""
        storage, read_ahead = self._storage(), self._read_ahead()
        file = storage.open_partition(_name(partition_id), segment_size=self._memory.segment_size)
        try:
            if subpartitions is not None:
                _check_shape(file, subpartitions)
            pool = self._memory.create_pool(f"partition {partition_id}", required=0, maximum=0)
            pool.destroy()  # nothing is written to it
            partition = BlockingPartition.adopted(partition_id, file, pool, read_ahead)
            self._register(partition)
        except BaseException:
            file.close()
            raise
        return partition

    def close(self, *, keep: bool) -> None:
        """End the thread; all partitions must be released. Then remove the files, unless `keep`."""
        if self._thread is not None:
            self._thread.close()
        storage, self.storage = self.storage, None
        if storage is not None:
            storage.close(remove=not keep)

    def _register(self, partition: BlockingPartition) -> None:
        name = _name(partition.id)

        def report(error: HeadgateError) -> None:
            if self.on_unreadable is not None:
                self.on_unreadable(name, error)

        partition.on_unreadable = report
        self._registry.register(partition)

    def _storage(self) -> Storage:
        if self.storage is None:
            raise LocalProtocolError("a blocking partition is kept on disk: give the worker a storage first")
        return self.storage

    def _read_ahead(self) -> ReadAhead:
        if self._thread is None:
            self._thread = DiskThread(self._memory, self._limits, most=self._most)
        return self._thread.read_ahead


def _check_shape(file: PartitionFile, subpartitions: int) -> None:
    if file.subpartitions != subpartitions:
        raise StorageError(f"has {file.subpartitions} subpartitions; {subpartitions} are wanted", path=file.path)


def _name(partition_id: PartitionId) -> Partition:
    return Partition(partition_id.vertex, partition_id.output, partition_id.subtask)
