"""The suite `pipeline`: whole pipelines on Spark, `local[2]`: throughput, latency, start and memory.

W1 to W4 are the workloads of `pipeline_flows`, run beside the same on Bytewax where it is installed.
docs/benchmarks.md describes each case.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.bench.bytewax_runs import HOW_TO_GET, bytewax_delays_ms, bytewax_per_second, find_bytewax
from headgate.bench.harness import Case, Contest, percentile
from headgate.bench.pipeline_flows import FLOWS, RATE_HZ, latency, latency_arrow
from headgate.bench.pipeline_runs import bounded, delays_ms, on_spark, start_s, throughput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headgate.bench.harness import Bench, Row
    from headgate.bench.pipeline_runs import Held, MakeEnvironment

__all__ = ["PipelineAmounts", "pipeline"]

_W4_PER_S: Final = 1_050_000  # Spark's real-time mode, on a machine of two cores


class PipelineAmounts(NamedTuple):
    """The seconds of one run of each case, without its start."""

    throughput_s: float
    latency_s: float
    skip_s: float  # does not count, at the start of latency
    bounded_s: float


_FULL: Final = PipelineAmounts(throughput_s=4.0, latency_s=8.0, skip_s=2.0, bounded_s=60.0)
_QUICK: Final = PipelineAmounts(throughput_s=1.5, latency_s=2.0, skip_s=1.0, bounded_s=10.0)

# Workload: the runs on Bytewax by their case there, and the rows: case, run, against, baseline, goal.
_RateRow = tuple[str, str, str | None, str | None, float | None]
_RATES: Final[dict[str, tuple[str, dict[str, str], list[_RateRow]]]] = {
    "W1": (
        "words/s",
        {"bytewax": "word-count"},
        [
            ("W1 word count", "W1", None, None, None),
            ("W1 word count, Arrow", "W1 Arrow", "plain functions", "W1", None),
            ("W1 word count, Bytewax", "bytewax", None, None, None),
            ("W1 word count, beside Bytewax", "W1", "Bytewax", "bytewax", 3.0),
        ],
    ),
    "W2": (
        "records/s",
        {"bytewax": "window-sum"},
        [
            ("W2 windowed sum", "W2", None, None, None),
            ("W2 windowed sum, Arrow", "W2 Arrow", "plain functions", "W2", None),
            ("W2 windowed sum, Bytewax", "bytewax", None, None, None),
            ("W2 windowed sum, beside Bytewax", "W2", "Bytewax", "bytewax", 5.0),
        ],
    ),
    "W4": (
        "records/s",
        {"bytewax": "shuffle", "bytewax_keyed": "shuffle-keyed"},
        [
            ("W4 shuffle", "W4", None, None, _W4_PER_S),
            ("W4 shuffle, keyed", "W4 keyed", None, None, _W4_PER_S),
            ("W4 shuffle, Arrow", "W4 Arrow", "plain records", "W4", 4.0),
            ("W4 shuffle, Arrow, keyed", "W4 Arrow keyed", "plain records, keyed", "W4 keyed", 4.0),
            ("W4 shuffle, Bytewax", "bytewax", None, None, None),
            ("W4 shuffle, Bytewax, keyed", "bytewax_keyed", None, None, None),
            ("W4 shuffle, beside Bytewax", "W4", "Bytewax", "bytewax", None),
            ("W4 shuffle, keyed, beside Bytewax", "W4 keyed", "Bytewax, keyed", "bytewax_keyed", None),
        ],
    ),
}


def pipeline(
    bench: Bench,
    amounts: PipelineAmounts | None = None,
    host: AbstractContextManager[MakeEnvironment] | None = None,
    bytewax: Path | None = None,
) -> Iterable[Row]:
    """Run all cases; see the module. With `--quick` each is run once. `host` replaces Spark."""
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    if bench.quick:
        bench.repeats = 1
    bytewax = bytewax if bytewax is not None else find_bytewax()
    if bytewax is None:
        bench.notes.append(HOW_TO_GET)
    with host if host is not None else on_spark() as make:
        rate = partial(_throughput, make, amounts.throughput_s, bytewax)
        start: Case[float] = Case("start to first record, warm session", "s", "start", goal=1.5, at_most=True)
        yield from bench.run(
            [rate("W1"), rate("W2")],
            [_latency(make, amounts, bytewax)],
            [rate("W4")],
            [Contest(name="start", runs={"start": partial(start_s, make)}, cases=[start])],
            [_bounded(make, amounts.bounded_s)],
        )


def _throughput(make: MakeEnvironment, seconds: float, bytewax: Path | None, workload: str) -> Contest[float]:
    unit, peers, rows = _RATES[workload]
    runs: dict[str, Callable[[], float]] = {
        run: partial(throughput, make, run, seconds) for run in FLOWS if run.startswith(workload)
    }
    if bytewax is not None:
        runs |= {run: partial(bytewax_per_second, bytewax, case, seconds) for run, case in peers.items()}
    cases: list[Case[float]] = [
        Case(case, unit, run, against=against, baseline=() if baseline is None else (baseline,), goal=goal)
        for case, run, against, baseline, goal in rows
        if run in runs and (baseline is None or baseline in runs)
    ]
    return Contest(name=workload, runs=runs, cases=cases)


def _latency(make: MakeEnvironment, amounts: PipelineAmounts, bytewax: Path | None) -> Contest[Sequence[float]]:
    seconds, skip_s = amounts.latency_s, amounts.skip_s
    runs: dict[str, Callable[[], Sequence[float]]] = {
        "W3": partial(delays_ms, make, latency, seconds, skip_s),
        "W3 Arrow": partial(delays_ms, make, latency_arrow, seconds, skip_s),
    }
    if bytewax is not None:
        runs["W3 Bytewax"] = partial(bytewax_delays_ms, bytewax, seconds, round(RATE_HZ * skip_s), skip_s)
    cases: list[Case[Sequence[float]]] = [
        Case(
            f"W3 latency at 10,000/s{run.removeprefix('W3').replace(' ', ', ')}, p{q}",
            "ms",
            run,
            partial(percentile, q=q),
            goal=5.0 if (run, q) == ("W3", 99) else None,
            at_most=True,
        )
        for run in runs
        for q in (50, 99)
    ]
    return Contest(name="W3", runs=runs, cases=cases)


def _bounded(make: MakeEnvironment, seconds: float) -> Contest[Held]:
    """Return a contest of one run, whatever the repeats: it has to last long enough for growth to show."""
    name = f"bounded, sink at 1 % for {seconds:g} s"
    cases: list[Case[Held]] = [
        Case(f"{name}, source back-pressured", "% of its time", "bounded", lambda held: 100 * held.back_pressured),
        Case(f"{name}, largest worker at 25 %", "MiB", "bounded", attrgetter("at_first_mib")),
        Case(f"{name}, growth from then on", "MiB", "bounded", attrgetter("growth_mib"), goal=16.0, at_most=True),
    ]
    return Contest(name="bounded", runs={"bounded": partial(bounded, make, seconds)}, cases=cases, once=True)
