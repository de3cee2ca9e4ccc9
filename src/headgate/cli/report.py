"""`headgate report`: the page of a job as one HTML file."""

import os
import secrets
import sys
import webbrowser
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headgate.api.running import showing_activity
from headgate.attach import AttachedJob, KeptJob
from headgate.cli.job_argument import JobOrFile, chosen_job
from headgate.errors import ConfigError, HeadgateError
from headgate.names import printable
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
            help="The file; `-` is stdout. By default headgate-<job id>.html.",
        ),
    ] = None,
    no_why: Annotated[
        bool, typer.Option("--no-why", help="Do not find out what limits a running job, which may take seconds.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Write the page of a job, running or over, as one HTML file that needs no server: graph, charts, why.

    Prints its path.

    Example: headgate report word_count -o word_count.html
    """
    from headgate.ui.report import render  # noqa: PLC0415 - rarely needed

    chosen = chosen_job(job)
    with showing_activity(f"looking at {printable(chosen.name)}"):
        view = _view_of(chosen, ask_why=not no_why)
        page = render(view)
    if output is not None and str(output) == "-":
        if open_it:
            raise ConfigError("--open opens a file: give its name with -o, not `-`")
        sys.stdout.write(page)
        return
    file = Path(f"headgate-{_file_part(chosen.id)}.html") if output is None else output
    _write(file, page)
    print(file)
    if open_it and not webbrowser.open(file.resolve().as_uri()):
        raise ConfigError(f"there is no browser to open {file} with")


def _view_of(chosen: AttachedJob | KeptJob, *, ask_why: bool) -> JobView:
    """Return a view of a job, with its history and a diagnosis."""
    found = None
    if ask_why:
        with suppress(HeadgateError):  # the job ends meanwhile, for example: the report has no diagnosis then
            found = chosen.why()
    view = chosen.view(timeline=True)
    return view if found is None else replace(view, diagnosis=found)


def _file_part(job: str) -> str:
    return "".join(one if one.isalnum() or one in "_.-" else "_" for one in job) or "job"


def _write(file: Path, page: str) -> None:
    """Write the page; a regular file is complete or not there, and only its owner can read it (mode 600)."""
    target = file.resolve()  # a link is kept
    try:
        if target.exists() and not target.is_file():  # a device or a pipe must not be replaced; a directory fails
            target.write_text(page, encoding="utf-8")
            return
        beginning = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            # It contains error texts and hot keys: only its owner can read it, from the first byte on.
            descriptor = os.open(beginning, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as written:
                written.write(page)
            os.replace(beginning, target)
        finally:
            beginning.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {file}: {error.strerror or error}") from None
