"""What looking costs: pipelines on Spark with all meters on, as by default, beside the same with none.

The workloads are two of the pipeline suite: W4, the shuffle of single records by key, which does little else than what
the meters look at, and W1, the word count. The runs take turns, and the ratio is the median of those of each turn: what
is looked for is smaller than what a machine's speed changes by. `watched` has somebody who asks once a second for what
a page shows.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.bench._pipeline_flows import flows
from headgate.bench._pipeline_run import NOT_KEPT, on_spark, throughput
from headgate.bench.harness import Bench, Case, Contest, Rows, suite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from headgate.api.environment import StreamExecutionEnvironment
    from headgate.coordinator.job import Job

__all__ = ["OFF", "meters", "watching"]

OFF = {**NOT_KEPT, "metrics.interval": "0", "metrics.latency_interval": "0", "metrics.hot_keys": False}
"""The settings of a job that tells no more of itself than its counters."""

_GOAL = 0.98
_WORKLOADS = {"W4 keyed": ("W4 shuffle, keyed", "records/s"), "W1": ("W1 word count", "words/s")}
_TURNS = 3  # as many turns as other suites' repeats, times this
_LOOK_S = 1.0
_PAST_S = 60.0  # that a page draws


@suite("meters", "What meters, latency markers and hot keys cost a pipeline on Spark, and somebody who looks.")
def meters(
    bench: Bench,
    seconds: float | None = None,
    host: AbstractContextManager[Callable[..., StreamExecutionEnvironment]] | None = None,
) -> Rows:
    """All cases; see the module. `host` runs them elsewhere than on Spark, `seconds` is how long one run takes.

    >>> from headgate.bench.harness import find_suite
    >>> find_suite("meters").charts
    False
    """
    run_s = seconds if seconds is not None else bench.pick(full=4.0, quick=1.5)
    if not bench.quick:
        bench.repeats *= _TURNS
    with host if host is not None else on_spark() as make:
        contests = [_contest(make, workload, run_s) for workload in _WORKLOADS]
        bench.expect(sum(map(bench.steps, contests)))
        for contest in contests:
            yield from bench.contest(contest)


def _contest(make: Callable[..., StreamExecutionEnvironment], workload: str, seconds: float) -> Contest[float]:
    what, unit = _WORKLOADS[workload]

    def run(during: Callable[[Job], AbstractContextManager[object]], **settings: Any) -> Callable[[], float]:
        return partial(throughput, partial(make, **settings), workload, flows[workload], seconds, during)

    def case(name: str, goal: float | None = None) -> Case[float]:
        return Case(
            case=f"{what}, {name}",
            unit=unit,
            run=name,
            figure=float,
            against="meters off",
            baseline=("meters off",),
            paired=True,
            goal=goal,
        )

    return Contest(
        name=workload,
        runs={
            "meters off": run(nullcontext, settings=OFF),
            "meters on": run(nullcontext),
            "meters on, watched": run(watching),
        },
        cases=[
            Case(case=f"{what}, meters off", unit=unit, run="meters off", figure=float),
            case("meters on", _GOAL),
            case("meters on, watched"),
        ],
    )


@contextmanager
def watching(job: Job) -> Iterator[list[int]]:
    """Meanwhile, asks once a second for all that a page shows, as JSON; the sizes of the answers in bytes.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.from_collection(["to", "be"]).for_each(lambda word: None)
    >>> job = env.execute_async("words")
    >>> with watching(job) as sizes:
    ...     job.await_termination()
    True
    >>> min(sizes) > 1000
    True
    """
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
