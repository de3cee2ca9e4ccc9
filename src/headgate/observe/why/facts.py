"""A job's view, its past and its samples, joined by task, vertex and process: the input of the rules.

Created by `diagnose` for each question; pure, and without a decision.

Invariants: every share is from 0 to 1, also if the view has others; vertices without a running task are left out; edges
connect vertices that are there, and pass through memory: a consumer that reads from disk later blocks no producer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.config import Settings, parse_size
from headgate.control.messages import TaskState
from headgate.errors import ConfigError
from headgate.observe.graph import VertexView
from headgate.observe.why.thresholds import RUN_QUEUE_PER_CPU, WINDOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headgate.observe.graph import EdgeView
    from headgate.observe.pressure import Pressure, SubtaskPressure
    from headgate.observe.progress import ChannelProgress, ConnectionProgress, HotKey, SubtaskProgress, WorkerProgress
    from headgate.observe.timeline import TaskLine, Timeline
    from headgate.observe.view import JobView

__all__ = ["JobFacts", "PastStep", "TaskFacts", "VertexFacts", "clip_share"]

_MOST_STEPS: Final = 300_000  # of all tasks: with tens of thousands of tasks, the last second or two count
_FEWEST_STEPS: Final = 15  # of each task


def clip_share(value: float) -> float:
    """Return the share limited to 0 to 1; 0 for a value that is not a number.

    >>> clip_share(0.25), clip_share(-1.0), clip_share(1.02), clip_share(float("nan"))
    (0.25, 0.0, 1.0, 0.0)
    """
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


class PastStep(NamedTuple):
    """The shares of a task's time in one step of its past."""

    at_ms: int
    busy: float  # inside an operator: it works, or waits for coroutines
    idle: float
    back_pressured: float
    records: int
    waiting: float = 0.0  # of `busy`: for coroutines


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """A running task: shares are means over the window, `progress` is its last report."""

    progress: SubtaskProgress
    busy: float  # inside an operator: it works, or waits for coroutines
    idle: float
    back_pressured: float
    records: float  # that it has received in the window
    past: tuple[PastStep, ...]
    samples: SubtaskPressure | None
    process: int
    waiting: float = 0.0  # of `busy`: for coroutines

    @property
    def subtask(self) -> int:
        """Return the number of the subtask."""
        return self.progress.subtask

    @property
    def in_run_queue(self) -> float:
        """Return the share of the time in which its thread was runnable and had no CPU."""
        return 0.0 if self.progress.run_queue is None else clip_share(self.progress.run_queue)

    @property
    def cpu_shortage(self) -> float:
        """Return the part of `in_run_queue` in which it had work: a thread that only wakes does not have the lock."""
        return min(self.in_run_queue, RUN_QUEUE_PER_CPU * clip_share(self.progress.cpu or 0.0))


@dataclass(frozen=True, slots=True)
class VertexFacts:
    """A vertex that has running tasks."""

    view: VertexView
    tasks: tuple[TaskFacts, ...]
    hot_keys: tuple[HotKey, ...]

    @property
    def id(self) -> int:
        """Return its number in the graph."""
        return self.view.id

    @property
    def back_pressured(self) -> float:
        """Return the share of the task that is back-pressured most."""
        return max(one.back_pressured for one in self.tasks)

    @property
    def busiest_task(self) -> TaskFacts:
        """Return the task with the greatest busy share."""
        return max(self.tasks, key=lambda one: one.busy)

    @property
    def busy(self) -> float:
        """Return the mean of its tasks' busy shares."""
        return sum(one.busy for one in self.tasks) / len(self.tasks)

    @property
    def idle(self) -> float:
        """Return the mean of its tasks' idle shares."""
        return sum(one.idle for one in self.tasks) / len(self.tasks)

    @property
    def source(self) -> bool:
        """Return True if it reads from outside the job."""
        return self.view.source

    @property
    def source_operator(self) -> str:
        """Return the operator that reads from outside the job."""
        return self.view.operators[0] if self.view.operators else self.view.name

    @property
    def only_subtask(self) -> int | None:
        """Return the number of its task if it has one task, else None."""
        return self.tasks[0].subtask if len(self.tasks) == 1 else None


