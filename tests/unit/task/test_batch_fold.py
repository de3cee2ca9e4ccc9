"""Rolling aggregates in BATCH mode: the last value of each key, in memory and beyond it."""

import collections
from typing import ClassVar

import pytest
from tests.support.batch_operators import CountedQuota, space

from headgate.errors import Cancelled, StorageFull, UserCodeError
from headgate.functions.basic import ReduceFunction
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.record import MsgpackSerializer
from headgate.task.operators.basic import Map
from headgate.task.operators.keyed import KeyedAggregateField, KeyedCount, KeyedReduce
from headgate.testing.harness import OperatorHarness

pytestmark = pytest.mark.spec("T4")


def first(value):
    return value[0]


def add(a, b):
    return a[0], a[1] + b[1]


@pytest.mark.parametrize("how", ["sum", "min", "max", "min_by", "max_by"])
def test_an_aggregate_of_a_field_gives_the_last_value_of_each_key(how):
    values = [("a", 3), ("b", 2), ("a", 5), ("a", 1), ("b", 2)]
    with OperatorHarness(KeyedAggregateField(first, 1, how)) as streaming:
        streaming.process(values)
    with OperatorHarness(KeyedAggregateField(first, 1, how), batch=True) as batch:
        batch.process(values[:2])
        batch.process(values[2:])
        assert batch.values == []
        batch.end()
    assert dict(batch.values) == dict(streaming.values)
    assert len(batch.values) == 2


def test_everything_comes_once_before_the_last_watermark_and_no_other_passes():
    with OperatorHarness(KeyedCount(first), batch=True) as harness:
        harness.operator.status(active=False)
        harness.process(["to", "be"], [1, 2])
        harness.watermark(5)
        assert (harness.values, harness.watermarks) == ([], [])
        harness.watermark(MAX_WATERMARK_MS)
        assert harness.timed == [(("t", 1), 1), (("b", 1), 2)]
        harness.operator.finish()
    assert len(harness.values) == 2
    assert harness.watermarks == [MAX_WATERMARK_MS]
    assert harness.statuses == []


def test_without_a_last_watermark_the_end_gives_everything_out():
    with OperatorHarness(KeyedCount(first), batch=True) as harness:
        harness.process(["to"])
        harness.operator.finish()
    assert harness.values == [("t", 1)]


def test_without_input_there_is_nothing():
    with OperatorHarness(KeyedReduce(first, add), batch=True, spill=space(100)) as harness:
        harness.process([])
        harness.end()
    assert harness.values == []


def test_other_operators_are_themselves():
    operator = Map(str.upper)
    assert operator.in_batch() is operator


def test_keys_that_do_not_fit_are_spilled_and_those_that_do_are_not():
    quota = CountedQuota()
    disk = space(40_000, MsgpackSerializer(tuple[int, int]), quota=quota)
    with OperatorHarness(KeyedReduce(first, add), batch=True, spill=disk) as harness:
        for _ in range(100):
            harness.process([(key, 1) for key in range(20)])
        for begin in range(100, 5_000, 100):
            harness.process([(key, 1) for key in range(begin, begin + 100)] * 2)
        early = quota.taken
        for _ in range(1_000):
            harness.process([(key, 1) for key in range(20)])
        assert quota.taken == early > 0
        harness.end()
    counts = dict(harness.values)
    assert len(harness.values) == len(counts) == 4_920
    assert all(counts[key] == (1_100 if key < 20 else 2) for key in counts)
    assert harness.counters["spilled_bytes"] >= early
    assert quota.taken == 0


def test_the_words_of_a_text_are_counted_within_little_memory():
    text = [f"word-{n * n % 9973}" for n in range(20_000)]
    with OperatorHarness(KeyedCount(str.upper), batch=True, spill=space(64 * 1024)) as harness:
        for begin in range(0, len(text), 500):
            harness.process(text[begin : begin + 500])
        harness.end()
    assert dict(harness.values) == collections.Counter(map(str.upper, text))
    assert harness.counters["spilled_bytes"] > 0


