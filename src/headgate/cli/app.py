"""The command line: its options, its commands, and its exit codes.

Called by `main` only. A command is a function in a module of its own, registered here. Invariant: a `HeadgateError` is
one line on stderr and exit code 2; a traceback is a bug.
"""

import os
import sys
from typing import Annotated

import typer

from headgate.cli.bench import bench
from headgate.cli.config import config
from headgate.cli.demo import demo
from headgate.cli.doctor import doctor
from headgate.cli.examples import examples
from headgate.cli.experiment import experiment
from headgate.cli.jobs import jobs
from headgate.cli.report import report
from headgate.cli.run import run_file
from headgate.cli.simulate import simulate
from headgate.cli.top import top
from headgate.cli.ui import ui
from headgate.cli.why import why
from headgate.errors import HeadgateError
from headgate.version import __version__

__all__ = ["app", "run"]

app = typer.Typer(
    name="headgate",
    help="Python pipelines on Spark whose tasks push records to each other: bounded buffers, visible back pressure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command("run")(run_file)
app.command()(jobs)
app.command()(top)
app.command()(why)
app.command()(report)
app.command()(ui)
app.command()(examples)
app.command()(doctor)
app.command()(config)
app.command()(bench)
app.command()(simulate)
app.add_typer(experiment, name="experiment")


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    >>> run(["config", "memory.segment_size", "--json"])
    [...]
    0
    """
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the pipe has closed it. Python flushes stdout again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(arguments: list[str] | None) -> int:
    try:
        app(arguments, prog_name="headgate")
    except HeadgateError as error:
        print(f"headgate: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
