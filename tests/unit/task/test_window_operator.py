"""Windows against the model, in every way a function can be given, and what the model does not say."""

from __future__ import annotations

from collections import Counter, defaultdict
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.window_models import (
    AlignedModel,
    Fired,
    Mark,
    Model,
    Rec,
    SessionModel,
    Stream,
    by_window,
    play,
    streams,
)

from headgate.errors import UserCodeError
from headgate.functions.basic import AggregateFunction, OutputTag, ReduceFunction
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.functions.windows import (
    CountSlidingWindows,
    CountTumblingWindows,
    CountWindow,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness


# Values are ["key", number, number ...]: lists, which functions change where they can.
def value_of(record: Rec) -> list[Any]:
    return [record.key, record.n]


def key_of(value: list[Any]) -> str:
    return value[0]


class Append(ReduceFunction):
    def reduce(self, value1, value2):
        value1.extend(value2[1:])  # in place, as Flink's users are told not to, and do
        return value1


class Collect(AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        if not accumulator:
            accumulator.append(value[0])
        accumulator.extend(value[1:])
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b[1:]


class Whole(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        numbers = [n for one in elements for n in one[1:]]
        yield [key, window.start, window.end, numbers]
        assert {one[0] for one in elements} == {key}


def whole(key, window, values):
    return [[key, window.start, window.end, [n for one in values for n in one[1:]]]]


WAYS: dict[str, dict[str, Any]] = {
    "reduce": {"function": Append(), "how": "reduce", "window_function": Whole()},
    "reduce, apply": {"function": Append().reduce, "how": "reduce", "window_function": whole},
    "aggregate": {"function": Collect(), "how": "aggregate", "window_function": Whole()},
    "apply": {"function": whole, "how": "apply"},
    "process": {"function": Whole(), "how": "process"},
}


def check(assigner: Any, model: Model, stream: Stream, way: str, *, ordered: bool = True) -> None:
    """An operator fires what the model fires, at the right time, and nothing is left."""
    operator = WindowOperator(
        key_of, assigner, allowed_lateness_ms=model.lateness, late_tag=OutputTag("late"), **WAYS[way]
    )
    model.run(stream)
    with OperatorHarness(operator) as harness:
        play(harness, stream, value_of)
    assert all(time == value[2] - 1 for value, time in harness.timed)
    fired = [(key, start, end, tuple(numbers)) for key, start, end, numbers in harness.values]
    if not ordered:  # sessions merge in the order of time, not of arrival
        fired, model.fired = [(*one[:3], tuple(sorted(one[3]))) for one in fired], _sorted(model.fired)
    assert by_window(fired) == by_window(model.fired)
    assert Counter(n for _, n in harness.sides.get("late", [])) == Counter(one.n for one in model.late)
    assert harness.operator.next_timer_ms() is None


def _sorted(fired: list[Fired]) -> list[Fired]:
    return [(*one[:3], tuple(sorted(one[3]))) for one in fired]


ways = st.sampled_from(sorted(WAYS))
lateness = st.sampled_from([0, 1, 7, 25, 1000])


@settings(max_examples=300, deadline=None)
@given(streams(), ways, lateness, st.integers(1, 30), st.data())
def test_tumbling_as_the_model(stream: Stream, way: str, late: int, size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1 - size, size - 1))
    model = AlignedModel(lateness=late, size=size, slide=size, offset=offset)
    check(TumblingEventTimeWindows.of(size, offset), model, stream, way)


@settings(max_examples=300, deadline=None)
@given(streams(), ways, lateness, st.integers(1, 30), st.integers(1, 30), st.data())
def test_sliding_as_the_model(stream: Stream, way: str, late: int, size: int, slide: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1 - slide, slide - 1))
    model = AlignedModel(lateness=late, size=size, slide=slide, offset=offset)
    check(SlidingEventTimeWindows.of(size, slide, offset), model, stream, way)


@settings(max_examples=300, deadline=None)
@given(streams(), ways, lateness, st.integers(1, 40))
def test_sessions_as_the_model(stream: Stream, way: str, late: int, gap: int) -> None:
    check(EventTimeSessionWindows.with_gap(gap), SessionModel(lateness=late, gap=gap), stream, way, ordered=False)


@given(streams(late=False), st.integers(1, 30))
def test_without_late_records_a_window_is_a_group(stream: Stream, size: int) -> None:
    groups: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in stream:
        if isinstance(one, Rec):
            groups[one.key, one.time // size * size].append(one.n)
    operator = WindowOperator(key_of, TumblingEventTimeWindows.of(size), Append(), "reduce")
    with OperatorHarness(operator) as harness:
        play(harness, stream, value_of)
    expected = sorted(([key, *numbers], start + size - 1) for (key, start), numbers in groups.items())
    assert sorted(harness.timed) == expected
    assert harness.counters == {}


@given(streams(late=False), st.integers(1, 40))
def test_without_late_records_sessions_are_runs(stream: Stream, gap: int) -> None:
    expected = []
    for key in "abc":
        times = sorted(one.time for one in stream if isinstance(one, Rec) and one.key == key)
        cuts = [0, *(i for i in range(1, len(times)) if times[i] - times[i - 1] > gap), len(times)]
        runs = [times[a:b] for a, b in pairwise(cuts) if a < b]
        expected += [(key, TimeWindow(run[0], run[-1] + gap), len(run)) for run in runs]
    operator = WindowOperator(
        key_of, EventTimeSessionWindows.with_gap(gap), lambda k, w, values: [(k, w, len(values))], "apply"
    )
    with OperatorHarness(operator) as harness:
        play(harness, stream, value_of)
    assert sorted(harness.values) == sorted(expected)


@given(streams(), lateness, st.sampled_from(["reduce", "aggregate", "apply", "process"]), st.booleans())
def test_without_keys_as_one_key(stream: Stream, late: int, how: str, slide: bool) -> None:
    one_key: Stream = [Rec("a", one.n, one.time) if isinstance(one, Rec) else one for one in stream]
    size, step = (12, 5) if slide else (10, 10)
    model = AlignedModel(lateness=late, size=size, slide=step).run(one_key)

    class All(ProcessAllWindowFunction):
        def process(self, context, elements):
            yield ["a", context.window().start, context.window().end, [n for one in elements for n in one[1:]]]

    def everything(window, values):
        return [["a", window.start, window.end, [n for one in values for n in one[1:]]]]

    way: dict[str, Any] = {
        "reduce": {"function": Append(), "window_function": everything},
        "aggregate": {"function": Collect(), "window_function": All()},
        "apply": {"function": everything},
        "process": {"function": All()},
    }[how]
    operator = WindowOperator(None, SlidingEventTimeWindows.of(size, step), how=how, allowed_lateness_ms=late, **way)
    with OperatorHarness(operator) as harness:
        play(harness, one_key, value_of)
    fired = [(key, start, end, tuple(numbers)) for key, start, end, numbers in harness.values]
    assert by_window(fired) == by_window(model.fired)
    assert harness.counters.get("late_records_dropped", 0) == len(model.late)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=40), st.integers(1, 6), ways)
