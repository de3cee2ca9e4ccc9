"""Running aggregates and keyed process functions, one operator at a time."""

import collections
import dataclasses
import operator
from itertools import accumulate
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import UserCodeError
from headgate.functions.basic import OutputTag, ReduceFunction
from headgate.functions.process import KeyedProcessFunction, ProcessFunction
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.task.operators.keyed import KeyedAggregateField, KeyedCount, KeyedProcess, KeyedReduce, aggregate_field
from headgate.testing.harness import OperatorHarness

batches = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-9, 9)), max_size=20), max_size=5)


def first(value):
    return value[0]


def running(values, key, reduce):
    """What a running aggregate gives, the plain way."""
    seen = collections.defaultdict(list)
    out = []
    for value in values:
        seen[key(value)].append(value)
        *_, last = accumulate(seen[key(value)], reduce)
        out.append(last)
    return out


@given(batches)
def test_reduce_gives_the_running_value_of_each_record(batches):
    def add(a, b):
        return a[0], a[1] + b[1]

    with OperatorHarness(KeyedReduce(first, add)) as harness:
        for values in batches:
            harness.process(values, range(len(values)))
    everything = [value for values in batches for value in values]
    assert harness.values == running(everything, first, add)
    assert [time for _, time in harness.timed] == [index for values in batches for index in range(len(values))]


@given(batches)
def test_count_counts(batches):
    with OperatorHarness(KeyedCount(first)) as harness:
        for values in batches:
            harness.process(values)
    counts = collections.Counter()
    expected = []
    for values in batches:
        for key, _ in values:
            counts[key] += 1
            expected.append((key, counts[key]))
    assert harness.values == expected


def extend(a, b):
    a["all"].extend(b["all"])
    a["n"] += b["n"]
    return a


def extend_inside(a, b):
    a[1].extend(b[1])
    return a


def extend_once_two_are_there(a, b):
    """Turns into a tuple with a list inside only when it reduces for the first time."""
    if not isinstance(a[1], list):
        a = (a[0], [a[1]])
    a[1].append(b[1])
    return a


@pytest.mark.parametrize(
    ("function", "key", "values", "expected"),
    [
        (
            extend,
            operator.itemgetter("k"),
            [{"k": 1, "n": 1, "all": [i]} for i in range(3)],
            [{"k": 1, "n": i + 1, "all": list(range(i + 1))} for i in range(3)],
        ),
        (extend_inside, first, [("k", [i]) for i in range(3)], [("k", list(range(i + 1))) for i in range(3)]),
        (extend_once_two_are_there, first, [("k", 0), ("k", 1), ("k", 2)], [("k", 0), ("k", [0, 1]), ("k", [0, 1, 2])]),
    ],
)
def test_each_record_shows_its_own_value_though_the_function_changes_its_accumulator(function, key, values, expected):
    with OperatorHarness(KeyedReduce(key, function)) as harness:
        harness.process(values)
    assert harness.values == expected


def test_changing_a_result_does_not_change_the_state():
    with OperatorHarness(KeyedAggregateField(lambda row: 1, "n", "min_by")) as harness:
        harness.process([{"n": 1}])
        harness.values[0]["n"] = 99
        harness.process([{"n": 5}])
    assert harness.values[1] == {"n": 1}


def test_with_object_reuse_nothing_is_copied():
    harness = OperatorHarness(KeyedReduce(lambda value: 1, lambda a, b: a))
    harness.operator.place = dataclasses.replace(harness.operator.place, object_reuse=True)
    value = [1]
    with harness:
        harness.process([value, [2]])
    assert all(one is value for one in harness.values)


def test_a_reduce_function_object_is_opened_and_closed():
    class Add(ReduceFunction):
        life = ()

        def open(self, context):
            self.life = (*self.life, context.subtask_index)

        def close(self):
            self.life = (*self.life, "closed")

        def reduce(self, value1, value2):
            return value1 + value2

    function = Add()
    with OperatorHarness(KeyedReduce(lambda value: 0, function), subtask=3, parallelism=4) as harness:
        harness.process([1, 2, 3])
    assert harness.values == [1, 3, 6]
    assert function.life == (3, "closed")


