"""A function may return one object again and again: earlier results stay what they were (K1)."""

import asyncio
import logging

import pandas as pd
import pyarrow as pa
import pytest

import headgate as hg
from headgate.connectors.generators import CollectionSource, GeneratorSource, RateSource
from headgate.functions.basic import AggregateFunction, FlatMapFunction
from headgate.functions.source import Source, Wait
from headgate.functions.windows import ProcessWindowFunction, TumblingEventTimeWindows
from headgate.meters import TaskTimer
from headgate.sync import ThreadSync
from headgate.task.operator import Operator
from headgate.task.operators.async_map import MapAsync
from headgate.task.operators.basic import Filter, FlatMap, Map, PassOn
from headgate.task.operators.batches import MapBatches
from headgate.task.operators.calls import retains_nothing
from headgate.task.operators.keyed import KeyedProcess, KeyedReduce
from headgate.task.operators.process import CoFlatMap, CoMap, CoProcess, Process
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain
from headgate.task.runtime.loop import SourceLoop
from headgate.task.windows.join import WindowJoin
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness

pytestmark = pytest.mark.spec("K1")


class Spoiler:
    """Returns one dict again and again, with the newest value in it; None for values below 0."""

    def __init__(self):
        self.one = {}

    def __call__(self, value, *_):
        if value < 0:
            return None
        self.one["n"] = value
        return self.one


class Nested(Spoiler):
    """The same inside a tuple."""

    def __call__(self, value, *_):
        return value if value < 0 else ("n", super().__call__(value))


def several(function):
    """As a function for flat_map and process: a generator, which runs on between two of its results."""

    def generate(value, *_):
        yield function(value)
        yield function(value)

    return generate


class Sum(AggregateFunction):
    def __init__(self, spoiler):
        self.spoiler = spoiler

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return self.spoiler(accumulator)


class OfWindow(ProcessWindowFunction):
    def __init__(self, spoiler):
        self.spoiler = spoiler

    def process(self, key, context, elements):
        yield self.spoiler(key)


def co(kind, function):
    return kind((function, function))


async def _wait(function, value):
    await asyncio.sleep(0)
    return function(value)


def expected(kind, value):
    if value < 0:
        return None if kind is Spoiler else value
    return {"n": value} if kind is Spoiler else ("n", {"n": value})


ONCE = {
    "map": Map,
    "co_map": lambda function: co(CoMap, function),
    "map_batches": lambda function: MapBatches(lambda values: map(function, values)),
    "map_async": lambda function: MapAsync(lambda value: _wait(function, value)),
    "map_async unordered": lambda function: MapAsync(lambda value: _wait(function, value), ordered=False),
    "reduce": lambda function: KeyedReduce(lambda _: 0, lambda _, value: function(value)),
}
TWICE = {
    "flat_map": FlatMap,
    "co_flat_map": lambda function: co(CoFlatMap, function),
    "process": Process,
    "co_process": lambda function: co(CoProcess, function),
    "keyed process": lambda function: KeyedProcess(lambda value: 0, function),
}


@pytest.mark.parametrize("kind", [Spoiler, Nested])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("operator", ONCE)
def test_a_result_does_not_change_when_the_function_reuses_it(operator, timed, kind):
    batches = [[-1, 1, 2, 3], [4, 5], [-1], [6, -1, 7]]  # the first result cannot change, the first batch, later ones
    skipped = 1 if operator == "reduce" else 0  # the first value of a key does not come from the function
    with OperatorHarness(ONCE[operator](kind())) as harness:
        for batch in batches:
            harness.process(batch, list(range(len(batch))) if timed else None)
        harness.end()
    values = [value for batch in batches for value in batch]
    assert harness.values[skipped:] == [expected(kind, value) for value in values[skipped:]]


@pytest.mark.parametrize("kind", [Spoiler, Nested])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("operator", TWICE)
def test_several_results_do_not_change_when_the_function_reuses_them(operator, timed, kind):
    batches = [[-1, 1, 2, 3], [4, 5], [-1], [6, -1, 7]]
    with OperatorHarness(TWICE[operator](several(kind()))) as harness:
        for batch in batches:
            harness.process(batch, list(range(len(batch))) if timed else None)
        harness.end()
    values = [value for batch in batches for value in batch]
    assert harness.values == [expected(kind, value) for value in values for _ in range(2)]


def test_a_list_that_is_filled_again_and_one_object_twice_in_a_list():
    filled = []

    def fill(value):
        filled[:] = [value, value + 1]
        return filled

    with OperatorHarness(FlatMap(fill)) as harness:
        harness.process([1, 3])
    assert harness.values == [1, 2, 3, 4]
    with OperatorHarness(FlatMap(lambda value: [[value]] * 2)) as harness:
        harness.process([1])
    first, second = harness.values
    assert first == second == [1]
    assert first is not second


