"""Joins in windows, against every pair of records there is."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.window_models import AlignedModel, Mark, Model, Rec, SessionModel, Stream, streams

from headgate.errors import UserCodeError
from headgate.functions.windows import (
    CountTumblingWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headgate.task.windows.join import WindowJoin
from headgate.testing.harness import OperatorHarness


def key_of(value: tuple[str, int]) -> str:
    return value[0]


def is_first(record: Rec) -> bool:
    return record.n % 3 != 0


def pairs_of(model: Model, stream: Stream) -> Counter[Any]:
    """Every pair of records that were in a window when it fired."""
    records = {one.n: one for one in stream if isinstance(one, Rec)}
    return Counter(
        ((key, a), (key, b), end - 1)
        for key, _, end, numbers in model.run(stream).fired
        for a in numbers
        for b in numbers
        if is_first(records[a]) and not is_first(records[b])
    )


@settings(max_examples=200, deadline=None)
@given(streams(), st.integers(1, 20), st.integers(1, 20))
def test_every_pair_of_a_key_and_window(stream: Stream, size: int, slide: int) -> None:
    for assigner, model in (
        (TumblingEventTimeWindows.of(size), AlignedModel(size=size, slide=size)),
        (SlidingEventTimeWindows.of(size, slide), AlignedModel(size=size, slide=slide)),
        (EventTimeSessionWindows.with_gap(size), SessionModel(gap=size)),
    ):
        with OperatorHarness(WindowJoin(key_of, key_of, assigner, lambda a, b: (a, b))) as harness:
            for kind, items in groupby(stream, lambda one: is_first(one) if isinstance(one, Rec) else None):
                for one in items if kind is None else ():
                    if isinstance(one, Mark):
                        harness.watermark(one.time)
                if kind is not None:
                    records = [one for one in items if isinstance(one, Rec)]
                    give = harness.process if kind else harness.process_second
                    give([(one.key, one.n) for one in records], [one.time for one in records])
            harness.end()
        assert Counter((a, b, time) for (a, b), time in harness.timed) == pairs_of(model, stream)
        assert harness.counters.get("late_records_dropped", 0) == len(model.late)


def test_keys_of_the_two_sides_are_their_own() -> None:
    join = WindowJoin(lambda person: person["id"], lambda sale: sale[1], TumblingEventTimeWindows.of(10), _named)
    with OperatorHarness(join) as harness:
        harness.process([{"id": 7, "name": "ann"}], [3])
        harness.process_second([("lamp", 7), ("desk", 8)], [4, 5])
        harness.watermark(9)
        assert harness.timed == [(("ann", "lamp"), 9)]
        harness.process_second([("late", 7)], [9])
        harness.end()
    assert len(harness.values) == 1
    assert harness.counters == {"late_records_dropped": 1}


def _named(person: dict[str, Any], sale: tuple[str, int]) -> tuple[str, str]:
    return person["name"], sale[0]


def test_results_are_values_of_their_own() -> None:
    with OperatorHarness(WindowJoin(bool, bool, TumblingEventTimeWindows.of(10), lambda a, b: a)) as harness:
        harness.process([[1]], [0])
        harness.process_second([[2], [3]], [1, 2])
        harness.end()
    first, second = harness.values
    assert first == second == [1]
    assert first is not second


def test_by_processing_time() -> None:
    join = WindowJoin(key_of, key_of, TumblingProcessingTimeWindows.of(10), lambda a, b: (a, b))
    with OperatorHarness(join) as harness:
        harness.process([("a", 1)])
        harness.process_second([("a", 2)])
        harness.advance(10)
        assert harness.values == [(("a", 1), ("a", 2))]
        harness.process_second([("a", 3)])
        harness.end()
    assert len(harness.values) == 1


def test_windows_and_functions_that_do_not_do() -> None:
    with pytest.raises(TypeError, match="no windows such as CountTumblingWindows"):
        OperatorHarness(WindowJoin(key_of, key_of, CountTumblingWindows.of(2), max)).operator.open()
    with OperatorHarness(WindowJoin(bool, bool, TumblingEventTimeWindows.of(10), lambda a, b: a / b)) as harness:
        harness.process([1, "x"], [1, 1])
        harness.process_second([1], [1])
        with pytest.raises(UserCodeError, match="TypeError"):
            harness.end()