class JobFacts:
    """The running vertices of a job, the edges between them, and its processes."""

    def __init__(self, view: JobView, timelines: Sequence[Timeline], pressure: Pressure | None) -> None:
        self.view = view
        self.step_ms = max((one.step_ms for one in timelines if one.step_ms > 0), default=1)
        self._workers = {one.number: one for one in view.progress.workers}
        self._processes = _processes_of(view.progress.workers)
        past = _past_of(timelines)
        samples = _samples_of(pressure)
        graph = {one.id: one for one in view.graph.vertices}
        self.vertices: dict[int, VertexFacts] = {}
        for one in view.progress.vertices:
            shown = graph.get(one.id)
            if shown is None:
                shown = VertexView(id=one.id, name=one.name, parallelism=one.parallelism, operators=())
            tasks = tuple(
                self._task(task, past.get((one.id, task.subtask), ()), samples.get((one.id, task.subtask)))
                for task in one.subtasks
                if task.state is TaskState.RUNNING
            )
            if tasks:
                self.vertices[one.id] = VertexFacts(shown, tasks, one.hot_keys)
        self.edges = tuple(
            one
            for one in view.graph.edges
            if one.producer in self.vertices and one.consumer in self.vertices and not one.blocking
        )

    def _task(
        self, progress: SubtaskProgress, past: tuple[PastStep, ...], samples: SubtaskPressure | None
    ) -> TaskFacts:
        if past:
            busy, idle, back_pressured, waiting = [sum(one[at] for one in past) / len(past) for at in (1, 2, 3, 5)]
            records = float(sum(one.records for one in past))
        else:
            waiting = clip_share(progress.waiting)
            busy, idle = clip_share(progress.busy + waiting), clip_share(progress.idle)
            back_pressured = clip_share(progress.back_pressured)
            records = progress.records_in_per_s if math.isfinite(progress.records_in_per_s) else 0.0
        process = self.process_of(progress.worker)
        return TaskFacts(progress, busy, idle, back_pressured, records, past, samples, process, waiting)

    @cached_property
    def topological_order(self) -> tuple[VertexFacts, ...]:
        """Return all vertices, each after its producers."""
        left = {number: {one.producer for one in self._inputs[number]} for number in self.vertices}
        found: list[VertexFacts] = []
        while left:
            # A plan has no cycle, but a view that was read from a file may: its vertices keep their order.
            ready = [number for number, before in left.items() if not before & left.keys()] or list(left)
            for number in ready:
                del left[number]
                found.append(self.vertices[number])
        return tuple(found)

    @property
    def workers(self) -> tuple[WorkerProgress, ...]:
        """Return all workers."""
        return self.view.progress.workers

    def inputs(self, vertex: int) -> list[EdgeView]:
        """Return the edges into a vertex."""
        return self._inputs[vertex]

    @cached_property
    def _inputs(self) -> dict[int, list[EdgeView]]:
        return {number: [one for one in self.edges if one.consumer == number] for number in self.vertices}

    @cached_property
    def _outputs(self) -> dict[int, list[EdgeView]]:
        return {number: [one for one in self.edges if one.producer == number] for number in self.vertices}

    def producers(self, vertex: int) -> list[VertexFacts]:
        """Return the vertices that a vertex reads from."""
        return [self.vertices[number] for number in dict.fromkeys(one.producer for one in self._inputs[vertex])]

    def consumers(self, vertex: int) -> list[VertexFacts]:
        """Return the vertices that read from a vertex."""
        return [self.vertices[number] for number in dict.fromkeys(one.consumer for one in self._outputs[vertex])]

    def setting(self, key: str) -> int:
        """Return a setting that is a count or a size; its default if the view does not have it."""
        try:
            return max(0, parse_size(self._settings.get(key, "")))
        except ConfigError:
            return _DEFAULTS[key]

    @cached_property
    def _settings(self) -> dict[str, str]:
        return {one.key: one.value for one in self.view.settings}

    # Processes: several workers may be threads of one process, and all threads of a process share an interpreter.

    def process_of(self, worker: int) -> int:
        """Return a worker's process, as the number of the first worker in it."""
        return self._processes.get(worker, worker)

    def process_cpu(self, process: int) -> float | None:
        """Return the number of CPUs that a process uses, or None if the system does not report it."""
        used = [
            one.cpu
            for one in self._workers.values()
            if one.cpu is not None and math.isfinite(one.cpu) and self.process_of(one.number) == process
        ]
        return max(used, default=None)

    def tasks_in(self, process: int) -> list[TaskFacts]:
        """Return the running tasks of a process."""
        return self._tasks_by_process[process]

    @cached_property
    def _tasks_by_process(self) -> defaultdict[int, list[TaskFacts]]:
        found: defaultdict[int, list[TaskFacts]] = defaultdict(list)
        for vertex in self.vertices.values():
            for task in vertex.tasks:
                found[task.process].append(task)
        return found

    def cpu_demand(self, process: int) -> float | None:
        """Return the number of CPUs that a process uses or lacks, or None if the system does not report it."""
        cpu = self.process_cpu(process)
        return None if cpu is None else cpu + sum(task.cpu_shortage for task in self.tasks_in(process))

    # Exchanges.

    def channels(self, edge: EdgeView) -> list[ChannelProgress]:
        """Return the channels of an edge that were reported."""
        tasks = self.vertices[edge.consumer].tasks
        return [channel for task in tasks for channel in task.progress.channels if channel.exchange == edge.id]

    def connections(self, edge: EdgeView) -> list[tuple[int, ConnectionProgress]]:
        """Return the connections that carry an edge's records, each with the worker that sends."""
        consumers = {task.progress.worker for task in self.vertices[edge.consumer].tasks}
        producers = {task.progress.worker for task in self.vertices[edge.producer].tasks}
        return [
            (number, one)
            for number in sorted(producers & self._workers.keys())
            for one in self._workers[number].connections
            if one.peer in consumers and one.peer != number
        ]