def test_none_can_be_reduced():
    with OperatorHarness(KeyedReduce(lambda value: 0, lambda a, b: None)) as harness:
        harness.process([1, 2, 3])
    assert harness.values == [1, None, None]


class Named(NamedTuple):
    who: str
    n: int
    note: str


@dataclasses.dataclass
class Open:
    who: str
    n: int
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    who: str
    n: int
    note: str


class FrozenStruct(msgspec.Struct, frozen=True):
    who: str
    n: int
    note: str


class Plain:
    def __init__(self, who, n, note):
        self.who, self.n, self.note = who, n, note

    def __eq__(self, other):
        return vars(self) == vars(other)

    __hash__ = None


ROWS = [("Ann", 3, "x"), ("Ann", 1, "y"), ("Ann", 5, "z"), ("Ann", 1, "w")]
RUNNING = {
    "sum": [(3, "x"), (4, "x"), (9, "x"), (10, "x")],
    "min": [(3, "x"), (1, "x"), (1, "x"), (1, "x")],
    "max": [(3, "x"), (3, "x"), (5, "x"), (5, "x")],
    "min_by": [(3, "x"), (1, "y"), (1, "y"), (1, "y")],
    "max_by": [(3, "x"), (3, "x"), (5, "z"), (5, "z")],
}


@pytest.mark.parametrize("how", RUNNING)
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda *row: row, 1),
        (lambda *row: row, -2),
        (lambda *row: list(row), 1),
        (Named, 1),
        (Named, "n"),
        (Open, "n"),
        (Frozen, "n"),
        (FrozenStruct, "n"),
        (Plain, "n"),
        (lambda who, n, note: {"who": who, "n": n, "note": note}, "n"),
    ],
    ids=["tuple", "tuple from the end", "list", "named by index", "named", "open", "frozen", "struct", "plain", "dict"],
)
def test_a_field_is_aggregated_whatever_has_it(how, make, field):
    with OperatorHarness(KeyedAggregateField(lambda row: 0, field, how)) as harness:
        harness.process([make(*row) for row in ROWS])
    assert harness.values == [make("Ann", n, note) for n, note in RUNNING[how]]
    assert {type(value) for value in harness.values} == {type(make("", 0, ""))}


@pytest.mark.parametrize("how", RUNNING)
def test_values_themselves_are_aggregated(how):
    with OperatorHarness(KeyedAggregateField(lambda value: 0, None, how)) as harness:
        harness.process([n for _, n, _ in ROWS])
    assert harness.values == [n for n, _ in RUNNING[how]]


def test_an_unknown_aggregate_is_refused():
    with pytest.raises(ValueError, match="no aggregate 'mean'"):
        aggregate_field(0, "mean")


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeyedReduce(lambda value: 1 / value, max),
        lambda: KeyedReduce(bool, lambda a, b: a / b),
        lambda: KeyedCount(lambda value: 1 / value),
        lambda: KeyedAggregateField(bool, "nonesuch", "sum"),
        lambda: KeyedProcess(lambda value: 1 / value, lambda value, ctx: []),
        lambda: KeyedProcess(bool, lambda value, ctx: 1 / value),
    ],
)
def test_an_error_of_user_code_names_operator_and_subtask(make):
    with OperatorHarness(make(), subtask=2) as harness, pytest.raises(UserCodeError, match="subtask 2") as caught:
        harness.process([0, 0])
    assert caught.value.operator == type(harness.operator).__name__
    assert not harness.values


# KeyedProcess.

LATE = OutputTag("late")


class Recorder(KeyedProcessFunction):
    """Registers what values say, and tells what it sees."""

    def open(self, context):
        self.seen = context.get_state("seen", 0)

    def process_element(self, value, ctx):
        key, act, *times = value
        self.seen.update(self.seen.value() + 1)
        service = ctx.timer_service()
        for time in times:
            getattr(service, act)(time)
        yield key, ctx.get_current_key(), self.seen.value(), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp
        yield ctx.time_domain(), ctx.get_current_key(), timestamp, self.seen.value()


