"""The last reports of a job's workers, and the figures and timelines made of them.

The coordinator passes reports and task states to a `Tracker` on its network thread; any thread takes a `Progress` from
it. A report is only stored: figures are computed when they are requested, and outside the lock.

Invariant: a report is accepted as a whole or rejected.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from headgate.clock import wall_ms
from headgate.control.messages import TaskState
from headgate.control.reports import interval_ms
from headgate.errors import RemoteProtocolError
from headgate.observe.aggregates import clear_vertex, clear_worker, vertex_progress
from headgate.observe.progress import Progress, WorkerProgress
from headgate.observe.rates import TaskCounters, TaskSpan, subtask_progress, worker_progress
from headgate.observe.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.control.messages import Register
    from headgate.control.reports import SubtaskReport, WorkerReport
    from headgate.graph.plan import Plan
    from headgate.observe.history import History
    from headgate.observe.progress import SubtaskProgress
    from headgate.observe.status import JobStatus

__all__ = ["Tracker"]


class Tracker:
    """The figures of a job. `snapshot` and the timelines are for any thread, the rest for the network thread.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.control.reports import WorkerReport, SubtaskReport
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> tracker = Tracker(plan)
    >>> def report(at_ms, records, busy_ms):
    ...     one = SubtaskReport(vertex=0, subtask=0, records_out=records, busy_ns=busy_ms * 10**6)
    ...     tracker.report(0, WorkerReport(at_ms, [one]))
    >>> report(5000, 10, 1000); report(7000, 50, 3000)
    >>> vertex, = tracker.snapshot(JobStatus.RUNNING, 3.0).vertices
    >>> vertex.records_out, vertex.records_out_per_s, vertex.busy
    (50, 20.0, 1.0)
    """

    def __init__(self, plan: Plan, *, now_ms: Callable[[], int] = wall_ms) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._tasks = {
            vertex.id: [_TrackedTask(subtask, worker) for subtask, worker in enumerate(vertex.workers(plan))]
            for vertex in plan.vertices
        }
        count = plan.workers + plan.uses_driver
        self._workers = {number: WorkerProgress(number=number) for number in range(count)}
        self._reported: dict[int, WorkerReport] = {}  # by worker, without its tasks
        self._history = _history_of(plan, now_ms)

    def registered(self, worker: int, register: Register) -> None:
        """Note that a worker has registered."""
        with self._lock:
            self._workers[worker] = WorkerProgress(number=worker, host=register.host, pid=register.pid)
            self._reported.pop(worker, None)  # the report of an earlier attempt

    def renewed(self) -> None:
        """Note that all workers are gone and a new attempt begins: tasks that have not finished start again."""
        with self._lock:
            self._workers = {number: WorkerProgress(number=number) for number in self._workers}
            for tasks in self._tasks.values():
                for task in tasks:
                    task.renew()

    def moved(self, worker: int, vertex: int, subtask: int, state: TaskState) -> None:
        """Note the new state of a task.

        Raises:
            RemoteProtocolError: the worker has no such task.
        """
        with self._lock:
            self._task(worker, vertex, subtask).move(state)

    def report(self, worker: int, report: WorkerReport) -> None:
        """Store a worker's report.

        Raises:
            RemoteProtocolError: the worker has no such task.
        """
        with self._lock:
            tasks = [self._task(worker, one.vertex, one.subtask) for one in report.subtasks]
            for task, one in zip(tasks, report.subtasks, strict=True):
                task.report(one, report.at_ms)
            last = self._reported.get(worker)
            if last is None or report.at_ms != last.at_ms:  # else it is another part of the same report
                self._workers[worker] = worker_progress(self._workers[worker], last, report)
                self._reported[worker] = structs.replace(report, subtasks=[])
        if self._history is not None:
            self._history.put(worker, report.at_ms, report.subtasks)

    def snapshot(self, status: JobStatus, uptime_s: float) -> Progress:
        """Return the figures of the job now."""
        plan = self._plan
        with self._lock:
            known = [[(task, task.known) for task in self._tasks[one.id]] for one in plan.vertices]
            workers = tuple(self._workers.values())
        vertices = tuple(
            vertex_progress(vertex, [task.progress(what) for task, what in some])
            for vertex, some in zip(plan.vertices, known, strict=True)
        )
        if status.over:
            vertices = tuple(clear_vertex(one) for one in vertices)
            workers = tuple(clear_worker(one) for one in workers)
        return Progress(
            job=plan.job, name=plan.name, status=status, uptime_s=uptime_s, workers=workers, vertices=vertices
        )

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """Return the last seconds in at most `points` steps: of all vertices, or of one vertex and its tasks.

        Without a history it has no steps and no tasks.

        Raises:
            ValueError: `seconds` or `points` is not positive, or there is no such vertex.
        """
        if self._history is None:
            return _NO_HISTORY
        with self._lock:
            over = all(task.known.state.over for some in self._tasks.values() for task in some)
        return self._history.timeline(seconds=seconds, points=points, vertex=vertex, over=over)

    def full_timeline(self) -> Timeline:
        """Return the whole history of every vertex and task, in steps so long that it fits into a file."""
        return _NO_HISTORY if self._history is None else self._history.full()

    def _task(self, worker: int, vertex: int, subtask: int) -> _TrackedTask:
        tasks = self._tasks.get(vertex, [])
        task = tasks[subtask] if 0 <= subtask < len(tasks) else None
        if task is None or task.worker != worker:
            raise RemoteProtocolError(f"worker {worker} reports subtask {subtask} of vertex {vertex}: it has no such")
        return task


_NO_HISTORY = Timeline(start_ms=0, step_ms=1000, steps=0, tasks=())


def _history_of(plan: Plan, now_ms: Callable[[], int]) -> History | None:
    metrics = plan.settings.metrics
    length_ms = interval_ms(metrics)
    if not length_ms:
        return None
    from headgate.observe.history import History  # noqa: PLC0415 - imports numpy, which takes long

    tasks = {vertex.id: vertex.parallelism for vertex in plan.vertices}
    return History(tasks, interval_ms=length_ms, keep_ms=metrics.history.ns // 1_000_000, now_ms=now_ms)


class _KnownTask(NamedTuple):
    """The state and the last reports of a task: replaced as one object, so that a reader never sees parts of two."""

    state: TaskState = TaskState.CREATED
    last: SubtaskReport | None = None  # without its intervals
    at_ms: int = 0
    span: TaskSpan | None = None


class _TrackedTask:
    """One task: its state and reports, and the last figures computed from them."""

    __slots__ = ("_shown", "known", "subtask", "worker")

    def __init__(self, subtask: int, worker: int) -> None:
        self.subtask = subtask
        self.worker = worker
        self.known = _KnownTask()
        self._shown: tuple[_KnownTask, SubtaskProgress] | None = None

    def renew(self) -> None:
        if self.known.state is not TaskState.FINISHED:
            self.known = _KnownTask()

    def move(self, state: TaskState) -> None:
        known = self.known
        if state is TaskState.DEPLOYED:  # in a BATCH job perhaps again: it counts from the beginning
            known = _KnownTask()
        self.known = _KnownTask(state, known.last, known.at_ms, None if state.over else known.span)

    def report(self, now: SubtaskReport, at_ms: int) -> None:
        state, last, before_ms, span = self.known
        if not state.over:
            if last is None:
                span = TaskSpan(TaskCounters.of(now), None, None)
            elif at_ms > before_ms:  # else the worker's clock was set back: the rates stay as they are
                span = TaskSpan(TaskCounters.of(now), TaskCounters.of(last), at_ms - before_ms)
        self.known = _KnownTask(state, replace(now, intervals=[]) if now.intervals else now, at_ms, span)

    def progress(self, known: _KnownTask) -> SubtaskProgress:
        shown = self._shown
        if shown is None or shown[0] is not known:
            made = subtask_progress(
                self.subtask, self.worker, known.state, last=known.last, at_ms=known.at_ms, span=known.span
            )
            self._shown = shown = (known, made)
        return shown[1]
