"""Runs the measured pipelines on Spark or in threads, and returns figures from the counters of their tasks."""

from __future__ import annotations

import tempfile
import time
from array import array
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import headgate as hg
from headgate.bench.pipeline_flows import FLOWS, LAST, SEEN, CountingSink, CountingSource, Tally
from headgate.bench.workloads import LINE_WORDS, records
from headgate.config.units import MIB
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headgate.coordinator.job import Job
    from headgate.observe.progress import Progress

    MakeEnvironment = Callable[..., hg.StreamExecutionEnvironment]

__all__ = [
    "NOT_KEPT",
    "PARALLELISM",
    "Held",
    "bounded",
    "delays_ms",
    "finish",
    "held_of",
    "on_spark",
    "start_s",
    "throughput",
]

NOT_KEPT: Final = {"metrics.keep": 0}
"""Settings of jobs that `headgate jobs` does not list after their end."""
PARALLELISM: Final = 2
"""The parallelism of all measured pipelines."""

_LIMIT_S: Final = 120.0  # for a job to start, and to end after its sources
_POLL_S: Final = 0.25
_FULL_SPEED_S: Final = 1.0  # a slow sink runs at full speed for this long first
_SLOW_SHARE: Final = 0.01


@contextmanager
def on_spark() -> Iterator[MakeEnvironment]:
    """Yield a function that makes environments on a session `local[2]` that has run a job already.

    The active session is used if there is one; a session that is started here is stopped.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only where it is run

    from headgate.spark.session import local_session  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    spark = running or local_session(PARALLELISM, master=f"local[{PARALLELISM}]")
    make = partial(hg.environment, spark, parallelism=PARALLELISM, settings=NOT_KEPT)
    try:
        start_s(make)
        yield make
    finally:
        if running is None:
            spark.stop()


def _counters(progress: Progress) -> list[Mapping[str, int]]:
    return [subtask.counters for vertex in progress.vertices for subtask in vertex.subtasks]


def finish(job: Job, seconds: float) -> list[Mapping[str, int]]:
    """Block until a job of about these seconds has ended, and return its tasks' counters."""
    if not job.await_termination(_LIMIT_S + seconds):
        job.cancel()
        raise TimeoutError(f"{job.name} did not end within {_LIMIT_S + seconds:g} s")
    return _counters(job.last_progress)


def throughput(
    make: MakeEnvironment,
    name: str,
    seconds: float,
    during: Callable[[Job], AbstractContextManager[object]] = nullcontext,
) -> float:
    """Return the records per second of a pipeline of `FLOWS`; `during` is entered while it runs."""
    env = make()
    FLOWS[name](env, seconds)
    job = env.execute_async(name)
    with during(job):
        counters = finish(job, seconds)
    return Tally.of(counters, each=LINE_WORDS if name.startswith("W1") else 1).per_second


def delays_ms(
    make: MakeEnvironment,
    flow: Callable[[hg.StreamExecutionEnvironment, float, str, float], object],
    seconds: float,
    skip_s: float,
) -> list[float]:
    """Return the delay of each record of a paced pipeline, without those of the first `skip_s` seconds."""
    env = make()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as directory:
        flow(env, seconds + skip_s, directory, skip_s)
        finish(env.execute_async("W3"), seconds + skip_s)
        found = array("q")
        for file in Path(directory).iterdir():
            found.frombytes(file.read_bytes())
    return [delay_ns / 1e6 for delay_ns in found]


class _FirstRecord(CountingSink):
    """Notes when the first record came."""

    def write(self, values: list[Any]) -> None:
        if not self._seen:
            super().write(values)


def start_s(make: MakeEnvironment) -> float:
    """Return the seconds from `execute` to the first record at a sink, through an exchange."""
    env = make()
    env.from_source(CountingSource(lambda: iter([[1]]), int)).rebalance().sink_to(_FirstRecord())
    started_ns = time.monotonic_ns()
    counters = finish(env.execute_async("start"), 0)
    return (min(one[LAST] for one in counters if one.get(LAST)) - started_ns) / 1e9


# Bounded ---------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """The memory of the workers of one run."""

    at_first_mib: float  # the largest worker after a quarter of the time
    growth_mib: float  # the largest growth of a worker from then on
    back_pressured: float  # the share of its time that the source was back-pressured


class _SlowSink(hg.Sink[Any]):
    """Takes records at full speed for a second, and then at 1 % of it."""

    def open(self, place: Any) -> None:
        self._place = place
        self._seen, self._first_s, self._pause_s = 0, 0.0, 0.0

    def write(self, values: list[Any]) -> None:
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        self._seen += len(values)
        self._place.counters[SEEN] = self._seen
        if self._pause_s:
            time.sleep(self._pause_s * len(values))
        elif now_s - self._first_s > _FULL_SPEED_S:
            self._pause_s = (now_s - self._first_s) / self._seen / _SLOW_SHARE


def _endless() -> Iterator[list[tuple[int, float, str, int]]]:
    batch = records(1000)
    while True:
        yield batch


def held_of(samples: list[tuple[float, list[int]]], quarter_s: float, back_pressured: float) -> Held:
    """Return the figures of samples: seconds, and the resident bytes of each worker."""
    later = [held for at_s, held in samples if at_s >= quarter_s]
    growth = max(now - before for held in later for before, now in zip(later[0], held, strict=True))
    return Held(max(later[0]) / MIB, growth / MIB, back_pressured)


def bounded(make: MakeEnvironment, seconds: float) -> Held:
    """Return what the workers hold while a source at full speed feeds a sink at 1 %."""
    env = make()
    made = env.from_source(CountingSource(_endless, tuple[int, float, str, int]))
    made.rebalance().sink_to(_SlowSink())
    job = env.execute_async("bounded")

    def pause() -> None:
        if job.await_termination(_POLL_S):  # raises what failed
            raise InvariantViolated(f"{job.name} has ended, although its sources are endless")

    samples: list[tuple[float, list[int]]] = []
    try:
        limit_s = time.monotonic() + _LIMIT_S
        while not any(SEEN in one for one in _counters(job.last_progress)):
            pause()
            if time.monotonic() > limit_s:
                raise TimeoutError(f"no record came to a sink within {_LIMIT_S:g} s")
        started_s = time.monotonic()
        while (at_s := time.monotonic() - started_s) < seconds:
            samples.append((at_s, [worker.memory_bytes for worker in job.last_progress.workers]))
            pause()
        source = job.last_progress.vertices[0]
    finally:
        job.cancel()
    return held_of(samples, seconds / 4, source.back_pressured)
