"""The measured pipelines W1 to W4, as a user would write them, with sources and sinks that count and time.

Sources and sinks run in the workers. They leave their counts and times in their task's counters, which the driver reads
from the job's last progress. All times are of the machine's monotonic clock.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import headgate as hg
from headgate.bench.workloads import KEYS, WAIT_S, lines, pace, records, repeat, second, seconds_of
from headgate.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from headgate.functions.place import Place

__all__ = [
    "FIRST",
    "FLOWS",
    "LAST",
    "MADE",
    "RATE_HZ",
    "SEEN",
    "CountingSink",
    "CountingSource",
    "DelaySink",
    "Tally",
    "first_of",
    "latency",
    "latency_arrow",
    "pair_of",
    "split_line",
]

MADE: Final = "bench_made"
"""The counter of a source: records made."""
FIRST: Final = "bench_first_ns"
"""The counter of a source: when the first record was emitted."""
SEEN: Final = "bench_seen"
"""The counter of a sink: records that came."""
LAST: Final = "bench_last_ns"
"""The counter of a sink: when the last record came."""
RATE_HZ: Final = 5_000
"""Of each of the two sources of W3."""

_LINES, _LINES_AT_ONCE = 40_000, 200
_ARROW_LINES = 5_000  # 50,000 words in a record batch
_RECORDS, _AT_ONCE = 100_000, 1_000
_ARROW_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of all sources and sinks of one run."""

    made: int
    seen: int
    first_ns: int
    last_ns: int

    @classmethod
    def of(cls, counters: Sequence[Mapping[str, int]], *, each: int = 1) -> Tally:
        """Return the sum over all subtasks; a sink is to see `each` records for one that was made.

        Raises:
            InvariantViolated: Records were lost or duplicated: there is no figure.
        """
        made = sum(one.get(MADE, 0) for one in counters) * each
        seen = sum(one.get(SEEN, 0) for one in counters)
        if made != seen or not made:
            raise InvariantViolated(f"{made} records were made and {seen} came to the sinks")
        first_ns = min(one[FIRST] for one in counters if FIRST in one)
        return cls(made, seen, first_ns, max(one.get(LAST, 0) for one in counters))

    @property
    def per_second(self) -> float:
        """Records per second, from the first that was emitted to the last that came."""
        return self.seen * 1e9 / max(1, self.last_ns - self.first_ns)


class CountingSource(hg.Source[Any]):
    """Emits in each subtask the batches of a generator; for an empty batch, it waits."""

    fresh = True

    def __init__(self, batches: Callable[[], Iterator[Any]], hint: object, *, count: Callable[[Any], int] = len):
        self._batches = batches
        self._count = count
        self.hint = hint

    def splits(self, parallelism: int) -> list[int]:
        """Return one split for each subtask."""
        return list(range(parallelism))

    def read(self, split: int, offset: int, place: Place) -> Iterator[Any]:  # noqa: ARG002 - all are alike
        """Yield all batches."""
        made, count = 0, self._count
        for batch in self._batches():
            if not batch:
                yield hg.Wait(WAIT_S)
                continue
            if not made:
                place.counters[FIRST] = time.monotonic_ns()
            made += count(batch)
            yield batch
        place.counters[MADE] = made


class CountingSink(hg.Sink[Any]):
    """Counts records."""

    def __init__(self, count: Callable[[list[Any]], int] = len) -> None:
        self._count = count

    def open(self, place: Place) -> None:
        """See `Sink`."""
        self._place = place
        self._seen = self._last_ns = 0

    def write(self, values: list[Any]) -> None:
        """Count a batch."""
        self._seen += self._count(values)
        self._last_ns = time.monotonic_ns()

    def finish(self) -> None:
        """Leave the counts in the task's counters."""
        self._place.counters.update({SEEN: self._seen, LAST: self._last_ns})