def test_processing_time_windows_are_those_of_the_clock(steps: list[tuple[str, int]], size: int, way: str) -> None:
    """As event-time windows over the times at which records came, if the watermark is just behind the clock."""
    for assigner, model in (
        (TumblingProcessingTimeWindows.of(size), AlignedModel(size=size, slide=size)),
        (SlidingProcessingTimeWindows.of(3 * size, size), AlignedModel(size=3 * size, slide=size)),
        (ProcessingTimeSessionWindows.with_gap(size), SessionModel(gap=size)),
    ):
        now, stream = 0, []
        with OperatorHarness(WindowOperator(key_of, assigner, **WAYS[way])) as harness:
            for n, (key, pause) in enumerate(steps):
                harness.advance(pause)
                now += pause
                stream += [Mark(now - 1), Rec(key, n, now)]
                harness.process([[key, n]], None)
            harness.end()
        model.run(stream)
        fired = [(key, start, end, tuple(numbers)) for key, start, end, numbers in harness.values]
        assert by_window(_sorted(fired)) == by_window(_sorted(model.fired))
        assert all(time == value[2] - 1 for value, time in harness.timed)


def test_a_processing_time_window_fires_when_its_end_has_come() -> None:
    operator = WindowOperator(None, TumblingProcessingTimeWindows.of(10), lambda a, b: a + b, "reduce")
    with OperatorHarness(operator, now_ms=3) as harness:
        assert operator.next_timer_ms() is None
        harness.process([1, 2])
        assert operator.next_timer_ms() == 10
        harness.watermark(10_000)  # event time has nothing to do with it
        harness.advance(6)
        assert harness.values == []
        harness.advance(1)
        assert harness.timed == [(3, 9)]
        harness.process([4])
        harness.operator.watermark(MAX_WATERMARK_MS)
        assert harness.timed[1:] == [(4, 19)], "before the last watermark is handed on, or it would be late"
        harness.operator.finish()
    assert len(harness.values) == 2
    assert harness.watermarks == [10_000, MAX_WATERMARK_MS]


