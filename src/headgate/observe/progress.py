"""What a job is doing, in figures: a job, its vertices, their tasks and channels, its workers, at one moment.

Made by the tracker; read by whatever shows a job. Plain data: JSON can say all of it, and it can be read back.

Invariant: rates and shares are of the time between a worker's last two reports, or since the task's start where there
is only one; those of a task that is over are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.observe.status import JobStatus  # noqa: TC001 - a field's type
from headgate.worker.messages import TaskState

__all__ = [
    "ChannelProgress",
    "ConnectionProgress",
    "HotKey",
    "LatencyProgress",
    "Progress",
    "SubtaskProgress",
    "VertexProgress",
    "WorkerProgress",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelProgress:
    """One channel of a task's input, from its consumer's side.

    >>> ChannelProgress(exchange=0, producer=1, backlog=3, credit=2).credit
    2
    """

    exchange: int  # which of the job's
    producer: int  # the producer's subtask
    local: bool = False  # producer and consumer are in one worker: no credit, no buffers of its own
    backlog: int = 0  # buffers that wait at the producer
    queued: int = 0  # that have come and wait to be read
    exclusive: int = 0  # buffers of its own that are set aside for what comes
    floating: int = 0  # likewise of those that the gate's channels share
    credit: int = 0  # of all these, how many the producer knows of
    bytes_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProgress:
    """How long markers took from a source to a task, over the last minute or so; in milliseconds.

    Between machines this includes the difference of their clocks; what would be negative is 0.

    >>> LatencyProgress(source=0, count=10, p50_ms=1.5, p99_ms=4.0, max_ms=5.0).p99_ms
    4.0
    """

    source: int  # the vertex whose markers these are
    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key that many records of an exchange have, as one of its producers has seen it.

    >>> HotKey(exchange=1, key="'london'", share=0.61).share
    0.61
    """

    exchange: int
    key: str  # how Python writes it, cut
    share: float  # of the records that were looked at; an estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskProgress:
    """One task. Shares are from 0 to 1; busy, idle and back-pressured add up to 1 while it runs.

    >>> SubtaskProgress(subtask=0, worker=0, records_out=10, out_pool_usage=0.5).records_out
    10
    """

    subtask: int
    worker: int
    state: TaskState = TaskState.CREATED
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    back_pressured: float = 0.0
    in_pool_usage: float = 0.0  # share of its gates' buffers that are in use
    out_pool_usage: float = 0.0  # likewise of its partitions'; 1 also where it has overdraft buffers
    in_queued: int = 0  # buffers that wait to be read
    backlog: int = 0  # buffers that wait at its producers
    channels: tuple[ChannelProgress, ...] = ()  # the first ones if there are very many
    watermark_ms: int | None = None
    watermark_lag_ms: int | None = None  # how far it was behind the worker's clock when reported
    cpu: float | None = None  # share of the time that its thread was on a CPU; None: the system does not say
    run_queue: float | None = None  # likewise that it could have been, had one been free
    latencies: tuple[LatencyProgress, ...] = ()
    hot_keys: tuple[HotKey, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexProgress:
    """All tasks of a vertex: figures are sums, shares means of those that run.

    >>> VertexProgress(id=0, name="words", parallelism=2, state=TaskState.RUNNING, subtasks=()).back_pressured
    0.0
    """

    id: int
    name: str
    parallelism: int
    state: TaskState
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    back_pressured: float = 0.0
    max_busy: float = 0.0  # of the task that is most so: one that holds up the others
    max_back_pressured: float = 0.0
    watermark_ms: int | None = None  # the least, where all have one
    watermark_lag_ms: int | None = None  # the greatest
    latencies: tuple[LatencyProgress, ...] = ()  # of all tasks together: the greatest of each figure
    hot_keys: tuple[HotKey, ...] = ()  # of all tasks together, the hottest first
    counters: dict[str, int] = field(default_factory=dict)
    subtasks: tuple[SubtaskProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProgress:
    """A connection between two workers, as one of them sees its sending half.

    >>> ConnectionProgress(peer=1, bytes_out_per_s=5e6, blocked=0.0).peer
    1
    """

    peer: int  # the other worker
    bytes_out: int = 0
    bytes_out_per_s: float = 0.0
    waiting_bytes: int = 0  # taken from partitions and not yet written
    blocked: float = 0.0  # share of the time in which the socket took nothing
    round_trip_ms: float | None = None  # as the system measures it; None: it does not say
    unsent_bytes: int | None = None  # that the system has taken and not put on the network yet; likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress:
    """One worker.

    >>> WorkerProgress(number=0, host="127.0.0.1", pid=4711).memory_bytes
    0
    """

    number: int
    host: str = ""
    pid: int = 0  # 0: it is not there yet
    memory_bytes: int = 0
    cpu: float | None = None  # CPUs that its process used: 1.0 is one, all of the time
    segments_total: int = 0  # network buffers of the worker, and how many nobody has
    segments_free: int = 0
    connections: tuple[ConnectionProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A whole job at one moment.

    >>> import json
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> json.dumps(progress.to_dict())
    '{"job": "1", "name": "etl", "status": "running", "uptime_s": 2.5, "workers": [], "vertices": []}'
    """

    job: str
    name: str
    status: JobStatus
    uptime_s: float  # since all workers were there
    workers: tuple[WorkerProgress, ...]
    vertices: tuple[VertexProgress, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, strings and numbers, which JSON can say."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
