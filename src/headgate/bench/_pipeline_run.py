"""Runs the pipelines of the suite, on Spark or in threads, and reads from a job's progress what its ends have counted.

Called in the driver by the suite. Invariant: no figure comes from a run in which a record was lost.
"""

from __future__ import annotations

import tempfile
import time
from array import array
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.bench._pipeline_flows import FIRST, LAST, MADE, SEEN, Made, Tally
from headgate.bench._workloads import LINE_WORDS, records
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headgate.coordinator.job import Job
    from headgate.observe.progress import Progress

__all__ = ["NOT_KEPT", "Bounded", "Outcome", "bounded", "delays_ms", "finish", "on_spark", "start_s", "throughput"]

_PARALLELISM = 2
_LIMIT_S = 120.0  # for a job to start, and to end after its sources have
_MIB = 1024 * 1024
_POLL_S = 0.25
_FULL_SPEED_S = 1.0  # how long a sink takes what it can, before it slows down
_SLOW = 0.01


NOT_KEPT: Final = {"metrics.keep": 0}
"""The settings of jobs that nobody wants to see again."""


@contextmanager
def on_spark() -> Iterator[Callable[[], hg.StreamExecutionEnvironment]]:
    """Makes environments on a session `local[2]`, which has run a job already; one that is started here is stopped."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only where it is run

    from headgate.spark.session import local_session  # noqa: PLC0415

    running = SparkSession.getActiveSession()
    spark = running or local_session(_PARALLELISM, master=f"local[{_PARALLELISM}]")
    make = partial(hg.environment, spark, parallelism=_PARALLELISM, settings=NOT_KEPT)
    try:
        start_s(make)
        yield make
    finally:
        if running is None:
            spark.stop()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What sources and sinks of one run have counted, all subtasks together.

    >>> Outcome(made=10, seen=10, first_ns=0, last_ns=2_000_000_000).per_second
    5.0
    """

    made: int
    seen: int
    first_ns: int  # when the first record was given out by any source
    last_ns: int  # when the last was taken by any sink

    @classmethod
    def of(cls, counters: list[Mapping[str, int]], *, each: int = 1) -> Outcome:
        """Of the counters of all subtasks; `each` is what a sink should see of one record that was made.

        Raises:
            InvariantViolated: something was lost, or came twice.
        """
        made = sum(one.get(MADE, 0) for one in counters) * each
        seen = sum(one.get(SEEN, 0) for one in counters)
        if made != seen or not made:
            raise InvariantViolated(f"{made} records were made and {seen} came to the sinks")
        first_ns = min(one[FIRST] for one in counters if FIRST in one)
        return cls(made, seen, first_ns, max(one.get(LAST, 0) for one in counters))

    @property
    def per_second(self) -> float:
        """Records a second, from the first that was given out to the last that was taken."""
        return self.seen * 1e9 / max(1, self.last_ns - self.first_ns)


def _counters(progress: Progress) -> list[Mapping[str, int]]:
    return [subtask.counters for vertex in progress.vertices for subtask in vertex.subtasks]


def finish(job: Job, seconds: float) -> list[Mapping[str, int]]:
    """Wait for a job that takes so long, and what its tasks have counted."""
    if not job.await_termination(_LIMIT_S + seconds):
        job.cancel()
        raise TimeoutError(f"{job.name} did not end within {_LIMIT_S + seconds:g} s")
    return _counters(job.last_progress)


def throughput(
    make: Callable[[], hg.StreamExecutionEnvironment],
    name: str,
    flow: Callable[[hg.StreamExecutionEnvironment, float], object],
    seconds: float,
    during: Callable[[Job], AbstractContextManager[object]] = nullcontext,
) -> float:
    """Records a second of a pipeline whose sources give out what they can for so long; `during` is around its run."""
    env = make()
    flow(env, seconds)
    job = env.execute_async(name)
    with during(job):
        counters = finish(job, seconds)
    return Outcome.of(counters, each=LINE_WORDS if name.startswith("W1") else 1).per_second