def test_a_clock_that_goes_back_loses_nothing() -> None:
    operator = WindowOperator(None, TumblingProcessingTimeWindows.of(10), lambda a, b: a + b, "reduce")
    with OperatorHarness(operator, now_ms=5) as harness:
        harness.process([1])
        harness.advance(10)
        harness.now_ms = 2
        harness.process([2])
        harness.end()
    assert harness.values == [1, 2]


def test_a_window_fires_at_its_last_millisecond_and_results_come_before_the_watermark() -> None:
    events: list[object] = []
    operator = WindowOperator(None, TumblingEventTimeWindows.of(10), lambda a, b: a + b, "reduce")
    with OperatorHarness(operator) as harness:
        harness.emit = lambda values, times=None: events.append(values)  # type: ignore[method-assign]
        harness.emit_watermark = events.append  # type: ignore[method-assign,assignment]
        harness.process([1, 2], [0, 9])
        harness.watermark(8)
        harness.watermark(9)
    assert events == [8, [3], 9]


def test_late_records_within_the_allowed_lateness_fire_again_at_once() -> None:
    operator = WindowOperator(key_of, TumblingEventTimeWindows.of(10), Append(), "reduce", allowed_lateness_ms=5)
    with OperatorHarness(operator) as harness:
        harness.process([["a", 1], ["b", 2]], [1, 2])
        harness.watermark(13)
        assert harness.timed == [(["a", 1], 9), (["b", 2], 9)]
        harness.process([["a", 3], ["a", 4]], [9, 0])
        assert harness.timed[2:] == [(["a", 1, 3], 9), (["a", 1, 3, 4], 9)]
        harness.watermark(14)
        harness.process([["a", 5]], [9])
        harness.end()
    assert len(harness.values) == 4, "results that were given out are not changed, and nothing fires twice"
    assert harness.counters == {"late_records_dropped": 1}


@pytest.mark.spec("K3")
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("tag", [None, "late"])
def test_a_record_late_for_some_of_its_windows_is_in_the_others_and_in_the_late_output_once(batch, tag) -> None:
    windows = SlidingEventTimeWindows.of(10, 2)
    operator = WindowOperator(lambda n: 0, windows, lambda key, window, ns: [(window.start, ns)], "apply", 0, tag)
    with OperatorHarness(operator, batch=batch) as harness:
        harness.process([10], [10])
        harness.watermark(13)  # windows from 2 and 4 have fired, those from 6 on have not
        harness.process([8, 11], [8, 11])
        harness.end()
    assert sorted(harness.values) == [
        (2, [10]),
        (4, [10]),
        (6, [10, 8, 11]),
        (8, [10, 8, 11]),
        (10, [10, 11]),
    ]
    # 8 has missed the windows from 0, 2 and 4, and 11 those from 2 and 4.
    if tag is None:
        assert harness.counters == {"late_records_dropped": 2}
    else:
        assert (harness.sides, harness.counters) == ({"late": [8, 11]}, {})


