"""`headgate bench`: run bench suites, print their figures, draw them, and with `--check` fail on a missed goal.

Figures are printed on stdout, the rest (progress, the machine, missed goals) on stderr. Options are checked before a
suite runs, as suites take minutes.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headgate.bench.charts import ChartPanel, check_chart, draw_panels
from headgate.bench.harness import SUITES, Bench, BenchReport, Progress, Row, Suite, find_suite, run_suite
from headgate.cli.tables import show_table
from headgate.errors import ConfigError

__all__ = ["bench"]

_PLAIN_PROGRESS_S = 5.0  # between two lines of progress without a terminal


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="SUITE...", help="Suites to run; --list names them.")
    ] = None,
    *,
    list_suites: Annotated[bool, typer.Option("--list", help="List the suites and run none.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Less work: a suite takes about a minute at most.")] = False,
    cases: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="TEXT", help="Only cases with this text in their name. Repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a goal is missed.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=1000, help="Runs per figure.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per suite, each on one line.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw a chart too, as .svg or .png, if the suite has one."),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="PATH", help="The directory for files of suites that measure disks."),
    ] = None,
) -> None:
    """Measure the cost of headgate; each figure is compared with a baseline of the same run."""
    if list_suites:
        show_table(["suite", "what it measures"], [[one.name, one.meaning] for one in SUITES.values()])
        return
    if not names:
        known = ", ".join(SUITES)
        raise ConfigError(f"name a bench suite to run: known are {known}")
    chosen = [find_suite(name) for name in dict.fromkeys(names)]
    if plot is not None:
        _check_plot(plot, chosen)
    if directory is not None:
        _check_directory(chosen)
    reports = []
    for one in chosen:
        with _progress(one.name) as progress:
            given = Bench(quick=quick, repeats=repeats, only=cases or (), progress=progress, directory=directory)
            report = run_suite(one, given)
        if not report.rows and cases:
            continue  # another suite may have such a case
        reports.append(report)
        for note in report.notes:
            print(f"{report.suite}: {note}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps(report.to_json(), allow_nan=False), flush=True)
        else:
            _show(report)
    if not reports:
        raise ConfigError(f"no case of {', '.join(names)} has {' or '.join(map(repr, cases or ()))} in its name")
    if plot is not None:
        _draw(plot, [panel for report in reports for panel in report.panels])
    missed = [f"{report.suite}: {case}" for report in reports for case in report.missed]
    if check and missed:
        print(f"headgate: missed {_count(len(missed), 'goal')}: {'; '.join(missed)}", file=sys.stderr)
        raise typer.Exit(1)


def _check_plot(file: Path, chosen: list[Suite]) -> None:
    without = [one.name for one in chosen if not one.charts]
    if without:
        known = ", ".join(one.name for one in SUITES.values() if one.charts) or "none"
        raise ConfigError(f"--plot: suite {without[0]} has no chart; those with one are {known}")
    check_chart("--plot", file, ".svg", ".png")


def _check_directory(chosen: list[Suite]) -> None:
    without = [one.name for one in chosen if not one.disk]
    if without:
        known = ", ".join(one.name for one in SUITES.values() if one.disk) or "none"
        raise ConfigError(f"--directory: suite {without[0]} writes no files; those that do are {known}")


def _draw(file: Path, panels: list[ChartPanel]) -> None:
    if not panels:
        raise ConfigError(f"--plot {file}: none of the cases that were run has a chart")
    draw_panels("--plot", panels, file)


def _show(report: BenchReport) -> None:
    about = report.machine
    print(
        f"{report.suite}: {about['cpu']}, {_count(about['cores'], 'core')}, {about['python']}",
        file=sys.stderr,
        flush=True,
    )
    show_table(["case", "value", "unit", "against", "ratio", "goal", "ok"], [_cells(row) for row in report.rows])


def _cells(row: Row) -> list[str]:
    return [
        row.case,
        _figure(row.value),
        row.unit,
        row.against or "",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.goal is None else f"{'<=' if row.at_most else '>='} {_figure(row.goal)}",
        {True: "yes", False: "NO", None: ""}[row.ok],
    ]


def _figure(value: float) -> str:
    """Return a number with four significant digits, or all digits of a large number.

    >>> _figure(1234567.8), _figure(0.00123456), _figure(1.5)
    ('1,234,568', '0.001235', '1.5')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """Return a function that shows progress: a bar, or without a terminal a line every few seconds."""
    if not sys.stderr.isatty():
        yield _plain_progress(name)
        return
    from rich.console import Console  # noqa: PLC0415 - only for terminals
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    # No auto_refresh: its thread would use CPU time of the measured code.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(name, total=None)

        def draw(case: str, done: int, total: int) -> None:
            bar.update(task, description=f"{name}: {case}", completed=done, total=total, refresh=True)

        yield draw


def _plain_progress(name: str) -> Progress:
    last_s: float | None = None

    def show(case: str, done: int, total: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if last_s is None or now_s - last_s >= _PLAIN_PROGRESS_S:
            last_s = now_s
            print(f"{name}: run {done + 1} of {total}: {case}", file=sys.stderr, flush=True)

    return show
