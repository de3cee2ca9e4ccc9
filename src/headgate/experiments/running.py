"""The job of an experiment: its settings, how the driver waits for it, and what its meters have kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headgate.api.running import stop
from headgate.errors import HeadgateError
from headgate.experiments.figures import STEP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import headgate as hg
    from headgate.coordinator import Job
    from headgate.experiments.schedule import PhaseSchedule
    from headgate.experiments.tasks import NoteStore
    from headgate.observe.timeline import Timeline

__all__ = ["ExperimentHost", "ExperimentRun", "ExperimentVerdict", "meter_settings"]

_TICK_S: Final = 0.5  # workers report once per second
_START_S: Final = 120.0  # for workers to start
_END_S: Final = 60.0  # for the job to end after its schedule
_MARGIN_S: Final = 60.0  # of the history


@dataclass(frozen=True, slots=True)
class ExperimentHost:
    """Makes the environments of an experiment from settings."""

    name: str
    environment: Callable[[Mapping[str, object]], hg.StreamExecutionEnvironment]


@dataclass(frozen=True, slots=True)
class ExperimentVerdict:
    """PASS or FAIL, and the reason in one line."""

    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}: {self.text}"


def meter_settings(schedule: PhaseSchedule) -> dict[str, object]:
    """Return the settings with which the job's meters keep all of a run, in steps of 100 ms."""
    return {"metrics.interval": f"{STEP_MS} ms", "metrics.history": f"{round(schedule.end_s + _MARGIN_S)} s"}


class ExperimentRun:
    """A job under way; the notes of `consumer` give the start of the run."""

    def __init__(self, job: Job, notes: NoteStore, schedule: PhaseSchedule, consumer: str) -> None:
        self.job = job
        self.notes = notes
        self.schedule = schedule
        self._consumer = consumer

    def wait(self, tick: Callable[[], object], *, tick_s: float = _TICK_S) -> None:
        """Block until the schedule is over, and the job too unless it goes on; call `tick` every `tick_s`.

        Raises:
            HeadgateError: The job failed, or takes far longer than its schedule; then it is cancelled.
        """
        began_s = time.monotonic()
        while not self.job.await_termination(tick_s):
            tick()
            passed_s, waited_s = self.now_s(time.time_ns()), time.monotonic() - began_s
            if self.schedule.goes_on and passed_s is not None and passed_s > self.schedule.end_s + 2 * _TICK_S + 1.0:
                return  # the reports of its last second have come
            if waited_s > (_START_S if passed_s is None else _START_S + self.schedule.end_s + _END_S):
                stop(self.job)
                what = "no record came" if passed_s is None else "it did not end"
                raise HeadgateError(f"{self.job.name}: {what} within {waited_s:.0f} s")
        tick()

    def now_s(self, now_ns: int) -> float | None:
        """Return the seconds since the start of the run; None before the first record."""
        note = self.notes.last(self._consumer)
        return None if note is None else (now_ns - note.start_ns) / 1e9

    def timeline(self) -> Timeline:
        """Return all that the job's meters have kept."""
        seconds = self.schedule.end_s + _MARGIN_S
        return self.job.timeline(seconds=seconds, points=round(seconds * 1000 / STEP_MS))

    def start_ns(self, timeline: Timeline) -> int:
        """Return the start of the run; before the first record, that of the timeline."""
        note = self.notes.last(self._consumer)
        return timeline.start_ms * 1_000_000 if note is None else note.start_ns

    def vertex(self, name: str) -> Any:
        """Return the progress of a vertex.

        Raises:
            HeadgateError: There is no vertex of that name.
        """
        for vertex in self.job.last_progress.vertices:
            if vertex.name == name:
                return vertex
        raise HeadgateError(f"{self.job.name} has no vertex {name!r}")
