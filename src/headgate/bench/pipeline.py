"""Whole pipelines on Spark, `local[2]`: throughput, latency, start and memory, beside a peer where it is installed.

W1 to W4 are the workloads of `_pipeline_flows`, run by `_pipeline_run`; `_pipeline_peers` runs the same on Bytewax, the
two taking turns. docs/benchmarks.md says what each case does and how to read it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headgate.bench._ping import percentile
from headgate.bench._pipeline_flows import RATE_HZ, flows, latency, latency_arrow
from headgate.bench._pipeline_peers import HOW_TO_GET, bytewax_delays_ms, bytewax_per_second, find_bytewax
from headgate.bench._pipeline_run import bounded, delays_ms, on_spark, start_s, throughput
from headgate.bench.harness import Bench, Case, Contest, Row, Rows, suite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headgate.api.environment import StreamExecutionEnvironment

__all__ = ["Amounts", "pipeline"]

_W4_PER_S = 1_050_000  # what Spark's real-time mode does, on a machine of two cores


class Amounts(NamedTuple):
    """How long one run of each case takes, without its start.

    >>> Amounts(throughput_s=1.0, latency_s=1.0, skip_s=0.5, bounded_s=4.0).bounded_s
    4.0
    """

    throughput_s: float
    latency_s: float
    skip_s: float  # what is left out at the start of latency
    bounded_s: float


_FULL = Amounts(throughput_s=4.0, latency_s=8.0, skip_s=2.0, bounded_s=60.0)
_QUICK = Amounts(throughput_s=1.5, latency_s=2.0, skip_s=1.0, bounded_s=10.0)


@suite("pipeline", "Whole pipelines on Spark: word count, windows, latency, shuffle, start, memory.")
def pipeline(
    bench: Bench,
    amounts: Amounts | None = None,
    host: AbstractContextManager[Callable[[], StreamExecutionEnvironment]] | None = None,
    bytewax: Path | None = None,
) -> Rows:
    """All cases; see the module. With `--quick` each is run once. `host` runs them elsewhere than on Spark.

    >>> from headgate.bench.harness import find_suite
    >>> find_suite("pipeline").charts
    False
    """
    amounts = amounts if amounts is not None else bench.pick(full=_FULL, quick=_QUICK)
    if bench.quick:
        bench.repeats = 1
    bytewax = bytewax if bytewax is not None else find_bytewax()
    if bytewax is None:
        bench.notes.append(HOW_TO_GET)
    with host if host is not None else on_spark() as make:
        rates = list(_throughput(make, amounts, bytewax))
        late = _latency(make, amounts, bytewax)
        bench.expect(sum(map(bench.steps, rates)) + bench.steps(late) + 2)
        for contest in rates[:2]:
            yield from bench.contest(contest)
        yield from bench.contest(late)
        for contest in rates[2:]:
            yield from bench.contest(contest)
        yield bench.measure(
            "start to first record, warm session", partial(start_s, make), unit="s", goal=1.5, at_most=True
        )
        yield from _bounded(bench, make, amounts.bounded_s)


# Throughput ----------------------------------------------------------------------------------------------


def _throughput(
    make: Callable[[], StreamExecutionEnvironment], amounts: Amounts, bytewax: Path | None
) -> Iterator[Contest[float]]:
    seconds = amounts.throughput_s

    def contest(name: str, cases: Sequence[Case[float]], **peers: str) -> Contest[float]:
        """Of our runs that are called so, and of peers', by what to call each in the peer's program."""
        runs: dict[str, Callable[[], float]] = {
            run: partial(throughput, make, run, flow, seconds) for run, flow in flows.items() if run.startswith(name)
        }
        if bytewax is not None:
            for run, case in peers.items():
                runs[run] = partial(bytewax_per_second, bytewax, case, seconds)
        return Contest(name=name, runs=runs, cases=[case for case in cases if runs.keys() >= set(case.needs)])

    yield contest(
        "W1",
        [
            _rate("W1 word count", "words/s", "W1"),
            _rate("W1 word count, Arrow", "words/s", "W1 Arrow", "W1"),
            _rate("W1 word count, Bytewax", "words/s", "bytewax"),
            _rate("W1 word count, beside Bytewax", "words/s", "W1", "bytewax", goal=3.0),
        ],
        bytewax="word-count",
    )
    yield contest(
        "W2",
        [
            _rate("W2 windowed sum", "records/s", "W2"),
            _rate("W2 windowed sum, Arrow", "records/s", "W2 Arrow", "W2"),
            _rate("W2 windowed sum, Bytewax", "records/s", "bytewax"),
            _rate("W2 windowed sum, beside Bytewax", "records/s", "W2", "bytewax", goal=5.0),
        ],
        bytewax="window-sum",
    )
    yield contest(
        "W4",
        [
            _rate("W4 shuffle", "records/s", "W4", goal=_W4_PER_S),
            _rate("W4 shuffle, keyed", "records/s", "W4 keyed", goal=_W4_PER_S),
            _rate("W4 shuffle, Arrow", "records/s", "W4 Arrow", "W4", goal=4.0),
            _rate("W4 shuffle, Arrow, keyed", "records/s", "W4 Arrow keyed", "W4 keyed", goal=4.0),
            _rate("W4 shuffle, Bytewax", "records/s", "bytewax"),
            _rate("W4 shuffle, Bytewax, keyed", "records/s", "bytewax_keyed"),
            _rate("W4 shuffle, beside Bytewax", "records/s", "W4", "bytewax"),
            _rate("W4 shuffle, keyed, beside Bytewax", "records/s", "W4 keyed", "bytewax_keyed"),
        ],
        bytewax="shuffle",
        bytewax_keyed="shuffle-keyed",
    )


_AGAINST = {
    "W1": "plain functions",
    "W2": "plain functions",
    "W4": "plain records",
    "W4 keyed": "plain records, keyed",
    "bytewax": "Bytewax",
    "bytewax_keyed": "Bytewax, keyed",
}


def _rate(case: str, unit: str, run: str, baseline: str | None = None, goal: float | None = None) -> Case[float]:
    return Case(
        case=case,
        unit=unit,
        run=run,
        figure=float,
        against=None if baseline is None else _AGAINST[baseline],
        baseline=() if baseline is None else (baseline,),
        goal=goal,
    )


# Latency -------------------------------------------------------------------------------------------------


def _latency(
    make: Callable[[], StreamExecutionEnvironment], amounts: Amounts, bytewax: Path | None
) -> Contest[Sequence[float]]:
    seconds, skip_s = amounts.latency_s, amounts.skip_s
    runs: dict[str, Callable[[], Sequence[float]]] = {
        "W3": partial(delays_ms, make, latency, seconds, skip_s),
        "W3 Arrow": partial(delays_ms, make, latency_arrow, seconds, skip_s),
    }
    names = {"W3": "", "W3 Arrow": ", Arrow"}
    if bytewax is not None:
        runs["bytewax"] = partial(bytewax_delays_ms, bytewax, seconds, round(RATE_HZ * skip_s), skip_s)
        names["bytewax"] = ", Bytewax"
    cases = [
        Case(
            case=f"W3 latency at 10,000/s{names[run]}, p{q}",
            unit="ms",
            run=run,
            figure=partial(percentile, q=q),
            goal=5.0 if (run, q) == ("W3", 99) else None,
            at_most=True,
        )
        for run in runs
        for q in (50, 99)
    ]
    return Contest(name="W3", runs=runs, cases=cases)


# Bounded -------------------------------------------------------------------------------------------------


_BOUNDED = ("source back-pressured", "largest worker at 25 %", "growth from then on")


def _bounded(bench: Bench, make: Callable[[], StreamExecutionEnvironment], seconds: float) -> Iterator[Row]:
    """One run, however often the others are repeated: what it shows takes time."""
    names = [f"bounded, sink at 1 % for {seconds:g} s, {what}" for what in _BOUNDED]
    if not any(map(bench.wants, names)):
        return
    bench.progress(names[0])
    found = bounded(make, seconds)
    yield Row(case=names[0], value=100 * found.back_pressured, unit="% of its time")
    yield Row(case=names[1], value=found.at_first_mib, unit="MiB")
    yield Row(case=names[2], value=found.growth_mib, unit="MiB", goal=16.0, at_most=True)
