"""Keyed functions, windows and joins in BATCH mode: one key after the other, with its timers, state and windows."""

from itertools import product

import pytest
from tests.support.batch_operators import CountedQuota, by_key, outcome, space

from headgate.errors import Cancelled, UserCodeError
from headgate.functions.basic import OutputTag
from headgate.functions.process import KeyedProcessFunction
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.functions.windows import (
    CountTumblingWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from headgate.task.batch.keyed import BatchingOutput, Grouped
from headgate.task.operators.keyed import KeyedProcess
from headgate.task.windows.join import WindowJoin
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness

pytestmark = pytest.mark.spec("T4")


def first(value):
    return value[0]


class Seen(KeyedProcessFunction):
    """Gives out all it has seen of a key, and how many keys it remembers."""

    def open(self, context):
        self.context = context
        self.seen = context.get_list_state("seen")
        self.life = ["open"]

    def process_element(self, value, ctx):
        self.seen.add(value[1])
        yield ctx.get_current_key(), self.seen.get()

    def close(self):
        self.life.append("close")


@pytest.mark.parametrize("memory", [None, 1])
def test_keys_come_one_after_the_other_and_are_forgotten(memory):
    function = Seen()
    spill = None if memory is None else space(memory)
    with OperatorHarness(KeyedProcess(first, function), batch=True, spill=spill) as harness:
        for n in range(10):
            harness.process([("abc"[n % 3], n)])
        assert harness.values == []
        harness.end()
        assert harness.operator._operator._state.entries() == {"seen": 0}
    keys = [key for key, _ in harness.values]
    assert keys == sorted(keys, key=keys.index)  # none comes back
    assert [seen for key, seen in harness.values if key == "b"] == [[1], [1, 4], [1, 4, 7]]
    assert function.life == ["open", "close"]
    assert harness.watermarks == [MAX_WATERMARK_MS]


def test_results_are_handed_on_together():
    with OperatorHarness(KeyedProcess(first, lambda value, ctx: [value]), batch=True) as harness:
        harness.process([(n, n) for n in range(5_000)])
        harness.end()
    assert sorted(harness.values) == [(n, n) for n in range(5_000)]
    assert len(harness.batches) < 20


class Timed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        timers.register_event_time_timer(value[1])
        yield value[0], "value", timers.current_watermark()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), ctx.time_domain(), timestamp, ctx.timer_service().current_watermark()


def test_timers_fire_where_they_fire_in_streaming():
    steps = [
        ("first", [("a", 5), ("b", 25)], [0, 0]),
        ("watermark", 10),
        ("watermark", 20),
        ("first", [("b", 15), ("a", 21)], [21, 22]),
        ("watermark", 30),
        ("first", [("c", 99)], [31]),
    ]
    harness = outcome(KeyedProcess(first, Timed()), steps, batch=True)
    least = -(2**63)
    assert by_key(harness, first) == {
        "a": [
            (("a", "value", least), 0),
            (("a", "event", 5, 10), 5),
            (("a", "value", 20), 22),
            (("a", "event", 21, 30), 21),
        ],
        "b": [
            (("b", "value", least), 0),
            (("b", "value", 20), 21),
            (("b", "event", 15, 30), 15),  # it was past already: it comes with the next watermark
            (("b", "event", 25, 30), 25),
        ],
        "c": [(("c", "value", 30), 31), (("c", "event", 99, MAX_WATERMARK_MS), 99)],
    }
    assert by_key(harness, first) == by_key(outcome(KeyedProcess(first, Timed()), steps, batch=False), first)


class Clocked(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), ctx.time_domain(), timestamp


def test_timers_of_processing_time_fire_if_they_are_due_when_their_key_is_over():
    with OperatorHarness(KeyedProcess(first, Clocked()), batch=True, now_ms=100) as harness:
        harness.process([("a", 50), ("a", 150), ("b", 100)])
        assert harness.operator.next_timer_ms() is None
        harness.end()
    assert harness.timed == [(("a", "processing", 50), None), (("b", "processing", 100), None)]


