"""Timestamps, watermarks and idleness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UserCodeError
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.functions.watermarks import TimestampAssigner, WatermarkGenerator, WatermarkStrategy
from headgate.functions.windows import Time
from headgate.task.operators.timestamps import AssignTimestamps
from headgate.testing.harness import OperatorHarness

if TYPE_CHECKING:
    from headgate.task.operator import Times, Values

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps()


def harness_of(strategy: WatermarkStrategy[Any], now_ms: int = 0) -> OperatorHarness:
    return OperatorHarness(AssignTimestamps(strategy), now_ms=now_ms)


class Log(OperatorHarness):
    """Notes what comes out in its order: each record's time, and each watermark as a string."""

    def __init__(self, strategy: WatermarkStrategy[Any]) -> None:
        super().__init__(AssignTimestamps(strategy))
        self.log: list[int | str] = []

    def emit(self, values: Values, times: Times = None) -> None:
        assert times is not None
        super().emit(values, times)
        self.log.extend(times)

    def emit_watermark(self, timestamp_ms: int) -> None:
        super().emit_watermark(timestamp_ms)
        self.log.append(f"w{timestamp_ms}")


def itself(value: int) -> int:
    return value


any_times = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-20, 20))


@pytest.mark.spec("K3")
@given(st.lists(st.lists(any_times, max_size=8)), st.one_of(st.integers(0, 10**6), st.integers(0, 9)))
def test_a_watermark_for_each_batch_and_before_each_record_it_makes_late(batches: list[list[int]], bound: int) -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(itself)
    with Log(strategy) as harness:
        expected: list[int | str] = []
        reached = sent = -(2**63)
        for batch in batches:
            harness.process(batch)
            for time in batch:
                if time <= reached and reached > sent:
                    expected.append(f"w{reached}")
                    sent = reached
                expected.append(time)
                reached = max(reached, time - bound - 1)
            if reached > sent:
                expected.append(f"w{reached}")
                sent = reached
    assert harness.log == expected


def test_a_watermark_comes_after_its_batch() -> None:
    with Log(MONOTONOUS) as harness:
        harness.process(["a", "b", "c"], [3, 5, 5])
    assert harness.log == [3, 5, 5, "w4"]
    assert len(harness.batches) == 1, "a batch stays a batch"


@pytest.mark.parametrize(("batches", "n"), [([[0, 10_000, 1]], 2), ([[0], [10_000], [1]], 3)])
def test_lateness_does_not_depend_on_batch_boundaries(batches: list[list[int]], n: int) -> None:
    with Log(MONOTONOUS) as harness:
        for times in batches:
            harness.process(times, times)
    assert [one for one in harness.log if one != "w-1"] == [0, 10_000, "w9999", 1]
    assert len(harness.batches) == n


class Every(WatermarkGenerator[int]):
    """A watermark behind each record that is divisible by 5, which is no more than it has told."""

    def on_event(self, value: int, timestamp: int) -> int | None:
        assert value == timestamp
        return timestamp if timestamp % 5 == 0 else None


def test_a_generator_is_asked_for_each_record_and_its_watermark_stands_behind_it() -> None:
    strategy = WatermarkStrategy.for_generator(Every).with_timestamp_assigner(itself)
    with Log(strategy) as harness:
        harness.process([1, 5, 2, 10, 5, 11])
        harness.process([12, 13])
        harness.process([15])
        harness.end()
    assert harness.log == [1, 5, "w5", 2, 10, "w10", 5, 11, 12, 13, 15, "w15", f"w{MAX_WATERMARK_MS}"]
    assert [values for values, _ in harness.batches] == [[1, 5], [2, 10], [5, 11], [12, 13], [15]]


def test_each_subtask_has_a_generator_of_its_own() -> None:
    made = []

    class Counting(Every):
        def __init__(self) -> None:
            made.append(self)

    strategy = WatermarkStrategy.for_generator(Counting)
    with harness_of(strategy), harness_of(strategy):
        assert len(made) == 2


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("5", "on_event returned '5' .str.: a watermark is an int of milliseconds"),
        (True, "on_event returned True"),
        (2**63, "does not fit in 64 bits"),
        (MAX_WATERMARK_MS, "does not fit"),
        (None, None),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), None),
    ],
)
def test_results_of_a_generator_are_validated(returned: Any, text: str | None) -> None:
    class One(WatermarkGenerator[str]):
        def on_event(self, value: str, timestamp: int) -> Any:
            return returned

    with harness_of(WatermarkStrategy.for_generator(One)) as harness:
        if text is None:
            harness.process(["a"], [1])
            assert harness.watermarks == ([] if returned is None else [1000])
        else:
            with pytest.raises(UserCodeError, match=f"AssignTimestamps, subtask 0: .*{text}"):
                harness.process(["a"], [1])


