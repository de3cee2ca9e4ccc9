"""`headgate demo`: what headgate does, in half a minute. A word count, then windows over a stream as it flows.

Results go to stdout. What happens meanwhile goes to stderr: live in a terminal, as a line now and then elsewhere.
"""

import time
from collections.abc import Sequence
from typing import Annotated

import typer

import headgate as hg
from headgate.api.defaults import Defaults, use_defaults
from headgate.api.running import saying
from headgate.cli.demo_pipeline import PER_SECOND, Second, windows
from headgate.cli.scripts import ending_jobs
from headgate.cli.tables import show_table
from headgate.examples import word_count

__all__ = ["demo"]

_WORKERS = 2
_TOP = 8  # words in the table
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30  # characters of a curve


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long the second pipeline runs.")
    ] = 15.0,
    local: Annotated[bool, typer.Option("--local", help="In threads of this process, without Spark.")] = False,
) -> None:
    """See two pipelines run on Spark with live progress: a word count, then windows over a stream."""
    where = "in threads of this process" if local else "on Spark, on this machine"
    _say(f"headgate {hg.__version__}: two pipelines {where}, {_WORKERS} workers each. Ctrl-C ends it.")
    with ending_jobs(), use_defaults(Defaults(parallelism=_WORKERS, progress=True)):
        env = hg.environment(local=True) if local else hg.environment(_started_spark())
        _show_words(env)
        _show_windows(env, seconds)
    _say(
        "\nGo on with:\n"
        "  headgate examples                        the pipelines that come with headgate\n"
        "  headgate examples word_count --source    the first of the two above, to read\n"
        "  headgate run my_pipeline.py              your own"
    )


def _started_spark() -> object:
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
