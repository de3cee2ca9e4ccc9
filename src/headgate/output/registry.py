"""PartitionRegistry: the result partitions of a worker by id.

Tasks register their partitions during set-up, channels attach to subpartitions, and the worker releases all partitions
of a job with the job. All methods acquire the exchange lock, or end in `_locked`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headgate.errors import LocalProtocolError, PartitionNotFound, UnknownReceiver
from headgate.record.element import decode_event, event_name
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.ids import JobId, PartitionId, SubpartitionIndex
    from headgate.output.disk.blocking import AnyPartition
    from headgate.output.disk.reader import BlockingReader
    from headgate.output.partition import PartitionStatistics
    from headgate.output.pipelined import PipelinedSubpartition, SubpartitionListener
    from headgate.record.element import Event
    from headgate.sync import Lock, Wake

__all__ = ["PartitionRegistry"]

_log = logging.getLogger(__name__)


class PartitionRegistry:
    """The partitions of one worker.

    >>> from headgate.ids import AttemptId, JobId, PartitionId
    >>> from headgate.worker import Environment
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     partition = worker.partition(PartitionId(JobId("etl"), AttemptId(1), 0, 0, 0), subpartitions=1)
    ...     [str(one.id) for one in worker.registry.statistics()]
    ['etl#1/v0.0[0]']
    """

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self._partitions: dict[PartitionId, AnyPartition] = {}
        self._handlers: dict[PartitionId, dict[str, list[Callable[[Event], object]]]] = {}  # of task events, by name

    def register(self, partition: AnyPartition) -> None:
        """Add a partition. Raises LocalProtocolError if its id is registered."""
        with self.lock:
            self._refuse_known_locked(partition.id)
            self._partitions[partition.id] = partition

    def refuse_known(self, partition_id: PartitionId) -> None:
        """Raise LocalProtocolError if the id is registered; called before a partition's resources are allocated."""
        with self.lock:
            self._refuse_known_locked(partition_id)

    def attach_locked(
        self,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        listener: SubpartitionListener,
        *,
        packed: bool = False,
    ) -> tuple[PipelinedSubpartition | BlockingReader, Wake]:
        """Attach a reader to a subpartition. Return the subpartition, or a new reader if the partition is on disk.

        With `packed` the reader receives compressed buffers of a file compressed.
        """
        partition = self._partition_locked(partition_id)
        if not 0 <= index < len(partition.subpartitions):
            raise PartitionNotFound(
                f"partition {partition_id} has {len(partition.subpartitions)} subpartitions, not a number {index}"
            )
        return partition.attach_locked(index, listener, packed=packed)

    def release_subpartition_locked(
        self,
        partition_id: PartitionId,
        index: SubpartitionIndex,
        cause: BaseException | None = None,
        listener: SubpartitionListener | None = None,
    ) -> Wake:
        """Release a reader's subpartition, if the partition exists; `cause`: the reader is lost."""
        partition = self._partitions.get(partition_id)
        return None if partition is None else partition.release_subpartition_locked(index, cause, listener)

    def subscribe(self, partition_id: PartitionId, name: str, handler: Callable[[Event], object]) -> None:
        """Call `handler` with each task event of that name that a consumer sends to a partition's producer.

        The thread that delivers the event, the network's or the consumer's, calls it; it must be fast. The handler is
        removed with the partition.
        """
        with self.lock:
            self._partition_locked(partition_id)
            self._handlers.setdefault(partition_id, {}).setdefault(name, []).append(handler)

    def publish_locked(self, partition_id: PartitionId, event: bytes) -> Wake:
        """Return a call that passes a consumer's event to the handlers of its name, for after the lock is released.

        Raises:
            UnknownReceiver: The partition is removed, or its task has no handler of that name.
            CorruptStream: The bytes are not an event.
        """
        if partition_id not in self._partitions:
            raise UnknownReceiver(f"partition {partition_id} is not on this worker any more: its task has ended")
        decoded = decode_event(event, f"partition {partition_id}, task event")
        name = event_name(decoded)
        handlers = list(self._handlers.get(partition_id, {}).get(name, ()))
        if not handlers:
            raise UnknownReceiver(
                f"partition {partition_id}: no operator of its task subscribes to task event {name!r:.200}"
            )
        return lambda: _call_all(handlers, decoded)

    def release(self, partition_id: PartitionId, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Release and remove a partition, if it exists. With `keep`, a finished file stays."""
        with self.lock:
            partition = self._partitions.pop(partition_id, None)
            self._handlers.pop(partition_id, None)
            wake = None if partition is None else partition.release_locked(cause, keep=keep)
        if wake is not None:
            wake()

    def release_job(self, job: JobId, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Release every partition of a job; with `keep`, finished files stay."""
        self._release_where(lambda partition_id: partition_id.job == job, cause, keep=keep)

    def release_all(self, cause: BaseException | None = None, *, keep: bool = False) -> None:
        """Release every partition; with `keep`, finished files stay."""
        self._release_where(lambda _: True, cause, keep=keep)

    def _release_where(self, chosen: Callable[[PartitionId], bool], cause: BaseException | None, *, keep: bool) -> None:
        with self.lock:
            ours = [partition_id for partition_id in self._partitions if chosen(partition_id)]
            for one in ours:
                self._handlers.pop(one, None)
            wake = together(*[self._partitions.pop(one).release_locked(cause, keep=keep) for one in ours])
        if wake is not None:
            wake()

    def statistics(self) -> tuple[PartitionStatistics, ...]:
        """Return the figures of all partitions."""
        with self.lock:
            partitions = list(self._partitions.values())
        return tuple(partition.statistics() for partition in partitions)

    def _refuse_known_locked(self, partition_id: PartitionId) -> None:
        if partition_id in self._partitions:
            raise LocalProtocolError(f"partition {partition_id} is registered already")

    def _partition_locked(self, partition_id: PartitionId) -> AnyPartition:
        partition = self._partitions.get(partition_id)
        if partition is None:
            raise PartitionNotFound(f"partition {partition_id} is not on this worker, or not yet, or no more")
        return partition


def _call_all(handlers: list[Callable[[Event], object]], event: Event) -> None:
    for handler in handlers:
        try:
            handler(event)
        except Exception:  # noqa: BLE001 - a user's handler must not stop the thread that delivers events
            _log.exception("a handler of the task event %s failed", event_name(event))
