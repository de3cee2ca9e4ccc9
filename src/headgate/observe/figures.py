"""Figures of tasks and workers, made of what was reported of them last and how that differs from before.

Used by the tracker, which keeps the reports; pure.

Invariant: rates and shares are of the time between the last two reports, or since the task's start where there is only
one; those of a task that is over are 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from headgate.observe.progress import (
    ChannelProgress,
    ConnectionProgress,
    HotKey,
    LatencyProgress,
    SubtaskProgress,
    VertexProgress,
    WorkerProgress,
)
from headgate.worker.messages import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.graph.plan import Vertex
    from headgate.worker.messages import Report, SubtaskReport

__all__ = [
    "NO_RATES",
    "Counted",
    "Rates",
    "emptied",
    "emptied_worker",
    "subtask_progress",
    "vertex_progress",
    "worker_progress",
]

_Channels = tuple[ChannelProgress, ...]
_ENDLESS_MS: Final = 2**62  # watermarks beyond that stand for the beginning and the end of time
_MAX_KEYS: Final = 10  # of a vertex
_LEAST_SHARE: Final = 0.01  # that a key has of all of a vertex's records


class Rates(NamedTuple):
    """How fast a task's figures rise, and the shares of its time.

    >>> NO_RATES.busy, NO_RATES.cpu
    (0.0, None)
    """

    records_in: float = 0.0
    records_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    busy: float = 0.0
    idle: float = 0.0
    back_pressured: float = 0.0
    cpu: float | None = None
    run_queue: float | None = None


NO_RATES: Final = Rates()
"""Of a task that has reported nothing, or is over."""


class Counted(NamedTuple):
    """What a task has counted since its start.

    >>> Counted(*[0] * 9).rates(None, None) is NO_RATES
    True
    """

    records_in: int
    records_out: int
    bytes_in: int
    bytes_out: int
    busy_ns: int
    idle_ns: int
    back_pressured_ns: int
    cpu_ns: int
    run_queue_ns: int

    @classmethod
    def of(cls, one: SubtaskReport) -> Counted:
        """What a report says."""
        return cls(
            one.records_in,
            one.records_out,
            one.bytes_in,
            one.bytes_out,
            one.busy_ns,
            one.idle_ns,
            one.back_pressured_ns,
            one.cpu_ns,
            one.run_queue_ns,
        )

    def rates(self, before: Counted | None, elapsed_ms: int | None) -> Rates:
        """How fast all this rose: in so long a time, or since the task's start where nothing was known before."""
        risen = list(self) if before is None else [max(0, new - old) for new, old in zip(self, before, strict=True)]
        all_ns = sum(risen[4:7])
        elapsed_ns = all_ns if elapsed_ms is None else elapsed_ms * 1_000_000
        if elapsed_ns <= 0:
            return NO_RATES
        unknown = [self[at] < 0 or (before is not None and before[at] < 0) for at in (7, 8)]
        return Rates(
            *[one * 1e9 / elapsed_ns for one in risen[:4]],
            *[one / all_ns if all_ns > 0 else 0.0 for one in risen[4:7]],
            *[
                None if not_said else min(1.0, one / elapsed_ns)
                for one, not_said in zip(risen[7:], unknown, strict=True)
            ],
        )


def subtask_progress(  # noqa: PLR0917 - what is known of a task
    subtask: int, worker: int, state: TaskState, last: SubtaskReport | None, at_ms: int, rates: Rates
) -> SubtaskProgress:
    """A task: `last` was reported at `at_ms`, if anything was.

    >>> subtask_progress(3, 0, TaskState.CREATED, None, 0, NO_RATES).subtask
    3
    """
    return SubtaskProgress(
        subtask=subtask,
        worker=worker,
        state=state,
        records_in_per_s=rates.records_in,
        records_out_per_s=rates.records_out,
        bytes_in_per_s=rates.bytes_in,
        bytes_out_per_s=rates.bytes_out,
        busy=rates.busy,
        idle=rates.idle,
        back_pressured=rates.back_pressured,
        cpu=rates.cpu,
        run_queue=rates.run_queue,
        **({} if last is None else _totals(last, at_ms)),
    )


