"""What a job's workers report, gathered: the figures that `progress` shows, and the past that `timeline` does.

The coordinator puts reports and task states into a `Tracker` on its network thread; a `Progress` is made of it when
somebody asks, on any thread. A report only costs what keeping it costs: figures are made when they are looked at, and
not under the lock.

Invariant: a report counts whole or not at all.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from headgate.errors import RemoteProtocolError
from headgate.observe.figures import (
    NO_RATES,
    Counted,
    emptied,
    emptied_worker,
    subtask_progress,
    vertex_progress,
    worker_progress,
)
from headgate.observe.progress import Progress, WorkerProgress
from headgate.observe.timeline import Timeline
from headgate.worker.messages import TaskState
from headgate.worker.moments import moment_ms, wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.graph.plan import Plan
    from headgate.observe.history import History
    from headgate.observe.progress import SubtaskProgress
    from headgate.observe.status import JobStatus
    from headgate.worker.messages import Register, Report, SubtaskReport

__all__ = ["Tracker"]


class Tracker:
    """Gathers what workers report. `snapshot` and the time-lines are for any thread, the rest for one.

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

    def __init__(self, plan: Plan, *, now_ms: Callable[[], int] = wall_ms) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._tasks = {
            vertex.id: [_Task(subtask, worker) for subtask, worker in enumerate(vertex.workers(plan))]
            for vertex in plan.vertices
        }
        count = plan.workers + plan.uses_driver
        self._workers = {number: WorkerProgress(number=number) for number in range(count)}
        self._reported: dict[int, Report] = {}  # by worker, without what is of its tasks
        self._history = _history_of(plan, now_ms)

    def registered(self, worker: int, register: Register) -> None:
        """A worker is there."""
        with self._lock:
            self._workers[worker] = WorkerProgress(number=worker, host=register.host, pid=register.pid)
            self._reported.pop(worker, None)  # of the one before, in an earlier attempt at the job

    def renewed(self) -> None:
        """All workers are gone, and others will come: for them, tasks that have not finished have not begun."""
        with self._lock:
            self._workers = {number: WorkerProgress(number=number) for number in self._workers}
            for tasks in self._tasks.values():
                for task in tasks:
                    task.renewed()

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
            for task, one in zip(tasks, report.subtasks, strict=True):
                task.report(one, report.at_ms)
            last = self._reported.get(worker)
            if last is None or report.at_ms != last.at_ms:  # else it is another part of the same
                self._workers[worker] = worker_progress(self._workers[worker], last, report)
                self._reported[worker] = structs.replace(report, subtasks=[])
        if self._history is not None:
            self._history.put(worker, report.at_ms, report.subtasks)

    def snapshot(self, status: JobStatus, uptime_s: float) -> Progress:
        """All of it at this moment."""
        plan = self._plan
        with self._lock:
            seen = [[(task, task.seen) for task in self._tasks[one.id]] for one in plan.vertices]
            workers = tuple(self._workers.values())
        vertices = tuple(
            vertex_progress(vertex, [task.progress(what) for task, what in some])
            for vertex, some in zip(plan.vertices, seen, strict=True)
        )
        if status.over:
            vertices = tuple(emptied(one) for one in vertices)
            workers = tuple(emptied_worker(one) for one in workers)
        return Progress(
            job=plan.job, name=plan.name, status=status, uptime_s=uptime_s, workers=workers, vertices=vertices
        )

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """The last stretch of the past, in at most so many steps: all vertices, or one of them and its tasks.

        While nothing is known of the past it has no steps, and no tasks.

        Raises:
            ValueError: no time, no steps, or no such vertex.
        """
        if self._history is None:
            return _NO_PAST
        with self._lock:
            over = all(task.seen.state.over for some in self._tasks.values() for task in some)
        return self._history.timeline(seconds=seconds, points=points, vertex=vertex, over=over)

    def full_timeline(self) -> Timeline:
        """All that is known of the past, of every vertex and task, in steps so long that it fits into a file."""
        return _NO_PAST if self._history is None else self._history.full()

    def _task(self, worker: int, vertex: int, subtask: int) -> _Task:
        tasks = self._tasks.get(vertex, [])
        task = tasks[subtask] if 0 <= subtask < len(tasks) else None
        if task is None or task.worker != worker:
            raise RemoteProtocolError(f"worker {worker} speaks of subtask {subtask} of vertex {vertex}: it has no such")
        return task


_NO_PAST = Timeline(start_ms=0, step_ms=1000, steps=0, tasks=())


def _history_of(plan: Plan, now_ms: Callable[[], int]) -> History | None:
    metrics = plan.settings.metrics
    length_ms = moment_ms(metrics)
    if not length_ms:
        return None
    from headgate.observe.history import History  # noqa: PLC0415 - needs numpy, which takes its time to import

    tasks = {vertex.id: vertex.parallelism for vertex in plan.vertices}
    return History(tasks, length_ms=length_ms, keep_ms=metrics.history.ns // 1_000_000, now_ms=now_ms)


class _Seen(NamedTuple):
    """What is known of a task: replaced as one, so that a reader never sees parts of two."""

    state: TaskState = TaskState.CREATED
    last: SubtaskReport | None = None  # without its states
    at_ms: int = 0
    span: tuple[Counted, Counted | None, int | None] | None = (
        None  # what was counted now and before, and how long after
    )


class _Task:
    """One task: what is known of it, and what that looked like when somebody looked last."""

    __slots__ = ("_shown", "seen", "subtask", "worker")

    def __init__(self, subtask: int, worker: int) -> None:
        self.subtask = subtask
        self.worker = worker
        self.seen = _Seen()
        self._shown: tuple[_Seen, SubtaskProgress] | None = None

    def renewed(self) -> None:
        if self.seen.state is not TaskState.FINISHED:
            self.seen = _Seen()

    def move(self, state: TaskState) -> None:
        seen = self.seen
        if state is TaskState.DEPLOYED:  # in a BATCH job perhaps again: it counts from the beginning
            seen = _Seen()
        self.seen = _Seen(state, seen.last, seen.at_ms, None if state.over else seen.span)

    def report(self, now: SubtaskReport, at_ms: int) -> None:
        """Take a report."""
        state, last, before_ms, span = self.seen
        if not state.over:
            if last is None:
                span = (Counted.of(now), None, None)
            elif at_ms > before_ms:  # else the worker's clock was set back: its rates stay as they were
                span = (Counted.of(now), Counted.of(last), at_ms - before_ms)
        self.seen = _Seen(state, structs.replace(now, states=[]) if now.states else now, at_ms, span)

    def progress(self, seen: _Seen) -> SubtaskProgress:
        """What that looks like."""
        shown = self._shown
        if shown is None or shown[0] is not seen:
            rates = NO_RATES if seen.span is None else seen.span[0].rates(*seen.span[1:])
            made = subtask_progress(self.subtask, self.worker, seen.state, seen.last, seen.at_ms, rates)
            self._shown = shown = (seen, made)
        return shown[1]
