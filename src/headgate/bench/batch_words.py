"""Word count in BATCH, in STREAMING and as plain PySpark: how long each takes, and how much memory.

Each run is a process of its own with its own Spark session, `local[2]`: a JVM seldom returns memory. All three make the
same lines in two Python workers and split them by the same functions.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import headgate as hg
from headgate.bench.pipeline_flows import first_of, pair_of, split_line
from headgate.bench.pipeline_runs import NOT_KEPT, PARALLELISM, finish, on_spark
from headgate.bench.process_memory import peak_of, wait_until_gone
from headgate.bench.processes import START_S, Parent, child
from headgate.bench.workloads import LINE_WORDS, lines, take
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headgate.bench.process_memory import Resident
    from headgate.functions.place import Place

__all__ = ["WAYS", "WordCount", "count_by_headgate", "count_by_spark", "count_words", "expected"]

WAYS: Final = ("BATCH", "STREAMING", "PySpark")
"""The ways to count."""

_LINES: Final = 40_000  # different ones, used again and again
_LINES_AT_ONCE: Final = 200
_ARROW_LINES: Final = 1_000  # 10,000 words in a record batch: Spark's default
_WARM_LINES: Final = 2_000
_SLOWEST: Final = 5_000.0  # lines/s: a slower run hangs
_WORDS, _KEYS = "bench_words", "bench_keys"  # the counters of a sink: all counted words, and different ones


class WordCount(NamedTuple):
    """The result of one run."""

    words: int
    seconds: float  # of the call, on a session that has done the same before
    resident: Resident  # the peak of the driver and all its descendants

    @property
    def per_second(self) -> float:
        """Words per second."""
        return self.words / self.seconds


def count_words(way: str, count: int, directory: str, *, local: bool = False) -> WordCount:
    """Count the words of `count` lines in a process of its own; `local`: in its threads, not on Spark.

    Raises:
        ChildFailed: It did not count every word, or took too long.
    """
    limit_s = 2 * START_S + count / _SLOWEST
    with child(_count, way, count, directory, local) as process:
        process.receive(limit_s)
        with peak_of(process.pid) as peak:
            process.send("begin")
            seconds = process.result(limit_s)
    wait_until_gone(peak.processes)
    return WordCount(count * LINE_WORDS, seconds, peak.resident)


def _count(parent: Parent, way: str, count: int, directory: str, local: bool) -> float:
    """Return the seconds of the count, after a small one that does not count."""
    threads = partial(hg.environment, local=True, parallelism=PARALLELISM)
    with ExitStack() as stack:
        if way == "PySpark":
            run = partial(count_by_spark, stack.enter_context(_session()))
        else:
            make = threads if local else stack.enter_context(on_spark())
            run = partial(count_by_headgate, make, way, directory)
        run(min(count, _WARM_LINES))
        wanted = expected(count)
        parent.send("warm")
        parent.receive(START_S)
        started_ns = time.monotonic_ns()
        found = run(count)
        seconds = (time.monotonic_ns() - started_ns) / 1e9
    if found != wanted:
        raise InvariantViolated(f"{way} counted {found[0]} words, {found[1]} different ones, and not {wanted}")
    return seconds


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield a session with Spark's default buffer: headgate's own setting for early rows would cost throughput here."""
    from headgate.spark.session import local_session  # noqa: PLC0415 - only where it is run

    spark = local_session(PARALLELISM, master=f"local[{PARALLELISM}]", conf={"spark.buffer.size": "65536"})
    try:
        yield spark
    finally:
        spark.stop()


# The pipelines ---------------------------------------------------------------------------------------------------


class _Lines(hg.Source[str]):
    """Emits a number of lines, each subtask its part."""

    fresh = True
    hint = str

    def __init__(self, count: int) -> None:
        self._count = count

    def splits(self, parallelism: int) -> list[int]:
        """Return the number of lines of each subtask."""
        return _shares(self._count, parallelism)

    def read(self, split: int, offset: int, place: Place) -> Iterator[Any]:  # noqa: ARG002 - all are alike
        yield from take(lines(_LINES), _LINES_AT_ONCE, split)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


class _LastCounts(hg.Sink[tuple[str, int]]):
    """Keeps the last count of each word, which is its final one."""

    def open(self, place: Place) -> None:
        self._place = place
        self._counts: dict[str, int] = {}

    def write(self, values: list[tuple[str, int]]) -> None:
        self._counts.update(values)

    def finish(self) -> None:
        self._place.counters.update({_WORDS: sum(self._counts.values()), _KEYS: len(self._counts)})


def count_by_headgate(
    make: Callable[..., hg.StreamExecutionEnvironment], mode: str, directory: str, count: int
) -> tuple[int, int]:
    """Return the number of words and of different words of `count` lines; partitions go to the directory."""
    env = make(settings={**NOT_KEPT, "execution.runtime_mode": mode, "batch.directories": directory})
    words = env.from_source(_Lines(count)).flat_map(split_line).map(pair_of)
    words.key_by(first_of).reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(_LastCounts())
    counters = finish(env.execute_async(f"word count, {mode}"), count / _SLOWEST)
    return sum(one.get(_WORDS, 0) for one in counters), sum(one.get(_KEYS, 0) for one in counters)


def count_by_spark(spark: SparkSession, count: int) -> tuple[int, int]:
    """Return the same by PySpark: `mapInArrow` with the same functions, then `groupBy` and `sum`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only where it is run

    shares = _shares(count, PARALLELISM)

    def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        for batch in batches:
            for part in batch.column("id").to_pylist():
                for some in take(lines(_LINES), _ARROW_LINES, shares[part]):
                    pairs = [pair_of(word) for line in some for word in split_line(line)]
                    yield pa.record_batch([[word for word, _ in pairs], [n for _, n in pairs]], ["word", "n"])

    parts = spark.range(0, PARALLELISM, 1, PARALLELISM)
    counts = parts.mapInArrow(words, "word string, n long").groupBy("word").agg(f.sum("n")).collect()
    return sum(n for _, n in counts), len(counts)


def expected(count: int) -> tuple[int, int]:
    """Return the right answer."""
    longest = _shares(count, PARALLELISM)[0]  # the other subtask has the same lines, or one less
    return count * LINE_WORDS, len({word for line in lines(min(longest, _LINES)) for word in split_line(line)})