def test_late_records_fire_kept_windows_record_by_record() -> None:
    """As if each had come by itself: not one window after the other."""

    def fired(*batches: list[int]) -> list[Any]:
        windows = SlidingEventTimeWindows.of(10, 5)
        operator = WindowOperator(None, windows, lambda window, ns: [(window.start, list(ns))], "apply", 100)
        with OperatorHarness(operator) as harness:
            harness.process([1], [1])
            harness.watermark(20)
            for batch in batches:
                harness.process(batch, batch)
            return harness.values

    assert fired([7, 8], [12, 3]) == fired([7, 8, 12, 3]) == fired([7], [8], [12], [3])


def test_a_kept_session_that_grows_past_the_watermark_fires_again_when_it_ends() -> None:
    operator = WindowOperator(key_of, EventTimeSessionWindows.with_gap(10), Append(), "reduce", allowed_lateness_ms=100)
    with OperatorHarness(operator) as harness:
        harness.process([["a", 1]], [0])
        harness.watermark(12)
        harness.process([["a", 2]], [9])
        assert harness.timed == [(["a", 1], 9)]
        harness.watermark(18)
        assert harness.timed[1:] == [(["a", 1, 2], 18)]
        harness.end()
    assert len(harness.values) == 2


def reversed_in_place(key, window, values):
    values.reverse()
    return values


@pytest.mark.parametrize(
    ("function", "how"), [(Append(), "reduce"), (Collect(), "aggregate"), (reversed_in_place, "apply")]
)
@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(10),
        SlidingEventTimeWindows.of(10, 5),
        EventTimeSessionWindows.with_gap(5),
        CountSlidingWindows.of(3, 1),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("late", [0, 20])
def test_results_are_values_of_their_own(assigner: Any, function: Any, how: str, late: int) -> None:
    """A receiver may change a batch; later batches are not affected."""

    def run(*, spoil: bool) -> list[Any]:
        seen = []

        def emit(values, times=None):
            seen.extend(deepcopy(values))
            for value in values if spoil else ():
                value.append("spoiled")

        with OperatorHarness(WindowOperator(key_of, assigner, function, how, late)) as harness:
            harness.emit = emit
            for n in range(30):
                harness.process([["a", n]], [n - n % 3 * 6])
                harness.watermark(n)
            harness.end()
        return seen

    assert run(spoil=True) == run(spoil=False)


def test_a_function_may_use_up_the_list_it_is_given() -> None:
    def used_up(window, values):
        while values:
            yield values.pop()

    operator = WindowOperator(None, TumblingEventTimeWindows.of(10), used_up, "apply", 20)
    with OperatorHarness(operator) as harness:
        harness.process([1, 2], [1, 2])
        harness.watermark(10)
        harness.process([3], [3])
    assert harness.values == [2, 1, 3, 2, 1]


def test_side_outputs_by_tags_have_the_time_of_the_window() -> None:
    def split(key, window, values):
        yield len(values)
        yield OutputTag("first"), values[0]

    operator = WindowOperator(key_of, TumblingEventTimeWindows.of(10), split, "apply")
    with OperatorHarness(operator) as harness:
        harness.process([["a", 1], ["a", 2]], [1, 2])
        harness.end()
    assert harness.timed == [(2, 9)]
    assert harness.sides == {"first": [["a", 1]]}