def test_aggregates_that_grow_are_put_aside_with_their_keys():
    """The key of a list is none of its parts' keys, and lists cannot be written by the serializer of the input."""

    def parity(value):
        return len(value) if isinstance(value, list) else value % 10

    def gather(a, b):
        return [*(a if isinstance(a, list) else [a]), b]

    quota = CountedQuota()
    disk = space(20_000, MsgpackSerializer(int), quota=quota)
    with OperatorHarness(KeyedReduce(parity, gather), batch=True, spill=disk) as harness:
        for begin in range(0, 3_000, 10):
            harness.process(list(range(begin, begin + 10)), list(range(begin, begin + 10)))
        assert not harness.operator._kept
        harness.end()
    assert sorted(harness.timed) == [(list(range(digit, 3_000, 10)), 2_990 + digit) for digit in range(10)]
    assert quota.peak > 0
    assert quota.taken == 0


def test_the_time_of_a_result_is_that_of_the_last_value_of_its_key():
    with OperatorHarness(KeyedReduce(first, add), batch=True) as harness:
        harness.process([("a", 1), ("b", 1), ("c", 1)], [10, 20, 30])
        harness.process([("a", 1)], [5])
        harness.process([("b", 1)])
        harness.end()
    assert sorted(harness.timed) == [(("a", 2), 5), (("b", 2), None), (("c", 1), 30)]


class Total(ReduceFunction):
    life: ClassVar[list[str]] = []

    def open(self, context):
        self.life.append(f"open {context.task_name}")

    def reduce(self, a, b):
        if b[1] < 0:
            raise ValueError("below nothing")
        return add(a, b)

    def close(self):
        self.life.append("close")


def test_a_function_is_opened_and_closed_and_named_if_it_fails():
    Total.life = []
    with OperatorHarness(KeyedReduce(first, Total()), batch=True) as harness:
        harness.process([("a", 1)])
        with pytest.raises(UserCodeError, match=r"LastReduce.*below nothing"):
            harness.process([("a", -1)])
    assert Total.life == ["open LastReduce", "close"]


def test_a_function_that_fails_on_spilled_values_is_named():
    with OperatorHarness(KeyedReduce(first, Total()), batch=True, spill=space(1)) as harness:
        harness.process([("b", 1)])
        harness.process([("a", 1)])
        harness.process([("a", -1)])
        with pytest.raises(UserCodeError, match=r"LastReduce.*below nothing"):
            harness.end()


def test_a_key_function_that_stops_early_is_an_error():
    with (
        OperatorHarness(KeyedCount(lambda value: next(iter(value))), batch=True) as harness,
        pytest.raises(UserCodeError, match="StopIteration"),
    ):
        harness.process([[1], [], [2]])


def test_values_that_cannot_be_written_name_the_operator():
    with OperatorHarness(KeyedCount(first), batch=True, spill=space(1)) as harness:
        harness.process([("a", 1)])
        with pytest.raises(UserCodeError, match=r"LastCount.*pickle cannot write"):
            harness.process([("b", lambda: None)])


@pytest.mark.spec("P3")
def test_a_full_disk_is_no_fault_of_the_function():
    quota = CountedQuota(most=500)
    with OperatorHarness(KeyedCount(first), batch=True, spill=space(1_000, quota=quota)) as harness:
        harness.process([(n, 1) for n in range(10)])
        with pytest.raises(StorageFull, match="disk_quota"):
            harness.process([(n, 1) for n in range(1_000)])
    assert quota.taken == 0


@pytest.mark.parametrize("memory", [2**20, 1_000])
def test_a_cancelled_job_ends_while_results_are_given_out(memory):
    quota = CountedQuota()

    class Cancelling(OperatorHarness):
        def emit(self, values, times=None):
            super().emit(values, times)
            self.operator.cancel()

    with Cancelling(KeyedCount(first), batch=True, spill=space(memory, quota=quota)) as harness:
        for n in range(3_000):
            harness.process([(n, 1)])
        with pytest.raises(Cancelled):
            harness.end()
    assert 0 < len(harness.values) < 3_000
    assert quota.taken == 0
