"""`headgate why`: what holds a job back, in words."""

import sys
from typing import Annotated

import msgspec
import typer

from headgate.api.running import saying
from headgate.attach import KeptJob
from headgate.cli.looking import JobOrFile, chosen_job, plain

__all__ = ["why"]


def why(
    job: JobOrFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Sample stacks now, however young the last answer is.")
    ] = False,
) -> None:
    """Say what holds a job back: which operator, which limit it meets, the evidence, and one thing to try.

    Where the answer needs the stacks of tasks, they are sampled for about 5 s (backpressure.samples, .delay).
    Of a job that is over, it says what was found out while it ran, or what its past tells.

    Example: headgate why word_count
    """
    from headgate.observe.why import render  # noqa: PLC0415 - only who asks pays

    watched = chosen_job(job)
    over = isinstance(watched, KeptJob)
    with saying(
        "looking at what was kept" if over else f"looking at {plain(watched.name)}, which may take some seconds"
    ):
        found = watched.why(refresh=refresh)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    if sys.stdout.isatty():
        print(f"{plain(watched.name)} ({watched.id})\n")
    print(render(found))