def test_a_frame_that_is_changed_in_place_is_a_new_batch_each_time():
    kept = pd.DataFrame({"n": [0]})

    def count(frame):
        kept.loc[0, "n"] += len(frame)
        return kept

    with OperatorHarness(MapBatches(count, "pandas")) as harness:
        harness.process([pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})])
    assert [batch.to_pydict() for batch in harness.values] == [{"n": [2]}, {"n": [3]}]


@pytest.mark.parametrize("timed", [False, True])
def test_a_filter_may_keep_a_value_and_change_it_later(timed):
    seen = []

    def keep(value):
        for one in seen:
            one["spoilt"] = True
        seen.append(value)
        value["seen"] = True  # before it decides: that is part of the result
        return value["n"] != 2

    with OperatorHarness(Filter(keep)) as harness:
        for batch in ([{"n": 1}, {"n": 2}, {"n": 3}], [{"n": 4}]):
            harness.process(batch, list(range(len(batch))) if timed else None)
    assert harness.values == [{"n": n, "seen": True} for n in (1, 3, 4)]
    if timed:
        assert [time for _, time in harness.timed] == [0, 2, 0]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("how", ["aggregate", "process", "join"])
def test_results_of_windows_do_not_change_when_the_function_reuses_them(how, batch):
    windows, spoiler = TumblingEventTimeWindows.of(10), Spoiler()
    if how == "aggregate":
        operator = WindowOperator(lambda n: n, windows, Sum(spoiler), "aggregate")
    elif how == "process":
        operator = WindowOperator(lambda n: n, windows, OfWindow(spoiler), "process")
    else:
        operator = WindowJoin(lambda n: n, lambda n: n, windows, spoiler)
    with OperatorHarness(operator, batch=batch) as harness:
        harness.process([1, 2, 3], [1, 2, 3])
        if how == "join":
            harness.process_second([1, 2, 3], [1, 2, 3])
        harness.process([4, 5], [14, 15])
        if how == "join":
            harness.process_second([4, 5], [14, 15])
        harness.end()
    assert sorted(value["n"] for value in harness.values) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", [Map, FlatMap, Filter])
def test_object_reuse_hands_on_the_object_itself(kind):
    one = {}
    function = (lambda _: [one]) if kind is FlatMap else lambda _: one or True
    operator = kind(function)
    harness = OperatorHarness(operator)
    operator.place = OperatorPlace("op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"), object_reuse=True)
    with harness:
        harness.process([one])
    assert harness.values[0] is (True if kind is Map and not one else one)


class Repeated(Source):
    """Gives out one list of one dict again and again."""

    def splits(self, parallelism):
        return [0]

    def read(self, split, offset, place):
        record, batch = {}, []
        for n in range(3):
            record["n"] = n
            batch[:] = [record]
            yield batch


class Collected(Operator):
    def __init__(self):
        self.batches = []

    def process(self, values, times):
        self.batches.append(values)


def read_by_a_task(source, *, object_reuse=False):
    operator = Collected()
    operator.place = OperatorPlace(
        "op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"), object_reuse=object_reuse
    )
    timing = {"sync": ThreadSync(), "timer": TaskTimer(lambda: 0), "now_ns": lambda: 0}
    SourceLoop(source, source.splits(1), operator.place, Chain([operator], [None]), [], **timing).run()
    return [value for batch in operator.batches for value in batch]


def test_a_source_may_fill_the_same_list_with_the_same_record():
    assert read_by_a_task(Repeated()) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len(read_by_a_task(Repeated(), object_reuse=True)) == 3


def test_records_of_a_collection_are_not_the_users_objects():
    given = [{"n": 1}] * 2
    first, second = read_by_a_task(CollectionSource(given))
    assert first == second == {"n": 1}
    assert len({id(first), id(second), id(given[0])}) == 3
    assert CollectionSource([("to", 1), ("be", 1)]).fresh


def test_generated_records_do_not_change_when_the_source_reuses_them():
    assert read_by_a_task(GeneratorSource(Spoiler(), count=40)) == [{"n": n} for n in range(40)]

    def generate():
        one = {}
        for n in range(40):
            one["n"] = n
            yield one

    assert read_by_a_task(GeneratorSource(generate)) == [{"n": n} for n in range(40)]
    rate = RateSource(1e9, count=40, function=Spoiler())
    given = [batch for batch in rate.read((0, 1), 0, None) if not isinstance(batch, Wait)]
    assert [value for batch in given for value in batch] == [{"n": n} for n in range(40)]


