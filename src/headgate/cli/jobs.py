"""`headgate jobs`: the running jobs of this user, and the files of finished ones."""

import json
import sys
from typing import Annotated, Any

import typer

from headgate.api.running import showing_activity
from headgate.attach import kept, running, state_directory
from headgate.cli.job_argument import local_time, short_time
from headgate.cli.tables import show_table
from headgate.names import printable

__all__ = ["jobs", "list_jobs"]

_STYLES = {"running": "green", "failed": "red", "unfinished": "yellow", "unreadable": "yellow"}


def jobs(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """List the jobs of this user on this machine: those that run, in any process, and the last finished ones.

    `headgate top`, `why`, `report` and `ui` show one of them.
    """
    with showing_activity("looking for jobs"):
        found = list_jobs()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print(f"headgate: no job runs, and none was kept in {state_directory()}", file=sys.stderr)
        return
    rows = [
        [
            one["id"],
            printable(one["name"]),
            one["status"],
            "" if one["at_ms"] is None else local_time(one["at_ms"]),
            "" if one["uptime_s"] is None else short_time(one["uptime_s"] * 1000),
            f"process {one['pid']}" if one["file"] is None else one["file"],
        ]
        for one in found
    ]
    show_table(["job", "name", "status", "since / until", "ran", "where"], rows, whole=1, styles=_STYLES)


def list_jobs() -> list[dict[str, Any]]:
    """Return all jobs, running ones first, the newest first."""
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
                "status": line.status if over else "unfinished",  # its process ended before the job
                "at_ms": line.at_ms if readable else None,
                "uptime_s": line.uptime_s if readable else None,
                "pid": None,
                "headgate": None,
                "file": str(line.path),
            }
        )
    return found
