"""Process functions without keys, and functions of two connected streams."""

import pytest

from headgate.errors import UserCodeError
from headgate.functions.basic import OutputTag
from headgate.functions.connected import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction
from headgate.functions.process import ProcessFunction
from headgate.functions.times import MIN_WATERMARK_MS
from headgate.task.operators.process import CoFlatMap, CoMap, CoProcess, KeyedCoProcess, Process
from headgate.testing.harness import OperatorHarness

ODD = OutputTag("odd", int)


class Split(ProcessFunction):
    def process_element(self, value, ctx):
        yield (ODD, value) if value % 2 else value
        if value > 2:
            yield ctx.timestamp()


def test_process_splits_by_tag_and_knows_times():
    with OperatorHarness(Process(Split())) as harness:
        harness.process([1, 2, 3, 4], [10, 20, 30, 40])
    assert harness.timed == [(2, 20), (30, 30), (4, 40), (40, 40)]
    assert harness.sides == {"odd": [1, 3]}


def test_process_without_times():
    with OperatorHarness(Process(Split())) as harness:
        harness.process([2, 4])
    assert harness.timed == [(2, None), (4, None), (None, None)]


def test_none_is_nothing_and_any_iterable_is_something():
    found = iter([None, (), [1], {2}, iter([3])])
    with OperatorHarness(Process(lambda value, ctx: next(found))) as harness:
        harness.process(range(5), range(5))
    assert harness.timed == [(1, 2), (2, 3), (3, 4)]


def test_time_is_known_without_keys():
    times = []

    def look(value, ctx):
        service = ctx.timer_service()
        times.append((service.current_processing_time(), service.current_watermark()))

    with OperatorHarness(Process(look), now_ms=77) as harness:
        harness.process([1])
        harness.watermark(5)
        harness.process([1])
    assert times == [(77, MIN_WATERMARK_MS), (77, 5)]
    assert harness.watermarks == [5]


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_timers_want_keys(domain):
    def register(value, ctx):
        getattr(ctx.timer_service(), f"register_{domain}_time_timer")(5)

    with (
        OperatorHarness(Process(register)) as harness,
        pytest.raises(UserCodeError, match="timers belong to keys: use"),
    ):
        harness.process([1])


def test_state_wants_keys():
    class Greedy(ProcessFunction):
        def open(self, context):
            context.get_state("mine")

        def process_element(self, value, ctx):
            return None

    with pytest.raises(UserCodeError, match="state belongs to keys"), OperatorHarness(Process(Greedy())):
        pass


class Both(CoMapFunction, CoFlatMapFunction, CoProcessFunction, KeyedCoProcessFunction):
    """A function of every kind, that counts what it sees."""

    def open(self, context):
        self.seen = 0

    def map1(self, value):
        self.seen += 1
        return "first", value, self.seen

    def map2(self, value):
        self.seen += 1
        return "second", value, self.seen

    def flat_map1(self, value):
        return [value] * value

    def flat_map2(self, value):
        self.seen = value  # gives out nothing

    def process_element1(self, value, ctx):
        yield "first", value, ctx.timestamp()

    def process_element2(self, value, ctx):
        yield "second", value, ctx.timestamp()
        yield ODD, value


def test_co_map_calls_the_function_of_each_input():
    with OperatorHarness(CoMap(Both())) as harness:
        harness.process([1, 2], [10, 20])
        harness.process_second([3])
    assert harness.timed == [(("first", 1, 1), 10), (("first", 2, 2), 20), (("second", 3, 3), None)]


def test_co_flat_map_keeps_times_with_their_values():
    with OperatorHarness(CoFlatMap(Both())) as harness:
        harness.process([2, 0, 1], [10, 20, 30])
        harness.process_second([7], [40])
        harness.process([1])
    assert harness.timed == [(2, 10), (2, 10), (1, 30), (1, None)]


def test_co_process_has_contexts_and_side_outputs():
    with OperatorHarness(CoProcess(Both())) as harness:
        harness.process([1], [10])
        harness.process_second([2], [20])
        harness.watermark(20)
    assert harness.timed == [(("first", 1, 10), 10), (("second", 2, 20), 20)]
    assert harness.sides == {"odd": [2]}
    assert harness.watermarks == [20]


class Join(KeyedCoProcessFunction):
    """Pairs an order with its payment, and complains after ten milliseconds."""

    def open(self, context):
        self.order = context.get_state("order")

    def process_element1(self, value, ctx):
        self.order.update(value)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def process_element2(self, value, ctx):
        order = self.order.value()
        if order is not None:
            ctx.timer_service().delete_event_time_timer(order["at"] + 10)
            self.order.clear()
            yield ctx.get_current_key(), order["what"], value["paid"]

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "unpaid", timestamp
        self.order.clear()


def test_keyed_co_process_shares_state_and_timers_of_a_key():
    with OperatorHarness(KeyedCoProcess(lambda o: o["id"], lambda p: p["order"], Join())) as harness:
        harness.process([{"id": i, "what": "tea", "at": i} for i in range(3)], [0, 1, 2])
        harness.process_second([{"order": 1, "paid": 5}], [6])
        harness.watermark(11)
        assert harness.timed == [((1, "tea", 5), 6), ((0, "unpaid", 10), 10)]
        harness.end()
    assert harness.timed[2:] == [((2, "unpaid", 12), 12)]
    assert harness.operator.keyed_state().entries() == {"order": 0}


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda: CoMap(Both), [1]),
        (lambda: CoFlatMap((len,)), [1]),
        (lambda: CoProcess(len), [1]),
    ],
)
def test_two_inputs_want_two_functions(make, values):
    with pytest.raises(TypeError, match="a pair of callables"), OperatorHarness(make()):
        pass


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("make", [CoMap, CoFlatMap, CoProcess, lambda pair: KeyedCoProcess(bool, bool, pair)])
def test_errors_name_the_operator(make, second):
    def fail(value, *context):
        raise LookupError("nonesuch")

    with OperatorHarness(make((fail, fail)), subtask=1) as harness:
        process = harness.process_second if second else harness.process
        with pytest.raises(UserCodeError, match=r"subtask 1: LookupError: nonesuch"):
            process([1])
