"""What a job's workers report, gathered: the figures that `progress` shows are made here.

The coordinator puts reports and task states into a `Tracker` on its network thread; a `Progress` is made of it when
somebody asks, on any thread.

Invariant: rates and shares are of the time between a worker's last two reports, or since the task's start where there
is only one; those of a task that is over are 0.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from headgate.errors import RemoteProtocolError
from headgate.observe.progress import ChannelProgress, Progress, SubtaskProgress, VertexProgress, WorkerProgress
from headgate.worker.messages import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.graph.plan import Plan, Vertex
    from headgate.observe.status import JobStatus
    from headgate.worker.messages import Register, Report, SubtaskReport

__all__ = ["Tracker"]


class Tracker:
    """Gathers what workers report. `snapshot` is for any thread, the rest for one.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.worker.messages import Report, SubtaskReport
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> tracker = Tracker(plan)
    >>> def report(at_ms, records, busy_ms):
    ...     one = SubtaskReport(0, 0, 0, records, 0, 0, 0, 0, busy_ns=busy_ms * 10**6, idle_ns=0, back_pressured_ns=0)
    ...     tracker.report(0, Report(at_ms, [one]))
    >>> report(5000, 10, 1000); report(7000, 50, 3000)
    >>> vertex, = tracker.snapshot(JobStatus.RUNNING, 3.0).vertices
    >>> vertex.records_out, vertex.records_out_per_s, vertex.busy
    (50, 20.0, 1.0)
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._tasks = {
            (vertex.id, subtask): _Task(subtask, worker)
            for vertex in plan.vertices
            for subtask, worker in enumerate(vertex.workers(plan))
        }
        count = plan.workers + plan.uses_driver
        self._workers = {number: WorkerProgress(number=number) for number in range(count)}
        self._reported_ms: dict[int, int] = {}

    def registered(self, worker: int, register: Register) -> None:
        """A worker is there."""
        with self._lock:
            self._workers[worker] = WorkerProgress(number=worker, host=register.host, pid=register.pid)

    def moved(self, worker: int, vertex: int, subtask: int, state: TaskState) -> None:
        """A task is in another state.

        Raises:
            RemoteProtocolError: that worker has no such task.
        """
        with self._lock:
            self._task(worker, vertex, subtask).move(state)

    def report(self, worker: int, report: Report) -> None:
        """A worker has reported.

        Raises:
            RemoteProtocolError: that worker has no such task.
        """
        with self._lock:
            tasks = [self._task(worker, one.vertex, one.subtask) for one in report.subtasks]
            before_ms = self._reported_ms.get(worker)
            elapsed_ms = None if before_ms is None else report.at_ms - before_ms
            for task, one in zip(tasks, report.subtasks, strict=True):
                task.report(one, elapsed_ms)
            self._reported_ms[worker] = report.at_ms
            known = self._workers[worker]
            self._workers[worker] = WorkerProgress(
                number=worker, host=known.host, pid=known.pid, memory_bytes=report.memory_bytes
            )

    def snapshot(self, status: JobStatus, uptime_s: float) -> Progress:
        """All of it at this moment."""
        plan = self._plan
        with self._lock:
            vertices = tuple(
                _vertex_progress(one, [self._tasks[one.id, subtask].progress for subtask in range(one.parallelism)])
                for one in plan.vertices
            )
            workers = tuple(self._workers.values())
        if status.over:
            vertices = tuple(_emptied(one) for one in vertices)
        return Progress(
            job=plan.job, name=plan.name, status=status, uptime_s=uptime_s, workers=workers, vertices=vertices
        )

    def _task(self, worker: int, vertex: int, subtask: int) -> _Task:
        task = self._tasks.get((vertex, subtask))
        if task is None or task.progress.worker != worker:
            raise RemoteProtocolError(f"worker {worker} speaks of subtask {subtask} of vertex {vertex}: it has no such")
        return task


