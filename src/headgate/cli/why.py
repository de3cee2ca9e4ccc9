"""`headgate why`: what limits a job, as text."""

import sys
from typing import Annotated

import msgspec
import typer

from headgate.api.running import showing_activity
from headgate.attach import KeptJob
from headgate.cli.job_argument import JobOrFile, chosen_job
from headgate.names import printable

__all__ = ["why"]


def why(
    job: JobOrFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Sample stacks now, even if the last answer is recent.")
    ] = False,
) -> None:
    """Print what limits a job: the operator, the cause, the evidence, and one thing to try.

    If the answer depends on the stacks of tasks, they are sampled for about 5 s (backpressure.samples, .delay).
    For a job that is over, it is the last answer while it ran, or one from its history.

    Example: headgate why word_count
    """
    from headgate.observe.why import render  # noqa: PLC0415 - rarely needed

    chosen = chosen_job(job)
    over = isinstance(chosen, KeptJob)
    with showing_activity(
        "reading its file" if over else f"examining {printable(chosen.name)}, which may take some seconds"
    ):
        found = chosen.why(refresh=refresh)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    if sys.stdout.isatty():
        print(f"{printable(chosen.name)} ({chosen.id})\n")
    print(render(found))
