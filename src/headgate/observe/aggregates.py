"""The figures of a vertex from those of its tasks, and the figures of a job that is over. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from headgate.control.messages import TaskState
from headgate.control.reports import HotKey, LatencyProgress, TaskMeters
from headgate.observe.progress import OperatorProgress, VertexProgress
from headgate.observe.rates import RATES, SHARES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.graph.plan import Vertex
    from headgate.observe.progress import SubtaskProgress, WorkerProgress

__all__ = ["clear_vertex", "clear_worker", "vertex_progress"]

_COUNTS: Final = tuple(one.name for one in fields(TaskMeters) if one.type == "int")  # an annotation is a string
_MAX_KEYS: Final = 10  # of a vertex
_LEAST_SHARE: Final = 0.01  # of a key, of all of a vertex's records


def vertex_progress(vertex: Vertex, tasks: Sequence[SubtaskProgress]) -> VertexProgress:
    """Return the figures of a vertex: sums of counts and rates, means of the shares of running tasks."""
    running = [one for one in tasks if one.state is TaskState.RUNNING] or tasks
    counters: Counter[str] = Counter()
    for task in tasks:
        if task.counters:
            counters.update(task.counters)
    sums = {name: sum([getattr(one, name) for one in tasks]) for name in (*_COUNTS, *RATES)}
    means = {name: sum([getattr(one, name) for one in running]) / max(1, len(running)) for name in SHARES}
    marks = [one.watermark_ms for one in tasks if one.watermark_ms is not None]
    lags = [one.watermark_lag_ms for one in tasks if one.watermark_lag_ms is not None]
    return VertexProgress(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        state=_vertex_state([one.state for one in tasks]),
        **sums,
        **means,
        max_busy=max((one.busy for one in running), default=0.0),
        max_back_pressured=max((one.back_pressured for one in running), default=0.0),
        watermark_ms=min(marks) if marks and len(marks) == len(tasks) else None,
        watermark_lag_ms=max(lags, default=None),
        latencies=_latencies(tasks),
        hot_keys=_hot_keys(tasks),
        counters=dict(counters),
        operators=_operators(tasks),
        subtasks=tuple(tasks),
    )


def _operators(tasks: Sequence[SubtaskProgress]) -> tuple[OperatorProgress, ...]:
    """Return the sums over all tasks that have reported, operator by operator."""
    found = []
    for same in zip(*[task.operators for task in tasks if task.operators], strict=False):
        side_outputs: Counter[str] = Counter()
        for one in same:
            side_outputs.update(one.side_outputs)
        found.append(
            OperatorProgress(
                records_in=sum([one.records_in for one in same]),
                records_out=sum([one.records_out for one in same]),
                records_in_per_s=sum([one.records_in_per_s for one in same]),
                records_out_per_s=sum([one.records_out_per_s for one in same]),
                side_outputs=dict(side_outputs),
            )
        )
    return tuple(found)


def _latencies(tasks: Sequence[SubtaskProgress]) -> tuple[LatencyProgress, ...]:
    """Return the greatest of each figure, by source."""
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


def _hot_keys(tasks: Sequence[SubtaskProgress]) -> tuple[HotKey, ...]:
    """Return the most frequent keys of all tasks, weighted by the records that each task has sent.

    A key that a task does not report has the share 0 in that task.
    """
    if not any(task.hot_keys for task in tasks):
        return ()
    weights = [task.records_out for task in tasks]
    if not any(weights):
        weights = [1] * len(tasks)
    total = sum(weights)
    shares: dict[tuple[int, str], float] = {}
    for task, weight in zip(tasks, weights, strict=True):
        for one in task.hot_keys:
            which = one.exchange, one.key
            shares[which] = shares.get(which, 0.0) + one.share * weight / total
    hottest = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))[:_MAX_KEYS]
    return tuple(
        HotKey(exchange=exchange, key=key, share=min(1.0, share))
        for (exchange, key), share in hottest
        if share >= _LEAST_SHARE
    )


def _vertex_state(states: Sequence[TaskState]) -> TaskState:
    """Return the worst of the tasks' states, or that of the task which is furthest behind."""
    for worst in (TaskState.FAILED, TaskState.CANCELLED):
        if worst in states:
            return worst
    if len(set(states)) == 1:
        return states[0]
    started = {TaskState.RUNNING, TaskState.FINISHED}
    return TaskState.RUNNING if started & set(states) else TaskState.CREATED


def clear_vertex(vertex: VertexProgress) -> VertexProgress:
    """Return the vertex of a job that is over: without queues, pools and lags.

    Its last reports may be older than the last reads of other tasks. Latencies and hot keys stay: they cover a minute.
    """
    no_lag: dict[str, Any] = {"watermark_lag_ms": None}
    empty: dict[str, Any] = {
        **no_lag,
        "in_pool_usage": 0.0,
        "out_pool_usage": 0.0,
        "in_queued": 0,
        "backlog": 0,
        "channels": (),
        "cpu": None,
        "run_queue": None,
    }
    return replace(vertex, **no_lag, subtasks=tuple(replace(one, **empty) for one in vertex.subtasks))


def clear_worker(worker: WorkerProgress) -> WorkerProgress:
    """Return the worker of a job that is over: all segments are free, and there are no connections."""
    return replace(worker, cpu=None, segments_free=worker.segments_total, connections=())