class _Task:
    """One task's last report, and what it looks like beside the one before."""

    __slots__ = ("_last", "progress")

    def __init__(self, subtask: int, worker: int) -> None:
        self.progress = SubtaskProgress(subtask=subtask, worker=worker)
        self._last: SubtaskReport | None = None

    def move(self, state: TaskState) -> None:
        self._show(state, self._last, None if state.over else self.progress)

    def report(self, now: SubtaskReport, elapsed_ms: int | None) -> None:
        """Take a report, so long after the one before."""
        last, self._last = self._last, now
        spent = [now.busy_ns, now.idle_ns, now.back_pressured_ns]
        counts = [now.records_in, now.records_out, now.bytes_in, now.bytes_out]
        if last is not None:
            spent = _since(spent, [last.busy_ns, last.idle_ns, last.back_pressured_ns])
            counts = _since(counts, [last.records_in, last.records_out, last.bytes_in, last.bytes_out])
        all_ns = sum(spent)
        elapsed_s = all_ns / 1e9 if last is None or elapsed_ms is None else elapsed_ms / 1e3
        rates = self.progress
        if elapsed_s > 0:
            per_s = [count / elapsed_s for count in counts]
            shares = [one / all_ns if all_ns > 0 else 0.0 for one in spent]
            rates = SubtaskProgress(
                subtask=rates.subtask,
                worker=rates.worker,
                records_in_per_s=per_s[0],
                records_out_per_s=per_s[1],
                bytes_in_per_s=per_s[2],
                bytes_out_per_s=per_s[3],
                busy=shares[0],
                idle=shares[1],
                back_pressured=shares[2],
            )
        state = self.progress.state
        self._show(state, now, None if state.over else rates)

    def _show(self, state: TaskState, last: SubtaskReport | None, rates: SubtaskProgress | None) -> None:
        """Put together what was reported and how fast that changes; None: it does not any more."""
        before = self.progress
        if rates is None:
            rates = SubtaskProgress(subtask=before.subtask, worker=before.worker)
        totals = {} if last is None else _totals(last)
        self.progress = SubtaskProgress(
            subtask=before.subtask,
            worker=before.worker,
            state=state,
            records_in_per_s=rates.records_in_per_s,
            records_out_per_s=rates.records_out_per_s,
            bytes_in_per_s=rates.bytes_in_per_s,
            bytes_out_per_s=rates.bytes_out_per_s,
            busy=rates.busy,
            idle=rates.idle,
            back_pressured=rates.back_pressured,
            **totals,
        )


def _totals(last: SubtaskReport) -> dict[str, Any]:
    """What a report says by itself."""
    return {
        "records_in": last.records_in,
        "records_out": last.records_out,
        "bytes_in": last.bytes_in,
        "bytes_out": last.bytes_out,
        "in_pool_usage": last.in_pool_used / last.in_pool_size if last.in_pool_size > 0 else 0.0,
        "out_pool_usage": min(1.0, last.out_pool_used / last.out_pool_size) if last.out_pool_size > 0 else 0.0,
        "in_queued": last.in_queued,
        "backlog": last.backlog,
        "channels": tuple(ChannelProgress(**structs.asdict(channel)) for channel in last.channels),
        "watermark_ms": last.watermark_ms,
        "counters": dict(last.counters),
    }


def _emptied(vertex: VertexProgress) -> VertexProgress:
    """A vertex of a job that is over: its last reports may have come before others had read all of it."""
    nothing: dict[str, Any] = {
        "in_pool_usage": 0.0,
        "out_pool_usage": 0.0,
        "in_queued": 0,
        "backlog": 0,
        "channels": (),
    }
    return replace(vertex, subtasks=tuple(replace(one, **nothing) for one in vertex.subtasks))


def _since(now: list[int], before: list[int]) -> list[int]:
    """By how much counters rose; they do not fall."""
    return [max(0, new - old) for new, old in zip(now, before, strict=True)]


def _vertex_progress(vertex: Vertex, tasks: Sequence[SubtaskProgress]) -> VertexProgress:
    running = [one for one in tasks if one.state is TaskState.RUNNING] or tasks
    counters: Counter[str] = Counter()
    for task in tasks:
        counters.update(task.counters)

    def mean(share: Callable[[SubtaskProgress], float]) -> float:
        return sum(map(share, running)) / len(running) if running else 0.0

    marks = [one.watermark_ms for one in tasks if one.watermark_ms is not None]
    return VertexProgress(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        state=_state_of([one.state for one in tasks]),
        records_in=sum(one.records_in for one in tasks),
        records_out=sum(one.records_out for one in tasks),
        bytes_in=sum(one.bytes_in for one in tasks),
        bytes_out=sum(one.bytes_out for one in tasks),
        records_in_per_s=sum(one.records_in_per_s for one in tasks),
        records_out_per_s=sum(one.records_out_per_s for one in tasks),
        bytes_in_per_s=sum(one.bytes_in_per_s for one in tasks),
        bytes_out_per_s=sum(one.bytes_out_per_s for one in tasks),
        busy=mean(lambda one: one.busy),
        idle=mean(lambda one: one.idle),
        back_pressured=mean(lambda one: one.back_pressured),
        max_busy=max((one.busy for one in running), default=0.0),
        max_back_pressured=max((one.back_pressured for one in running), default=0.0),
        watermark_ms=min(marks) if marks and len(marks) == len(tasks) else None,
        counters=dict(counters),
        subtasks=tuple(tasks),
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
