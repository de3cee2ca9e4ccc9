"""`headgate demo`: what headgate does, in a minute: a word count, windows over a stream as it flows, back pressure.

Results go to stdout. What happens meanwhile goes to stderr: live in a terminal, as a line now and then elsewhere. For
somebody who sits before a terminal the last pipeline goes on in the end, with the page open, until they have seen
enough; nobody else is waited for.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import headgate as hg
from headgate.api.defaults import Defaults, Page, use_defaults
from headgate.api.page import close_page, keep_page, open_page
from headgate.api.running import is_terminal, saying, stop
from headgate.cli.demo_pipeline import PER_SECOND, Second, windows
from headgate.cli.scripts import ending_jobs
from headgate.cli.tables import show_table
from headgate.errors import ConfigError
from headgate.examples import word_count

__all__ = ["demo"]

_WORKERS = 2
_TOP = 8  # words in the table
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30  # characters of a curve
_PHASE_S = 3.0  # of the third pipeline
_LEAD_S = 3.0


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long the second pipeline runs.")
    ] = 15.0,
    local: Annotated[bool, typer.Option("--local", help="In threads of this process, without Spark.")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Whether to show back pressure too.")] = True,
) -> None:
    """See pipelines run on Spark with live progress: a word count, windows over a stream, and back pressure at work."""
    where = "in threads of this process" if local else "on Spark, on this machine"
    count = "three" if follow else "two"
    _say(f"headgate {hg.__version__}: {count} pipelines {where}, {_WORKERS} workers each. Ctrl-C ends it.")
    with ending_jobs(), use_defaults(Defaults(parallelism=_WORKERS, progress=True)):
        spark = None if local else _started_spark()
        env = hg.environment(spark, local=local)
        _show_words(env)
        _show_windows(env, seconds)
        if follow:
            _show_follow(spark)
    _say(
        "\nGo on with:\n"
        "  headgate experiment follow               the last of them, for longer, with a chart and a report\n"
        "  headgate examples                        the pipelines that come with headgate\n"
        "  headgate examples word_count --source    the first of those above, to read\n"
        "  headgate run my_pipeline.py --ui         your own, with its page"
    )


def _started_spark() -> Any:
    began_s = time.monotonic()
    with saying("starting Spark", progress=True):
        from headgate.spark.session import local_session  # noqa: PLC0415 - that takes a moment too

        spark = local_session(_WORKERS)
    _say(f"Spark {spark.version} is up, after {time.monotonic() - began_s:.1f} s.")
    return spark


def _show_words(env: hg.StreamExecutionEnvironment) -> None:
    lines = word_count.text()
    _say(f"\n1. Word count: {len(lines)} lines of text -> their words -> by word -> counts")
    began_s = time.monotonic()
    counts = word_count.main(env, lines)
    took_s = time.monotonic() - began_s
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOP]
    show_table(["word", "count", ""], [[word, str(n), "█" * max(1, 30 * n // top[0][1])] for word, n in top])
    _say(
        f"{sum(counts.values()):,} words, {len(counts):,} different ones, in {took_s:.1f} s with the start of workers."
    )


def _show_windows(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    _say(f"\n2. Windows: {PER_SECOND:,} water levels a second for {seconds:g} s -> by gauge -> windows of 1 s")
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
    _say(f"{_total(found):,} of {round(PER_SECOND * seconds):,} readings are in the {len(found)} windows.")


def _show_follow(spark: Any) -> None:
    """A short `follow`; where somebody can look at it, it goes on, on the page, until they say so."""
    from headgate.cli.experiment_run import show_found, where_on  # noqa: PLC0415 - it takes a moment to import
    from headgate.cli.experiment_view import watch_follow  # noqa: PLC0415
    from headgate.experiments.live import watching_live  # noqa: PLC0415
    from headgate.experiments.schedule import FOLLOW, Schedule  # noqa: PLC0415
    from headgate.experiments.summary import About, follow_report  # noqa: PLC0415

    _say(f"\n3. Back pressure: a producer and a consumer, {_LEAD_S:g} s at full speed; then one is slowed, by turns")
    try:
        paged = _is_somebody_there() and _opened_page()
        schedule = Schedule(FOLLOW, phase_s=_PHASE_S, lead_s=_LEAD_S, goes_on=paged)
        with watching_live(every_s=5.0) as live:
            run = watch_follow(where_on(spark), schedule, live, interval_s=1.0)
        show_found(follow_report(run.result(), About("headgate experiment follow", "")))
        if paged:
            _say("\nIt goes on: 30 % and full speed by turns. Look at it on the page.")
            keep_page()
            with saying("cancelling"):
                stop(run.job)
    finally:
        close_page()


def _is_somebody_there() -> bool:
    """Whether there is somebody who could look at a page, and say that they have seen enough."""
    return not os.environ.get("CI") and sys.stdin.isatty() and is_terminal(sys.stdout)


def _opened_page() -> bool:
    try:
        open_page(Page())
    except ConfigError as error:  # the demo is worth seeing without
        _say(f"There is no page: {error}")
        return False
    return True


def _total(found: Sequence[Second]) -> int:
    return sum(one.readings for one in found)


def _curve(values: Sequence[float], low: float, high: float) -> str:
    """Values as bars; of many, some.

    >>> _curve([1.0, 2.0, 3.0], 1.0, 3.0)
    '▁▅█'
    """
    shown = values[:: max(1, -(-len(values) // _WIDTH))]
    height = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / height * (len(_BARS) - 1))] for value in shown)


def _say(text: str) -> None:
    print(text, flush=True)
