"""The argument JOB or FILE of commands, and times as text."""

import time
from typing import Annotated

import typer

from headgate.api.running import showing_activity
from headgate.attach import AttachedJob, KeptJob, find

__all__ = ["JobOrFile", "chosen_job", "local_time", "short_time"]

JobOrFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB|FILE]",
        help="A job's id, the beginning of that, its name, or the file of a finished one; by default the newest running"
        " job, else the newest finished one. `headgate jobs` lists them.",
        show_default=False,
    ),
]


def chosen_job(text: str | None) -> AttachedJob | KeptJob:
    """Return the job, and show a message if finding it takes long."""
    with showing_activity("looking for jobs"):
        return find(text)


def short_time(ms: float | None) -> str:
    """Return a duration in at most five characters; '' for None.

    >>> [short_time(one) for one in (None, 0.4, 12.3, 999, 1500, 59_900, 90_000, 7_200_000, 9e7, 1e9)]
    ['', '0.4ms', '12ms', '999ms', '1.5s', '60s', '90s', '2h', '25h', '12d']
    """
    if ms is None:
        return ""
    if ms < 999.5:
        return f"{ms:.1f}ms" if 0 < ms < 9.95 else f"{ms:.0f}ms"
    seconds = ms / 1000
    for limit, unit, letter in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / unit
            return f"{value:.1f}{letter}" if value < 9.95 and letter == "s" else f"{value:.0f}{letter}"
    return f"{seconds / 86_400:.0f}d"


def local_time(at_ms: int) -> str:
    """Return a time in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
