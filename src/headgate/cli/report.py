"""`headgate report`: the page of a job as one HTML file, to keep, to send and to open anywhere."""

import os
import secrets
import sys
import webbrowser
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headgate.api.running import saying
from headgate.attach import AttachedJob, KeptJob
from headgate.cli.looking import JobOrFile, chosen_job, plain
from headgate.errors import ConfigError, HeadgateError
from headgate.observe.view import JobView

__all__ = ["report"]


def report(
    job: JobOrFile = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="Where to; `-` is stdout. By default headgate-<job id>.html here.",
        ),
    ] = None,
    no_why: Annotated[
        bool, typer.Option("--no-why", help="Do not find out what holds a running job back, which may take seconds.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write the page of a job, running or over, as one HTML file that needs nothing else: graph, charts, why.

    Prints where it is.

    Example: headgate report word_count -o word_count.html
    """
    from headgate.ui.report import render  # noqa: PLC0415 - only who asks pays

    watched = chosen_job(job)
    with saying(f"looking at {plain(watched.name)}"):
        view = _view_of(watched, ask_why=not no_why)
        page = render(view)
    if output is not None and str(output) == "-":
        if open_it:
            raise ConfigError("--open opens a file: give its name with -o, not `-`")
        sys.stdout.write(page)
        return
    file = Path(f"headgate-{_file_part(watched.id)}.html") if output is None else output
    _write(file, page)
    print(file)
    if open_it and not webbrowser.open(file.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open {file} with")


def _view_of(watched: AttachedJob | KeptJob, *, ask_why: bool) -> JobView:
    """All of a job, with an answer to `why`."""
    found = None
    if ask_why:
        with suppress(HeadgateError):  # it ends meanwhile, for example: the rest is worth a report
            found = watched.why()
    view = watched.view(timeline=True)
    return view if found is None else replace(view, diagnosis=found)


def _file_part(job: str) -> str:
    return "".join(one if one.isalnum() or one in "_.-" else "_" for one in job) or "job"


def _write(file: Path, page: str) -> None:
    """Whole or not at all, where it is to be a file."""
    place = file.resolve()  # a link stays one
    try:
        if place.exists() and not place.is_file():  # a device or a pipe, which must not be replaced; or a directory
            place.write_text(page, encoding="utf-8")
            return
        beginning = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            beginning.write_text(page, encoding="utf-8")
            os.replace(beginning, place)
        finally:
            beginning.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {file}: {error.strerror or error}") from None
