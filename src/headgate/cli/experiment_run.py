"""What `headgate experiment` does: run it, show it, write chart and report, and say what came of it.

The verdict and its table (or, with `--json`, all figures) go to stdout; what happens meanwhile goes to stderr: a chart
in a terminal, a line now and then elsewhere. What can be refused is refused before Spark is started.
"""

import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.api.defaults import Defaults, use_defaults
from headgate.api.running import saying
from headgate.cli.experiment_view import chart_of, watch_follow, watch_neighbour
from headgate.cli.scripts import ending_jobs
from headgate.cli.tables import show_table
from headgate.errors import ConfigError
from headgate.experiments.live import can_draw, styled, watching_live
from headgate.experiments.panels import check_png, draw_png
from headgate.experiments.report import Report, check_html, write_html
from headgate.experiments.running import Where
from headgate.experiments.schedule import FOLLOW, Schedule, neighbour_phases
from headgate.experiments.summary import About, follow_json, follow_report, neighbour_json, neighbour_report

__all__ = ["Wishes", "run_follow", "run_neighbour", "show_found", "where_on", "where_to_run"]

_OWN = ("metrics.interval", "metrics.history")  # settings that the experiments give themselves
_MASTER = "local[2]"
_DEFAULT_INTERVAL_S = 5.0
_LONGEST_LEAD_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the options say."""

    chosen: Defaults
    phase_s: float | None
    quick: bool
    as_json: bool
    png: Path | None  # None: none
    html: Path | None

    def check(self, *own: str) -> None:
        """Refuse what could not be done in the end."""
        for key in (*_OWN, *own):
            if key in self.chosen.settings:
                raise ConfigError(f"--set {key}: the experiment sets that itself")
        if self.png is not None:
            check_png(self.png)
        if self.html is not None:
            check_html(self.html)

    def command(self, name: str, *more: str) -> str:
        """The command that does the same again."""
        words = ["headgate", "experiment", name]
        if self.phase_s is not None:
            words += ["--phase-seconds", f"{self.phase_s:g}"]
        words += ["--quick"] * self.quick + list(more) + ["--local"] * self.chosen.local
        if self.chosen.master is not None:
            words += ["--master", self.chosen.master]
        for key, value in self.chosen.settings.items():
            words += ["--set", f"{key}={value}"]
        return shlex.join(words)

    def finish(self, report: Report, figures: dict[str, Any]) -> bool:
        """Say what was found, write the files, and whether all is well."""
        if self.as_json:
            print(json.dumps(figures, allow_nan=False), flush=True)
            print(report.verdict, file=sys.stderr, flush=True)
        else:
            show_found(report)
        if self.png is not None:
            draw_png(report.title, report.panels, self.png)
            print(f"chart:  {self.png}", file=sys.stderr, flush=True)
        if self.html is not None:
            write_html(report, self.html)
            print(f"report: {self.html}", file=sys.stderr, flush=True)
        return report.verdict.passed


def run_follow(wishes: Wishes, interval_s: float) -> bool:
    """`headgate experiment follow`; whether its verdict is PASS."""
    wishes.check()
    phase_s = wishes.phase_s or (3.0 if wishes.quick else 10.0)
    schedule = Schedule(FOLLOW, phase_s=phase_s, lead_s=_lead_s(phase_s))
    more = () if interval_s == _DEFAULT_INTERVAL_S else ("--interval", f"{interval_s:g}")
    chosen = replace(wishes.chosen, progress=True)
    with ending_jobs(), use_defaults(chosen), watching_live(every_s=interval_s) as live:
        where = where_to_run(chosen)
        lead = f"after {schedule.lead_s:g} s at full speed"
        live.say(f"follow: {len(FOLLOW)} phases of {phase_s:g} s, {lead}; {where.name}")
        found = watch_follow(where, schedule, live, interval_s).result()
    about = About(wishes.command("follow", *more), where.name)
    return wishes.finish(follow_report(found, about), follow_json(found, about, interval_s))


def run_neighbour(wishes: Wishes) -> bool:
    """`headgate experiment neighbour`; whether its verdict is PASS."""
    wishes.check("network.flow_control")
    phase_s = wishes.phase_s or (2.0 if wishes.quick else 5.0)
    schedule = Schedule(neighbour_phases(1 if wishes.quick else 2), phase_s=phase_s, lead_s=_lead_s(phase_s))
    chosen = replace(wishes.chosen, progress=True)
    with ending_jobs(), use_defaults(chosen), watching_live(every_s=_DEFAULT_INTERVAL_S) as live:
        where = where_to_run(chosen)
        live.say(f"neighbour: {schedule.end_s:g} s with credit, then with tcp; {where.name}")
        found = watch_neighbour(where, schedule, live)
    about = About(wishes.command("neighbour"), where.name)
    return wishes.finish(neighbour_report(found, about), neighbour_json(found, about))


def where_to_run(chosen: Defaults) -> Where:
    """Threads of this process, or Spark, which is started here."""
    if chosen.local:
        return where_on(None)
    with saying("starting Spark", progress=True):
        from headgate.spark.session import local_session  # noqa: PLC0415 - that takes a moment too

        return where_on(local_session(2, master=chosen.master or _MASTER), chosen.master or _MASTER)


def where_on(spark: Any, master: str = "") -> Where:
    """A session, or None for threads of this process."""
    name = "threads of this process" if spark is None else f"Spark {spark.version}, {master}".rstrip(", ")
    return Where(name, lambda settings: hg.environment(spark, local=spark is None, parallelism=1, settings=settings))


def show_found(report: Report) -> None:
    """The chart where it can be drawn, the table and the verdict, on stdout."""
    if report.panels and can_draw(sys.stdout):
        from rich.console import Console  # noqa: PLC0415 - only a terminal pays for importing it

        console = Console(highlight=False)
        print(styled(chart_of(report.panels[0], min(console.width - 1, 110), 14), console))
    show_table(report.header, report.rows, styles={"NO": "red", "yes": "green"})
    print(report.verdict, flush=True)


def _lead_s(phase_s: float) -> float:
    return min(_LONGEST_LEAD_S, max(1.0, phase_s))
