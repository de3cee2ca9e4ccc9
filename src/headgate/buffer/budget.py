"""How many buffers a job needs, added up before it starts.

`Limits` turns settings into the bounds of each pool; `preflight` adds up what all tasks of one worker require
and refuses the job with the whole sum shown, rather than let its last task fail half-way through set-up. A
plan calls it; so can anybody who wants to know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headgate.config import FlowControl
from headgate.errors import InsufficientBuffers

if TYPE_CHECKING:
    from headgate.config import NetworkSettings

__all__ = ["GateDemand", "Limits", "PartitionDemand", "PoolBounds", "TaskDemand", "preflight"]

_READ_AHEAD: Final = 2  # buffers: one is read into while the other is sent or looked at


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """What a local pool is made with.

    >>> Limits().partition_pool(subpartitions=4, bounded=False)
    PoolBounds(required=5, maximum=None)
    """

    required: int
    maximum: int | None  # None: all there are


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that say how large pools are.

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
        """As settings say.

        >>> from headgate.config import Settings
        >>> Limits.of(Settings().network) == Limits()
        True
        """
        return cls(
            buffers_per_channel=network.buffers_per_channel,
            floating_buffers_per_gate=network.floating_buffers_per_gate,
            max_buffers_per_channel=network.max_buffers_per_channel,
            max_overdraft_buffers=network.max_overdraft_buffers,
            credit_based=network.flow_control is FlowControl.CREDIT,
        )

    def partition_pool(self, subpartitions: int, *, bounded: bool) -> PoolBounds:
        """One buffer per subpartition and one to go on with; bounded types stop at a few more."""
        required = subpartitions + 1
        if not bounded:
            return PoolBounds(required, None)
        maximum = subpartitions * self.buffers_per_channel + self.floating_buffers_per_gate
        return PoolBounds(required, max(required, maximum))

    def gate_pool(self, remote_channels: int = 0) -> PoolBounds:
        """The buffers a gate's remote channels share.

        With credits these are the floating ones only: exclusive ones come straight from the network pool.
        """
        if self.credit_based:
            return PoolBounds(0, self.floating_buffers_per_gate)
        maximum = remote_channels * self.buffers_per_channel + self.floating_buffers_per_gate
        return PoolBounds(remote_channels, maximum)

    def read_ahead_pool(self) -> PoolBounds:
        """The buffers into which a worker reads its blocking partitions: few are enough, more are faster.

        >>> Limits().read_ahead_pool()
        PoolBounds(required=2, maximum=None)
        """
        return PoolBounds(_READ_AHEAD, None)

    def exclusive(self, remote_channels: int) -> int:
        """Buffers that belong to a gate's channels for good."""
        return remote_channels * self.buffers_per_channel if self.credit_based else 0


@dataclass(frozen=True, slots=True)
class PartitionDemand:
    """One result partition of a task.

    >>> PartitionDemand(subpartitions=4).required(Limits())
    5
    """

    subpartitions: int

    def required(self, limits: Limits) -> int:
        """Buffers it cannot do without."""
        return limits.partition_pool(self.subpartitions, bounded=True).required


@dataclass(frozen=True, slots=True)
class GateDemand:
    """One input gate of a task. Channels inside the worker read the producer's buffers and need none.

    >>> GateDemand(remote_channels=3, local_channels=1).required(Limits())
    6
    """

    remote_channels: int
    local_channels: int = 0

    def required(self, limits: Limits) -> int:
        """Buffers it cannot do without."""
        channels = self.remote_channels + self.local_channels if self.remote_channels else 0  # who share the pool
        return limits.exclusive(self.remote_channels) + limits.gate_pool(channels).required


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """Everything one task exchanges data through.

    >>> count = TaskDemand("count", partitions=(PartitionDemand(4),), gates=(GateDemand(remote_channels=3),))
    >>> count.required(Limits())
    11
    """

    name: str
    partitions: tuple[PartitionDemand, ...] = ()
    gates: tuple[GateDemand, ...] = ()

    def required(self, limits: Limits) -> int:
        """Buffers it cannot do without."""
        return sum(p.required(limits) for p in self.partitions) + sum(g.required(limits) for g in self.gates)


def preflight(
    tasks: list[TaskDemand], *, segments: int, segment_size: int, limits: Limits, read_ahead: bool = False
) -> int:
    """How many buffers these tasks require of one worker, if it has them; with `read_ahead`, it reads from disk, too.

    Raises:
        InsufficientBuffers: it has not; the text shows the sum and the smallest change that fits.

    >>> word_count = [
    ...     TaskDemand("split", partitions=(PartitionDemand(subpartitions=4),)),
    ...     TaskDemand("count", gates=(GateDemand(remote_channels=3, local_channels=1),)),
    ... ]
    >>> preflight(word_count, segments=2048, segment_size=32768, limits=Limits())
    11
    >>> preflight(word_count, segments=9, segment_size=32768, limits=Limits())
    Traceback (most recent call last):
        ...
    headgate.errors.InsufficientBuffers: the job needs 11 network buffers on this worker, which has 9:
      split: partition of 4 subpartitions: 5
      count: gate of 3 remote and 1 local channels: 6
    Any of these is enough: memory.network.min = 352KiB (and memory.network.max not below it); \
network.buffers_per_channel = 1; memory.segment_size = 26KiB
    """
    ahead = limits.read_ahead_pool().required if read_ahead else 0
    total = ahead + sum(task.required(limits) for task in tasks)
    if total <= segments:
        return total
    lines = [f"the job needs {total} network buffers on this worker, which has {segments}:"]
    for task in tasks:
        for partition in task.partitions:
            what = f"partition of {partition.subpartitions} subpartitions"
            lines.append(f"  {task.name}: {what}: {partition.required(limits)}")
        for gate in task.gates:
            what = f"gate of {gate.remote_channels} remote and {gate.local_channels} local channels"
            lines.append(f"  {task.name}: {what}: {gate.required(limits)}")
    if ahead:
        lines.append(f"  read-ahead of blocking partitions: {ahead}")
    remedies = _remedies(tasks, total, segments, segment_size, limits)
    lines.append(f"Any of these is enough: {'; '.join(remedies)}")
    raise InsufficientBuffers("\n".join(lines))


def _remedies(tasks: list[TaskDemand], total: int, segments: int, segment_size: int, limits: Limits) -> list[str]:
    """The smallest change of each setting that would make the job fit."""
    more = total - sum(task.required(limits) for task in tasks)  # than the tasks want
    needed_kib = math.ceil(total * segment_size / 1024)
    remedies = [f"memory.network.min = {needed_kib}KiB (and memory.network.max not below it)"]
    for per_channel in range(limits.buffers_per_channel - 1, 0, -1):
        fewer = replace(limits, buffers_per_channel=per_channel)
        if more + sum(task.required(fewer) for task in tasks) <= segments:
            remedies.append(f"network.buffers_per_channel = {per_channel}")
            break
    smaller = segments * segment_size // total
    if smaller >= 4096:
        remedies.append(f"memory.segment_size = {smaller // 1024}KiB")
    return remedies
