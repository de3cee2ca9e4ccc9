"""Operators in BATCH mode give for each key what they give in STREAMING, whatever comes, in memory and on disk."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.batch_operators import CountedQuota, by_key, outcome, space

from headgate.config import Compression
from headgate.functions.basic import AggregateFunction, OutputTag
from headgate.functions.connected import KeyedCoProcessFunction
from headgate.functions.process import KeyedProcessFunction
from headgate.functions.windows import (
    CountSlidingWindows,
    CountTumblingWindows,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from headgate.task.batch.grouping import Grouping, key_hash
from headgate.task.operators.keyed import KeyedAggregateField, KeyedCount, KeyedProcess, KeyedReduce
from headgate.task.operators.process import KeyedCoProcess
from headgate.task.windows.join import WindowJoin
from headgate.task.windows.operator import WindowOperator

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large]
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=UNHURRIED)

hashes = st.sampled_from([key_hash, lambda key: 7, lambda key: key_hash(key) % 3, lambda key: key_hash(key) >> 32])
limits = st.sampled_from([None, 1, 500, 3_000, 20_000])
codecs = st.sampled_from(list(Compression))
keys = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b", -1.0, (1, "x"), None, 2**61, 2**62 - 1]))


@pytest.mark.spec("T4")
@EXAMPLES
@given(
    st.lists(st.lists(st.tuples(keys, st.integers(-(2**62), 2**62), st.integers(0, 2**40)), max_size=30), max_size=30),
    limits,
    hashes,
    codecs,
    st.booleans(),
)
def test_a_grouping_gives_each_key_once_and_its_values_in_order(batches, limit, hash_of, codec, timed):
    quota = CountedQuota()
    disk = None if limit is None else space(limit, quota=quota, compression=codec)
    grouping = Grouping(disk, hash_of=hash_of, max_runs=3)
    expected, count = {}, 0
    for batch in batches:
        values = [(key, count := count + 1) for key, _, _ in batch]
        times, tags = [time for _, time, _ in batch], [tag << 3 for _, _, tag in batch]
        grouping.add([key for key, _ in values], values, times if timed else None, tags)
        for (key, n), time, tag in zip(values, times, tags, strict=True):
            expected.setdefault(key, []).append(((key, n), time if timed else 0, tag))
    found = {}
    for key, several in grouping.groups():
        assert key not in found
        found[key] = [entry for entries in several for entry in zip(*entries, strict=True)]
    assert found == expected
    grouping.close()
    assert quota.taken == 0
    if limit == 1 and count:
        assert quota.peak > 0


# One operator in both modes ----------------------------------------------------------------------------------

times = st.integers(-40, 40)


@st.composite
def steps(draw, *, inputs=("first",), timed=None):
    """Batches of any input, with times or without, and watermarks that rise."""
    found, watermark, n = [], -50, 0
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            watermark += draw(st.integers(1, 15))
            found.append(("watermark", watermark))
        else:
            batch = draw(st.lists(st.tuples(st.sampled_from("abc"), times), max_size=8))
            values = [(key, n := n + 1) for key, _ in batch]
            has_times = draw(st.sampled_from([True, True, False])) if timed is None else timed
            found.append((draw(st.sampled_from(inputs)), values, [time for _, time in batch] if has_times else None))
    return found


def first(value):
    return value[0]


def same_in_both(make, steps, limit, *, alike=first):
    """Runs the same steps in both modes; what comes out must be the same, and in the same order where it is alike."""
    quota = CountedQuota()
    streaming = outcome(make(), steps, batch=False)
    batch = outcome(make(), steps, batch=True, spill=None if limit is None else space(limit, quota=quota))
    assert by_key(batch, alike) == by_key(streaming, alike)
    assert {tag: sorted(map(repr, side)) for tag, side in batch.sides.items()} == {
        tag: sorted(map(repr, side)) for tag, side in streaming.sides.items()
    }
    assert batch.counters.get("late_records_dropped") == streaming.counters.get("late_records_dropped")
    assert batch.watermarks[-1:] == streaming.watermarks[-1:]
    assert quota.taken == 0


class Busy(KeyedProcessFunction):
    """State of all kinds, timers in the past and in the future, timers of timers, side outputs, the watermark."""

    def open(self, context):
        self.total = context.get_state("total", 0)
        self.seen = context.get_list_state("seen")

    def process_element(self, value, ctx):
        key, n = value
        self.total.update(self.total.value() + n)
        self.seen.add(n)
        timers = ctx.timer_service()
        if ctx.timestamp() is not None:
            timers.register_event_time_timer(ctx.timestamp() + n % 7 - 3)
            if n % 5 == 0:
                timers.delete_event_time_timer(ctx.timestamp() + n % 3)
        yield key, self.total.value(), ctx.timestamp(), timers.current_watermark()
        if n % 4 == 0:
            yield OutputTag("fourth"), value

    def on_timer(self, timestamp, ctx):
        seen = self.seen.get()
        yield ctx.get_current_key(), "timer", timestamp, seen, ctx.timer_service().current_watermark()
        if seen and len(seen) % 3 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 11)
            self.seen.clear()


@pytest.mark.spec("T4")
@EXAMPLES
@given(steps(), limits)
def test_a_process_function_has_the_same_results_per_key_as_in_streaming(steps, limit):
    same_in_both(lambda: KeyedProcess(first, Busy()), steps, limit)


class Both(KeyedCoProcessFunction):
    def open(self, context):
        self.seen = context.get_list_state("seen")

    def process_element1(self, value, ctx):
        self.seen.add(value[1])
        if ctx.timestamp() is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield value[0], 1, self.seen.get()

    def process_element2(self, value, ctx):
        self.seen.add(-value[1])
        yield value[0], 2, self.seen.get(), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.seen.get()
        self.seen.clear()


@pytest.mark.spec("T4")
@EXAMPLES
@given(steps(inputs=("first", "second")), limits)
def test_a_function_of_two_inputs_has_the_same_results_per_key_as_in_streaming(steps, limit):
    same_in_both(lambda: KeyedCoProcess(first, first, Both()), steps, limit)


class Spans(ProcessWindowFunction):
    """With state of the key, over all its windows."""

    def open(self, context):
        self.windows = context.get_state("windows", 0)

    def process(self, key, context, elements):
        self.windows.update(self.windows.value() + 1)
        yield key, self.windows.value(), context.window(), list(elements)


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (None, 0, 0)

    def add(self, value, accumulator):
        return value[0], accumulator[1] + value[1], accumulator[2] + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a[0], a[1] + b[1], a[2] + b[2]


def spans(key, window, values):
    return [(key, window, list(values))]


assigners = st.sampled_from(
    [
        TumblingEventTimeWindows.of(10),
        TumblingEventTimeWindows.of(7, 3),
        SlidingEventTimeWindows.of(10, 4),
        SlidingEventTimeWindows.of(5, 8),
        EventTimeSessionWindows.with_gap(6),
        CountTumblingWindows.of(3),
        CountSlidingWindows.of(3, 2),
    ]
)
functions = st.sampled_from(
    [
        (lambda a, b: (a[0], a[1] - b[1]), "reduce"),  # not associative: the order counts
        (Mean(), "aggregate"),
        (spans, "apply"),
        (Spans(), "process"),
    ]
)


@pytest.mark.spec("T4")
@settings(max_examples=150, deadline=None, suppress_health_check=UNHURRIED)
@given(steps(timed=True), assigners, functions, st.sampled_from([0, 0, 3, 12]), st.sampled_from([None, "late"]), limits)
def test_windows_of_each_key_equal_those_in_streaming(steps, assigner, function, lateness, tag, limit):
    make = lambda: WindowOperator(first, assigner, *function, lateness, tag)  # noqa: E731
    same_in_both(make, steps, limit, alike=None)


@pytest.mark.spec("T4")
@EXAMPLES
@given(
    steps(inputs=("first", "second"), timed=True),
    st.sampled_from(
        [TumblingEventTimeWindows.of(10), SlidingEventTimeWindows.of(10, 4), EventTimeSessionWindows.with_gap(6)]
    ),
    limits,
)
def test_a_join_finds_the_same_pairs_as_in_streaming(steps, assigner, limit):
    same_in_both(lambda: WindowJoin(first, first, assigner, lambda a, b: (a[0], a[1], b[1])), steps, limit)


def glue(a, b):
    return a[0], (a[1], b[1])  # it grows, and shows the order


@pytest.mark.spec("T4")
@EXAMPLES
@given(
    steps(),
    st.sampled_from(
        [
            lambda: KeyedReduce(first, glue),
            lambda: KeyedReduce(first, lambda a, b: (a[0], a[1] - b[1])),
            lambda: KeyedAggregateField(first, 1, "sum"),
            lambda: KeyedAggregateField(first, 1, "min"),
            lambda: KeyedAggregateField(first, 1, "max_by"),
            lambda: KeyedCount(first),
        ]
    ),
    limits,
)
def test_a_rolling_aggregate_gives_the_last_value_of_each_key(steps, make, limit):
    quota = CountedQuota()
    streaming = outcome(make(), steps, batch=False)
    batch = outcome(make(), steps, batch=True, spill=None if limit is None else space(limit, quota=quota))
    assert by_key(batch, first) == {key: several[-1:] for key, several in by_key(streaming, first).items()}
    assert quota.taken == 0
