"""What can be observed of a running job: its view, its history, its sampled stacks, and what limits its speed.

The coordinator makes it and updates it on its network thread; the job's handle uses it on any other. It still answers
when the job is over and the coordinator closed, with the last figures.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.clock import wall_ms
from headgate.coordinator.events import EventLog
from headgate.coordinator.sampling import StackSampling
from headgate.errors import HeadgateError
from headgate.observe.graph import graph_view
from headgate.observe.tracker import Tracker
from headgate.observe.view import JobView, SettingView
from headgate.observe.why.diagnosis import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.control.messages import Register, SampleStacks, TaskState
    from headgate.graph.plan import Plan
    from headgate.observe.pressure import Pressure
    from headgate.observe.progress import Progress
    from headgate.observe.status import JobStatus
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobEvent
    from headgate.observe.why.diagnosis import Diagnosis

__all__ = ["JobMonitor"]

_MAX_ERROR: Final = 64 * 1024  # characters
_WHY_S: Final = 10.0  # the history that `why` reads, in `_WHY_POINTS` steps
_WHY_POINTS: Final = 100
_IN_CODE: Final = frozenset({Cause.CPU, Cause.WAITING, Cause.SINK})  # causes whose place in the code only stacks show


class JobMonitor:
    """Answers all questions about one job.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> from headgate.observe import JobStatus
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> def progress():
    ...     return monitor.tracker.snapshot(JobStatus.CREATED, 0.0)
    >>> monitor = JobMonitor(plan, progress, call_soon=print, request=print)
    >>> monitor.log.note("it begins")
    >>> view = monitor.view()
    >>> view.progress.name, view.graph.vertices[0].name, view.events[0].text
    ('etl', 'words', 'it begins')
    """

    def __init__(
        self,
        plan: Plan,
        progress: Callable[[], Progress],
        *,
        call_soon: Callable[[Callable[[], object]], object],
        request: Callable[[SampleStacks], Iterable[int]],
    ) -> None:
        self.tracker = Tracker(plan)
        self.log = EventLog(plan)
        warn = partial(self.log.note, level="warning")
        self.sampling = StackSampling(plan, call_soon=call_soon, request=request, warn=warn)
        self._progress = progress
        self._workers = plan.workers + plan.uses_driver
        self._graph = graph_view(plan)
        self._settings = tuple(
            SettingView(key=one.setting.key, value=one.text, origin=one.origin) for one in plan.settings.describe()
        )
        self._diagnosis: Diagnosis | None = None

    def registered(self, worker: int, register: Register, *, missing: int) -> None:
        """Record that a worker has registered; `missing` have not yet."""
        self.tracker.registered(worker, register)
        self.log.registered(worker, register, missing=missing)

    def begun(self) -> None:
        """Record that all tasks are deployed."""
        count = self._workers
        self.log.note(f"the job begins, with {count} worker{'' if count == 1 else 's'}")
        self.sampling.begun()

    def renewed(self) -> None:
        """Record that another attempt begins, with new workers."""
        self.tracker.renewed()
        self.log.renewed()

    def over(self, status: JobStatus) -> None:
        """Record the end of the job, and end the sampling."""
        self.sampling.over()
        self.log.over(status)

    def moved(self, worker: int, vertex: int, subtask: int, state: TaskState) -> None:
        """Record the new state of a task.

        Raises:
            RemoteProtocolError: the worker has no such task.
        """
        self.tracker.moved(worker, vertex, subtask, state)
        self.log.moved(vertex, subtask, state)

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """The events that are kept, the oldest first."""
        return self.log.events()

    def view(self, error: BaseException | None = None, *, timeline: bool = False) -> JobView:
        """Return all that is known now; `error`: of a job that has failed."""
        return JobView(
            at_ms=wall_ms(),
            graph=self._graph,
            progress=self._progress(),
            timeline=self.tracker.full_timeline() if timeline else None,
            events=self.log.events(),
            settings=self._settings,
            error=None if error is None else _error_text(error),
            pressure=self.sampling.last,
            diagnosis=self._diagnosis,
        )

    def timeline(self, *, seconds: float, points: int, vertex: int | None) -> Timeline:
        """Return a part of the history.

        Raises:
            HeadgateError: `seconds` or `points` is too small, or there is no such vertex.
        """
        if not seconds > 0 or points < 1:
            raise HeadgateError(f"{seconds} seconds in {points} steps: both must be greater than 0")
        count = len(self._graph.vertices)
        if vertex is not None and not 0 <= vertex < count:
            raise HeadgateError(f"there is no vertex {vertex}: the job has {count}, from 0")
        return self.tracker.timeline(seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool) -> Pressure:
        """See `StackSampling.pressure`."""
        return self.sampling.pressure(refresh=refresh)

    def why(self, *, refresh: bool) -> Diagnosis:
        """Return what limits the job; the last answer if it is over. Samples stacks if the cause is in the code."""
        from headgate.observe.why import diagnose  # noqa: PLC0415 - imported when first needed

        view, timelines = self.view(), self._timelines()
        if view.progress.status.over:
            return self._diagnosis or diagnose(view, timelines, view.pressure)
        found = diagnose(view, timelines, None)
        if found.cause in _IN_CODE:
            with suppress(HeadgateError):  # the job ends, or no worker answers: the figures must do
                pressure = self.sampling.pressure(refresh=refresh)
                later = self.view()
                if not later.progress.status.over:
                    view, timelines = later, self._timelines()
                found = diagnose(view, timelines, pressure)
        self._diagnosis = found
        return found

    def _timelines(self) -> list[Timeline]:
        return [self.timeline(seconds=_WHY_S, points=_WHY_POINTS, vertex=one.id) for one in self._graph.vertices]


def _error_text(error: BaseException) -> str:
    text = str(error)[:_MAX_ERROR] or type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()
