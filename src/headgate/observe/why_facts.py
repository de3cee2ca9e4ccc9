"""What the rules of `why` look at: a job's view, its past and its samples, put together by task, vertex and process.

Made once for each question, by `diagnose`; nothing here decides anything. Pure: it reads no clock and talks to nobody.

Invariants: every share is from 0 to 1, whatever the view says; vertices without a running task are not there; edges
lead from and to vertices that are, and through memory: nobody is held back by who reads from disk later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.config import Settings, parse_size
from headgate.errors import ConfigError
from headgate.observe.graph import VertexView
from headgate.worker.messages import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headgate.observe.graph import EdgeView
    from headgate.observe.pressure import Pressure, SubtaskPressure
    from headgate.observe.progress import ChannelProgress, ConnectionProgress, HotKey, SubtaskProgress, WorkerProgress
    from headgate.observe.timeline import TaskLine, Timeline
    from headgate.observe.view import JobView

__all__ = ["WINDOW_MS", "Facts", "Instant", "Task", "Vertex", "share_of"]

WINDOW_MS: Final = 10_000
"""How much of the past counts: long enough to see operators take turns, short enough to be about now."""

_MOST_INSTANTS: Final = 300_000  # in all: a job with tens of thousands of tasks is judged by its last second or two
_FEWEST: Final = 15  # of each task

_IN_LINE_PER_CPU: Final = 10.0
"""A thread that works all the time stands in line for as many times as long as it runs as there are others for its CPU;
one that stands in line for more than this many times as long wakes up often, and works little."""


def share_of(value: float) -> float:
    """A share as one from 0 to 1.

    >>> share_of(0.25), share_of(-1.0), share_of(1.02), share_of(float("nan"))
    (0.25, 0.0, 1.0, 0.0)
    """
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


class Instant(NamedTuple):
    """What a task did in one step of its past.

    >>> Instant(at_ms=100, busy=0.5, idle=0.0, held=0.5, records=10).held
    0.5
    """

    at_ms: int
    busy: float
    idle: float
    held: float  # back-pressured
    records: int


@dataclass(frozen=True, slots=True)
class Task:
    """A running task: shares are means over the window, `now` is its last report.

    >>> Task.__match_args__
    ('now', 'busy', 'idle', 'held', 'records', 'past', 'samples', 'process')
    """

    now: SubtaskProgress
    busy: float
    idle: float
    held: float
    records: float  # that it has taken, in the window
    past: tuple[Instant, ...]
    samples: SubtaskPressure | None
    process: int  # which of the job's processes it is in

    @property
    def subtask(self) -> int:
        """Its number."""
        return self.now.subtask

    @property
    def in_line(self) -> float:
        """The share of the time in which it could have run, had a CPU been free."""
        return 0.0 if self.now.run_queue is None else share_of(self.now.run_queue)

    @property
    def kept_waiting(self) -> float:
        """The same, as far as it had work to do: who wakes up for a moment stands in line without the interpreter."""
        return min(self.in_line, _IN_LINE_PER_CPU * share_of(self.now.cpu or 0.0))


@dataclass(frozen=True, slots=True)
class Vertex:
    """A vertex that has running tasks.

    >>> Vertex.__match_args__
    ('view', 'tasks', 'hot_keys')
    """

    view: VertexView
    tasks: tuple[Task, ...]
    hot_keys: tuple[HotKey, ...]

    @property
    def id(self) -> int:
        """Its number in the graph."""
        return self.view.id

    @property
    def held(self) -> float:
        """Of the task that is held back most."""
        return max(one.held for one in self.tasks)

    @property
    def hottest(self) -> Task:
        """The task that is busiest."""
        return max(self.tasks, key=lambda one: one.busy)

    @property
    def busy(self) -> float:
        """The mean."""
        return sum(one.busy for one in self.tasks) / len(self.tasks)

    @property
    def idle(self) -> float:
        """The mean."""
        return sum(one.idle for one in self.tasks) / len(self.tasks)

    @property
    def source(self) -> bool:
        """Whether it reads from outside the job."""
        return self.view.source

    @property
    def source_name(self) -> str:
        """The operator that reads from outside."""
        return self.view.operators[0] if self.view.operators else self.view.name


class Facts:
    """All that is known of a job.

    >>> from headgate.observe.graph import GraphView
    >>> from headgate.observe.progress import Progress
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.observe.view import JobView
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> Facts(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), (), None).order
    ()
    """

    def __init__(self, view: JobView, timelines: Sequence[Timeline], pressure: Pressure | None) -> None:
        self.view = view
        self.step_ms = max((one.step_ms for one in timelines if one.step_ms > 0), default=1)
        self._workers = {one.number: one for one in view.progress.workers}
        self._processes = _processes_of(view.progress.workers)
        past = _past_of(timelines)
        samples = _samples_of(pressure)
        graph = {one.id: one for one in view.graph.vertices}
        self.vertices: dict[int, Vertex] = {}
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
                self.vertices[one.id] = Vertex(shown, tasks, one.hot_keys)
        self.edges = tuple(
            one
            for one in view.graph.edges
            if one.producer in self.vertices and one.consumer in self.vertices and not one.blocking
        )

    def _task(self, now: SubtaskProgress, past: tuple[Instant, ...], samples: SubtaskPressure | None) -> Task:
        process = self.process_of(now.worker)
        if not past:
            shares = (share_of(now.busy), share_of(now.idle), share_of(now.back_pressured))
            rate = now.records_in_per_s
            return Task(now, *shares, rate if math.isfinite(rate) else 0.0, past, samples, process)
        mean = [sum(one[column] for one in past) / len(past) for column in (1, 2, 3)]
        return Task(now, mean[0], mean[1], mean[2], float(sum(one.records for one in past)), past, samples, process)

    @cached_property
    def order(self) -> tuple[Vertex, ...]:
        """All vertices, each after those that it reads from."""
        left = {number: {one.producer for one in self._inputs[number]} for number in self.vertices}
        found: list[Vertex] = []
        while left:
            # A graph has no circle; whatever calls itself one is taken as it comes.
            ready = [number for number, before in left.items() if not before & left.keys()] or list(left)
            for number in ready:
                del left[number]
                found.append(self.vertices[number])
        return tuple(found)

    @cached_property
    def settings(self) -> dict[str, str]:
        """The job's settings, as text."""
        return {one.key: one.value for one in self.view.settings}

    @property
    def workers(self) -> tuple[WorkerProgress, ...]:
        """All workers."""
        return self.view.progress.workers

    def inputs(self, vertex: int) -> list[EdgeView]:
        """The edges that lead to a vertex."""
        return self._inputs[vertex]

    @cached_property
    def _inputs(self) -> dict[int, list[EdgeView]]:
        return {number: [one for one in self.edges if one.consumer == number] for number in self.vertices}

    @cached_property
    def _outputs(self) -> dict[int, list[EdgeView]]:
        return {number: [one for one in self.edges if one.producer == number] for number in self.vertices}

    def producers(self, vertex: int) -> list[Vertex]:
        """Those that a vertex reads from."""
        return [self.vertices[number] for number in dict.fromkeys(one.producer for one in self._inputs[vertex])]

    def consumers(self, vertex: int) -> list[Vertex]:
        """Those that read from a vertex."""
        return [self.vertices[number] for number in dict.fromkeys(one.consumer for one in self._outputs[vertex])]

    def number(self, key: str) -> int:
        """A setting that is a count or a size; its default where the view does not say."""
        default = _DEFAULTS[key]
        try:
            return max(0, parse_size(self.settings.get(key, "")))
        except ConfigError:
            return default

    # Processes: several workers may be threads of one, and all threads of one share an interpreter.

    def process_of(self, worker: int) -> int:
        """A worker's process, as the number of the first worker in it."""
        return self._processes.get(worker, worker)

    def process_cpu(self, process: int) -> float | None:
        """CPUs that a process uses; None: the system does not say."""
        used = [
            one.cpu
            for one in self._workers.values()
            if one.cpu is not None and math.isfinite(one.cpu) and self.process_of(one.number) == process
        ]
        return max(used, default=None)

    def tasks_in(self, process: int) -> list[Task]:
        """The running tasks of a process."""
        return self._tasks_by_process[process]

    @cached_property
    def _tasks_by_process(self) -> defaultdict[int, list[Task]]:
        found: defaultdict[int, list[Task]] = defaultdict(list)
        for vertex in self.vertices.values():
            for task in vertex.tasks:
                found[task.process].append(task)
        return found

    def demand(self, process: int) -> float | None:
        """CPUs that the threads of a process use, or would if those in line with something to do had one."""
        cpu = self.process_cpu(process)
        return None if cpu is None else cpu + sum(task.kept_waiting for task in self.tasks_in(process))

    # Exchanges.

    def channels(self, edge: EdgeView) -> list[ChannelProgress]:
        """The channels of an edge, as far as they were reported."""
        tasks = self.vertices[edge.consumer].tasks
        return [channel for task in tasks for channel in task.now.channels if channel.exchange == edge.id]

    def connections(self, edge: EdgeView) -> list[tuple[int, ConnectionProgress]]:
        """The connections that an edge's records go over, each with the worker that sends."""
        readers = {task.now.worker for task in self.vertices[edge.consumer].tasks}
        writers = {task.now.worker for task in self.vertices[edge.producer].tasks}
        return [
            (number, one)
            for number in sorted(writers & self._workers.keys())
            for one in self._workers[number].connections
            if one.peer in readers and one.peer != number
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


def _past_of(timelines: Sequence[Timeline]) -> dict[tuple[int, int], tuple[Instant, ...]]:
    """The last stretch of each task's past that is known."""
    found: defaultdict[tuple[int, int], list[Instant]] = defaultdict(list)
    each = max(_FEWEST, _MOST_INSTANTS // max(1, sum(len(timeline.tasks) for timeline in timelines)))
    for timeline in timelines:
        for line in timeline.tasks:
            if line.subtask >= 0:
                found[line.vertex, line.subtask].extend(_instants(timeline, line, each))
    last_ms = max((one.at_ms for past in found.values() for one in past), default=0)
    recent = {
        name: tuple(sorted(one for one in past if one.at_ms > last_ms - WINDOW_MS)) for name, past in found.items()
    }
    return {name: past for name, past in recent.items() if past}


def _instants(timeline: Timeline, line: TaskLine, most: int) -> Iterator[Instant]:
    """The last steps of a line of which something is known."""
    step_ms = max(1, timeline.step_ms)
    steps = min(len(line.busy), len(line.idle), len(line.back_pressured))
    for step in range(max(0, steps - min(most, WINDOW_MS // step_ms + _FEWEST)), steps):
        busy, idle, held = line.busy[step], line.idle[step], line.back_pressured[step]
        if busy < 0 or idle < 0 or held < 0 or not busy + idle + held:
            continue  # nothing is known of this step
        records = line.records_in[step] if step < len(line.records_in) else 0
        at_ms = timeline.start_ms + step * step_ms
        yield Instant(at_ms, share_of(busy / 1000), share_of(idle / 1000), share_of(held / 1000), max(0, records))
