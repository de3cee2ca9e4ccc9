"""Functions with state between key_by and an exchange, one operator at a time."""

import pytest

from headgate.errors import UserCodeError
from headgate.functions.basic import FilterFunction, FlatMapFunction, MapFunction, ReduceFunction
from headgate.functions.connected import CoFlatMapFunction, CoMapFunction
from headgate.record.element import UserEvent
from headgate.task.operators.basic import Filter, FlatMap, Map
from headgate.task.operators.keyed import KeyedReduce
from headgate.task.operators.stateful import KeyedCoFlatMap, KeyedCoMap, KeyedFilter, KeyedFlatMap, KeyedMap
from headgate.testing.harness import OperatorHarness

BOTH = pytest.mark.parametrize("batch", [False, True])
WORDS = ["to", "be", "to", "or", "be", "to"]


def itself(value):
    return value


class Function(MapFunction, FlatMapFunction, FilterFunction, ReduceFunction, CoMapFunction, CoFlatMapFunction):
    """Counts its calls by key, if it asks for state in `open`."""

    asks = True

    def __init__(self):
        self.context = self.seen = None

    def open(self, context):
        self.context = context
        if self.asks:
            self.seen = context.get_state("seen", 0)

    def map(self, value):
        self.seen.update(self.seen.value() + 1)
        return value, self.seen.value()

    def flat_map(self, value):
        yield self.map(value)
        yield value, self.seen.value()

    def filter(self, value):
        return self.map(value)[1] == 2

    def reduce(self, value1, value2):
        return value1[0], self.map(value1[0])[1]

    map1 = map2 = map  # noqa: A003 - the method above
    flat_map1 = flat_map2 = flat_map


class Plain(Function):
    asks = False

    def map(self, value):
        return value, 0

    def flat_map(self, value):
        return [self.map(value)]

    def filter(self, value):
        return value == "to"

    map1 = map2 = map  # noqa: A003 - the method above
    flat_map1 = flat_map2 = flat_map


class Late(Function):
    """Asks for state only when it is called."""

    asks = False

    def map(self, value):
        self.seen = self.context.get_state("seen", 0)
        return super().map(value)

    map1 = map2 = map  # noqa: A003 - the method above


def operators(function):
    return {
        "map": KeyedMap(itself, function),
        "flat_map": KeyedFlatMap(itself, function),
        "filter": KeyedFilter(itself, function),
        "co_map": KeyedCoMap(itself, itself, function),
        "co_flat_map": KeyedCoFlatMap(itself, itself, function),
    }


NUMBERED = {"to": [1, 2, 3], "be": [1, 2], "or": [1]}


@BOTH
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("what", operators(None))
def test_each_call_has_the_state_of_the_records_key(what, timed, batch):
    with OperatorHarness(operators(Function())[what], batch=batch) as harness:
        harness.process(WORDS[:2], [1, 2] if timed else None)
        (harness.process_second if "co" in what else harness.process)(WORDS[2:4], [3, 4] if timed else None)
        harness.process(WORDS[4:], [5, 6] if timed else None)
        harness.end()
    if what == "filter":
        assert sorted(harness.values) == ["be", "to"]
        return
    times = 2 if "flat" in what else 1
    for word, counts in NUMBERED.items():
        assert [n for one, n in harness.values if one == word] == [n for n in counts for _ in range(times)]
    if timed:
        at = {"to": [1, 3, 6], "be": [2, 5], "or": [4]}
        for word, instants in at.items():
            expected = [time for time in instants for _ in range(times)]
            assert [time for (one, _), time in harness.timed if one == word] == expected


@BOTH
def test_reduce_has_the_state_of_the_key(batch):
    pairs = [(word, 0) for word in WORDS]
    with OperatorHarness(KeyedReduce(lambda pair: pair[0], Function()), batch=batch) as harness:
        harness.process(pairs)
        harness.end()
    last = dict(harness.values)
    assert last == {"to": 2, "be": 1, "or": 0}


@BOTH
@pytest.mark.parametrize("what", operators(None))
def test_without_state_values_pass_as_they_come(what, batch):
    """In BATCH, too: watermarks, statuses and values in between."""
    with OperatorHarness(operators(Plain())[what], batch=batch) as harness:
        harness.process(WORDS[:3], [1, 2, 3])
        harness.watermark(3)
        assert harness.watermarks == [3], "not grouped"
        harness.operator.status(active=False)
        assert harness.statuses == [False]
        (harness.process_second if "co" in what else harness.process)(WORDS[3:], [4, 5, 6])
        harness.end()
    expected = [word for word in WORDS if word == "to"] if what == "filter" else [(word, 0) for word in WORDS]
    assert harness.values == expected


@pytest.mark.parametrize(("keyed", "plain"), [(KeyedMap, Map), (KeyedFlatMap, FlatMap), (KeyedFilter, Filter)])
def test_without_state_the_function_is_called_without_its_key(keyed, plain):
    """A function that has no state must not pay for it: the key function is not even called."""

    def fails(value):
        raise AssertionError("the key is not needed")

    with OperatorHarness(keyed(fails, Plain())) as harness, OperatorHarness(plain(Plain())) as other:
        harness.process(WORDS)
        other.process(WORDS)
    assert harness.values == other.values


@pytest.mark.parametrize("what", ["map", "co_map"])
def test_state_that_was_not_asked_for_in_open_is_refused(what):
    with (
        OperatorHarness(operators(Late())[what]) as harness,
        pytest.raises(UserCodeError, match=r"state 'seen' .*ask for it in open"),
    ):
        harness.process(["to"])


@BOTH
def test_a_result_that_is_kept_in_state_is_copied(batch):
    class Gathers(MapFunction):
        def open(self, context):
            self.all = context.get_state("all")

        def map(self, value):
            found = self.all.value() or []
            found.append(value)
            self.all.update(found)
            return found

    with OperatorHarness(KeyedMap(len, Gathers()), batch=batch) as harness:
        harness.process(["to", "be"])
        harness.end()
    assert harness.values == [["to"], ["to", "be"]]


def test_in_batch_the_state_of_a_key_is_forgotten_with_it():
    function = Function()
    with OperatorHarness(KeyedMap(itself, function), batch=True) as harness:
        harness.process([str(n) for n in range(100)])
        harness.end()
        assert function.context._state.entries() == {"seen": 0}


@pytest.mark.spec("K4")
@pytest.mark.parametrize("function", [Function, Plain])
def test_in_batch_events_follow_the_results_of_earlier_records(function):
    with OperatorHarness(KeyedMap(itself, function()), batch=True) as harness:
        order = []
        harness.emit = lambda values, times=None: order.extend(value for value, _ in values)
        harness.emit_event = order.append
        harness.process(["to"])
        harness.operator.event(UserEvent("reload"))
        harness.end()
    assert order == ["to", UserEvent("reload")]
