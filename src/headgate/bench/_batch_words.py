"""Word count in BATCH, in STREAMING and as plain PySpark: how long each takes, and how much memory.

Called by the suite. Each run is a process of its own with a Spark session of its own, `local[2]`, so that nothing is
left of the run before: a JVM seldom gives memory back. The three make the same lines in two Python workers and split
them by the same functions. Invariant: no figure comes from a run that did not count every word.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import headgate as hg
from headgate.bench._children import START_S, Parent, child
from headgate.bench._pipeline_run import NOT_KEPT, finish, on_spark
from headgate.bench._process_tree import Held, peak_of, wait_until_gone
from headgate.bench._workloads import LINE_WORDS, exactly, lines
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from headgate.task.operator import Place

__all__ = ["HOWS", "Counted", "Last", "Text", "count_by_headgate", "count_by_spark", "count_words", "expected"]

_PARALLELISM: Final = 2
_LINES: Final = 40_000  # different ones, which are given out again and again
_LINES_AT_ONCE: Final = 200
_ARROW_LINES: Final = 1_000  # 10,000 words in a record batch, which is what Spark has by default
_WARM_LINES: Final = 2_000
_SLOWEST: Final = 5_000.0  # lines/s: below it something hangs
_WORDS: Final = "bench_words"  # the counters of a sink: all words that were counted,
_KEYS: Final = "bench_keys"  # and different ones


class Counted(NamedTuple):
    """One run.

    >>> Counted(words=100, seconds=4.0, held=Held(0, 0)).per_second
    25.0
    """

    words: int
    seconds: float  # from the call to its return, on a session that has done the same before
    held: Held  # at most, by the driver and all that it has started

    @property
    def per_second(self) -> float:
        """Words a second."""
        return self.words / self.seconds


# The pipeline -----------------------------------------------------------------------------------------------


def split(line: str) -> list[str]:
    """The words of a line.

    >>> split("to be")
    ['to', 'be']
    """
    return line.split()


def pair(word: str) -> tuple[str, int]:
    """A word that was seen once.

    >>> pair("to")
    ('to', 1)
    """
    return word, 1


class Text(hg.Source[str]):
    """So many lines, in each subtask its part.

    >>> text = Text(5)
    >>> [sum(map(len, text.read(split, 0, None))) for split in text.splits(2)]
    [3, 2]
    """

    hint = str

    def __init__(self, count: int) -> None:
        self._count = count

    def splits(self, parallelism: int) -> list[int]:
        """How many lines there are in each."""
        return _shares(self._count, parallelism)

    def read(self, split: int, offset: int, place: Place) -> Iterator[Any]:  # noqa: ARG002 - all are alike
        """The lines of one."""
        yield from exactly(lines(_LINES), _LINES_AT_ONCE, split)


def _shares(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


class Last(hg.Sink[tuple[str, int]]):
    """Keeps the last count of each word, which is the final one.

    >>> place, last = type("Place", (), {"counters": {}}), Last()
    >>> last.open(place); last.write([("to", 1), ("be", 1), ("to", 2)]); last.finish()
    >>> place.counters
    {'bench_words': 3, 'bench_keys': 2}
    """

    def open(self, place: Place) -> None:
        """See `Sink`."""
        self._place = place
        self._counts: dict[str, int] = {}

    def write(self, values: list[tuple[str, int]]) -> None:
        """Newer counts replace older ones."""
        self._counts.update(values)

    def finish(self) -> None:
        """Leave what was found."""
        self._place.counters.update({_WORDS: sum(self._counts.values()), _KEYS: len(self._counts)})


def count_by_headgate(
    make: Callable[..., hg.StreamExecutionEnvironment], mode: str, directory: str, count: int
) -> tuple[int, int]:
    """All words and different words of so many lines, by a pipeline in a mode; partitions go to the directory."""
    env = make(settings={**NOT_KEPT, "execution.runtime_mode": mode, "batch.directories": directory})
    words = env.from_source(Text(count)).flat_map(split).map(pair)
    words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(Last())
    counters = finish(env.execute_async(f"word count, {mode}"), count / _SLOWEST)
    return sum(one.get(_WORDS, 0) for one in counters), sum(one.get(_KEYS, 0) for one in counters)


def count_by_spark(spark: SparkSession, count: int) -> tuple[int, int]:
    """The same by PySpark: `mapInArrow` with the same functions, then `groupBy` and `sum`."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only where it is run

    shares = _shares(count, _PARALLELISM)

    def words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        for batch in batches:
            for part in batch.column("id").to_pylist():
                for some in exactly(lines(_LINES), _ARROW_LINES, shares[part]):
                    pairs = [pair(word) for line in some for word in split(line)]
                    yield pa.record_batch([[word for word, _ in pairs], [n for _, n in pairs]], ["word", "n"])

    parts = spark.range(0, _PARALLELISM, 1, _PARALLELISM)
    counts = parts.mapInArrow(words, "word string, n long").groupBy("word").agg(f.sum("n")).collect()
    return sum(n for _, n in counts), len(counts)


def expected(count: int) -> tuple[int, int]:
    """What each of them must find.

    >>> expected(1)
    (10, 10)
    """
    longest = _shares(count, _PARALLELISM)[0]  # the others have the same lines, or one less
    return count * LINE_WORDS, len({word for line in lines(min(longest, _LINES)) for word in split(line)})


# The process ------------------------------------------------------------------------------------------------


HOWS: Final = ("BATCH", "STREAMING", "PySpark")
"""The ways to count."""


def count_words(how: str, count: int, directory: str, *, local: bool = False) -> Counted:
    """Count the words of so many lines, one way, in a process of its own; `local`: in its threads, not on Spark.

    Raises:
        ChildFailed: it did not count every word, or took too long.
    """
    limit_s = 2 * START_S + count / _SLOWEST
    with child(_count, how, count, directory, local) as process:
        process.receive(limit_s)
        with peak_of(process.pid) as peak:
            process.send("begin")
            seconds = process.result(limit_s)
    wait_until_gone(peak.processes)
    return Counted(count * LINE_WORDS, seconds, peak.held)


def _count(parent: Parent, how: str, count: int, directory: str, local: bool) -> float:
    """In that process: how many seconds it took, after a first time that does not count."""
    threads = partial(hg.environment, local=True, parallelism=_PARALLELISM)
    with ExitStack() as stack:
        if how == "PySpark":
            run = partial(count_by_spark, stack.enter_context(_session()))
        else:
            make = threads if local else stack.enter_context(on_spark())
            run = partial(count_by_headgate, make, how, directory)
        run(min(count, _WARM_LINES))
        wanted = expected(count)
        parent.send("warm")
        parent.receive(START_S)
        started_ns = time.monotonic_ns()
        found = run(count)
        seconds = (time.monotonic_ns() - started_ns) / 1e9
    if found != wanted:
        raise InvariantViolated(f"{how} counted {found[0]} words, {found[1]} different ones, and not {wanted}")
    return seconds


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Spark as it is by itself: what headgate's sessions do to have rows early would cost throughput here."""
    from headgate.spark.session import local_session  # noqa: PLC0415 - only where it is run

    spark = local_session(_PARALLELISM, master=f"local[{_PARALLELISM}]", conf={"spark.buffer.size": "65536"})
    try:
        yield spark
    finally:
        spark.stop()
