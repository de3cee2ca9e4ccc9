"""The workloads on Bytewax 0.21, written as in its documentation: a script that is one process of a cluster.

    python bytewax_flows.py CASE SECONDS WORKERS PROCESS "localhost:2101;localhost:2102"

runs WORKERS workers, threads of this process, as its part of the cluster; without addresses it is the only process. At
the end it prints on its last line one JSON object with the counts and times of its sources and sinks.
"""

# ruff: noqa: ARG002, D102, INP001 - the methods are Bytewax's, and this is a script, not part of a package
# Bytewax is not installed where headgate is checked:
# mypy: disable-error-code="import-not-found,misc"

import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

_workloads = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "workloads.py")))
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
_found: list[dict[str, Any]] = []  # one for each source and sink: workers are threads


def _counts() -> dict[str, Any]:
    _found.append({"made": 0, "first_ns": None, "seen": 0, "last_ns": 0, "delays_ns": []})
    return _found[-1]


def _all_counts() -> dict[str, Any]:
    begun = [one["first_ns"] for one in _found if one["first_ns"] is not None]
    return {
        "made": sum(one["made"] for one in _found),
        "seen": sum(one["seen"] for one in _found),
        "first_ns": min(begun, default=None),
        "last_ns": max(one["last_ns"] for one in _found),
        "delays_ns": [delay for one in _found for delay in one["delays_ns"]],
    }


class BatchPartition(StatelessSourcePartition[Any]):
    """Emits the batches of a generator."""

    def __init__(self, batches: Iterator[Any], paced: bool) -> None:
        self._batches = batches
        self._paced = paced
        self._counts = _counts()

    def next_batch(self) -> list[Any]:
        batch, counts = next(self._batches), self._counts
        if batch and counts["first_ns"] is None:
            counts["first_ns"] = time.monotonic_ns()
        counts["made"] += len(batch)
        return list(batch)

    def next_awake(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=_workloads.WAIT_S) if self._paced else None


class BatchSource(DynamicSource[Any]):
    """A source in each worker."""

    def __init__(self, make: Callable[[], Iterator[Any]], paced: bool = False) -> None:
        self._make = make
        self._paced = paced

    def build(self, step_id: str, worker_index: int, worker_count: int) -> BatchPartition:
        return BatchPartition(self._make(), self._paced)


class TallyPartition(StatelessSinkPartition[Any]):
    """Counts by a function of the batch and of the counts so far."""

    def __init__(self, count: Callable[[list[Any], dict[str, Any]], int]) -> None:
        self._count = count
        self._counts = _counts()

    def write_batch(self, items: list[Any]) -> None:
        counts = self._counts
        counts["last_ns"] = time.monotonic_ns()
        counts["seen"] += self._count(items, counts)


class TallySink(DynamicSink[Any]):
    """A sink in each worker."""

    def __init__(self, count: Callable[[list[Any], dict[str, Any]], int] = lambda items, _: len(items)) -> None:
        self._count = count

    def build(self, step_id: str, worker_index: int, worker_count: int) -> TallyPartition:
        return TallyPartition(self._count)


def _running(count: int | None, _: int) -> tuple[int, int]:
    count = (count or 0) + 1
    return count, count


def word_count(flow: Dataflow, seconds: float) -> None:
    """W1: the count of each word so far, for every word."""
    text = op.input("lines", flow, BatchSource(lambda: _workloads.repeat(_workloads.lines(40_000), 200, seconds)))
    words = op.flat_map("split", text, str.split)
    pairs = op.map("pair", words, lambda word: (word, 1))
    counts = op.stateful_map("count", pairs, _running)
    op.output("out", counts, TallySink())


def window_sum(flow: Dataflow, seconds: float) -> None:
    """W2: sums of one second of event time, by key."""
    clock = EventClock(
        ts_getter=lambda timed: _EPOCH + timedelta(milliseconds=timed[0]),
        wait_for_system_duration=timedelta(seconds=10),
    )
    windows = TumblingWindower(length=timedelta(seconds=1), align_to=_EPOCH)
    made = op.input("made", flow, BatchSource(lambda: _workloads.seconds_of(1000, seconds)))
    keyed = op.map("key", made, lambda record: (record[0], record[1:]))
    sums = win.reduce_window("sum", keyed, clock, windows, lambda a, b: (a[0], a[1] + b[1]))
    op.output("out", sums.down, TallySink(lambda items, _: sum(window[1][1] for _, window in items)))


def latency(flow: Dataflow, seconds: float) -> None:
    """W3: from source to sink, at 10,000 records a second in all."""

    def delays(items: list[Any], counts: dict[str, Any]) -> int:
        now_ns = time.monotonic_ns()
        counts["delays_ns"] += [(number, now_ns - made_ns) for _, (number, made_ns) in items]
        return len(items)

    made = op.input("made", flow, BatchSource(lambda: _workloads.pace(5_000, seconds), paced=True))
    mapped = op.map("first", made, lambda record: record)
    keyed = op.key_on("key", mapped, lambda record: str(record[0] % _workloads.KEYS))
    # Bytewax exchanges keyed records only before a stateful step.
    op.output("out", op.stateful_map("second", keyed, lambda _, record: (None, record)), TallySink(delays))


def shuffle(flow: Dataflow, seconds: float) -> None:
    """W4: records of 100 bytes from each worker to all."""
    made = op.input("made", flow, BatchSource(lambda: _workloads.repeat(_workloads.records(100_000), 1000, seconds)))
    op.output("out", op.redistribute("shuffle", made), TallySink())


def shuffle_keyed(flow: Dataflow, seconds: float) -> None:
    """W4: the same by key."""
    made = op.input("made", flow, BatchSource(lambda: _workloads.repeat(_workloads.records(100_000), 1000, seconds)))
    keyed = op.key_on("key", made, lambda record: str(record[0]))
    op.output("out", op.stateful_map("same", keyed, lambda _, record: (None, record)), TallySink())


_CASES = {
    "word-count": word_count,
    "window-sum": window_sum,
    "latency": latency,
    "shuffle": shuffle,
    "shuffle-keyed": shuffle_keyed,
}


def main(case: str, seconds: str, workers: str, process: str, addresses: str) -> None:
    """Run one process of the flow and print its counts."""
    flow = Dataflow(case)
    _CASES[case](flow, float(seconds))
    cluster_main(flow, addresses.split(";") if addresses else [], int(process), worker_count_per_proc=int(workers))
    sys.stdout.write(f"\n{json.dumps(_all_counts())}\n")  # on a line of its own: the library writes there, too


if __name__ == "__main__":
    main(*sys.argv[1:])
