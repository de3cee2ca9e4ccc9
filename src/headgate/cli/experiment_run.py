"""The work of `headgate experiment`: run it, show it, write chart and report, and print the verdict.

The verdict and its table (or, with `--json`, all figures) are printed on stdout, progress on stderr: a chart in a
terminal, else a line every few seconds. Options are checked before Spark is started.
"""

import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.api.running import showing_activity
from headgate.bench.charts import check_chart, draw_panels
from headgate.cli.experiment_view import chart_of, watch_follow, watch_neighbour
from headgate.cli.scripts import ending_jobs
from headgate.cli.tables import show_table
from headgate.config.defaults import Defaults, use_defaults
from headgate.errors import ConfigError
from headgate.experiments.follow import follow_json, follow_report
from headgate.experiments.neighbour import neighbour_json, neighbour_report
from headgate.experiments.report import ExperimentReport, RunInfo, check_html, write_html
from headgate.experiments.running import ExperimentHost
from headgate.experiments.schedule import FOLLOW, PhaseSchedule, neighbour_phases
from headgate.experiments.terminal import can_draw, styled, watching_live

__all__ = ["ExperimentOptions", "run_follow", "run_neighbour", "show_result", "where_on", "where_to_run"]

_OWN = ("metrics.interval", "metrics.history")  # settings that the experiments set
_MASTER = "local[2]"
_DEFAULT_INTERVAL_S = 5.0
_LONGEST_LEAD_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentOptions:
    """The options of the command."""

    chosen: Defaults
    phase_s: float | None
    quick: bool
    as_json: bool
    png: Path | None  # None: no chart
    html: Path | None

    def check(self, *own: str) -> None:
        """Raise a ConfigError for options that would fail after the run."""
        for key in (*_OWN, *own):
            if key in self.chosen.settings:
                raise ConfigError(f"--set {key}: the experiment sets it")
        if self.png is not None:
            check_chart("--png", self.png, ".png", otherwise=", or say --no-png")
        if self.html is not None:
            check_html(self.html)

    def command(self, name: str, *more: str) -> str:
        """Return the command line that repeats the experiment."""
        words = ["headgate", "experiment", name]
        if self.phase_s is not None:
            words += ["--phase-seconds", f"{self.phase_s:g}"]
        words += ["--quick"] * self.quick + list(more) + ["--local"] * self.chosen.local
        if self.chosen.master is not None:
            words += ["--master", self.chosen.master]
        for key, value in self.chosen.settings.items():
            words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def finish(self, report: ExperimentReport, figures: dict[str, Any]) -> bool:
        """Print the result, and write the files. Return True if the verdict is PASS."""
        if self.as_json:
            print(json.dumps(figures, allow_nan=False), flush=True)
            print(report.verdict, file=sys.stderr, flush=True)
        else:
            show_result(report)
        if self.png is not None:
            draw_panels("--png", report.panels, self.png, report.title)
            print(f"chart:  {self.png}", file=sys.stderr, flush=True)
        if self.html is not None:
            write_html(report, self.html)
            print(f"report: {self.html}", file=sys.stderr, flush=True)
        return report.verdict.passed


def run_follow(options: ExperimentOptions, interval_s: float) -> bool:
    """Run `headgate experiment follow`. Return True if the verdict is PASS."""
    options.check()
    phase_s = options.phase_s or (3.0 if options.quick else 10.0)
    schedule = PhaseSchedule(FOLLOW, phase_s=phase_s, lead_s=_lead_s(phase_s))
    more = () if interval_s == _DEFAULT_INTERVAL_S else ("--interval", f"{interval_s:g}")
    chosen = replace(options.chosen, progress=True)
    with ending_jobs(), use_defaults(chosen), watching_live(every_s=interval_s) as live:
        where = where_to_run(chosen)
        lead = f"after {schedule.lead_s:g} s at full speed"
        live.print_line(f"follow: {len(FOLLOW)} phases of {phase_s:g} s, {lead}; {where.name}")
        found = watch_follow(where, schedule, live, interval_s).result()
    about = RunInfo(options.command("follow", *more), where.name)
    return options.finish(follow_report(found, about), follow_json(found, about, interval_s))


def run_neighbour(options: ExperimentOptions) -> bool:
    """Run `headgate experiment neighbour`. Return True if the verdict is PASS."""
    options.check("network.flow_control")
    phase_s = options.phase_s or (2.0 if options.quick else 5.0)
    schedule = PhaseSchedule(neighbour_phases(1 if options.quick else 2), phase_s=phase_s, lead_s=_lead_s(phase_s))
    chosen = replace(options.chosen, progress=True)
    with ending_jobs(), use_defaults(chosen), watching_live(every_s=_DEFAULT_INTERVAL_S) as live:
        where = where_to_run(chosen)
        live.print_line(f"neighbour: {schedule.end_s:g} s with credit, then with tcp; {where.name}")
        found = watch_neighbour(where, schedule, live)
    about = RunInfo(options.command("neighbour"), where.name)
    return options.finish(neighbour_report(found, about), neighbour_json(found, about))


def where_to_run(chosen: Defaults) -> ExperimentHost:
    """Return threads of this process, or Spark, which is started here."""
    if chosen.local:
        return where_on(None)
    with showing_activity("starting Spark", progress=True):
        from headgate.spark.session import local_session  # noqa: PLC0415 - the import takes long, too

        return where_on(local_session(2, master=chosen.master or _MASTER), chosen.master or _MASTER)


def where_on(spark: Any, master: str = "") -> ExperimentHost:
    """Return where to run: a session, or threads of this process if it is None."""
    name = "threads of this process" if spark is None else f"Spark {spark.version}, {master}".rstrip(", ")
    return ExperimentHost(
        name, lambda settings: hg.environment(spark, local=spark is None, parallelism=1, settings=settings)
    )


def show_result(report: ExperimentReport) -> None:
    """Print the chart if the terminal can show it, the table and the verdict."""
    if report.panels and can_draw(sys.stdout):
        from rich.console import Console  # noqa: PLC0415 - only for terminals

        console = Console(highlight=False)
        print(styled(chart_of(report.panels[0], min(console.width - 1, 110), 14), console))
    show_table(report.header, report.rows, styles={"NO": "red", "yes": "green"})
    print(report.verdict, flush=True)


def _lead_s(phase_s: float) -> float:
    return min(_LONGEST_LEAD_S, max(1.0, phase_s))
