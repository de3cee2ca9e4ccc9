"""The suite `meters`: pipelines on Spark with all meters on, the default, beside the same with none.

The workloads are W4, the shuffle of single records by key, which does little but what the meters count, and W1, the
word count. The ratio is the median of the ratios of each turn, because the machine's speed changes by more than the
meters cost. `watched` adds a thread that requests once per second all that the page shows.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.bench.harness import Case, Contest
from headgate.bench.pipeline_runs import NOT_KEPT, on_spark, throughput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from headgate.bench.harness import Bench, Row
    from headgate.bench.pipeline_runs import MakeEnvironment
    from headgate.coordinator.job import Job

__all__ = ["OFF", "meters", "watching"]

OFF: Final = {**NOT_KEPT, "metrics.interval": "0", "metrics.latency_interval": "0", "metrics.hot_keys": False}
"""The settings of a job that reports only its counters."""

_WORKLOADS: Final = {"W4 keyed": ("W4 shuffle, keyed", "records/s"), "W1": ("W1 word count", "words/s")}
_TURNS: Final = 3  # for each repeat
_LOOK_S: Final = 1.0
_PAST_S: Final = 60.0  # the page draws this much


def meters(
    bench: Bench, seconds: float | None = None, host: AbstractContextManager[MakeEnvironment] | None = None
) -> Iterable[Row]:
    """Run all cases; see the module. `seconds` is the length of one run, `host` replaces Spark."""
    run_s = seconds if seconds is not None else bench.pick(full=4.0, quick=1.5)
    if not bench.quick:
        bench.repeats *= _TURNS
    with host if host is not None else on_spark() as make:
        yield from bench.run([_contest(make, workload, run_s) for workload in _WORKLOADS])


def _contest(make: MakeEnvironment, workload: str, seconds: float) -> Contest[float]:
    what, unit = _WORKLOADS[workload]

    def run(during: Callable[[Job], AbstractContextManager[object]], **settings: Any) -> Callable[[], float]:
        return partial(throughput, partial(make, **settings), workload, seconds, during)

    def case(name: str, goal: float | None = None) -> Case[float]:
        baseline = ("meters off",)
        return Case(f"{what}, {name}", unit, name, against="meters off", baseline=baseline, paired=True, goal=goal)

    runs = {
        "meters off": run(nullcontext, settings=OFF),
        "meters on": run(nullcontext),
        "meters on, watched": run(watching),
    }
    off: Case[float] = Case(f"{what}, meters off", unit, "meters off")
    return Contest(name=workload, runs=runs, cases=[off, case("meters on", 0.98), case("meters on, watched")])


@contextmanager
def watching(job: Job) -> Iterator[list[int]]:
    """Request once per second all that the page shows, as JSON; yield the list of the answers' sizes in bytes."""
    sizes: list[int] = []
    over = threading.Event()

    def look() -> None:
        encode = msgspec.json.Encoder().encode
        while True:
            sizes.append(len(encode(job.view())) + len(encode(job.timeline(seconds=_PAST_S))))
            if over.wait(_LOOK_S):
                return

    looking = threading.Thread(target=look, name="headgate-bench-look", daemon=True)
    looking.start()
    try:
        yield sizes
    finally:
        over.set()
        looking.join()