def test_side_outputs_and_values_with_and_without_times_find_their_way():
    late = OutputTag("late")

    def sort(value, ctx):
        yield value
        yield late, (value, ctx.timestamp())

    with OperatorHarness(KeyedProcess(first, sort), batch=True) as harness:
        harness.process([("a", 1), ("b", 2)], [10, 20])
        harness.process([("a", 3)])
        harness.end()
    assert harness.timed == [(("a", 1), 10), (("a", 3), None), (("b", 2), 20)]
    assert harness.sides == {"late": [(("a", 1), 10), (("a", 3), None), (("b", 2), 20)]}


def test_a_gathered_output_keeps_kinds_apart_and_hands_on_large_values_at_once():
    with OperatorHarness(KeyedProcess(first, lambda value, ctx: None)) as harness:
        out = BatchingOutput(harness)
        out.emit([0])
        for n in range(1, 3):
            out.emit([n], [n])
        out.emit([3])
        out.emit_status(active=False)
        out.flush()
        assert harness.batches == [([0], None), ([1, 2], [1, 2]), ([3], None)]
        assert harness.statuses == []
        harness.batches.clear()
        out = BatchingOutput(harness)
        for _ in range(3):
            out.emit(["x" * 1_000_000])
        assert len(harness.batches) == 3


# Windows ------------------------------------------------------------------------------------------------------


def spans(key, window, values):
    return [(key, (window.start, window.end), list(values))]


@pytest.mark.parametrize("behind", range(-3, 4))
@pytest.mark.parametrize("lateness", [0, 2])
@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows.of(5), SlidingEventTimeWindows.of(6, 2), EventTimeSessionWindows.with_gap(4)]
)
def test_a_record_at_the_watermark_is_late_where_it_is_late_in_streaming(assigner, lateness, behind):
    for at, before in product(range(20, 26), range(3, 6)):
        steps = [
            ("first", [("a", 1), ("b", 2)], [at - before, at - 5]),
            ("watermark", at),
            ("first", [("a", 3), ("b", 4)], [at - behind, at + 1]),
            ("watermark", at + 2),
            ("first", [("a", 5)], [at - behind + 2]),
        ]
        in_both = [
            outcome(WindowOperator(first, assigner, spans, "apply", lateness, "late"), steps, batch=batch)
            for batch in (False, True)
        ]
        assert sorted(in_both[0].timed) == sorted(in_both[1].timed)
        assert sorted(in_both[0].sides.get("late", [])) == sorted(in_both[1].sides.get("late", []))


def test_late_records_are_counted():
    steps = [("watermark", 50), ("first", [("a", 1), ("a", 2)], [10, 60])]
    operator = WindowOperator(first, TumblingEventTimeWindows.of(5), spans, "apply")
    assert outcome(operator, steps, batch=True).counters == {"late_records_dropped": 1}


class Numbered(ProcessWindowFunction):
    def open(self, context):
        self.number = context.get_state("number", 0)

    def process(self, key, context, elements):
        self.number.update(self.number.value() + 1)
        yield key, self.number.value(), len(elements)


@pytest.mark.parametrize("memory", [None, 1])
def test_windows_of_many_keys_keep_their_state_apart_and_leave_none(memory):
    operator = WindowOperator(first, TumblingEventTimeWindows.of(10), Numbered(), "process")
    spill = None if memory is None else space(memory)
    with OperatorHarness(operator, batch=True, spill=spill) as harness:
        for n in range(40):
            harness.process([(key, n) for key in range(100)], [n] * 100)
        harness.end()
        assert operator._state.entries() == {"number": 0}
    assert sorted(harness.values) == [(key, number, 10) for key in range(100) for number in range(1, 5)]


def test_a_large_key_and_a_late_one_among_small_ones_are_by_themselves():
    operator = WindowOperator(first, TumblingEventTimeWindows.of(10), lambda a, b: (a[0], a[1] + b[1]), "reduce")
    steps = [
        ("first", [("small", 1), ("late", 1)], [1, 1]),
        ("first", [("large", 1)] * 3_000, [2] * 3_000),
        ("watermark", 12),
        ("first", [("late", 1), ("other", 1), ("small", 1)], [3, 14, 14]),
    ]
    harness = outcome(operator, steps, batch=True, spill=space(50_000))
    assert sorted(harness.timed) == [
        (("large", 3_000), 9),
        (("late", 1), 9),
        (("other", 1), 19),
        (("small", 1), 9),
        (("small", 1), 19),
    ]
    assert harness.counters["late_records_dropped"] == 1


