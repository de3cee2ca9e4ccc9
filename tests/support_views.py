"""Jobs that never ran: views of any size with everything in them, and a `Watched` over one.

One vertex in the middle is slow: what comes before it is held back, what comes after it is idle. The same arguments
give the same view, but for `at_ms`.
"""

import random
import threading
import time
from dataclasses import replace

from tests.support_view_parts import (
    NASTY,
    diagnosis_of,
    events_of,
    figures_of,
    graph_of,
    line_of,
    pressure_of,
    worker_of,
)

from headgate.observe import (
    Diagnosis,
    JobStatus,
    JobView,
    Pressure,
    Progress,
    SettingView,
    TaskLine,
    Timeline,
)

__all__ = ["NASTY", "FakeWatched", "synthetic_timeline", "synthetic_view"]

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
    """A job of so many vertices, each of so many subtasks.

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
    """The past of a synthetic job: of a vertex and its subtasks, or of all vertices."""
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
        assert self.gate.wait(20), "nobody let it go on"
        found = self.shown.pressure
        if found is None or refresh:
            found = replace(pressure_of(self.shown, self._slow), at_ms=round(time.time() * 1000))
            self.shown = replace(self.shown, pressure=found)
        return found

    def why(self, *, refresh: bool = False) -> Diagnosis:
        self._call("why")
        self.asked.set()
        assert self.gate.wait(20), "nobody let it go on"
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