EVENT, PROCESSING = "register_event_time_timer", "register_processing_time_timer"
DELETE_EVENT, DELETE_PROCESSING = "delete_event_time_timer", "delete_processing_time_timer"


def test_state_and_context_are_those_of_the_key():
    with OperatorHarness(KeyedProcess(first, Recorder())) as harness:
        harness.process([("a", ""), ("b", ""), ("a", "")], [1, 2, 3])
        harness.process([("b", "")])
    assert harness.timed == [
        (("a", "a", 1, 1), 1),
        (("b", "b", 1, 2), 2),
        (("a", "a", 2, 3), 3),
        (("b", "b", 2, None), None),
    ]


def test_event_timers_fire_in_order_before_the_watermark_goes_on():
    order = []
    with OperatorHarness(KeyedProcess(first, Recorder())) as harness:
        harness.emit = lambda values, times=None: order.extend(zip(values, times, strict=True))
        harness.emit_watermark = order.append
        harness.process([("a", EVENT, 30, 10), ("b", EVENT, 20, 10, 10), ("a", DELETE_EVENT, 30)], [1, 2, 3])
        order.clear()
        harness.watermark(9)
        assert order == [9]
        harness.watermark(25)
        assert order[1:] == [
            (("event", "a", 10, 2), 10),
            (("event", "b", 10, 1), 10),
            (("event", "b", 20, 1), 20),
            25,
        ]
        harness.watermark(MAX_WATERMARK_MS)
    assert order[5:] == [MAX_WATERMARK_MS]


def test_a_timer_may_register_others_that_are_due_at_once():
    class Chain(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

        def on_timer(self, timestamp, ctx):
            if timestamp < 40:
                ctx.timer_service().register_event_time_timer(timestamp + 10)
            return [timestamp, ctx.timer_service().current_watermark()]

    with OperatorHarness(KeyedProcess(bool, Chain())) as harness:
        harness.process([1], [0])
        harness.watermark(35)
        assert harness.values == [10, 35, 20, 35, 30, 35]
        harness.end()
    assert harness.values[6:] == [40, MAX_WATERMARK_MS]


def test_a_timer_in_the_past_fires_with_the_next_watermark():
    with OperatorHarness(KeyedProcess(first, Recorder())) as harness:
        harness.watermark(100)
        harness.process([("a", EVENT, 50)], [90])
        assert len(harness.values) == 1
        harness.watermark(101)
    assert harness.timed[1:] == [(("event", "a", 50, 1), 50)]


def test_processing_timers_fire_as_time_passes_and_their_results_have_no_time():
    with OperatorHarness(KeyedProcess(first, Recorder()), now_ms=1000) as harness:
        assert harness.operator.next_timer_ms() is None
        harness.process([("a", PROCESSING, 1200, 1100), ("b", PROCESSING, 1150, 1300), ("b", DELETE_PROCESSING, 1300)])
        assert harness.operator.next_timer_ms() == 1100
        harness.watermark(MAX_WATERMARK_MS - 1)
        assert len(harness.values) == 3, "the watermark is not their time"
        harness.advance(160)
        assert harness.timed[3:] == [(("processing", "a", 1100, 1), None), (("processing", "b", 1150, 2), None)]
        assert harness.operator.next_timer_ms() == 1200
        harness.end()
        assert harness.operator.next_timer_ms() is None, "what is left at the end is dropped"
    assert len(harness.values) == 5


def test_side_outputs_of_values_and_timers():
    class Split(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(value)
            yield value
            yield LATE, -value
            yield LATE, value, "three are no side output"
            yield "late", value

        def on_timer(self, timestamp, ctx):
            yield LATE, "timer"

    with OperatorHarness(KeyedProcess(bool, Split())) as harness:
        harness.process([5], [1])
        harness.watermark(5)
    assert harness.values == [5, (LATE, 5, "three are no side output"), ("late", 5)]
    assert harness.sides == {"late": [-5, "timer"]}


def test_a_function_may_change_a_value_it_has_yielded():
    class Collect(KeyedProcessFunction):
        def open(self, context):
            self.all = context.get_state("all", {"n": []})

        def process_element(self, value, ctx):
            row = self.all.value()
            row["n"].append(value)
            self.all.update(row)
            yield row
            yield LATE, row

    with OperatorHarness(KeyedProcess(lambda value: 0, Collect())) as harness:
        harness.process([1, 2])
        harness.process([3])
    assert harness.values == [{"n": [1]}, {"n": [1, 2]}, {"n": [1, 2, 3]}] == harness.sides["late"]


def test_a_timer_of_a_plain_function_is_an_error_with_the_remedy():
    def register(value, ctx):
        ctx.timer_service().register_event_time_timer(5)

    with OperatorHarness(KeyedProcess(bool, register)) as harness:
        with pytest.raises(UserCodeError, match="no on_timer: derive a class from KeyedProcessFunction"):
            harness.process([1])
        harness.advance(100)
        harness.end()
    assert harness.watermarks == [MAX_WATERMARK_MS]


def test_a_process_function_without_timers_will_do():
    class Twice(ProcessFunction):
        def process_element(self, value, ctx):
            return [value, value]

    with OperatorHarness(KeyedProcess(bool, Twice())) as harness:
        harness.process([1], [5])
        harness.end()
    assert harness.timed == [(1, 5), (1, 5)]


def test_the_results_of_very_many_timers_go_out_in_parts():
    class Remind(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp, ctx):
            yield timestamp

    with OperatorHarness(KeyedProcess(lambda value: value % 7, Remind())) as harness:
        harness.process(range(5000))
        harness.end()
    assert harness.values == list(range(5000))
    assert max(len(values) for values, _ in harness.batches) < 2000


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50)), max_size=40), st.lists(st.integers(0, 60)))
def test_every_timer_fires_once_at_the_first_watermark_that_reaches_it(wanted, watermarks):
    with OperatorHarness(KeyedProcess(first, Recorder())) as harness:
        harness.process([(key, EVENT, time) for key, time in wanted])
        fired_before = 0
        for watermark in sorted(watermarks):
            harness.watermark(watermark)
            fired = [value for value in harness.values if value[0] == "event"]
            assert len(fired) == len({one for one in wanted if one[1] <= watermark})
            times = [time for _, _, time, _ in fired[fired_before:]]
            assert times == sorted(times)
            fired_before = len(fired)