def _totals(last: SubtaskReport, at_ms: int) -> dict[str, Any]:
    """What a report says by itself."""
    mark = last.watermark_ms
    return {
        "records_in": last.records_in,
        "records_out": last.records_out,
        "bytes_in": last.bytes_in,
        "bytes_out": last.bytes_out,
        "in_pool_usage": min(1.0, last.in_pool_used / last.in_pool_size) if last.in_pool_size > 0 else 0.0,
        "out_pool_usage": min(1.0, last.out_pool_used / last.out_pool_size) if last.out_pool_size > 0 else 0.0,
        "in_queued": last.in_queued,
        "backlog": last.backlog,
        "channels": msgspec.convert(last.channels, _Channels, from_attributes=True),  # there may be very many
        "watermark_ms": mark,
        "watermark_lag_ms": None if mark is None or abs(mark) >= _ENDLESS_MS else at_ms - mark,
        "latencies": tuple(
            [
                LatencyProgress(
                    source=one.source,
                    count=one.count,
                    p50_ms=one.p50_us / 1000,
                    p99_ms=one.p99_us / 1000,
                    max_ms=one.max_us / 1000,
                )
                for one in last.latencies
            ]
        ),
        "hot_keys": tuple(
            [HotKey(exchange=one.exchange, key=one.key, share=one.share_permille / 1000) for one in last.hot_keys]
        ),
        "counters": dict(last.counters),
    }


def vertex_progress(vertex: Vertex, tasks: Sequence[SubtaskProgress]) -> VertexProgress:
    """All tasks of a vertex.

    >>> from headgate.graph.plan import Vertex
    >>> vertex_progress(Vertex(0, "words", 1, 128, ()), [SubtaskProgress(subtask=0, worker=0, records_in=3)]).records_in
    3
    """
    running = [one for one in tasks if one.state is TaskState.RUNNING] or tasks
    counters: Counter[str] = Counter()
    for task in tasks:
        if task.counters:
            counters.update(task.counters)

    def mean(share: Callable[[SubtaskProgress], float]) -> float:
        return sum(map(share, running)) / len(running) if running else 0.0

    marks = [one.watermark_ms for one in tasks if one.watermark_ms is not None]
    lags = [one.watermark_lag_ms for one in tasks if one.watermark_lag_ms is not None]
    return VertexProgress(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        state=_state_of([one.state for one in tasks]),
        records_in=sum([one.records_in for one in tasks]),
        records_out=sum([one.records_out for one in tasks]),
        bytes_in=sum([one.bytes_in for one in tasks]),
        bytes_out=sum([one.bytes_out for one in tasks]),
        records_in_per_s=sum([one.records_in_per_s for one in tasks]),
        records_out_per_s=sum([one.records_out_per_s for one in tasks]),
        bytes_in_per_s=sum([one.bytes_in_per_s for one in tasks]),
        bytes_out_per_s=sum([one.bytes_out_per_s for one in tasks]),
        busy=mean(lambda one: one.busy),
        idle=mean(lambda one: one.idle),
        back_pressured=mean(lambda one: one.back_pressured),
        max_busy=max((one.busy for one in running), default=0.0),
        max_back_pressured=max((one.back_pressured for one in running), default=0.0),
        watermark_ms=min(marks) if marks and len(marks) == len(tasks) else None,
        watermark_lag_ms=max(lags, default=None),
        latencies=_latencies_of(tasks),
        hot_keys=_hot_keys_of(tasks),
        counters=dict(counters),
        subtasks=tuple(tasks),
    )


def _latencies_of(tasks: Sequence[SubtaskProgress]) -> tuple[LatencyProgress, ...]:
    by_source: dict[int, list[LatencyProgress]] = {}
    for task in tasks:
        for one in task.latencies:
            by_source.setdefault(one.source, []).append(one)
    return tuple(
        LatencyProgress(
            source=source,
            count=sum([one.count for one in some]),
            p50_ms=max([one.p50_ms for one in some]),
            p99_ms=max([one.p99_ms for one in some]),
            max_ms=max([one.max_ms for one in some]),
        )
        for source, some in sorted(by_source.items())
    )


