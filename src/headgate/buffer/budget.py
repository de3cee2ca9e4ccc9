"""The number of buffers that a job requires, computed before it starts.

`Limits` derives the bounds of each pool from the settings; `preflight` adds up what all tasks of each worker require,
and refuses a job with the whole sum in the error, so that its last task does not fail during set-up. `graph.fitting`
calls it in the driver, twice: before workers are started, with the memory that they are expected to have; and before
tasks are deployed, with the memory that they have registered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headgate.config import FlowControl
from headgate.errors import InsufficientBuffers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.config import NetworkSettings

__all__ = ["GateDemand", "Limits", "PartitionDemand", "PoolBounds", "TaskDemand", "WorkerDemand", "preflight"]

_READ_AHEAD: Final = 2  # buffers: the disk thread reads into one while the other is sent or decoded
_MOST_NAMED: Final = 8  # workers in an error text


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """The least and the largest size of a local pool."""

    required: int
    maximum: int | None  # None: all segments of the worker


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that determine the size of pools.

    >>> Limits().partition_pool(subpartitions=4, bounded=True)
    PoolBounds(required=5, maximum=16)
    >>> Limits().gate_pool()
    PoolBounds(required=0, maximum=8)
    """

    buffers_per_channel: int = 2
    floating_buffers_per_gate: int = 8
    max_buffers_per_channel: int = 10
    max_overdraft_buffers: int = 5
    credit_based: bool = True

    @classmethod
    def of(cls, network: NetworkSettings) -> Limits:
        """Return the limits that the settings declare."""
        return cls(
            buffers_per_channel=network.buffers_per_channel,
            floating_buffers_per_gate=network.floating_buffers_per_gate,
            max_buffers_per_channel=network.max_buffers_per_channel,
            max_overdraft_buffers=network.max_overdraft_buffers,
            credit_based=network.flow_control is FlowControl.CREDIT,
        )

    def partition_pool(self, subpartitions: int, *, bounded: bool) -> PoolBounds:
        """Return the bounds for a partition: at least a buffer per subpartition and one to write to.

        A bounded partition gets at most `network.buffers_per_channel` per subpartition and the floating ones more.
        """
        required = subpartitions + 1
        if not bounded:
            return PoolBounds(required, None)
        maximum = subpartitions * self.buffers_per_channel + self.floating_buffers_per_gate
        return PoolBounds(required, max(required, maximum))

    def gate_pool(self, remote_channels: int = 0) -> PoolBounds:
        """Return the bounds for the buffers that a gate's remote channels share.

        With credits these are the floating ones; exclusive ones come from the network pool directly.
        """
        if self.credit_based:
            return PoolBounds(0, self.floating_buffers_per_gate)
        maximum = remote_channels * self.buffers_per_channel + self.floating_buffers_per_gate
        return PoolBounds(remote_channels, maximum)

    def read_ahead_pool(self) -> PoolBounds:
        """Return the bounds for the buffers into which a worker reads blocking partitions.

        >>> Limits().read_ahead_pool()
        PoolBounds(required=2, maximum=None)
        """
        return PoolBounds(_READ_AHEAD, None)

    def exclusive(self, remote_channels: int) -> int:
        """Return the number of exclusive buffers of a gate with so many remote channels."""
        return remote_channels * self.buffers_per_channel if self.credit_based else 0


@dataclass(frozen=True, slots=True)
class PartitionDemand:
    """A result partition of a task.

    >>> PartitionDemand(subpartitions=4).required(Limits())
    5
    """

    subpartitions: int

    def required(self, limits: Limits) -> int:
        """Return the number of buffers that the partition requires."""
        return limits.partition_pool(self.subpartitions, bounded=True).required


@dataclass(frozen=True, slots=True)
class GateDemand:
    """An input gate of a task. Its local channels read the producers' buffers and require none.

    >>> GateDemand(remote_channels=3, local_channels=1).required(Limits())
    6
    """

    remote_channels: int
    local_channels: int = 0

    def required(self, limits: Limits) -> int:
        """Return the number of buffers that the gate requires."""
        channels = self.remote_channels + self.local_channels if self.remote_channels else 0  # that share the pool
        return limits.exclusive(self.remote_channels) + limits.gate_pool(channels).required


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """The partitions and gates of one task.

    >>> count = TaskDemand("count", partitions=(PartitionDemand(4),), gates=(GateDemand(remote_channels=3),))
    >>> count.required(Limits())
    11
    """

    name: str
    partitions: tuple[PartitionDemand, ...] = ()
    gates: tuple[GateDemand, ...] = ()

    def required(self, limits: Limits) -> int:
        """Return the number of buffers that the task requires."""
        return sum(p.required(limits) for p in self.partitions) + sum(g.required(limits) for g in self.gates)