class DelaySink(hg.Sink[tuple[int, int]]):
    """Writes the delays of its records, in nanoseconds, to a file of its own in a directory.

    The first `skip` records of each source do not count: connections and caches are cold.
    """

    def __init__(self, directory: str, skip: int, *, arrow: bool = False) -> None:
        self._directory = directory
        self._skip = skip
        self._arrow = arrow

    def open(self, place: Place) -> None:
        """See `Sink`."""
        self._place = place
        self._delays_ns = array("q")

    def write(self, values: list[Any]) -> None:
        """Time a batch."""
        now_ns, skip = time.monotonic_ns(), self._skip
        pairs = values
        if self._arrow:
            pairs = [pair for batch in values for pair in zip(*(one.to_pylist() for one in batch.columns), strict=True)]
        self._delays_ns.extend([now_ns - made_ns for number, made_ns in pairs if number >= skip])

    def finish(self) -> None:
        """Write the file."""
        (Path(self._directory) / str(self._place.subtask)).write_bytes(self._delays_ns.tobytes())
        self._place.counters[SEEN] = len(self._delays_ns)


def split_line(line: str) -> list[str]:
    """Return the words of a line."""
    return line.split()


def pair_of(word: str) -> tuple[str, int]:
    """Return a word with its count of 1."""
    return word, 1


def first_of(record: tuple[Any, ...]) -> Any:
    """Return the first field."""
    return record[0]


def _rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


# W1 ------------------------------------------------------------------------------------------------------------------