def _hot_keys_of(tasks: Sequence[SubtaskProgress]) -> tuple[HotKey, ...]:
    """Keys of all tasks, each task counting by the records that it has sent; who does not name a key has none of it."""
    if not any(task.hot_keys for task in tasks):
        return ()
    weights = [task.records_out for task in tasks]
    if not any(weights):
        weights = [1] * len(tasks)
    shares: dict[tuple[int, str], float] = {}
    for task, weight in zip(tasks, weights, strict=True):
        for one in task.hot_keys:
            which = one.exchange, one.key
            shares[which] = shares.get(which, 0.0) + one.share * weight / sum(weights)
    hottest = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))[:_MAX_KEYS]
    return tuple(
        HotKey(exchange=exchange, key=key, share=min(1.0, share))
        for (exchange, key), share in hottest
        if share >= _LEAST_SHARE
    )


def _state_of(states: Sequence[TaskState]) -> TaskState:
    """The state of a vertex: the worst of its tasks', or that of the one which is furthest back."""
    for worst in (TaskState.FAILED, TaskState.CANCELLED):
        if worst in states:
            return worst
    if len(set(states)) == 1:
        return states[0]
    started = {TaskState.RUNNING, TaskState.FINISHED}
    return TaskState.RUNNING if started & set(states) else TaskState.CREATED


def worker_progress(known: WorkerProgress, last: Report | None, now: Report) -> WorkerProgress:
    """A worker that has reported `now`, and `last` before.

    >>> from headgate.worker.messages import Report
    >>> before, now = Report(1000, [], cpu_ns=0), Report(2000, [], cpu_ns=1_500_000_000, memory_bytes=99)
    >>> worker_progress(WorkerProgress(number=0), before, now).cpu
    1.5
    """
    elapsed_ms = 0 if last is None else now.at_ms - last.at_ms
    cpu, connections = known.cpu, {one.peer: one for one in known.connections}
    if last is not None and elapsed_ms > 0:
        both = now.cpu_ns >= 0 and last.cpu_ns >= 0
        cpu = max(0, now.cpu_ns - last.cpu_ns) / (elapsed_ms * 1e6) if both else None
    before = {} if last is None else {one.peer: one for one in last.connections}
    found = []
    for one in now.connections:
        old, shown = before.get(one.peer), connections.get(one.peer)
        per_s, blocked = (0.0, 0.0) if shown is None else (shown.bytes_out_per_s, shown.blocked)
        if elapsed_ms > 0:
            per_s = max(0, one.bytes_out - (0 if old is None else old.bytes_out)) * 1000 / elapsed_ms
            blocked_ns = max(0, one.blocked_ns - (0 if old is None else old.blocked_ns))
            blocked = min(1.0, blocked_ns / (elapsed_ms * 1e6))
        found.append(
            ConnectionProgress(
                peer=one.peer,
                bytes_out=one.bytes_out,
                bytes_out_per_s=per_s,
                waiting_bytes=one.waiting_bytes,
                blocked=blocked,
                round_trip_ms=one.round_trip_us / 1000 if one.round_trip_us >= 0 else None,
                unsent_bytes=one.unsent_bytes if one.unsent_bytes >= 0 else None,
            )
        )
    return replace(
        known,
        memory_bytes=now.memory_bytes,
        cpu=cpu,
        segments_total=now.segments_total,
        segments_free=now.segments_free,
        connections=tuple(found),
    )


def emptied(vertex: VertexProgress) -> VertexProgress:
    """A vertex of a job that is over: its last reports may have come before others had read all of it.

    >>> task = SubtaskProgress(subtask=0, worker=0, state=TaskState.FINISHED, backlog=2)
    >>> vertex = VertexProgress(id=0, name="words", parallelism=1, state=TaskState.FINISHED, subtasks=(task,))
    >>> emptied(vertex).subtasks[0].backlog
    0
    """
    now: dict[str, Any] = {"watermark_lag_ms": None}  # what was found over a minute stays
    nothing: dict[str, Any] = {
        **now,
        "in_pool_usage": 0.0,
        "out_pool_usage": 0.0,
        "in_queued": 0,
        "backlog": 0,
        "channels": (),
        "cpu": None,
        "run_queue": None,
    }
    return replace(vertex, **now, subtasks=tuple(replace(one, **nothing) for one in vertex.subtasks))


def emptied_worker(worker: WorkerProgress) -> WorkerProgress:
    """A worker of a job that is over.

    >>> emptied_worker(WorkerProgress(number=0, cpu=1.5, segments_total=8, segments_free=3)).segments_free
    8
    """
    return replace(worker, cpu=None, segments_free=worker.segments_total, connections=())