@dataclass(frozen=True, slots=True)
class WorkerDemand:
    """All tasks that one worker runs at the same time, and the number of buffers that the worker has.

    >>> count = TaskDemand("count", partitions=(PartitionDemand(4),))
    >>> WorkerDemand("worker 0", (count,), segments=4, read_ahead=True).required(Limits())
    7
    """

    name: str
    tasks: tuple[TaskDemand, ...]
    segments: int
    read_ahead: bool = False  # the worker reads blocking partitions from disk

    def required(self, limits: Limits) -> int:
        """Return the number of buffers that the worker's tasks require."""
        return self._ahead(limits) + sum(task.required(limits) for task in self.tasks)

    def lacking(self, limits: Limits) -> int:
        """Return the number of buffers that the worker has too few; 0 or less if it has enough."""
        return self.required(limits) - self.segments

    def lines(self, limits: Limits) -> list[str]:
        """Return the terms of the sum as lines of text."""
        lines = []
        for task in self.tasks:
            for partition in task.partitions:
                what = f"partition of {partition.subpartitions} subpartitions"
                lines.append(f"  {task.name}: {what}: {partition.required(limits)}")
            for gate in task.gates:
                what = f"gate of {gate.remote_channels} remote and {gate.local_channels} local channels"
                lines.append(f"  {task.name}: {what}: {gate.required(limits)}")
        if self.read_ahead:
            lines.append(f"  read-ahead of blocking partitions: {self._ahead(limits)}")
        return lines

    def _ahead(self, limits: Limits) -> int:
        return limits.read_ahead_pool().required if self.read_ahead else 0


def preflight(workers: Sequence[WorkerDemand], *, segment_size: int, limits: Limits) -> int:
    """Check that each worker has as many buffers as it requires. Return the largest number required by one of them.

    Raises:
        InsufficientBuffers: A worker has too few. The text shows the sum for the worker that lacks most, and the
            smallest change of each setting that is enough for all workers.

    >>> word_count = (
    ...     TaskDemand("split", partitions=(PartitionDemand(subpartitions=4),)),
    ...     TaskDemand("count", gates=(GateDemand(remote_channels=3, local_channels=1),)),
    ... )
    >>> preflight([WorkerDemand("worker 0", word_count, segments=2048)], segment_size=32768, limits=Limits())
    11
    >>> preflight([WorkerDemand("worker 0", word_count, segments=9)], segment_size=32768, limits=Limits())
    Traceback (most recent call last):
        ...
    headgate.errors.InsufficientBuffers: the job needs 11 network buffers on worker 0, which has 9:
      split: partition of 4 subpartitions: 5
      count: gate of 3 remote and 1 local channels: 6
    Any of these is enough: memory.network.min = 352KiB (and memory.network.max not below it); \
network.buffers_per_channel = 1; memory.segment_size = 26KiB
    """
    lacking = [worker for worker in workers if worker.lacking(limits) > 0]
    if not lacking:
        return max((worker.required(limits) for worker in workers), default=0)
    worst = max(lacking, key=lambda worker: worker.lacking(limits))
    others = [worker.name for worker in lacking if worker is not worst]
    named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
    also = f" (also too few on {named})" if others else ""
    remedies = _remedies(lacking, segment_size, limits)
    lines = [
        f"the job needs {worst.required(limits)} network buffers on {worst.name}, which has {worst.segments}{also}:",
        *worst.lines(limits),
        f"Any of these is enough: {'; '.join(remedies)}",
    ]
    raise InsufficientBuffers("\n".join(lines))


def _remedies(lacking: Sequence[WorkerDemand], segment_size: int, limits: Limits) -> list[str]:
    """Return the smallest change of each setting that makes the job fit all workers that lack buffers."""
    most = max(worker.required(limits) for worker in lacking)
    needed_kib = math.ceil(most * segment_size / 1024)
    remedies = [f"memory.network.min = {needed_kib}KiB (and memory.network.max not below it)"]
    for per_channel in range(limits.buffers_per_channel - 1, 0, -1):
        fewer = replace(limits, buffers_per_channel=per_channel)
        if all(worker.lacking(fewer) <= 0 for worker in lacking):
            remedies.append(f"network.buffers_per_channel = {per_channel}")
            break
    smaller = min(worker.segments * segment_size // worker.required(limits) for worker in lacking)
    if smaller >= 4096:
        remedies.append(f"memory.segment_size = {smaller // 1024}KiB")
    return remedies
