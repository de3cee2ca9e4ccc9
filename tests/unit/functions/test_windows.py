"""Which windows there are, and their arithmetic."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.functions.times import MAX_WATERMARK_MS
from headgate.functions.windows import (
    AlignedWindows,
    CountSlidingWindows,
    CountTumblingWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    to_ms,
)

EVERY = [
    TumblingEventTimeWindows.of(10, 3),
    TumblingProcessingTimeWindows.of(Time.seconds(1)),
    SlidingEventTimeWindows.of(10, 3, -2),
    SlidingProcessingTimeWindows.of(timedelta(seconds=1), 5),
    EventTimeSessionWindows.with_gap(5),
    ProcessingTimeSessionWindows.with_gap(Time.minutes(1)),
    CountTumblingWindows.of(3),
    CountSlidingWindows.of(3, 2),
    GlobalWindows.create(),
]


@given(st.integers(-(10**15), 10**15), st.integers(1, 50), st.integers(1, 50), st.data())
def test_starts_are_those_of_all_windows_that_contain_a_time(
    time: int, size: int, slide: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(1 - slide, slide - 1))
    starts = SlidingEventTimeWindows.of(size, slide, offset).starts_of(time)
    assert starts == [one for one in range(time - size + 1, time + 1) if (one - offset) % slide == 0]


@pytest.mark.parametrize("time", [-(2**63), -1, 0, MAX_WATERMARK_MS])
def test_every_time_is_in_the_global_window(time: int) -> None:
    windows = GlobalWindows.create()
    (start,) = windows.starts_of(time)
    assert start + windows.size_ms - 1 == MAX_WATERMARK_MS


def test_assigners_travel_with_the_plan() -> None:
    assert pickle.loads(pickle.dumps(EVERY)) == EVERY


def test_invalid_sizes_and_offsets_are_refused() -> None:
    for size, slide in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="above 0"):
            SlidingEventTimeWindows.of(size, slide)
        with pytest.raises(ValueError, match="above 0"):
            CountSlidingWindows.of(size, slide)
    for windows in (CountTumblingWindows.of, EventTimeSessionWindows.with_gap):
        with pytest.raises(ValueError, match="above 0"):
            windows(0)
    with pytest.raises(ValueError, match="offset, 10 ms"):
        TumblingEventTimeWindows.of(10, 10)
    for wrong in (1.5, "1", None, True, timedelta(microseconds=1)):
        with pytest.raises(TypeError, match="whole milliseconds"):
            to_ms(wrong)  # type: ignore[arg-type]


def test_windows_are_values() -> None:
    assert TimeWindow(0, 10) == TimeWindow(0, 10)
    assert sorted({TimeWindow(5, 15), TimeWindow(0, 10), TimeWindow(5, 15)}) == [TimeWindow(0, 10), TimeWindow(5, 15)]
    assert AlignedWindows(10, 10).window(-10) == TimeWindow(-10, 0)


def test_time_is_milliseconds() -> None:
    assert [Time.seconds(1.5), Time.hours(1), Time.days(2)] == [1500, 3_600_000, 172_800_000]
    assert type(to_ms(Time.seconds(1))) is int