def test_windows_without_keys_are_as_in_streaming():
    operator = WindowOperator(None, TumblingEventTimeWindows.of(10), lambda a, b: a + b, "reduce")
    assert operator.in_batch() is operator


def test_windows_of_processing_time_fire_at_the_end():
    operator = WindowOperator(first, TumblingProcessingTimeWindows.of(10), spans, "apply")
    harness = outcome(operator, [("first", [("a", 1), ("b", 2), ("a", 3)], None)], batch=True)
    assert harness.values == [("a", (0, 10), [("a", 1), ("a", 3)]), ("b", (0, 10), [("b", 2)])]


def test_global_windows_need_no_times():
    operator = WindowOperator(first, GlobalWindows.create(), lambda a, b: (a[0], a[1] + b[1]), "reduce")
    assert outcome(operator, [("first", [("a", 1), ("a", 2)], None)], batch=True).values == [("a", 3)]


def test_count_windows_that_are_not_full_are_dropped():
    operator = WindowOperator(first, CountTumblingWindows.of(2), lambda a, b: (a[0], a[1] + b[1]), "reduce")
    steps = [("first", [("a", n), ("b", n)], [n, n]) for n in range(3)]
    assert outcome(operator, steps, batch=True).timed == [(("a", 1), 1), (("b", 1), 1)]


def test_a_join_of_spilled_inputs_finds_its_pairs():
    quota = CountedQuota()
    join = WindowJoin(first, first, TumblingEventTimeWindows.of(10), lambda a, b: (a[0], a[1], b[1]))
    with OperatorHarness(join, batch=True, spill=space(500, quota=quota)) as harness:
        for n in range(20):
            harness.process([(n % 7, f"left {n}")], [n])
            harness.process_second([(n % 7, f"right {n}")], [n])
        harness.end()
    pairs = [(n % 7, f"left {n}", f"right {m}") for n in range(20) for m in range(20) if n % 7 == m % 7]
    together = [pair for pair in pairs if int(pair[1][5:]) // 10 == int(pair[2][6:]) // 10]
    assert sorted(harness.values) == sorted(together)
    assert quota.peak > 0
    assert quota.taken == 0


# When it goes wrong -------------------------------------------------------------------------------------------


class Fails(Seen):
    def process_element(self, value, ctx):
        if value[1] == 3:
            raise ValueError("three")
        yield from super().process_element(value, ctx)

    def close(self):
        super().close()
        raise ValueError("and again")


def test_a_function_that_fails_is_named_and_all_files_are_closed():
    quota, function = CountedQuota(), Fails()
    harness = OperatorHarness(KeyedProcess(first, function), batch=True, spill=space(1, quota=quota))
    harness.operator.open()
    for n in range(5):
        harness.process([("a", n)])
    with pytest.raises(UserCodeError, match=r"Grouped.*three"):
        harness.end()
    with pytest.raises(UserCodeError, match=r"Grouped.*and again"):
        harness.operator.close()
    assert function.life == ["open", "close"]
    assert quota.peak > 0
    assert quota.taken == 0


def test_a_key_without_a_stable_hash_names_the_operator():
    with (
        OperatorHarness(KeyedProcess(frozenset, Seen()), batch=True, spill=space(1)) as harness,
        pytest.raises(UserCodeError, match=r"Grouped.*frozenset"),
    ):
        harness.process(["ab"])


@pytest.mark.parametrize("memory", [2**20, 1])
def test_a_cancelled_job_ends_between_two_keys(memory):
    quota = CountedQuota()

    class Cancels(Seen):
        def process_element(self, value, ctx):
            harness.operator.cancel()
            yield value

    with OperatorHarness(KeyedProcess(first, Cancels()), batch=True, spill=space(memory, quota=quota)) as harness:
        for n in range(100):
            harness.process([(n, n)])
        with pytest.raises(Cancelled):
            harness.end()
    assert len(harness.values) <= 1
    assert quota.taken == 0


def test_a_keyed_operator_is_grouped_only_in_batch():
    operator = KeyedProcess(first, Seen())
    assert isinstance(operator.in_batch(), Grouped)