class Spoils(Operator):
    """Changes what it gets."""

    def process(self, values, times):
        for value in values:
            value["spoilt"] = True
        self.out.emit(values, times)


class Paper:
    def __init__(self):
        self.values = []

    def emit_batch(self, values, timestamps_ms=None):
        self.values.extend(values)


@pytest.mark.parametrize("object_reuse", [False, True])
@pytest.mark.parametrize("tag", [None, "side"])
@pytest.mark.parametrize("spoiling", [0, 1, 2])
def test_each_branch_has_values_of_its_own(spoiling, tag, object_reuse):
    class Head(PassOn):
        def process(self, values, times):
            self.out.emit(values, times) if tag is None else self.out.emit_to(tag, values, times)

    operators = [Head(), *(Spoils() if index == spoiling else PassOn() for index in range(3))]
    for operator in operators:
        operator.place = OperatorPlace(
            "op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"), object_reuse=object_reuse
        )
    chain = Chain(operators, [None, (0, tag), (0, tag), (0, tag)])
    papers = [Paper() for _ in range(4)]
    for link, paper in zip(chain.links[1:], papers, strict=False):
        link.add_writer(paper, None)
    chain.links[0].add_writer(papers[3], tag)
    chain.open()
    for n in range(2):
        chain.head.process([n if n < 0 else {"n": n}], [n])
    chain.close()
    for index, paper in enumerate(papers):
        extra = {"spoilt": True} if index == spoiling else {}
        assert paper.values == [{"n": n, **extra} for n in range(2)]


COUNTS = {}


class Named:
    def __call__(self, value):
        return value


def with_default(value, kept=[]):  # noqa: B006 - that is what is tested
    kept.append(value)
    return kept


def generator(value):
    yield value


def uses_global(value):
    COUNTS[value] = 1
    return COUNTS


def with_closure():
    kept = {}
    return lambda value: kept


@pytest.mark.parametrize(
    ("function", "nothing"),
    [
        (lambda word: (word, 1), True),
        (lambda pair: {"word": pair[0], "n": len(pair[1])}, True),
        (lambda pairs: [n + 1 for n in pairs], True),
        (str.upper, True),
        (lambda line: (line.split(",")[0].lower(), 1), True),
        (lambda row: {"n": row.get("n")}, True),
        (lambda row: row.update(n=1), False),
        (str, True),
        (len, True),
        (uses_global, False),
        (with_closure(), False),
        (with_default, False),
        (generator, False),
        (lambda value: value.method(), False),
        (lambda value: [one + 1 for one in COUNTS], False),
        (Named(), False),
        (Named().__call__, False),
        (print, False),
        (dict.copy, False),
        ([].append, False),
        (Named, False),
    ],
)
def test_which_functions_can_keep_a_result(function, nothing):
    assert retains_nothing(function) is nothing


def test_a_shadowed_builtin_is_not_trusted():
    names = {"len": lambda value: COUNTS}
    exec("def shadowed(value): return len(value)", names)
    assert not retains_nothing(names["shadowed"])


@pytest.mark.parametrize("kind", [Map, FlatMap, Filter])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_stop_iteration_loses_no_record_silently(kind, timed, at):
    def stops(value):
        if value == at:
            next(iter(()))
        return [value]

    with OperatorHarness(kind(stops)) as harness, pytest.raises(hg.HeadgateError, match="StopIteration"):
        harness.process([0, 1, 2], [0, 1, 2] if timed else None)


@pytest.mark.parametrize("make", [lambda f: GeneratorSource(f, count=40), lambda f: RateSource(1e9, 40, f)])
def test_a_stop_iteration_of_a_generating_function_loses_no_record_silently(make):
    def stops(n):
        return next(iter(())) if n == 5 else n

    with pytest.raises(RuntimeError, match="the function raised StopIteration"):
        list(make(stops).read((0, 1), 0, None))


class Counting(FlatMapFunction):
    """A function with a life cycle, which keeps its result."""

    def open(self, runtime_context):
        self.one = {"n": 0}

    def flat_map(self, value):
        self.one["n"] += 1
        return [self.one]


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("shape", ["chain", "exchange", "branches"])
def test_the_same_holds_in_a_job(shape, mode):
    env = hg.environment(local=True, parallelism=1, runtime_mode=mode)
    counted = env.from_collection(range(2_000)).flat_map(Counting())
    if shape == "exchange":
        counted = counted.rebalance()
    if shape == "branches":
        counted.map(lambda one: one.update(n=-1)).filter(lambda one: False).print()
    numbers = counted.map(lambda one: one["n"]).execute_and_collect()
    assert sorted(numbers) == list(range(1, 2_001))
