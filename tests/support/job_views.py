"""Views of jobs that never ran, of any size and with all fields, and a `Watched` that shows one.

One vertex in the middle is slow: what comes before it is held back, what comes after it is idle. The same arguments
give the same view, but for `at_ms`.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from headgate.control.messages import TaskState
from headgate.observe import (
    Cause,
    ChannelProgress,
    ConnectionProgress,
    Diagnosis,
    EdgeView,
    GraphView,
    HotKey,
    JobEvent,
    JobStatus,
    JobView,
    LatencyProgress,
    OperatorProgress,
    Pressure,
    Progress,
    SettingView,
    Stack,
    SubtaskPressure,
    SubtaskProgress,
    TaskLine,
    Timeline,
    VertexPressure,
    VertexProgress,
    VertexView,
    WorkerProgress,
    level_of,
)

NASTY = "<img src=x onerror=\"document.title='hacked'\">&amp;</script>"
"""A name of an operator, key or job that contains markup: it must be shown as text everywhere."""

_OPERATORS = ("parse", "clean", "enrich", "score", "join", "count", "window", "rank", "dedupe", "format")


def graph_of(vertices: int, subtasks: int, nasty: bool) -> GraphView:
    width = 1 if vertices <= 6 else min(8, vertices // 3)
    views, edges = [], []
    for number in range(vertices):
        row, place = divmod(number, width)
        source, sink = row == 0, number == vertices - 1 and number > 0
        parallelism = 1 if sink else subtasks
        function = f"{_OPERATORS[number % len(_OPERATORS)]}{NASTY if nasty else ''}"
        operators = ("rate", f"map({function})") if source else (f"map({function})", "filter(wanted)")
        operators = ("collect",) if sink else operators
        views.append(
            VertexView(
                id=number,
                name=" -> ".join(operators),
                parallelism=parallelism,
                operators=operators,
                source=source,
                sink=sink or number + width >= vertices,
                in_driver=sink,
                workers=tuple(range(parallelism)),
            )
        )
        if not source:
            keyed = number % 40 == 2 or number == vertices // 2 or vertices <= 6
            ship = "global" if sink else "hash" if keyed else "forward"
            beside = [(row - 1) * width + (place + 1) % width] if place % 3 == 2 else []
            producers = [(row - 1) * width + place, *beside]
            for producer in producers:
                tag = "late" if producer != producers[0] else None
                edges.append(EdgeView(id=len(edges), producer=producer, consumer=number, ship=ship, tag=tag))
    return GraphView(vertices=tuple(views), edges=tuple(edges))


def figures_of(
    chance: random.Random,
    vertex: VertexView,
    graph: GraphView,
    slow: int,
    status: JobStatus,
    at_ms: int,
    nasty: bool,
) -> VertexProgress:
    """Return the figures of a vertex; those of a finished job do not change."""
    over = status.over
    busy = 0.99 if vertex.id == slow else 0.15 if vertex.id < slow else 0.3
    held = 0.85 if vertex.id < slow else 0.0
    reads = [edge for edge in graph.edges if edge.consumer == vertex.id]
    feeds = [edge for edge in graph.edges if edge.producer == vertex.id]
    hot = HotKey(exchange=feeds[0].id, key=repr(NASTY if nasty else "london"), share=0.61) if feeds else None
    keys = (hot,) if hot is not None and feeds[0].consumer == slow else ()
    late = tuple(
        LatencyProgress(source=one.id, count=60, p50_ms=5.0 + vertex.id, p99_ms=20.0 + vertex.id, max_ms=31.5)
        for one in graph.vertices
        if one.source and one.id <= vertex.id
    )[:4]
    state = {JobStatus.FINISHED: TaskState.FINISHED, JobStatus.FAILED: TaskState.FAILED}.get(status, TaskState.RUNNING)
    if status is JobStatus.CANCELLED:
        state = TaskState.CANCELLED
    tasks = []
    for subtask in range(vertex.parallelism):
        share = 0.0 if over else min(1.0, busy * chance.uniform(0.95, 1.01))
        back = 0.0 if over else min(1.0 - share, held)
        rate = 0.0 if over else chance.uniform(900, 1100)
        tasks.append(
            SubtaskProgress(
                subtask=subtask,
                worker=subtask,
                state=state,
                records_in=0 if vertex.source else 90_000,
                records_out=0 if vertex.sink else 90_000,
                bytes_in=0 if vertex.source else 9_000_000,
                bytes_out=0 if vertex.sink else 9_000_000,
                records_in_per_s=0.0 if vertex.source else rate,
                records_out_per_s=0.0 if vertex.sink else rate,
                bytes_in_per_s=0.0 if vertex.source else rate * 100,
                bytes_out_per_s=0.0 if vertex.sink else rate * 100,
                busy=share,
                idle=0.0 if over else 1.0 - share - back,
                back_pressured=back,
                in_pool_usage=0.9 if not over and not vertex.source and vertex.id <= slow else 0.1,
                out_pool_usage=0.95 if back else 0.1,
                in_queued=0 if over else chance.randrange(8),
                backlog=0 if over else chance.randrange(12),
                channels=() if over else tuple(_channels(chance, vertex, subtask, reads, graph, slow)),
                watermark_ms=at_ms - 1500,
                watermark_lag_ms=1500,
                cpu=share * 0.9,
                run_queue=0.02,
                latencies=late,
                hot_keys=keys,
                counters={"late_records": subtask},
            )
        )
    operators = tuple(
        OperatorProgress(
            records_in=0 if vertex.source and not place else 1000 * (place + 1) * vertex.parallelism,
            records_out=500 * (place + 1) * vertex.parallelism,
            records_in_per_s=0.0 if over else 10.0 * (place + 1),
            records_out_per_s=0.0 if over else 5.0 * (place + 1),
            side_outputs={NASTY if nasty else "late": 7} if place else {},
        )
        for place in range(len(vertex.operators))
    )
    return VertexProgress(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        state=state,
        records_in=sum(one.records_in for one in tasks),
        records_out=sum(one.records_out for one in tasks),
        bytes_in=sum(one.bytes_in for one in tasks),
        bytes_out=sum(one.bytes_out for one in tasks),
        records_in_per_s=sum(one.records_in_per_s for one in tasks),
        records_out_per_s=sum(one.records_out_per_s for one in tasks),
        bytes_in_per_s=sum(one.bytes_in_per_s for one in tasks),
        bytes_out_per_s=sum(one.bytes_out_per_s for one in tasks),
        busy=sum(one.busy for one in tasks) / len(tasks),
        idle=sum(one.idle for one in tasks) / len(tasks),
        back_pressured=sum(one.back_pressured for one in tasks) / len(tasks),
        max_busy=max(one.busy for one in tasks),
        max_back_pressured=max(one.back_pressured for one in tasks),
        watermark_ms=at_ms - 1500,
        watermark_lag_ms=1500,
        latencies=late,
        hot_keys=keys,
        counters={"late_records": sum(range(vertex.parallelism))},
        operators=operators,
        subtasks=tuple(tasks),
    )


def _channels(
    chance: random.Random,
    vertex: VertexView,
    subtask: int,
    reads: list[EdgeView],
    graph: GraphView,
    slow: int,
) -> Iterator[ChannelProgress]:
    for edge in reads:
        count = graph.vertices[edge.producer].parallelism
        for producer in [subtask] if edge.ship == "forward" else range(count):
            local = producer == subtask
            full = vertex.id == slow
            yield ChannelProgress(
                exchange=edge.id,
                producer=producer,
                local=local,
                backlog=chance.randrange(4, 9) if full else 0,
                queued=chance.randrange(3),
                exclusive=0 if local else 2,
                floating=0 if local or not full else chance.randrange(4),
                credit=0 if local or full else 2,
                bytes_in=9_000_000 // max(1, count),
            )


def worker_of(number: int, workers: int) -> WorkerProgress:
    peers = [peer for peer in range(workers) if peer != number][:16]
    return WorkerProgress(
        number=number,
        host="127.0.0.1",
        pid=4711 + number,
        memory_bytes=300 << 20,
        cpu=0.7,
        segments_total=2048,
        segments_free=1500,
        connections=tuple(
            ConnectionProgress(peer=peer, bytes_out=5_000_000, bytes_out_per_s=1e5, blocked=0.1, round_trip_ms=0.08)
            for peer in peers
        ),
    )


def events_of(at_ms: int, slow: str, failed: bool) -> tuple[JobEvent, ...]:
    known = (
        JobEvent(at_ms=at_ms - 92_000, text="starting workers"),
        JobEvent(at_ms=at_ms - 90_000, text="all workers are there"),
        JobEvent(at_ms=at_ms - 40_000, text=f"{slow} holds the pipeline back", level="warning"),
    )
    last = JobEvent(at_ms=at_ms, text=f"{slow}, subtask 1: division by zero", level="error")
    return (*known, last) if failed else known


def line_of(vertex: int, subtask: int, figures: VertexProgress | SubtaskProgress, steps: int) -> TaskLine:
    """Return the shares over time, as a wave; those of the first steps are unknown."""
    known = [min(999, round(figures.busy * 1000)), min(999, round(figures.back_pressured * 1000))]
    busy, held = ([_wave(value, step) for step in range(steps)] for value in known)
    blind = steps // 20

    def told(values: list[int]) -> tuple[int, ...]:
        return tuple([-1] * blind + values[blind:])

    return TaskLine(
        vertex=vertex,
        subtask=subtask,
        busy=told(busy),
        idle=told([max(0, 1000 - one - two) for one, two in zip(busy, held, strict=True)]),
        back_pressured=told([min(two, 1000 - one) for one, two in zip(busy, held, strict=True)]),
        records_in=told([round(figures.records_in_per_s / 10)] * steps),
        records_out=told([round(figures.records_out_per_s / 10)] * steps),
        in_queued=told([step % 7 for step in range(steps)]),
        backlog=told([step % 11 for step in range(steps)]),
        in_pool=told([_wave(500, step) for step in range(steps)]),
        out_pool=told([_wave(300, step) for step in range(steps)]),
    )


def _wave(value: int, step: int) -> int:
    return max(0, min(1000, value + (step % 10 - 5) * 8)) if value else 0


def pressure_of(view: JobView, slow: int) -> Pressure:
    found = []
    for vertex in view.progress.vertices:
        operator = view.graph.vertices[vertex.id].operators[-1]
        tasks = []
        for task in vertex.subtasks:
            held, idle = round(task.back_pressured * 100), round(task.idle * 100)
            work = max(0, 100 - held - idle)
            stacks = (
                Stack(operator=operator, frames=("parse (job.py:12)", "loads (json.py:30)"), count=work * 2 // 3),
                Stack(operator=operator, frames=("parse (job.py:12)",), count=work - work * 2 // 3),
                Stack(operator="", frames=(), count=held + idle, idle=idle, back_pressured=held),
            )
            tasks.append(
                SubtaskPressure(
                    subtask=task.subtask,
                    taken=100,
                    ratio=held / 100,
                    idle=idle / 100,
                    level=level_of(held / 100),
                    stacks=tuple(sorted((one for one in stacks if one.count), key=lambda one: -one.count)),
                )
            )
        worst = max((one.ratio for one in tasks), default=0.0)
        found.append(VertexPressure(vertex=vertex.id, ratio=worst, level=level_of(worst), subtasks=tuple(tasks)))
    return Pressure(at_ms=view.at_ms, samples=100, delay_ms=50, vertices=tuple(found))


def diagnosis_of(view: JobView, slow: int) -> Diagnosis:
    vertex = view.graph.vertices[slow]
    operator = vertex.operators[0]
    return Diagnosis(
        cause=Cause.CPU,
        vertex=slow,
        operator=operator,
        subtask=0,
        function="parse (job.py:12)",
        summary=f"{operator}, subtask 0, is busy all of the time: everything before it waits.",
        evidence=("busy 99 % of the last 30 s", "its producers wait for buffers 85 % of the time"),
        advice=f"Give {operator} a higher parallelism, or make parse (job.py:12) quicker.",
        at_ms=view.at_ms,
    )


_STEP_MS = 100


def synthetic_view(
    vertices: int = 5,
    subtasks: int = 4,
    *,
    status: JobStatus = JobStatus.RUNNING,
    seed: int = 0,
    at_ms: int | None = None,
    job: str = "job-5eed",
    name: str = "synthetic",
    nasty: bool = False,
    timeline: bool = True,
    sampled: bool = True,
) -> JobView:
    """Return a view of a job of so many vertices, each of so many subtasks.

    Vertices stand in rows of up to eight; all but the first read from the row before, every fortieth and the slow
    one by key, whose channels are subtasks x subtasks. The last vertex is in the driver, with one subtask.

    Args:
        status: Of the job. One that has failed has an error.
        at_ms: When; by default now.
        nasty: Put `NASTY` into every text that a user can choose.
        timeline: With the past of every vertex, and of every subtask where there are few.
        sampled: With pressure and diagnosis.
    """
    chance = random.Random(seed)
    at_ms = round(time.time() * 1000) if at_ms is None else at_ms
    graph = graph_of(vertices, subtasks, nasty)
    workers = max(subtasks, 1)
    slow = vertices // 2
    shown = tuple(figures_of(chance, one, graph, slow, status, at_ms, nasty) for one in graph.vertices)
    progress = Progress(
        job=job,
        name=f"{name} {NASTY}" if nasty else name,
        status=status,
        uptime_s=90.0,
        workers=tuple(worker_of(number, workers) for number in range(workers)),
        vertices=shown,
    )
    failed = status is JobStatus.FAILED
    view = JobView(
        at_ms=at_ms,
        graph=graph,
        progress=progress,
        events=events_of(at_ms, graph.vertices[slow].name, failed),
        settings=(
            SettingView(key="memory.segment_size", value="32 KiB", origin="default"),
            SettingView(key="network.buffers_per_channel", value="2", origin="default"),
            SettingView(key="execution.buffer_timeout", value=NASTY if nasty else "10 ms", origin="code"),
        ),
        error=f"{graph.vertices[slow].name}, subtask 1: division by zero" if failed else None,
    )
    if timeline:
        view = replace(view, timeline=synthetic_timeline(view, seconds=30.0, points=60, all_tasks=vertices <= 20))
    if sampled:
        view = replace(view, pressure=pressure_of(view, slow), diagnosis=diagnosis_of(view, slow))
    return view


def synthetic_timeline(
    view: JobView, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None, all_tasks: bool = False
) -> Timeline:
    """Return the history of a synthetic job: of a vertex and its subtasks, or of all vertices."""
    step_ms = max(_STEP_MS, round(seconds * 1000 / points / _STEP_MS) * _STEP_MS)
    steps = max(1, min(points, round(seconds * 1000 / step_ms)))
    lines: list[TaskLine] = []
    for one in view.progress.vertices:
        if vertex in {None, one.id}:
            lines.append(line_of(one.id, -1, one, steps))
        if one.id == vertex or (vertex is None and all_tasks):
            lines += [line_of(one.id, task.subtask, task, steps) for task in one.subtasks]
    return Timeline(start_ms=view.at_ms - steps * step_ms, step_ms=step_ms, steps=steps, tasks=tuple(lines))


class FakeWatched:
    """A `Watched` that shows one view. `gate` holds up sampling while it is clear, `asked` is set when it begins."""

    def __init__(self, view: JobView) -> None:
        self.shown = view
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.error: Exception | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    def view(self, *, timeline: bool = False) -> JobView:
        self._call("view")
        return self.shown if timeline else replace(self.shown, timeline=None)

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        self._call("timeline")
        return synthetic_timeline(self.shown, seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool = False) -> Pressure:
        self._call("pressure")
        self.asked.set()
        assert self.gate.wait(20), "the test did not release it"
        found = self.shown.pressure
        if found is None or refresh:
            found = replace(pressure_of(self.shown, self._slow), at_ms=round(time.time() * 1000))
            self.shown = replace(self.shown, pressure=found)
        return found

    def why(self, *, refresh: bool = False) -> Diagnosis:
        self._call("why")
        self.asked.set()
        assert self.gate.wait(20), "the test did not release it"
        found = self.shown.diagnosis
        if found is None or refresh:
            found = replace(diagnosis_of(self.shown, self._slow), at_ms=round(time.time() * 1000))
            self.shown = replace(self.shown, diagnosis=found)
        return found

    def cancel(self) -> bool:
        self._call("cancel")
        self.shown = replace(self.shown, progress=replace(self.shown.progress, status=JobStatus.CANCELLED))
        return True

    @property
    def _slow(self) -> int:
        return len(self.shown.graph.vertices) // 2
