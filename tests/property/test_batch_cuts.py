"""However records are cut into batches, windows, their results and what is late are the same."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.functions.times import MAX_WATERMARK_MS
from headgate.functions.watermarks import WatermarkGenerator, WatermarkStrategy
from headgate.functions.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from headgate.task.operators.timestamps import AssignTimestamps
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from headgate.task.operator import Times, Values

pytestmark = pytest.mark.spec("K3")

Record = tuple[str, int, int]  # its key, its number, its time


class Punctuated(WatermarkGenerator[Record]):
    """A watermark where the time ends in 0 or 5."""

    def on_event(self, value: Record, timestamp: int) -> int | None:
        return timestamp - 1 if timestamp % 5 == 0 else None


class EachRecord(WatermarkGenerator[Record]):
    """The watermark of monotonous timestamps behind each record: what the built-in strategies are measured by."""

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def on_event(self, value: Record, timestamp: int) -> int | None:
        return timestamp - self._bound - 1


class Into(OperatorHarness):
    """Hands on what comes out to another operator, as a chain does."""

    def __init__(self, strategy: WatermarkStrategy[Any], next_one: OperatorHarness) -> None:
        super().__init__(AssignTimestamps(strategy.with_timestamp_assigner(lambda record: record[2])))
        self._next = next_one

    def emit(self, values: Values, times: Times = None) -> None:
        if values:
            self._next.operator.process(values, times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._next.operator.watermark(timestamp_ms)


def outcome(
    strategy: WatermarkStrategy[Any],
    assigner: WindowAssigner,
    lateness: int,
    records: list[Record],
    cuts: list[int],
    *,
    batch: bool = False,
) -> tuple[list[Any], list[Any]]:
    """What comes out of windows, in its order, and what is late."""
    function = lambda key, window, values: [(key, window, tuple(n for _, n, _ in values))]  # noqa: E731
    windows = WindowOperator(lambda record: record[0], assigner, function, "apply", lateness, "late")
    with OperatorHarness(windows, batch=batch) as behind, Into(strategy, behind) as assign:
        bounds = [0, *sorted(cuts), len(records)]
        for begin, end in pairwise(bounds):
            assign.process(records[begin:end])
        assign.operator.watermark(MAX_WATERMARK_MS)
        behind.operator.finish()
    return behind.timed, behind.sides.get("late", [])


@st.composite
def cut_records(draw: st.DrawFn) -> tuple[list[Record], list[int]]:
    times = draw(st.lists(st.integers(-12, 40), max_size=25))
    keys = draw(st.sampled_from(["a", "ab"]))
    records = [(draw(st.sampled_from(keys)), n, time) for n, time in enumerate(times)]
    return records, draw(st.lists(st.integers(0, len(records)), max_size=8))


aligned = st.sampled_from(
    [
        TumblingEventTimeWindows.of(5),
        TumblingEventTimeWindows.of(7, 2),
        SlidingEventTimeWindows.of(10, 3),
        SlidingEventTimeWindows.of(4, 6),
    ]
)
lateness = st.sampled_from([0, 0, 4, 100])
LATE = [("a", 0, 0), ("a", 1, 10_000), ("a", 2, 1)]


@settings(max_examples=300, deadline=None)
@example((LATE, []), TumblingEventTimeWindows.of(5), 0)
@given(cut_records(), aligned | st.sampled_from([EventTimeSessionWindows.with_gap(4)]), lateness)
def test_with_a_generator_batches_do_not_show(cut: tuple[list[Record], list[int]], assigner: Any, late: int) -> None:
    records, cuts = cut
    strategy = WatermarkStrategy.for_generator(Punctuated)
    found = outcome(strategy, assigner, late, records, cuts)
    assert found == outcome(strategy, assigner, late, records, list(range(len(records)))), "as one by one"
    in_batch = outcome(strategy, assigner, late, records, cuts, batch=True)
    assert [sorted(one, key=repr) for one in in_batch] == [sorted(one, key=repr) for one in found]


@settings(max_examples=300, deadline=None)
@example((LATE, []), TumblingEventTimeWindows.of(5), 0, 0)
@given(cut_records(), aligned, lateness, st.sampled_from([0, 0, 3, 15]))
def test_with_built_in_strategies_batches_do_not_show_either(
    cut: tuple[list[Record], list[int]], assigner: Any, late: int, bound: int
) -> None:
    records, cuts = cut
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound)
    each = WatermarkStrategy.for_generator(lambda: EachRecord(bound))
    expected = outcome(each, assigner, late, records, [])
    assert outcome(strategy, assigner, late, records, cuts) == expected
    assert outcome(strategy, assigner, late, records, list(range(len(records)))) == expected
