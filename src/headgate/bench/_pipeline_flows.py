"""The pipelines that are measured, as a user would write them, and the sources and sinks that hold the watch.

Sources and sinks run in the workers. They leave what they counted, and when, in their task's counters, which come with
the job's last progress: `_pipeline_run` reads them there. All clocks are the machine's monotonic one.
"""

from __future__ import annotations

import time
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headgate as hg
from headgate.bench._workloads import KEYS, WAIT_S, lines, pace, records, repeat, second, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from headgate.task.operator import Place

__all__ = ["FIRST", "LAST", "MADE", "RATE_HZ", "SEEN", "Delays", "Made", "Tally", "flows", "latency", "latency_arrow"]

MADE = "bench_made"
"""The counter of a source: records that it made."""
FIRST = "bench_first_ns"
"""Likewise: when it gave out the first."""
SEEN = "bench_seen"
"""The counter of a sink: records that came."""
LAST = "bench_last_ns"
"""Likewise: when the last came."""

_LINES, _LINES_AT_ONCE = 40_000, 200
_ARROW_LINES = 5_000  # 50,000 words in a record batch
_RECORDS, _AT_ONCE = 100_000, 1_000
_ARROW_ROWS = 10_000
RATE_HZ = 5_000  # of each of the two sources of W3


class Made(hg.Source[Any]):
    """In each subtask, what a generator makes: a batch at a time, or an empty one when nothing is due.

    >>> place = type("Place", (), {"counters": {}})
    >>> [batch for batch in Made(lambda: iter(["ab", "", "c"]), str).read(0, 0, place)]
    ['ab', Wait(seconds=0.0005), 'c']
    >>> place.counters["bench_made"]
    3
    """

    def __init__(self, batches: Callable[[], Iterator[Any]], hint: object, *, count: Callable[[Any], int] = len):
        self._batches = batches
        self._count = count
        self.hint = hint

    def splits(self, parallelism: int) -> list[int]:
        """One for each subtask."""
        return list(range(parallelism))

    def read(self, split: int, offset: int, place: Place) -> Iterator[Any]:  # noqa: ARG002 - all are alike
        """All batches."""
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


class Tally(hg.Sink[Any]):
    """Counts what comes.

    >>> place, tally = type("Place", (), {"counters": {}}), Tally()
    >>> tally.open(place); tally.write(["to", "be"]); tally.finish()
    >>> place.counters["bench_seen"]
    2
    """

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
        """Leave what was found."""
        self._place.counters.update({SEEN: self._seen, LAST: self._last_ns})


class Delays(hg.Sink[tuple[int, int]]):
    """How long each record was under way, in nanoseconds: a file of them for each subtask, in a directory.

    The first `skip` records of each source are not counted: connections and caches are warm after them.
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
        """Leave what was found."""
        (Path(self._directory) / str(self._place.subtask)).write_bytes(self._delays_ns.tobytes())
        self._place.counters[SEEN] = len(self._delays_ns)


def _rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _split(line: str) -> list[str]:
    return line.split()


def _pair(word: str) -> tuple[str, int]:
    return word, 1


def _first(record: tuple[Any, ...]) -> Any:
    return record[0]


# W1 ------------------------------------------------------------------------------------------------------


def _word_count(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    text = env.from_source(Made(lambda: repeat(lines(_LINES), _LINES_AT_ONCE, seconds), str))
    words = text.flat_map(_split).map(_pair)
    words.key_by(_first).reduce(lambda a, b: (a[0], a[1] + b[1])).sink_to(Tally())


def _arrow_lines(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415 - in the worker, as everywhere here

    text = lines(_LINES)
    starts = range(0, _LINES, _ARROW_LINES)
    batches = [pa.record_batch({"line": text[start : start + _ARROW_LINES]}) for start in starts]
    return repeat(batches, 1, seconds)  # type: ignore[return-value] # slices of a list are lists


def _arrow_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pa.record_batch({"word": pc.list_flatten(pc.split_pattern(batch["line"], " "))})


class _RunningCounts(hg.MapFunction[Any, Any]):
    """For each word of a batch its count so far, `n`, and how many of the batch it stands for, `new`."""

    def open(self, context: hg.RuntimeContext) -> None:  # noqa: ARG002 - it needs nothing of it
        """Know no word."""
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
    text = env.from_source(Made(partial(_arrow_lines, seconds), "arrow", count=_rows))
    words: hg.KeyedStream[Any, Any] = text.map_batches(_arrow_words, form="arrow").key_by("word")
    counts = words.map_batches(_RunningCounts(), form="arrow")  # type: ignore[arg-type] # it takes those, too
    counts.sink_to(Tally(_words_counted))


def _words_counted(batches: list[pa.RecordBatch]) -> int:
    return sum(batch["new"].sum().as_py() for batch in batches)


# W2 ------------------------------------------------------------------------------------------------------


def _timed() -> hg.WatermarkStrategy[Any]:
    return hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])


def _sum_by_second(timed: hg.DataStream[Any]) -> None:
    seconds = timed.key_by(_first).window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
    seconds.reduce(lambda a, b: (a[0], a[1], a[2] + b[2])).sink_to(Tally(_summed))


def _summed(records: list[tuple[str, int, int]]) -> int:
    return sum([record[2] for record in records])


def _window_sum(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    made = env.from_source(Made(partial(seconds_of, _AT_ONCE, seconds), tuple[str, int, int]))
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
    """The sums of a batch, by key and second, with the second's first millisecond as their time."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    start = pc.multiply(pc.divide(batch["ms"], 1000), 1000)
    rows = pa.table({"key": batch["key"], "ms": start, "value": batch["value"]})
    return rows.group_by(["key", "ms"], use_threads=False).aggregate([("value", "sum")])