def delays_ms(
    make: Callable[[], hg.StreamExecutionEnvironment],
    flow: Callable[[hg.StreamExecutionEnvironment, float, str, float], object],
    seconds: float,
    skip_s: float,
) -> list[float]:
    """How long each record of a paced pipeline was under way, but for those of the first moments."""
    env = make()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as directory:
        flow(env, seconds + skip_s, directory, skip_s)
        finish(env.execute_async("W3"), seconds + skip_s)
        found = array("q")
        for file in Path(directory).iterdir():
            found.frombytes(file.read_bytes())
    return [delay_ns / 1e6 for delay_ns in found]


class _Once(Tally):
    """Notes when the first record came."""

    def write(self, values: list[Any]) -> None:
        """The first is enough."""
        if not self._seen:
            super().write(values)


def start_s(make: Callable[[], hg.StreamExecutionEnvironment]) -> float:
    """Seconds from `execute` to the first record at a sink, through an exchange."""
    env = make()
    env.from_source(Made(lambda: iter([[1]]), int)).rebalance().sink_to(_Once())
    started_ns = time.monotonic_ns()
    counters = finish(env.execute_async("start"), 0)
    return (min(one[LAST] for one in counters if one.get(LAST)) - started_ns) / 1e9


# Bounded -------------------------------------------------------------------------------------------------


class _Slow(hg.Sink[Any]):
    """Takes what it can for a second, and then 1 % of that."""

    def open(self, place: Any) -> None:
        """See `Sink`."""
        self._place = place
        self._seen, self._first_s, self._pause_s = 0, 0.0, 0.0

    def write(self, values: list[Any]) -> None:
        """Take a batch, in its time."""
        now_s = time.monotonic()
        self._first_s = self._first_s or now_s
        self._seen += len(values)
        self._place.counters[SEEN] = self._seen
        if self._pause_s:
            time.sleep(self._pause_s * len(values))
        elif now_s - self._first_s > _FULL_SPEED_S:
            self._pause_s = (now_s - self._first_s) / self._seen / _SLOW


def _for_ever() -> Iterator[list[tuple[int, float, str, int]]]:
    batch = records(1000)
    while True:
        yield batch


@dataclass(frozen=True, slots=True)
class Bounded:
    """What the workers of one run held.

    >>> found = Bounded.of([(1.0, [2**20, 2**20]), (5.0, [2**20, 3 * 2**20]), (9.0, [2**20, 2**20])], 4.0, 0.9)
    >>> found.at_first_mib, found.growth_mib
    (3.0, 0.0)
    """

    at_first_mib: float  # the most that a worker held after a quarter of the time
    growth_mib: float  # the most by which one has grown from then to any later moment
    back_pressured: float  # the share of its time that the sources could not go on

    @classmethod
    def of(cls, samples: list[tuple[float, list[int]]], quarter_s: float, back_pressured: float) -> Bounded:
        """Of the resident bytes of each worker at several moments."""
        later = [held for at_s, held in samples if at_s >= quarter_s]
        growth = max(now - before for held in later for before, now in zip(later[0], held, strict=True))
        return cls(max(later[0]) / _MIB, growth / _MIB, back_pressured)


def _go_on(job: Job) -> None:
    """Wait for a moment, in which the job should not end."""
    if job.await_termination(_POLL_S):  # which raises what it failed of
        raise InvariantViolated(f"{job.name} has ended, though its sources do not")


def bounded(make: Callable[[], hg.StreamExecutionEnvironment], seconds: float) -> Bounded:
    """What workers hold while a source at full speed is before a sink at 1 %."""
    env = make()
    made = env.from_source(Made(_for_ever, tuple[int, float, str, int]))
    made.rebalance().sink_to(_Slow())
    job = env.execute_async("bounded")
    samples: list[tuple[float, list[int]]] = []
    try:
        asked_s = time.monotonic()
        while not any(SEEN in one for one in _counters(job.last_progress)):
            _go_on(job)
            if time.monotonic() - asked_s > _LIMIT_S:
                raise TimeoutError(f"no record came to a sink within {_LIMIT_S:g} s")
        started_s = time.monotonic()
        while (at_s := time.monotonic() - started_s) < seconds:
            samples.append((at_s, [worker.memory_bytes for worker in job.last_progress.workers]))
            _go_on(job)
        source = job.last_progress.vertices[0]
    finally:
        job.cancel()
    return Bounded.of(samples, seconds / 4, source.back_pressured)