def test_errors_of_a_generator_name_the_operator() -> None:
    class Failing(WatermarkGenerator[str]):
        def on_event(self, value: str, timestamp: int) -> int | None:
            raise LookupError("no mark")

    with (
        harness_of(WatermarkStrategy.for_generator(Failing)) as harness,
        pytest.raises(UserCodeError, match="AssignTimestamps, subtask 0: LookupError: no mark"),
    ):
        harness.process(["a"], [1])
    with pytest.raises(TypeError, match="for_generator wants a WatermarkGenerator class"):
        WatermarkStrategy.for_generator(Failing())  # type: ignore[arg-type]
    with (
        pytest.raises(UserCodeError, match=r"made 7 \(int\), not a WatermarkGenerator"),
        harness_of(WatermarkStrategy.for_generator(lambda: 7)),  # type: ignore[arg-type,return-value]
    ):
        pass


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


def test_ints_and_datetimes_are_timestamps() -> None:
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
def test_other_types_of_timestamps_are_refused(wrong: object) -> None:
    with (
        harness_of(MONOTONOUS.with_timestamp_assigner(lambda value: value)) as harness,
        pytest.raises(UserCodeError, match=r"returned .*an int of milliseconds since 1970, or a datetime"),
    ):
        harness.process([1, wrong])


def test_errors_of_timestamps_name_the_remedy() -> None:
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
    with harness_of(MONOTONOUS.with_idleness(100, follow_clock=False), now_ms=1000) as harness:
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


@pytest.mark.spec("K3")
def test_an_idle_stream_keeps_its_watermark_unless_it_follows_the_clock() -> None:
    with harness_of(MONOTONOUS.with_idleness(100, follow_clock=False)) as harness:
        harness.process(["a"], [1000])
        harness.advance(100_000)
        assert (harness.watermarks, harness.statuses) == ([999], [False])


@pytest.mark.spec("K3")
def test_while_idle_event_time_follows_the_clock_where_it_is_asked_to() -> None:
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(50).with_idleness(500)
    with harness_of(bounded, now_ms=7000) as harness:
        harness.advance(2000)
        assert (harness.watermarks, harness.statuses) == ([], [False]), "there is no event time yet"
        harness.process(["a"], [1051])
        harness.advance(499)
        assert (harness.watermarks, harness.statuses) == ([1000], [False, True])
        harness.advance(1)
        assert (harness.watermarks, harness.statuses) == ([1000, 1500], [False, True, False])
        harness.advance(450)
        assert harness.watermarks == [1000, 1500, 1700, 1900], "every 200 ms"
        harness.process(["b", "c"], [1200, 2500])
        assert harness.statuses == [False, True, False, True]
        assert harness.watermarks[4:] == [2449], "the record at 1200 was late"
        harness.advance(499)
        assert harness.watermarks[4:] == [2449]
        harness.advance(1)
        assert harness.watermarks[4:] == [2449, 2949]
        harness.end()
        assert harness.operator.next_timer_ms() is None
    assert harness.watermarks[6:] == [MAX_WATERMARK_MS]


def test_a_clock_that_goes_back_does_not_lower_the_watermark() -> None:
    with harness_of(MONOTONOUS.with_idleness(100), now_ms=10_000) as harness:
        harness.process(["a"], [1])
        harness.advance(1000)
        before = list(harness.watermarks)
        harness.now_ms = 5000
        harness.operator.on_timers(5000)
        assert harness.watermarks == before
    assert before == sorted(before)


def test_following_the_clock_ends_before_the_last_watermark() -> None:
    with harness_of(MONOTONOUS.with_idleness(100)) as harness:
        harness.process(["a"], [MAX_WATERMARK_MS - 50])
        harness.advance(1000)
        assert max(harness.watermarks) < MAX_WATERMARK_MS, "that one says that the input has ended"


def test_without_watermarks_the_clock_makes_none() -> None:
    with harness_of(WatermarkStrategy.no_watermarks().with_idleness(100)) as harness:
        harness.process(["a"], [5])
        harness.advance(1000)
        assert (harness.watermarks, harness.statuses) == ([], [False])


def test_never_idle_unless_asked_to() -> None:
    with harness_of(MONOTONOUS) as harness:
        harness.advance(10**9)
    assert harness.statuses == []


def test_without_watermarks_records_need_no_times():
    with OperatorHarness(AssignTimestamps(WatermarkStrategy.no_watermarks())) as harness:
        harness.process(["to", "be"])
        harness.process(["or"], [7])
        harness.end()
    assert harness.timed == [("to", None), ("be", None), ("or", 7)]
    assert harness.watermarks == [MAX_WATERMARK_MS]