def test_plain_results_of_reduce_and_aggregate() -> None:
    class Mean(AggregateFunction):
        def create_accumulator(self):
            return 0, 0

        def add(self, value, accumulator):
            return accumulator[0] + value, accumulator[1] + 1

        def get_result(self, accumulator):
            return accumulator[0] / accumulator[1]

    with OperatorHarness(WindowOperator(None, TumblingEventTimeWindows.of(10), Mean(), "aggregate")) as harness:
        harness.process([1, 2], [-1, -10])
        harness.process([6], [0])
        harness.end()
    assert harness.timed == [(1.5, -1), (6.0, 9)]
    with OperatorHarness(WindowOperator(lambda v: v % 2, GlobalWindows.create(), max, "reduce")) as harness:
        harness.process([3, 1, 4])
        harness.process([1, 5], [7, -(2**62)])
        harness.end()
    assert harness.timed == [(5, MAX_WATERMARK_MS), (4, MAX_WATERMARK_MS)]


def test_global_windows_are_one() -> None:
    operator = WindowOperator(None, GlobalWindows.create(), lambda window, values: [(window, values)], "apply")
    with OperatorHarness(operator) as harness:
        harness.process([1], [5])
        harness.watermark(10**15)
        harness.process([2], [5])
        assert harness.values == []
        harness.end()
    assert harness.values == [(GlobalWindow(), [1, 2])]


def test_the_last_watermark_fires_windows_that_end_after_it() -> None:
    with OperatorHarness(WindowOperator(None, TumblingEventTimeWindows.of(1000), max, "reduce")) as harness:
        harness.process([1], [MAX_WATERMARK_MS])
        harness.end()
    assert harness.timed == [(1, MAX_WATERMARK_MS)], "an event time fits in 64 bits"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=60), st.integers(1, 5), st.integers(1, 5), ways
)
def test_count_windows_as_slices(records: list[tuple[str, bool]], size: int, slide: int, way: str) -> None:
    values = [[key, n] for n, (key, _) in enumerate(records)]
    cuts = [0, *(n for n, (_, cut) in enumerate(records) if cut), len(values)]

    def numbers_of(assigner: Any) -> dict[str, list[list[int]]]:
        last = {**WAYS[way]}
        last["window_function" if "window_function" in last else "function"] = seen
        if last["how"] == "process":
            last["how"] = "apply"
        with OperatorHarness(WindowOperator(key_of, assigner, **last)) as harness:
            for a, b in pairwise(cuts):
                harness.process([list(one) for one in values[a:b]], list(range(a, b)))
            harness.end()
        found: dict[str, list[list[int]]] = {"a": [], "b": []}
        for (key, window, numbers), time in harness.timed:
            assert time == numbers[-1], "the time of the value that completes it"
            assert window == CountWindow(len(found[key]))
            found[key].append(numbers)
        return found

    def seen(key, window, elements):
        yield key, window, [n for one in elements for n in one[1:]]

    mine = {key: [n for n, (k, _) in enumerate(records) if k == key] for key in "ab"}
    assert numbers_of(CountTumblingWindows.of(size)) == {
        key: [of[i : i + size] for i in range(0, len(of) - size + 1, size)] for key, of in mine.items()
    }
    assert numbers_of(CountSlidingWindows.of(size, slide)) == {
        key: [of[i : i + size] for i in range(0, len(of) - size + 1, slide)] for key, of in mine.items()
    }


