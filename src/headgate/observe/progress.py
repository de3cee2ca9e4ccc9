"""The figures of a job at one time: the job, its vertices, their tasks and channels, its workers.

Created by `Tracker.snapshot`; read by everything that shows a job. Plain data with a JSON form that can be read back.
Meters are fields of the classes of `control.reports`, from which these derive; here are the figures computed from them.

Invariant: rates and shares are of the time between a worker's last two reports, or since the task's start if there is
only one; those of a task that is over are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headgate.control.messages import TaskState
from headgate.control.reports import (
    ChannelReport,
    ConnectionMeters,
    HotKey,
    LatencyProgress,
    OperatorMeters,
    ProcessMeters,
    SubtaskMeters,
    TaskMeters,
)
from headgate.observe.status import JobStatus  # noqa: TC001 - a field's type

__all__ = [
    "ChannelProgress",
    "ConnectionProgress",
    "HotKey",
    "LatencyProgress",
    "OperatorProgress",
    "Progress",
    "SubtaskProgress",
    "TaskRates",
    "VertexProgress",
    "WorkerProgress",
]


class ChannelProgress(ChannelReport, frozen=True, array_like=False):
    """A channel as it was reported; in JSON, its figures have names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProgress(OperatorMeters):
    """One operator of a chain."""

    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaskRates:
    """The rates and shares of a task, or of a vertex: sums of rates, means of the shares of tasks that run.

    `x_per_s` is the rate of the meter `x`. Shares are from 0 to 1; those of a running task add up to 1.
    """

    records_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    bytes_out_per_s: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    back_pressured: float = 0.0
    waiting: float = 0.0  # for coroutines of `map_async`
    watermark_lag_ms: int | None = None  # behind the worker's clock at the report; of a vertex: the greatest
    operators: tuple[OperatorProgress, ...] = ()  # of the chain, in the order of the graph's `operators`


@dataclass(frozen=True, kw_only=True)
class SubtaskProgress(SubtaskMeters, TaskRates):
    """One task.

    >>> SubtaskProgress(subtask=0, worker=0, records_out=10, out_pool_usage=0.5).records_out
    10
    """

    subtask: int
    worker: int
    state: TaskState = TaskState.CREATED
    in_pool_usage: float = 0.0  # share of its gates' buffers in use
    out_pool_usage: float = 0.0  # likewise of its partitions'; 1 also with overdraft buffers
    channels: tuple[ChannelProgress, ...] = ()  # a limited number of them
    cpu: float | None = None  # share of the time of its thread on a CPU; None: the system does not report it
    run_queue: float | None = None  # likewise runnable without a CPU


@dataclass(frozen=True, kw_only=True)
class VertexProgress(TaskMeters, TaskRates):
    """All tasks of a vertex."""

    id: int
    name: str
    parallelism: int
    state: TaskState
    max_busy: float = 0.0  # of the busiest task, which may limit the others
    max_back_pressured: float = 0.0
    subtasks: tuple[SubtaskProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionProgress(ConnectionMeters):
    """All connections of a worker to another one, as the sender sees them."""

    bytes_out_per_s: float = 0.0
    blocked: float = 0.0  # share of the time in which the socket accepted no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress(ProcessMeters):
    """One worker."""

    number: int
    host: str = ""
    pid: int = 0  # 0: it has not registered yet
    cpu: float | None = None  # CPUs that its process used: 1.0 is one CPU all of the time
    connections: tuple[ConnectionProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A whole job at one time.

    >>> import json
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> json.dumps(progress.to_dict())
    '{"job": "1", "name": "etl", "status": "running", "uptime_s": 2.5, "workers": [], "vertices": []}'
    """

    job: str
    name: str
    status: JobStatus
    uptime_s: float  # since all workers have registered
    workers: tuple[WorkerProgress, ...]
    vertices: tuple[VertexProgress, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dicts, lists, strings and numbers."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