def _window_sum_arrow(env: hg.StreamExecutionEnvironment, seconds: float) -> None:
    made = env.from_source(Made(partial(_arrow_seconds, seconds), "arrow", count=_rows))
    sums = made.map_batches(_partial_sums, form="arrow").from_arrow(output_type=tuple[str, int, int])
    _sum_by_second(sums.assign_timestamps_and_watermarks(_timed()))


# W3 ------------------------------------------------------------------------------------------------------


def latency(env: hg.StreamExecutionEnvironment, seconds: float, directory: str, skip_s: float) -> None:
    """W3: 10,000 records a second in all; the delays are left in the directory."""
    made = env.from_source(Made(partial(pace, RATE_HZ, seconds), tuple[int, int]))
    keyed = made.map(_same).key_by(lambda record: record[0] % KEYS)
    keyed.map(_same).sink_to(Delays(directory, round(RATE_HZ * skip_s)))


def _same(record: tuple[int, int]) -> tuple[int, int]:
    return record


def latency_arrow(env: hg.StreamExecutionEnvironment, seconds: float, directory: str, skip_s: float) -> None:
    """W3, with what is due together in one record batch."""
    made = env.from_source(Made(partial(_arrow_paced, seconds), "arrow", count=_rows))
    keyed: hg.KeyedStream[Any, Any] = made.map_batches(_same, form="arrow").key_by("number")
    keyed.map_batches(_same, form="arrow").sink_to(Delays(directory, round(RATE_HZ * skip_s), arrow=True))


def _arrow_paced(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    for due in pace(RATE_HZ, seconds):
        numbers, times = zip(*due, strict=True) if due else ((), ())
        yield [pa.record_batch({"number": numbers, "made_ns": times})] if due else []


# W4 ------------------------------------------------------------------------------------------------------


def _shuffle(env: hg.StreamExecutionEnvironment, seconds: float, *, keyed: bool) -> None:
    hint = tuple[int, float, str, int]
    made = env.from_source(Made(lambda: repeat(records(_RECORDS), _AT_ONCE, seconds), hint))
    (made.key_by(_first) if keyed else made.rebalance()).sink_to(Tally())


def _shuffle_arrow(env: hg.StreamExecutionEnvironment, seconds: float, *, keyed: bool) -> None:
    made = env.from_source(Made(partial(_arrow_records, seconds), "arrow", count=_rows))
    (made.key_by("id") if keyed else made.rebalance()).sink_to(Tally(_rows))


def _arrow_records(seconds: float) -> Iterator[list[pa.RecordBatch]]:
    import pyarrow as pa  # noqa: PLC0415

    columns = zip(*records(_RECORDS), strict=True)
    whole = pa.record_batch(dict(zip(("id", "price", "text", "seven"), columns, strict=True)))
    parts = [whole.slice(start, _ARROW_ROWS) for start in range(0, _RECORDS, _ARROW_ROWS)]
    return repeat(parts, 1, seconds)  # type: ignore[return-value] # slices of a list are lists


flows: dict[str, Callable[[hg.StreamExecutionEnvironment, float], object]] = {
    "W1": _word_count,
    "W1 Arrow": _word_count_arrow,
    "W2": _window_sum,
    "W2 Arrow": _window_sum_arrow,
    "W4": partial(_shuffle, keyed=False),
    "W4 keyed": partial(_shuffle, keyed=True),
    "W4 Arrow": partial(_shuffle_arrow, keyed=False),
    "W4 Arrow keyed": partial(_shuffle_arrow, keyed=True),
}
"""Those of which the throughput is measured: each adds a pipeline to an environment that runs for so many seconds."""