@pytest.mark.spec("T4")
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("size", "slide", "sums"),
    [
        (2, 1, [("hi", 4), ("hello", 6), ("hi", 8), ("hello", 10)]),  # PyFlink's own test_count_sliding_window
        (3, 2, [("hi", 9), ("hello", 12)]),
        (1, 2, [("hi", 1), ("hello", 2), ("hi", 5), ("hello", 6)]),
        (4, 1, []),
    ],
)
def test_sliding_count_windows_are_aligned_as_those_of_pyflink(batch, size, slide, sums):
    records = [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello")]
    add = lambda key, window, values: [(key, sum(n for n, _ in values))]  # noqa: E731
    operator = WindowOperator(lambda pair: pair[1], CountSlidingWindows.of(size, slide), add, "apply")
    with OperatorHarness(operator, batch=batch) as harness:
        for one in records:
            harness.process([one])
        harness.end()
    assert sorted(harness.values) == sorted(sums)


def test_count_windows_need_no_times() -> None:
    with OperatorHarness(WindowOperator(None, CountTumblingWindows.of(2), max, "reduce")) as harness:
        harness.process([1, 2, 3])
        harness.watermark(7)
        harness.end()
    assert harness.timed == [(2, None)]
    assert harness.watermarks == [7, MAX_WATERMARK_MS]


def test_the_context_knows_the_times() -> None:
    class Times(ProcessWindowFunction):
        def open(self, context):
            self.calls = context.get_state("calls", 0)
            self.closed = False

        def process(self, key, context, elements):
            self.calls.update(self.calls.value() + 1)
            yield key, context.current_watermark(), context.current_processing_time(), self.calls.value()

        def close(self):
            self.closed = True

    function = Times()
    operator = WindowOperator(key_of, TumblingEventTimeWindows.of(10), function, "process")
    with OperatorHarness(operator, now_ms=77) as harness:
        harness.process([["a", 1], ["b", 1], ["a", 2]], [1, 2, 11])
        harness.watermark(15)
        harness.end()
    assert harness.values == [("a", 15, 77, 1), ("b", 15, 77, 1), ("a", MAX_WATERMARK_MS, 77, 2)]
    assert function.closed


def test_both_functions_are_opened_and_closed() -> None:
    log: list[str] = []

    class First(Append):
        def open(self, context):
            log.append("open first")

        def close(self):
            log.append("close first")
            raise OSError("no")

    class Second(Whole):
        def open(self, context):
            log.append("open second")

        def close(self):
            log.append("close second")

    operator = WindowOperator(key_of, TumblingEventTimeWindows.of(10), First(), "reduce", window_function=Second())
    with pytest.raises(UserCodeError, match="OSError: no"), OperatorHarness(operator):
        pass
    assert log == ["open first", "open second", "close first", "close second"]


def test_with_object_reuse_nothing_is_copied() -> None:
    class Sealed(list):
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    operator = WindowOperator(None, SlidingEventTimeWindows.of(10, 5), lambda a, b: a, "reduce", 10)
    harness = OperatorHarness(operator)
    value = Sealed([1])
    object.__setattr__(operator.place, "object_reuse", True)
    with harness:
        harness.process([value], [1])
        harness.end()
    assert [one is value for one in harness.values] == [True, True]


def test_records_without_times_are_refused_with_the_remedy() -> None:
    for assigner in (TumblingEventTimeWindows.of(10), EventTimeSessionWindows.with_gap(10)):
        with OperatorHarness(WindowOperator(key_of, assigner, Append(), "reduce")) as harness:
            with pytest.raises(UserCodeError, match="assign_timestamps_and_watermarks"):
                harness.process([["a", 1]])
            harness.process([], None)


def test_errors_of_functions_name_the_operator() -> None:
    def fail(*_: object) -> Any:
        raise KeyError("no")  # not taken for a key that is missing

    for how, key in (("reduce", key_of), ("apply", key_of), ("reduce", fail)):
        with (
            OperatorHarness(WindowOperator(key, TumblingEventTimeWindows.of(10), fail, how)) as harness,
            pytest.raises(UserCodeError, match="WindowOperator, subtask 0: KeyError"),
        ):
            play(harness, [Rec("a", 1, 1), Rec("a", 2, 2)], value_of)


def test_wrong_functions_are_refused_at_once() -> None:
    windows = TumblingEventTimeWindows.of(10)
    with pytest.raises(ValueError, match="not 'fold'"):
        WindowOperator(key_of, windows, max, "fold")
    with pytest.raises(TypeError, match="AggregateFunction"):
        WindowOperator(key_of, windows, max, "aggregate")
    with pytest.raises(TypeError, match="these windows have no keys"):
        WindowOperator(None, windows, Whole(), "process")
    with pytest.raises(TypeError, match="already sees the window"):
        WindowOperator(key_of, windows, Whole(), "process", window_function=Whole())
    with pytest.raises(ValueError, match="not below 0"):
        WindowOperator(key_of, windows, max, "reduce", -1)
