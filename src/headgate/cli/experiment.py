"""`headgate experiment`: run an experiment about back pressure, with live charts, a verdict and a report.

The options are here; `experiment_run` does the work, and is imported only when an experiment runs, as that takes long.
"""

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.run import Local, Set, chosen_defaults

__all__ = ["experiment"]

experiment = typer.Typer(
    no_args_is_help=True,
    help="Experiments about back pressure, with a live chart, a PNG, an HTML report and a verdict.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master, with two free slots; by default local[2]."),
]
PhaseSeconds = Annotated[
    float | None, typer.Option("--phase-seconds", min=0.5, max=600, help="Length of each phase.", show_default=False)
]
Quick = Annotated[bool, typer.Option("--quick", help="Short phases, unless --phase-seconds is given.")]
Interval = Annotated[float, typer.Option("--interval", min=0.1, max=600, help="Seconds between two samples.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 1 if the verdict is FAIL.")]
NoPng = Annotated[bool, typer.Option("--no-png", help="Draw no PNG.")]
NoHtml = Annotated[bool, typer.Option("--no-html", help="Write no report.")]


@experiment.command()
def follow(
    *,
    phase_seconds: PhaseSeconds = None,
    interval: Interval = 5.0,
    quick: Quick = False,
    master: Master = None,
    local: Local = False,
    settings: Set = None,
    as_json: AsJson = False,
    check: Check = False,
    png: Annotated[Path, typer.Option("--png", metavar="FILE", help="The chart.")] = Path("headgate-follow.png"),
    no_png: NoPng = False,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="The report.")] = Path("headgate-follow.html"),
    no_html: NoHtml = False,
) -> None:
    """Does the producer follow the consumer? Producer at 60 %, consumer at 30 %, released, 30 %, released.

    Phases take 10 s each, with --quick 3 s. Full speed is measured before them.
    """
    from headgate.cli.experiment_run import ExperimentOptions, run_follow  # noqa: PLC0415 - see the module

    chosen = chosen_defaults(master=master, local=local, settings=settings)
    options = ExperimentOptions(
        chosen=chosen,
        phase_s=phase_seconds,
        quick=quick,
        as_json=as_json,
        png=None if no_png else png,
        html=None if no_html else html,
    )
    if not run_follow(options, interval) and check:
        raise typer.Exit(1)


@experiment.command()
def neighbour(
    *,
    phase_seconds: PhaseSeconds = None,
    quick: Quick = False,
    master: Master = None,
    local: Local = False,
    settings: Set = None,
    as_json: AsJson = False,
    check: Check = False,
    png: Annotated[Path, typer.Option("--png", metavar="FILE", help="The chart.")] = Path("headgate-neighbour.png"),
    no_png: NoPng = False,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="The report.")] = Path("headgate-neighbour.html"),
    no_html: NoHtml = False,
) -> None:
    """Does a slow consumer slow a fast one on the same connection? With credit, and with tcp.

    Five phases of 5 s for each of the two, with --quick three of 2 s: alone and beside the slow one, alternately.
    """
    from headgate.cli.experiment_run import ExperimentOptions, run_neighbour  # noqa: PLC0415 - see the module

    chosen = chosen_defaults(master=master, local=local, settings=settings)
    options = ExperimentOptions(
        chosen=chosen,
        phase_s=phase_seconds,
        quick=quick,
        as_json=as_json,
        png=None if no_png else png,
        html=None if no_html else html,
    )
    if not run_neighbour(options) and check:
        raise typer.Exit(1)
