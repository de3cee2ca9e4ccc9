"""How an experiment's job is run and waited for: what both experiments share.

Called in the driver, on the thread of whoever wants the figures. Invariant: a job that is not over when `awaited`
is left, by an error or by Ctrl-C, is cancelled.
"""

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
    from headgate.experiments.flow import Note
    from headgate.experiments.schedule import Schedule
    from headgate.observe.timeline import Timeline

__all__ = ["Verdict", "Where", "await_run", "history", "meter_settings", "vertex_named"]

_TICK_S: Final = 0.5  # workers report once a second
_START_S: Final = 120.0  # what workers may take to start
_END_S: Final = 60.0  # and to end after the schedule has
_MARGIN_S: Final = 60.0  # of the history


@dataclass(frozen=True, slots=True)
class Where:
    """What runs the jobs of an experiment.

    >>> import headgate as hg
    >>> where = Where("threads of this process", lambda settings: hg.environment(local=True, settings=settings))
    >>> where.environment({"memory.segment_size": "16 KiB"}).settings.memory.segment_size
    16384
    """

    name: str
    environment: Callable[[Mapping[str, object]], hg.StreamExecutionEnvironment]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it: one line.

    >>> str(Verdict(False, "it did not"))
    'FAIL: it did not'
    """

    passed: bool
    text: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}: {self.text}"


def meter_settings(schedule: Schedule) -> dict[str, object]:
    """Settings with which the job's meters cover all of a run, in steps of 100 ms.

    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> meter_settings(Schedule(FOLLOW, phase_s=10.0, lead_s=2.0))
    {'metrics.interval': '100 ms', 'metrics.history': '112 s'}
    """
    return {"metrics.interval": f"{STEP_MS} ms", "metrics.history": f"{round(schedule.end_s + _MARGIN_S)} s"}


def await_run(
    job: Job,
    schedule: Schedule,
    last_note: Callable[[], Note | None],
    tick: Callable[[], object],
    *,
    tick_s: float = _TICK_S,
) -> None:
    """Wait until the schedule is over, and the job too unless it goes on; call `tick` now and then.

    Raises:
        HeadgateError: The job has failed, or takes far longer than it should.

    >>> import headgate as hg
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ignored = env.from_collection([1]).for_each(lambda n: None)
    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> await_run(env.execute_async(), schedule, lambda: None, lambda: None)
    """
    began_s = time.monotonic()
    while not job.await_termination(tick_s):
        tick()
        note, now_s = last_note(), time.monotonic()
        passed_s = 0.0 if note is None else (time.time_ns() - note.start_ns) / 1e9
        if schedule.goes_on and note is not None and passed_s > schedule.end_s + 2 * _TICK_S + 1.0:
            return  # the reports of its last second are there
        if now_s - began_s > (_START_S if note is None else _START_S + schedule.end_s + _END_S):
            stop(job)
            what = "no record came" if note is None else "it did not end"
            raise HeadgateError(f"{job.name}: {what} within {now_s - began_s:.0f} s")
    tick()


def history(job: Job, schedule: Schedule) -> Timeline:
    """All that the job's meters have kept of a run.

    >>> import headgate as hg
    >>> from headgate.experiments.schedule import FOLLOW, Schedule
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ignored = env.from_collection([1]).for_each(lambda n: None)
    >>> history(env.execute(), Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)).step_ms
    100
    """
    seconds = schedule.end_s + _MARGIN_S
    return job.timeline(seconds=seconds, points=round(seconds * 1000 / STEP_MS))


def vertex_named(job: Job, name: str) -> Any:
    """The progress of a vertex, by its name.

    Raises:
        HeadgateError: There is none.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.from_collection([1, 2]).for_each(lambda n: None).name("end")
    >>> vertex_named(env.execute(), "collection -> end").records_in
    2
    """
    for vertex in job.last_progress.vertices:
        if vertex.name == name:
            return vertex
    raise HeadgateError(f"{job.name} has no vertex {name!r}")
