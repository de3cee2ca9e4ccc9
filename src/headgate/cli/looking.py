"""What the commands that look at jobs have in common: how a job is named, found and talked of."""

import time
import unicodedata
from typing import Annotated

import typer

from headgate.api.running import saying
from headgate.attach import AttachedJob, KeptJob, find

__all__ = ["JobOrFile", "chosen_job", "moment", "plain", "short_time"]

JobOrFile = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB|FILE]",
        help="A job's id, the beginning of that, its name, or the file of a finished one; by default the one that runs,"
        " or the newest. `headgate jobs` lists them.",
        show_default=False,
    ),
]


def chosen_job(text: str | None) -> AttachedJob | KeptJob:
    """The job that is meant; who waits for that sees why."""
    with saying("looking for jobs"):
        return find(text)


def plain(text: str) -> str:
    r"""Text that only says something: nothing in it moves a cursor, changes colours or turns the line around.

    >>> plain("map(\x1b[31mred)\n\u202e")
    'map(?[31mred)??'
    """
    return "".join("?" if unicodedata.category(one)[0] == "C" else one for one in text)


def short_time(ms: float | None) -> str:
    """A length of time in at most five characters; nothing if it is not known.

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


def moment(at_ms: int) -> str:
    """A moment, by this machine's clock and time zone.

    >>> len(moment(1_800_000_000_000))
    19
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
