"""The last view of a job, which is written to its file.

Called by `publishing` on its thread when a job is over, or its process ends first. The rates of a job that is over are
0, so the diagnosis is made from the last view of the running job.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.config import Settings

if TYPE_CHECKING:
    from headgate.observe.view import JobView, ObservedJob
    from headgate.observe.why.diagnosis import Diagnosis

__all__ = ["files_wanted", "last_view"]

_log = logging.getLogger(__name__)

_PAST_S: Final = 30.0  # of the timelines for the diagnosis
_MAX_TASKS: Final = 5_000  # with more, a diagnosis would take too long


def last_view(job: ObservedJob, seen: JobView | None) -> JobView:
    """Return the last view of a job, with its history and a diagnosis.

    Args:
        job: The job.
        seen: The last view of the running job; without, there is no diagnosis.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.from_collection(["to", "be"]).for_each(lambda word: None)
    >>> last_view(env.execute("two words"), None).progress.name
    'two words'
    """
    view = job.view(timeline=True)
    if view.diagnosis is not None or seen is None or files_wanted(view) == 0:
        return view
    return replace(view, diagnosis=_diagnosis(job, seen))


def _diagnosis(job: ObservedJob, seen: JobView) -> Diagnosis | None:
    """Return a diagnosis from the last view and the history; no stacks are sampled for it."""
    from headgate.observe.why import diagnose  # noqa: PLC0415 - rarely needed

    if sum(one.parallelism for one in seen.graph.vertices) > _MAX_TASKS:
        return None
    try:
        pasts = [job.timeline(seconds=_PAST_S, vertex=one.id) for one in seen.graph.vertices]
        return diagnose(seen, pasts, seen.pressure)
    except Exception:  # noqa: BLE001 - the file is written without it
        _log.debug("no diagnosis of job %s", seen.progress.job, exc_info=True)
        return None


def files_wanted(view: JobView) -> int:
    """How many files there may be after a job was kept: its `metrics.keep`; 0: it is not kept.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress, SettingView
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> keep = SettingView(key="metrics.keep", value="3", origin="code")
    >>> files_wanted(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress, settings=(keep,)))
    3
    """
    given = next((one.value for one in view.settings if one.key == "metrics.keep"), "")
    return int(given) if given.isdecimal() else Settings().metrics.keep