class Scored(NamedTuple):
    points: int
    name: str


WITHOUT_A_FIELD = {
    "sum": [([(1, "a"), (2, "b")], (3, "a")), ([[1, "a"], [2, "b"]], [3, "a"]), ([1, 2], 3), ([1.5, 2], 3.5)],
    "min": [([(2, "a"), (1, "b")], (1, "a")), ([3, 1], 1), (["b", "a"], "a")],
    "max": [([(1, "a"), (2, "b")], (2, "a")), ([Scored(1, "a"), Scored(2, "b")], Scored(2, "a")), ([1, 3], 3)],
    "min_by": [([(2, "a"), (1, "b"), (1, "c")], (1, "b")), ([[2, "a"], [1, "b"]], [1, "b"]), ([3, 1], 1)],
    "max_by": [([(1, "a"), (2, "b"), (2, "a")], (2, "b")), ([3, 1], 3)],
}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("how", "values", "expected"), [(how, *case) for how, cases in WITHOUT_A_FIELD.items() for case in cases]
)
def test_without_a_field_it_is_the_first_of_a_tuple_or_list_and_the_whole_of_other_values(how, values, expected, batch):
    with OperatorHarness(KeyedAggregateField(lambda _: "all", None, how), batch=batch) as harness:
        harness.process(values)
        harness.end()
    assert harness.values[-1] == expected
    assert type(harness.values[-1]) is type(expected)


@pytest.mark.parametrize("how", ["sum", "min", "max", "min_by", "max_by"])
@pytest.mark.parametrize("value", [{"paid": 3}, object()], ids=["dict", "object"])
def test_dicts_and_objects_need_the_name_of_a_field(how, value):
    refusal = pytest.raises(UserCodeError, match=rf"{how}\(\) .*{type(value).__name__}.*name the field: {how}\('")
    with OperatorHarness(KeyedAggregateField(lambda _: "all", None, how)) as harness, refusal:
        harness.process([value, value])