def _word_count(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    text = env.from_source(CountingSource(lambda: repeat(lines(_LINES), _LINES_AT_ONCE, seconds), str))
    words = text.flat_map(split_line).map(pair_of)
    words.key_by(first_of).reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(CountingSink())


def _arrow_lines(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415 - only in the worker, as everywhere here

    text = lines(_LINES)
    starts = range(0, _LINES, _ARROW_LINES)
    batches = [pa.record_batch({"line": text[start : start + _ARROW_LINES]}) for start in starts]
    return repeat(batches, 1, seconds)  # type: ignore[return-value] # slices of a list are lists


def _arrow_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pa.record_batch({"word": pc.list_flatten(pc.split_pattern(batch["line"], " "))})


class _RunningCounts(hg.MapFunction[Any, Any]):
    """Returns for each word of a batch its count so far, `n`, and its count in the batch, `new`."""

    def open(self, context: hg.RuntimeContext) -> None:  # noqa: ARG002 - it needs nothing of it
        """Start without words."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        self._words, self._counts = pa.array([], pa.string()), np.zeros(0, np.int64)

    def map(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count a batch."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        words, new = batch["word"].value_counts().flatten()
        places = pc.index_in(words, value_set=self._words)
        if places.null_count:
            unknown = words.filter(places.is_null())
            self._words = pa.concat_arrays([self._words, unknown])
            self._counts = np.concatenate([self._counts, np.zeros(len(unknown), np.int64)])
            places = pc.index_in(words, value_set=self._words)
        at = places.to_numpy()
        self._counts[at] += new.to_numpy()
        return pa.record_batch({"word": words, "n": self._counts[at], "new": new})


def _word_count_arrow(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    text = env.from_source(CountingSource(partial(_arrow_lines, seconds), "arrow", count=_rows))
    words: hg.KeyedStream[Any, Any] = text.map_batches(_arrow_words, form="arrow").key_by("word")
    counts = words.map_batches(_RunningCounts(), form="arrow")  # type: ignore[arg-type] # it takes those, too
    counts.sink_to(CountingSink(_words_counted))


def _words_counted(batches: list[pa.RecordBatch]) -> int:
    return sum(batch["new"].sum().as_py() for batch in batches)


# W2 ------------------------------------------------------------------------------------------------------------------


def _timed() -> hg.WatermarkStrategy[Any]:
    return hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])


def _sum_by_second(timed: hg.DataStream[Any]) -> None:
    seconds = timed.key_by(first_of).window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
    seconds.reduce(lambda a, b: (a[0], a[1], a[2] + b[2])).sink_to(CountingSink(_summed))


def _summed(records: list[tuple[str, int, int]]) -> int:
    return sum([record[2] for record in records])


def _window_sum(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    made = env.from_source(CountingSource(partial(seconds_of, _AT_ONCE, seconds), tuple[str, int, int]))
    _sum_by_second(made.assign_timestamps_and_watermarks(_timed()))


def _arrow_seconds(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    keys, times = zip(*second(), strict=True)
    whole = pa.record_batch({"key": keys, "ms": times, "value": [1] * len(keys)})
    parts, base_ms = [whole.slice(start, _ARROW_ROWS) for start in range(0, len(keys), _ARROW_ROWS)], 0
    for (batch,) in repeat(parts, 1, seconds):
        yield [batch.set_column(1, "ms", pc.add(batch["ms"], base_ms))]
        if batch is parts[-1]:
            base_ms += 1000


def _partial_sums(batch: pa.RecordBatch) -> pa.Table:
    """Return the sums of a batch by key and second, with the second's first millisecond as their time."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    start = pc.multiply(pc.divide(batch["ms"], 1000), 1000)
    rows = pa.table({"key": batch["key"], "ms": start, "value": batch["value"]})
    return rows.group_by(["key", "ms"], use_threads=False).aggregate([("value", "sum")])


def _window_sum_arrow(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    made = env.from_source(CountingSource(partial(_arrow_seconds, seconds), "arrow", count=_rows))
    sums = made.map_batches(_partial_sums, form="arrow").from_arrow(output_type=tuple[str, int, int])
    _sum_by_second(sums.assign_timestamps_and_watermarks(_timed()))


# W3 ------------------------------------------------------------------------------------------------------------------


def latency(env: hg.StreamExecutionEnvironment, seconds: float, directory: str, skip_s: float) -> None:
    """Add W3: 10,000 records per second in all; the sinks write the delays to the directory."""
    made = env.from_source(CountingSource(partial(pace, RATE_HZ, seconds), tuple[int, int]))
    keyed = made.map(_same).key_by(lambda record: record[0] % KEYS)
    keyed.map(_same).sink_to(DelaySink(directory, round(RATE_HZ * skip_s)))


def _same(record: tuple[int, int]) -> tuple[int, int]:
    return record


def latency_arrow(env: hg.StreamExecutionEnvironment, seconds: float, directory: str, skip_s: float) -> None:
    """Add W3 with the records that are due together in one record batch."""
    made = env.from_source(CountingSource(partial(_arrow_paced, seconds), "arrow", count=_rows))
    keyed: hg.KeyedStream[Any, Any] = made.map_batches(_same, form="arrow").key_by("number")
    keyed.map_batches(_same, form="arrow").sink_to(DelaySink(directory, round(RATE_HZ * skip_s), arrow=True))


def _arrow_paced(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    for due in pace(RATE_HZ, seconds):
        numbers, times = zip(*due, strict=True) if due else ((), ())
        yield [pa.record_batch({"number": numbers, "made_ns": times})] if due else []


# W4 ------------------------------------------------------------------------------------------------------------------


def _shuffle(env: hg.StreamExecutionEnvironment, seconds: float, *, keyed: bool) -> None:
    hint = tuple[int, float, str, int]
    made = env.from_source(CountingSource(lambda: repeat(records(_RECORDS), _AT_ONCE, seconds), hint))
    (made.key_by(first_of) if keyed else made.rebalance()).sink_to(CountingSink())


def _shuffle_arrow(env: hg.StreamExecutionEnvironment, seconds: float, *, keyed: bool) -> None:
    made = env.from_source(CountingSource(partial(_arrow_records, seconds), "arrow", count=_rows))
    (made.key_by("id") if keyed else made.rebalance()).sink_to(CountingSink(_rows))


def _arrow_records(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    columns = zip(*records(_RECORDS), strict=True)
    whole = pa.record_batch(dict(zip(("id", "price", "text", "seven"), columns, strict=True)))
    parts = [whole.slice(start, _ARROW_ROWS) for start in range(0, _RECORDS, _ARROW_ROWS)]
    return repeat(parts, 1, seconds)  # type: ignore[return-value] # slices of a list are lists


FLOWS: Final[dict[str, Callable[[hg.StreamExecutionEnvironment, float], object]]] = {
    "W1": _word_count,
    "W1 Arrow": _word_count_arrow,
    "W2": _window_sum,
    "W2 Arrow": _window_sum_arrow,
    "W4": partial(_shuffle, keyed=False),
    "W4 keyed": partial(_shuffle, keyed=True),
    "W4 Arrow": partial(_shuffle_arrow, keyed=False),
    "W4 Arrow keyed": partial(_shuffle_arrow, keyed=True),
}
"""The pipelines whose throughput is measured: each adds itself to an environment and runs for some seconds."""
