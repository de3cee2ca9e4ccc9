"""`headgate demo`: three pipelines in a minute: a word count, windows over a stream, back pressure.

Results are printed on stdout, progress on stderr: live in a terminal, else a line every few seconds. In a terminal the
last pipeline continues, with its page, until the user ends it; without one, the command ends by itself.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import headgate as hg
from headgate.api.running import is_terminal, showing_activity, stop, unfinished_jobs
from headgate.cli.demo_pipeline import PER_SECOND, Second, windows
from headgate.cli.scripts import ending_jobs
from headgate.cli.tables import show_table
from headgate.config.defaults import Defaults, Page, use_defaults
from headgate.errors import ConfigError
from headgate.examples import word_count
from headgate.ui.process_page import close_page, keep_page, open_page

__all__ = ["demo"]

_WORKERS = 2
_TOP = 8  # words in the table
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30  # characters of a curve
_PHASE_S = 3.0  # of the third pipeline
_LEAD_S = 3.0


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="The duration of the second pipeline.")
    ] = 15.0,
    local: Annotated[bool, typer.Option("--local", help="Run in threads of this process, without Spark.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show back pressure, too.")] = True,
) -> None:
    """Run three pipelines on Spark with live progress: a word count, windows over a stream, and back pressure."""
    where = "in threads of this process" if local else "on Spark, on this machine"
    count = "three" if follow else "two"
    _print(f"headgate {hg.__version__}: {count} pipelines {where}, {_WORKERS} workers each. Ctrl-C ends it.")
    with ending_jobs(), use_defaults(Defaults(parallelism=_WORKERS, progress=True)):
        spark = None if local else _start_spark()
        env = hg.environment(spark, local=local)
        _show_words(env)
        _show_windows(env, seconds)
        if follow:
            _show_follow(spark)
    _print(
        "\nContinue with:\n"
        "  headgate experiment follow               the last of them, for longer, with a chart and a report\n"
        "  headgate examples                        the pipelines that come with headgate\n"
        "  headgate examples word_count --source    the first of those above, to read\n"
        "  headgate run my_pipeline.py --ui         your own, with its page"
    )


def _start_spark() -> Any:
    began_s = time.monotonic()
    with showing_activity("starting Spark", progress=True):
        from headgate.spark.session import local_session  # noqa: PLC0415 - the import takes long, too

        spark = local_session(_WORKERS)
    _print(f"Spark {spark.version} is up, after {time.monotonic() - began_s:.1f} s.")
    return spark


def _show_words(env: hg.StreamExecutionEnvironment) -> None:
    lines = word_count.text()
    _print(f"\n1. Word count: {len(lines)} lines of text -> their words -> by word -> counts")
    began_s = time.monotonic()
    counts = word_count.main(env, lines)
    took_s = time.monotonic() - began_s
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOP]
    show_table(["word", "count", ""], [[word, str(n), "█" * max(1, 30 * n // top[0][1])] for word, n in top])
    _print(
        f"{sum(counts.values()):,} words, {len(counts):,} different ones, in {took_s:.1f} s with the start of workers."
    )


def _show_windows(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    _print(f"\n2. Windows: {PER_SECOND:,} water levels a second for {seconds:g} s -> by gauge -> windows of 1 s")
    found = windows(env, seconds)
    means = [one.mean for one in found]
    rows = []
    for gauge in sorted({one.gauge for one in found}):
        own = [one for one in found if one.gauge == gauge]
        total = sum(one.readings for one in own)
        mean = sum(one.mean * one.readings for one in own) / total
        curve = _curve([one.mean for one in own], min(means), max(means))
        rows.append(
            [gauge, str(len(own)), f"{total:,}", f"{mean:.0f} mm", f"{max(one.highest for one in own)} mm", curve]
        )
    show_table(["gauge", "windows", "readings", "mean", "highest", "mean of each second"], rows)
    _print(f"{_total(found):,} of {round(PER_SECOND * seconds):,} readings are in the {len(found)} windows.")


def _show_follow(spark: Any) -> None:
    """Run a short `follow`; in a terminal, it continues with its page until the user ends it."""
    from headgate.cli.experiment_run import show_result, where_on  # noqa: PLC0415 - the import takes long
    from headgate.cli.experiment_view import watch_follow  # noqa: PLC0415
    from headgate.experiments.follow import follow_report  # noqa: PLC0415
    from headgate.experiments.report import RunInfo  # noqa: PLC0415
    from headgate.experiments.schedule import FOLLOW, PhaseSchedule  # noqa: PLC0415
    from headgate.experiments.terminal import watching_live  # noqa: PLC0415

    _print(f"\n3. Back pressure: a producer and a consumer, {_LEAD_S:g} s at full speed; then each is slowed down")
    try:
        paged = _is_interactive() and _open_page()
        schedule = PhaseSchedule(FOLLOW, phase_s=_PHASE_S, lead_s=_LEAD_S, goes_on=paged)
        with watching_live(every_s=5.0) as live:
            run = watch_follow(where_on(spark), schedule, live, interval_s=1.0)
        show_result(follow_report(run.result(), RunInfo("headgate experiment follow", "")))
        if paged:
            _print("\nThe pipeline continues, with 30 % and full speed alternately: see its page.")
            keep_page()
            with showing_activity("cancelling"):
                stop(run.job)
    finally:
        close_page()


def _is_interactive() -> bool:
    """Return True if a user can open a page, and press Enter."""
    return not os.environ.get("CI") and sys.stdin.isatty() and is_terminal(sys.stdout)


def _open_page() -> bool:
    try:
        open_page(Page(), unfinished_jobs)
    except ConfigError as error:  # the demo runs without it
        _print(f"There is no page: {error}")
        return False
    return True


def _total(found: Sequence[Second]) -> int:
    return sum(one.readings for one in found)


def _curve(values: Sequence[float], low: float, high: float) -> str:
    """Return values as bars; at most `_WIDTH` of them.

    >>> _curve([1.0, 2.0, 3.0], 1.0, 3.0)
    '▁▅█'
    """
    shown = values[:: max(1, -(-len(values) // _WIDTH))]
    height = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / height * (len(_BARS) - 1))] for value in shown)


def _print(text: str) -> None:
    print(text, flush=True)
