"""State in every function after key_by: of the key of each record, the same in STREAMING and BATCH."""

from collections import defaultdict

import pytest
from tests.support.pipelines import collected, failure, small_env

import headgate as hg

MODES = pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
SIZES = pytest.mark.parametrize("parallelism", [1, 3])
RECORDS = [(f"key-{(n * n) % 11}", n) for n in range(600)]


def first(pair):
    return pair[0]


def keyed_stream(mode, parallelism, records=RECORDS):
    return small_env(parallelism).set_runtime_mode(mode).from_collection(records).key_by(first)


def by_key(pairs):
    found = defaultdict(list)
    for key, *rest in pairs:
        found[key].append(tuple(rest))
    return dict(found)


def numbered(records=RECORDS):
    """What the functions below give out: the how many-th of its key each record is."""
    seen, expected = defaultdict(int), []
    for key, n in records:
        seen[key] += 1
        expected.append((key, n, seen[key]))
    return expected


class Counting:
    """What the functions below share."""

    def open(self, context):
        self.seen = context.get_state("seen", 0)

    def number(self, pair):
        self.seen.update(self.seen.value() + 1)
        return *pair, self.seen.value()


class CountingMap(Counting, hg.MapFunction):
    def map(self, value):
        return self.number(value)


class CountingFlatMap(Counting, hg.FlatMapFunction):
    def flat_map(self, value):  # the state is asked while the generator runs
        yield self.number(value)
        yield value[0], value[1], self.seen.value()


class EverySecond(Counting, hg.FilterFunction):
    def filter(self, value):
        return self.number(value)[2] % 2 == 0


@pytest.mark.spec("K1")
@MODES
@SIZES
def test_map_has_state(mode, parallelism):
    got = collected(keyed_stream(mode, parallelism).map(CountingMap()))
    assert by_key(got) == by_key(numbered())


@MODES
@SIZES
def test_flat_map_has_state(mode, parallelism):
    got = collected(keyed_stream(mode, parallelism).flat_map(CountingFlatMap()))
    assert by_key(got) == by_key(one for one in numbered() for _ in range(2))


@MODES
@SIZES
def test_filter_has_state(mode, parallelism):
    got = collected(keyed_stream(mode, parallelism).filter(EverySecond()))
    assert by_key(got) == by_key((key, n) for key, n, count in numbered() if count % 2 == 0)


@MODES
@SIZES
def test_reduce_has_state(mode, parallelism):
    class Largest(hg.ReduceFunction):
        """The largest so far, and how often it was called for this key."""

        def open(self, context):
            self.calls = context.get_map_state("calls")

        def reduce(self, value1, value2):
            self.calls.put("n", (self.calls.get("n") or 0) + 1)
            return value1[0], max(value1[1], value2[1]), self.calls.get("n")

    got = by_key(collected(keyed_stream(mode, parallelism).reduce(Largest())))
    counts = by_key(RECORDS)
    assert {key: reduced[-1] for key, reduced in got.items()} == {
        key: (max(n for (n,) in values), len(values) - 1) for key, values in counts.items()
    }


@MODES
@SIZES
@pytest.mark.parametrize("flat", [False, True])
def test_both_inputs_of_a_keyed_co_map_share_state(mode, parallelism, flat):
    class Both(hg.CoFlatMapFunction if flat else hg.CoMapFunction):
        def open(self, context):
            self.sum = context.get_reducing_state("sum", lambda a, b: a + b)

        def map1(self, value):
            self.sum.add(value[1])
            return value[0], self.sum.get()

        def map2(self, value):
            self.sum.add(-value["n"])
            return value["key"], self.sum.get()

        def flat_map1(self, value):
            yield self.map1(value)

        def flat_map2(self, value):
            yield self.map2(value)

    env = small_env(parallelism).set_runtime_mode(mode)
    adds = env.from_collection(RECORDS).key_by(first)
    takes = env.from_collection([{"key": key, "n": n} for key, n in RECORDS]).key_by(lambda row: row["key"])
    both = adds.connect(takes)
    got = by_key(collected(both.flat_map(Both()) if flat else both.map(Both())))
    assert {key: len(sums) for key, sums in got.items()} == {key: 2 * len(n) for key, n in by_key(RECORDS).items()}
    assert {key: sums[-1] for key, sums in got.items()} == dict.fromkeys(got, (0,)), "each key has all that it added"


@MODES
@SIZES
@pytest.mark.parametrize("how", ["process", "apply", "after reduce", "after aggregate"])
def test_functions_that_see_windows_have_the_state_of_their_key(mode, parallelism, how):
    class Number(hg.ProcessWindowFunction if how != "apply" else hg.Function):
        """The how many-th window of its key this is."""

        def open(self, context):
            self.windows = context.get_state("windows", 0)

        def process(self, key, context, elements):
            self.windows.update(self.windows.value() + 1)
            yield key, self.windows.value()

        apply = process

    class Last(hg.AggregateFunction):
        def create_accumulator(self):
            return None

        def add(self, value, accumulator):
            return value

        def get_result(self, accumulator):
            return accumulator

    windows = keyed_stream(mode, parallelism, RECORDS[:550]).count_window(5)
    if how == "after reduce":
        stream = windows.reduce(lambda a, b: b, Number())
    elif how == "after aggregate":
        stream = windows.aggregate(Last(), Number())
    else:
        stream = getattr(windows, how)(Number())
    expected = {key: [(n + 1,) for n in range(len(values) // 5)] for key, values in by_key(RECORDS[:550]).items()}
    assert by_key(collected(stream)) == expected


@MODES
def test_a_function_without_state_sees_records_as_they_come(mode):
    class Plain(hg.MapFunction):
        def map(self, value):
            return value

    records = [("a", 1), ("b", 2), ("a", 3)]
    got = collected(keyed_stream(mode, 1, records).map(Plain()))
    assert got == records, "in BATCH, too: without state there is no reason to group them"


def test_the_error_of_state_without_keys_names_where_state_is_available():
    class Stateful(hg.MapFunction):
        def open(self, context):
            context.get_state("seen")

        def map(self, value):
            return value

    class Reduces(Stateful, hg.ReduceFunction):
        def reduce(self, value1, value2):
            return value1

    env = small_env(2)
    env.from_collection(RECORDS).map(Stateful()).for_each(print)
    assert "right after key_by" in str(failure(env, hg.UserCodeError))
    env = small_env(2)
    env.from_collection(RECORDS).key_by(first).count_window(2).reduce(Reduces()).for_each(print)
    error = failure(env, hg.UserCodeError)
    assert "process and apply of a keyed window" in str(error)
    assert error.operator == "window reduce(Reduces)"
