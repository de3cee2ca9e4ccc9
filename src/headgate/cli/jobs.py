"""`headgate jobs`: the jobs that can be looked at from here, running ones and those that were kept."""

import json
import sys
from typing import Annotated, Any

import typer

from headgate.api.running import saying
from headgate.attach import kept, running, state_directory
from headgate.cli.looking import moment, plain, short_time
from headgate.cli.tables import show_table

__all__ = ["jobs", "listed"]

_STYLES = {"running": "green", "failed": "red", "unfinished": "yellow", "unreadable": "yellow"}


def jobs(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """List the jobs of this user on this machine: those that run, in whatever process, and the last that have ended.

    Look at one with `headgate top`, `why`, `report` or `ui`.
    """
    with saying("looking for jobs"):
        found = listed()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print(f"headgate: no job runs, and none was kept in {state_directory()}", file=sys.stderr)
        return
    rows = [
        [
            one["id"],
            plain(one["name"]),
            one["status"],
            "" if one["at_ms"] is None else moment(one["at_ms"]),
            "" if one["uptime_s"] is None else short_time(one["uptime_s"] * 1000),
            f"process {one['pid']}" if one["file"] is None else one["file"],
        ]
        for one in found
    ]
    show_table(["job", "name", "status", "since / until", "ran", "where"], rows, whole=1, styles=_STYLES)


def listed() -> list[dict[str, Any]]:
    """All that there are, running ones first, each the newest first.

    >>> [one for one in listed() if one["id"] == "nonesuch"]
    []
    """
    live = running()
    ids = {one.id for one in live}
    found: list[dict[str, Any]] = [
        {
            "id": one.id,
            "name": one.name,
            "status": one.line.status,
            "at_ms": one.line.started_ms,
            "uptime_s": one.line.uptime_s,
            "pid": one.line.pid,
            "headgate": one.line.headgate,
            "file": None,
        }
        for one in live
    ]
    for line in kept():
        if line.id in ids:  # it has just ended
            continue
        over = line.status in {"finished", "failed", "cancelled", "unreadable"}
        readable = line.problem is None
        found.append(
            {
                "id": line.id,
                "name": line.name,
                "status": line.status if over else "unfinished",  # its process ended before it
                "at_ms": line.at_ms if readable else None,
                "uptime_s": line.uptime_s if readable else None,
                "pid": None,
                "headgate": None,
                "file": str(line.path),
            }
        )
    return found
