"""Timestamps, watermarks and idleness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import accumulate
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UserCodeError
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.watermarks import AssignTimestamps, TimestampAssigner, WatermarkStrategy
from headgate.task.windows import Time
from headgate.testing.harness import OperatorHarness

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def harness_of(strategy: WatermarkStrategy[Any], now_ms: int = 0) -> OperatorHarness:
    return OperatorHarness(AssignTimestamps(strategy), now_ms=now_ms)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)), st.integers(0, 10**6))
def test_a_watermark_for_each_batch_that_raises_it(batches: list[list[int]], bound: int) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(lambda value: value)
    with harness_of(strategy) as harness:
        for batch in batches:
            harness.process(batch)
    assert harness.timed == [(value, value) for batch in batches for value in batch]
    highest = list(accumulate((max(batch) for batch in batches if batch), max))
    expected = sorted({one - bound - 1 for one in highest if one - bound - 1 > -(2**63)})
    assert harness.watermarks == expected


def test_a_watermark_comes_after_its_batch() -> None:
    log: list[object] = []
    with harness_of(MONOTONOUS) as harness:
        harness.emit = lambda values, times=None: log.append((values, times))  # type: ignore[method-assign]
        harness.emit_watermark = log.append  # type: ignore[method-assign,assignment]
        harness.process(["a", "b"], [5, 3])
    assert log == [(["a", "b"], [5, 3]), 4]


def test_only_the_last_watermark_of_others_is_handed_on() -> None:
    with harness_of(WatermarkStrategy.no_watermarks()) as harness:
        harness.process(["a"], [5])
        harness.watermark(3)
        harness.operator.status(active=False)
        assert (harness.watermarks, harness.statuses) == ([], [])
        harness.end()
    assert harness.watermarks == [MAX_WATERMARK_MS]


def test_functions_of_one_and_two_arguments() -> None:
    class Assigner(TimestampAssigner):
        def extract_timestamp(self, value, record_timestamp):
            return value[0] + (record_timestamp or 0)

    field = 0
    for assigner, times in (
        (lambda value: value[0], [7]),
        (lambda value, previous: value[0] + (previous or 0), [107]),
        (lambda value, field=field: value[field], [7]),
        (Assigner(), [107]),
        (itemgetter(0), [7]),
        (lambda *args: args[0][0], [7]),
    ):
        with harness_of(MONOTONOUS.with_timestamp_assigner(assigner)) as harness:
            harness.process([(7,)], [100])
            harness.process([(7,)], None)
        assert [time for _, time in harness.timed] == [*times, 7]


def test_what_may_be_a_timestamp() -> None:
    numpy = pytest.importorskip("numpy")
    given = [
        datetime(1970, 1, 1, 0, 0, 1, 1999),  # noqa: DTZ001 - naive is UTC
        datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC),
        numpy.int64(5),
        6,
    ]
    with harness_of(MONOTONOUS.with_timestamp_assigner(lambda value: value)) as harness:
        harness.process(given)
    times = [time for _, time in harness.timed]
    assert times == [1001, 0, -1, 5, 6]
    assert {type(time) for time in times} == {int}


@pytest.mark.parametrize("wrong", [1.5, "5", None, True, timedelta(1)])
def test_what_may_not(wrong: object) -> None:
    with (
        harness_of(MONOTONOUS.with_timestamp_assigner(lambda value: value)) as harness,
        pytest.raises(UserCodeError, match=r"returned .*an int of milliseconds since 1970, or a datetime"),
    ):
        harness.process([1, wrong])


def test_errors_say_what_to_do() -> None:
    with harness_of(MONOTONOUS) as harness, pytest.raises(UserCodeError, match="use with_timestamp_assigner"):
        harness.process(["a"])
    with (
        harness_of(MONOTONOUS.with_timestamp_assigner(lambda value: 2**63)) as harness,
        pytest.raises(UserCodeError, match="64 bits"),
    ):
        harness.process(["a"])
    with (
        harness_of(MONOTONOUS.with_timestamp_assigner(lambda value: value["at"])) as harness,
        pytest.raises(UserCodeError, match="AssignTimestamps, subtask 0: KeyError"),
    ):
        harness.process([{}])
    with pytest.raises(TypeError, match="a function or a TimestampAssigner"):
        MONOTONOUS.with_timestamp_assigner("at")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="0 ms or more"):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)
    with pytest.raises(ValueError, match="more than 0"):
        MONOTONOUS.with_idleness(0)


def test_lengths_of_time_in_every_form() -> None:
    for bound in (5000, Time.seconds(5), timedelta(seconds=5)):
        assert WatermarkStrategy.for_bounded_out_of_orderness(bound).with_idleness(bound).idleness_ms == 5000


def test_idle_without_records_and_active_with_the_next() -> None:
    with harness_of(MONOTONOUS.with_idleness(100), now_ms=1000) as harness:
        harness.advance(99)
        assert harness.statuses == []
        harness.process(["a"], [1])
        harness.advance(99)
        assert harness.statuses == []
        harness.advance(1)
        assert harness.statuses == [False]
        assert harness.operator.next_timer_ms() is None
        harness.advance(1000)
        harness.process([], None)
        assert harness.statuses == [False], "an empty batch is nothing"
        harness.process(["b"], [2])
        assert harness.statuses == [False, True]
        harness.advance(100)
        assert harness.statuses == [False, True, False]
        harness.end()
    assert harness.statuses == [False, True, False, True], "the last watermark is of an active stream"
    assert harness.operator.next_timer_ms() is None


def test_time_in_back_pressure_is_not_idleness() -> None:
    with harness_of(MONOTONOUS.with_idleness(100)) as harness:
        harness.emit = lambda values, times=None: setattr(harness, "now_ms", 5000)  # type: ignore[method-assign]
        harness.process(["a"], [1])
        harness.operator.on_timers(harness.now_ms)
        assert harness.statuses == []
        assert harness.operator.next_timer_ms() == 5100


def test_never_idle_unless_asked_to() -> None:
    with harness_of(MONOTONOUS) as harness:
        harness.advance(10**9)
    assert harness.statuses == []
