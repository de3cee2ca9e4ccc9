"""The last view of a job, which is what is kept of it.

Called by `offers` on its thread when a job is over, or its process ends before it. When a job is over all its figures
are 0, so why it was as fast as it was is told from the last look at it while it ran.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.config import Settings

if TYPE_CHECKING:
    from headgate.observe.diagnosis import Diagnosis
    from headgate.observe.view import JobView, Watched

__all__ = ["files_wanted", "final_view"]

_log = logging.getLogger(__name__)

_PAST_S: Final = 30.0  # of the past that is looked at
_MAX_TASKS: Final = 5_000  # more would take too long


def final_view(job: Watched, seen: JobView | None) -> JobView:
    """All that is known of a job, with its past and, if it was looked at while it ran, an answer to `why`.

    Args:
        job: Which.
        seen: The last look at it while it ran.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.from_collection(["to", "be"]).for_each(lambda word: None)
    >>> final_view(env.execute("two words"), None).progress.name
    'two words'
    """
    view = job.view(timeline=True)
    if view.diagnosis is not None or seen is None or files_wanted(view) == 0:
        return view
    return replace(view, diagnosis=_explained(job, seen))


def _explained(job: Watched, seen: JobView) -> Diagnosis | None:
    """Why a job was as fast as it was, by what was seen last and its past; nothing is sampled for that."""
    from headgate.observe.why import diagnose  # noqa: PLC0415 - a job that was asked needs it not

    if sum(one.parallelism for one in seen.graph.vertices) > _MAX_TASKS:
        return None
    try:
        pasts = [job.timeline(seconds=_PAST_S, vertex=one.id) for one in seen.graph.vertices]
        return diagnose(seen, pasts, seen.pressure)
    except Exception:  # noqa: BLE001 - the rest is worth a file
        _log.debug("nobody knows why %s was not faster", seen.progress.job, exc_info=True)
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
