"""What workers report: meters once a second, and stack samples on request. The parts of `messages.WorkerMessage`.

A meter is one field of `TaskMeters` (or `SubtaskMeters`, `OperatorMeters`, `ConnectionMeters`, `ProcessMeters`). The
reports here and the shapes of `observe.progress` derive from these classes, so a new field is in the report, in every
view of the job and in its JSON. A report adds raw times, from which `observe.rates` computes shares and rates.

Classes with very many instances that hold numbers and text only are not tracked by the garbage collector (`gc=False`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from headgate.config import MetricsSettings

__all__ = [
    "MAX_FRAMES",
    "MAX_STACKS",
    "ChannelReport",
    "ConnectionMeters",
    "ConnectionReport",
    "HotKey",
    "LatencyProgress",
    "OperatorMeters",
    "ProcessMeters",
    "Stack",
    "StackSamples",
    "SubtaskInterval",
    "SubtaskMeters",
    "SubtaskReport",
    "SubtaskSamples",
    "TaskMeters",
    "WorkerReport",
    "interval_ms",
]

MAX_STACKS: Final = 200
"""Different stacks in the samples of one subtask."""

MAX_FRAMES: Final = 64
"""Frames of one of these stacks."""


def interval_ms(settings: MetricsSettings) -> int:
    """Return the length of a `SubtaskInterval` in whole milliseconds; 0 if no history is kept.

    >>> from headgate.config import MetricsSettings
    >>> interval_ms(MetricsSettings())
    100
    """
    interval_ns = settings.interval.ns
    return max(1, interval_ns // 1_000_000) if interval_ns else 0


class ChannelReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One channel of a task's input, as its consumer sees it (B2)."""

    exchange: int
    producer: int  # subtask
    local: bool = False  # producer and consumer are in one worker: no credit, and no buffers of its own
    backlog: int = 0  # buffers that wait at the producer
    queued: int = 0  # received buffers that wait to be read
    exclusive: int = 0  # its own buffers that are free to receive into
    floating: int = 0  # likewise of the buffers that the gate's channels share
    credit: int = 0  # of all these, those that were announced to the producer
    bytes_in: int = 0


class SubtaskInterval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subtask in one interval of `metrics.interval`; the coordinator keeps a history of these.

    Times and pools are in thousandths, records are those of the interval, and queues those at its end.
    """

    busy: int
    idle: int
    back_pressured: int
    records_in: int
    records_out: int
    in_queued: int
    backlog: int
    in_pool: int = 0  # buffers in use
    out_pool: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProgress:
    """How long markers took from a source to a task, over the last minute or so; in milliseconds.

    Between machines this includes the difference of their clocks; negative times count as 0.
    """

    source: int  # the vertex that sends the markers
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A frequent key of an exchange, as one of its producers counts it."""

    exchange: int
    key: str  # its `repr`, shortened
    share: float  # of the records that were sampled; an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMeters:
    """The records of one operator of a task's chain since its start (K1)."""

    records_in: int = 0
    records_out: int = 0  # of its main output
    side_outputs: dict[str, int] = field(default_factory=dict)  # records by tag; a limited number of tags


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionMeters:
    """All connections of a worker to another one, as the sender sees them."""

    peer: int  # the other worker
    bytes_out: int = 0
    waiting_bytes: int = 0  # polled from partitions and not yet written
    round_trip_ms: float | None = None  # None: the system does not report it
    unsent_bytes: int | None = None  # written to the socket and not yet sent by the system; likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionReport(ConnectionMeters):
    """`ConnectionMeters`, and the time in which a socket accepted no bytes."""

    blocked_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMeters:
    """The memory of a worker's process."""

    memory_bytes: int = 0
    segments_total: int = 0  # network buffers of the worker
    segments_free: int = 0  # of these, those that no pool has


# Without slots: `observe.progress` derives from these and from another class with fields.


@dataclass(frozen=True, kw_only=True)
class TaskMeters:
    """The meters of a task since its start (B2). A vertex has the same: counts are sums over its tasks."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    watermark_ms: int | None = None  # of a vertex: the least, if all tasks have one
    latencies: tuple[LatencyProgress, ...] = ()  # of a vertex: the greatest of each figure
    hot_keys: tuple[HotKey, ...] = ()  # of a vertex: the most frequent first
    counters: dict[str, int] = field(default_factory=dict)  # those of operators, by name


@dataclass(frozen=True, kw_only=True)
class SubtaskMeters(TaskMeters):
    """The meters of a task that are not summed over a vertex."""

    in_queued: int = 0  # buffers that wait to be read
    backlog: int = 0  # buffers that wait at its producers


@dataclass(frozen=True, kw_only=True)
class SubtaskReport(SubtaskMeters):
    """The meters of one subtask, and the raw times that shares and rates are computed from."""

    vertex: int
    subtask: int
    busy_ns: int = 0
    idle_ns: int = 0
    back_pressured_ns: int = 0
    waiting_ns: int = 0  # for coroutines of `map_async`
    cpu_ns: int = -1  # its thread on a CPU; -1: the system does not report it
    run_queue_ns: int = -1  # its thread runnable without a CPU; likewise
    in_pool_used: int = 0  # buffers of its gates' pools in use
    in_pool_size: int = 0
    out_pool_used: int = 0
    out_pool_size: int = 0
    channels: list[ChannelReport] = field(default_factory=list)  # a limited number of them
    operators: tuple[OperatorMeters, ...] = ()  # of its chain, the head first
    intervals: list[SubtaskInterval] = field(default_factory=list)  # since the report before
    intervals_end_ms: int = 0  # the end of the last interval by the worker's clock; 0: the time of the report


class WorkerReport(msgspec.Struct, frozen=True, tag="report"):
    """All meters of a worker, once a second.

    >>> WorkerReport(at_ms=1000, subtasks=[]).process.memory_bytes
    0
    """

    at_ms: int
    subtasks: list[SubtaskReport]
    process: ProcessMeters = ProcessMeters()
    cpu_ns: int = -1  # of its process; -1: the system does not report it
    connections: list[ConnectionReport] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack of a task's thread, and how often it was sampled."""

    operator: str  # the operator whose code runs; '': none
    frames: tuple[str, ...]  # the user's, outermost first: 'function (file:line)'
    count: int
    idle: int = 0  # of these, samples in which the task was blocked for input
    back_pressured: int = 0  # likewise for an output buffer


class SubtaskSamples(msgspec.Struct, frozen=True):
    """The samples of one task's thread (B1)."""

    vertex: int
    subtask: int
    taken: int
    idle: int
    back_pressured: int
    stacks: list[Stack]


class StackSamples(msgspec.Struct, frozen=True, tag="sampled"):
    """The answer to `SampleStacks`."""

    request: int
    subtasks: list[SubtaskSamples]