def _defaults() -> dict[str, int]:
    network, memory = Settings().network, Settings().memory
    return {
        "memory.segment_size": memory.segment_size,
        "memory.network.min": memory.network.min,
        "network.buffers_per_channel": network.buffers_per_channel,
        "network.floating_buffers_per_gate": network.floating_buffers_per_gate,
        "network.max_buffers_per_channel": network.max_buffers_per_channel,
        "network.send_buffer": network.send_buffer,
    }


_DEFAULTS: Final = _defaults()


def _processes_of(workers: Iterable[WorkerProgress]) -> dict[int, int]:
    first: dict[tuple[str, int], int] = {}
    return {one.number: first.setdefault((one.host, one.pid), one.number) if one.pid else one.number for one in workers}


def _samples_of(pressure: Pressure | None) -> dict[tuple[int, int], SubtaskPressure]:
    vertices = () if pressure is None else pressure.vertices
    return {(vertex.vertex, one.subtask): one for vertex in vertices for one in vertex.subtasks}


def _past_of(timelines: Sequence[Timeline]) -> dict[tuple[int, int], tuple[PastStep, ...]]:
    """Return the last steps of each task, without tasks that have none."""
    found: defaultdict[tuple[int, int], list[PastStep]] = defaultdict(list)
    limit = max(_FEWEST_STEPS, _MOST_STEPS // max(1, sum(len(timeline.tasks) for timeline in timelines)))
    for timeline in timelines:
        for line in timeline.tasks:
            if line.subtask >= 0:
                found[line.vertex, line.subtask].extend(_last_steps(timeline, line, limit))
    last_ms = max((one.at_ms for past in found.values() for one in past), default=0)
    recent = {
        name: tuple(sorted(one for one in past if one.at_ms > last_ms - WINDOW_MS)) for name, past in found.items()
    }
    return {name: past for name, past in recent.items() if past}


def _last_steps(timeline: Timeline, line: TaskLine, limit: int) -> Iterator[PastStep]:
    """Yield the last steps of a line, without the unknown ones."""
    step_ms = max(1, timeline.step_ms)
    steps = min(len(line.busy), len(line.idle), len(line.back_pressured))
    for step in range(max(0, steps - min(limit, WINDOW_MS // step_ms + _FEWEST_STEPS)), steps):
        waiting = max(0, line.waiting[step]) if step < len(line.waiting) else 0  # files of version 0.1 have none
        busy, idle, back_pressured = line.busy[step], line.idle[step], line.back_pressured[step]
        if busy < 0 or idle < 0 or back_pressured < 0 or not busy + idle + back_pressured + waiting:
            continue
        records = line.records_in[step] if step < len(line.records_in) else 0
        yield PastStep(
            at_ms=timeline.start_ms + step * step_ms,
            busy=clip_share((busy + waiting) / 1000),
            idle=clip_share(idle / 1000),
            back_pressured=clip_share(back_pressured / 1000),
            records=max(0, records),
            waiting=clip_share(waiting / 1000),
        )
