"""A running job as it is looked at: its view, its past, samples of its tasks, and why it is as fast as it is.

Made by the coordinator, which feeds it on its network thread; used by the job's handle, on any other. Works also when
the job is over, and when the coordinator is closed: what was known last stays.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.coordinator.events import EventLog, wall_ms
from headgate.coordinator.sampling import Sampling
from headgate.errors import HeadgateError
from headgate.observe.diagnosis import Cause
from headgate.observe.graph import graph_view
from headgate.observe.tracker import Tracker
from headgate.observe.view import JobView, SettingView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.graph.plan import Plan
    from headgate.observe.diagnosis import Diagnosis
    from headgate.observe.pressure import Pressure
    from headgate.observe.progress import Progress
    from headgate.observe.status import JobStatus
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobEvent
    from headgate.worker.messages import Register, Sample, TaskState

__all__ = ["JobWatch"]

_MAX_ERROR: Final = 64 * 1024  # characters
_WHY_S: Final = 10.0  # of the past that `why` looks at, in so many steps
_WHY_POINTS: Final = 100
_IN_CODE: Final = frozenset({Cause.CPU, Cause.WAITING, Cause.SINK})  # whose place in the code only stacks can tell


class JobWatch:
    """What can be seen of one job.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> from headgate.observe import JobStatus
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> def progress():
    ...     return watch.tracker.snapshot(JobStatus.CREATED, 0.0)
    >>> watch = JobWatch(plan, progress, call_soon=print, ask=print)
    >>> watch.log.note("it begins")
    >>> view = watch.view()
    >>> view.progress.name, view.graph.vertices[0].name, view.events[0].text
    ('etl', 'words', 'it begins')
    """

    def __init__(
        self,
        plan: Plan,
        progress: Callable[[], Progress],
        *,
        call_soon: Callable[[Callable[[], object]], object],
        ask: Callable[[Sample], Iterable[int]],
    ) -> None:
        self.tracker = Tracker(plan)
        self.log = EventLog(plan)
        warn = partial(self.log.note, level="warning")
        self.sampling = Sampling(plan, call_soon=call_soon, ask=ask, warn=warn)
        self._progress = progress
        self._workers = plan.workers + plan.uses_driver
        self._graph = graph_view(plan)
        self._settings = tuple(
            SettingView(key=one.setting.key, value=one.text, origin=one.origin) for one in plan.settings.describe()
        )
        self._diagnosis: Diagnosis | None = None

    def registered(self, worker: int, register: Register, *, missing: int) -> None:
        """A worker is there, and so many are not yet."""
        self.tracker.registered(worker, register)
        self.log.registered(worker, register, missing=missing)

    def begun(self) -> None:
        """All workers were told to begin."""
        count = self._workers
        self.log.note(f"the job begins, with {count} worker{'' if count == 1 else 's'}")
        self.sampling.begun()

    def renewed(self) -> None:
        """The workers have left, and others come to go on with the job."""
        self.tracker.renewed()
        self.log.renewed()

    def over(self, status: JobStatus) -> None:
        """The job is over; nobody is asked any more."""
        self.sampling.over()
        self.log.over(status)

    def moved(self, worker: int, vertex: int, subtask: int, state: TaskState) -> None:
        """A task is in another state.

        Raises:
            RemoteProtocolError: that worker has no such task.
        """
        self.tracker.moved(worker, vertex, subtask, state)
        self.log.moved(vertex, subtask, state)

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What happened, as far back as it is kept."""
        return self.log.events()

    def view(self, error: BaseException | None = None, *, timeline: bool = False) -> JobView:
        """All of it now, of a job that has failed of `error`."""
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
        """A stretch of the past.

        Raises:
            HeadgateError: no time, no steps, or no such vertex.
        """
        if not seconds > 0 or points < 1:
            raise HeadgateError(f"{seconds} seconds in {points} steps: there must be some of both")
        count = len(self._graph.vertices)
        if vertex is not None and not 0 <= vertex < count:
            raise HeadgateError(f"there is no vertex {vertex}: the job has {count}, from 0")
        return self.tracker.timeline(seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool) -> Pressure:
        """See `Sampling.pressure`."""
        return self.sampling.pressure(refresh=refresh)

    def why(self, *, refresh: bool) -> Diagnosis:
        """What holds the job back; of one that is over, what was said last. Samples where the answer is in the code."""
        from headgate.observe.why import diagnose  # noqa: PLC0415 - only who asks pays for importing it

        view, timelines = self.view(), self._timelines()
        if view.progress.status.over:
            return self._diagnosis or diagnose(view, timelines, view.pressure)
        found = diagnose(view, timelines, None)
        if found.cause in _IN_CODE:
            with suppress(HeadgateError):  # it ends, or nobody answers: there is what the figures say
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
