"""Collections, functions and rates: every record once, in any number of subtasks, from any offset."""

import functools
import operator
from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.connectors.files.source import FileSource
from headgate.connectors.generators import BATCH_RECORDS, CollectionSource, GeneratorSource, RateSource, skip
from headgate.connectors.socket_text import SocketTextSource
from headgate.errors import ConfigError
from headgate.functions.source import Wait
from headgate.spark.dataframe import DataFrameSource

PARALLELISM = st.integers(1, 7)


def records(source, split, offset=0):
    """What a split gives, with batches checked."""
    found = []
    for batch in source.read(split, offset, None):
        if isinstance(batch, Wait):
            continue
        assert batch, "no batch is empty"
        assert len(batch) <= BATCH_RECORDS
        found.extend(batch)
    return found


def check_offsets(source, parallelism, offset):
    """Reading from an offset gives the rest; all splits together are returned."""
    splits = [records(source, split) for split in source.splits(parallelism)]
    for split, whole in zip(source.splits(parallelism), splits, strict=True):
        assert records(source, split, offset) == whole[offset:]
    return splits


@settings(deadline=None)
@given(st.integers(0, 3500), PARALLELISM, st.integers(0, 2500))
def test_a_collection_is_read_once_and_in_order(size, parallelism, offset):
    splits = check_offsets(CollectionSource(range(size)), parallelism, offset)
    assert functools.reduce(operator.iadd, splits, []) == list(range(size))
    assert max(map(len, splits)) - min(map(len, splits)) <= 1


def test_a_collection_knows_the_type_of_its_values():
    class Word(str):
        __slots__ = ()

    assert CollectionSource(["to", "be"]).hint is str
    assert CollectionSource([b"to"]).hint is bytes
    assert CollectionSource(["to", 2]).hint is None
    assert CollectionSource([Word("to")]).hint is None
    assert CollectionSource([]).hint is None
    assert CollectionSource([1], hint=int).hint is int


@settings(deadline=None)
@given(st.integers(0, 3500), PARALLELISM, st.integers(0, 2500))
def test_a_function_is_called_once_for_each_index(size, parallelism, offset):
    splits = check_offsets(GeneratorSource(lambda n: -n, size), parallelism, offset)
    for subtask, split in enumerate(splits):
        assert split == [-n for n in range(subtask, size, parallelism)]


def test_a_function_without_a_count_has_no_end():
    source = GeneratorSource(lambda n: n)
    assert not source.bounded
    assert GeneratorSource(lambda n: n, 5).bounded
    batches = islice(source.read((1, 3), 5, None), 20)
    assert functools.reduce(operator.iadd, batches, [])[:3] == [16, 19, 22]


@settings(deadline=None)
@given(st.integers(0, 2500), PARALLELISM, st.integers(0, 2500), st.none() | st.integers(0, 2500))
def test_an_iterable_of_each_subtask(size, parallelism, offset, limit):
    def numbers(subtask, parallelism):
        for n in range(size):
            if n % 1000 == 7:
                yield Wait(0.001)
            yield parallelism, subtask, n

    source = GeneratorSource(numbers, limit)
    for subtask, split in enumerate(check_offsets(source, parallelism, offset)):
        share = size if limit is None else min(size, len(range(subtask, limit, parallelism)))
        assert split == [(parallelism, subtask, n) for n in range(share)]


def test_an_iterable_is_not_asked_for_more_than_the_count():
    def two():
        yield 1
        yield 2
        pytest.fail("asked for a third")

    assert records(GeneratorSource(two, 2), (0, 1)) == [1, 2]


def test_any_callable_can_make_an_iterable():
    source = GeneratorSource(lambda subtask: range(subtask, 3), per_subtask=True)
    assert [records(source, split) for split in source.splits(2)] == [[0, 1, 2], [1, 2]]


@pytest.mark.parametrize(
    ("source", "bounded"),
    [
        (CollectionSource([1]), True),
        (GeneratorSource(lambda n: n), False),
        (GeneratorSource(lambda n: n, 5), True),
        (GeneratorSource(lambda n: n, bounded=True), True),
        (GeneratorSource(count, per_subtask=True), None),  # unknown
        (GeneratorSource(count, 5, per_subtask=True), True),
        (GeneratorSource(count, per_subtask=True, bounded=False), False),
        (GeneratorSource(count, per_subtask=True, bounded=True), True),
        (RateSource(10), False),
        (RateSource(10, count=3), True),
        (FileSource("nonesuch"), True),
        (SocketTextSource("127.0.0.1", 7077), False),
        (DataFrameSource(None), True),
    ],
)
def test_whether_a_source_ends(source, bounded):
    assert source.bounded is bounded
    assert source.fed is isinstance(source, DataFrameSource)


def test_a_wait_of_an_iterable_follows_the_values_before_it():
    def slow():
        yield 1
        yield Wait(9)
        yield 2

    assert list(GeneratorSource(slow).read((0, 1), 0, None)) == [[1], Wait(9), [2]]


def run_rate(source, split, clock, until_s, offset=0):
    """What a rate source gives while each wait takes as long as it says: (seconds, record)."""
    given = []
    for batch in source.read(split, offset, None):
        if isinstance(batch, Wait):
            assert 0.001 <= batch.seconds <= 0.1
            clock.advance_ms(batch.seconds * 1000)
        else:
            assert 0 < len(batch) <= BATCH_RECORDS
            given.extend((clock.now_ns() / 1e9, record) for record in batch)
        if clock.now_ns() > until_s * 1e9:
            break
    return given


@settings(deadline=None)
@given(st.floats(0.5, 200_000), PARALLELISM)
def test_every_record_comes_when_it_is_due(rate, parallelism):
    for subtask in range(parallelism):
        clock = ManualClock()
        source = RateSource(rate, clock=clock)
        for at_s, n in run_rate(source, (subtask, parallelism), clock, min(2000 / rate, 1)):
            due_s = n / rate
            assert due_s - 1e-6 <= at_s <= due_s + 0.0021


@settings(deadline=None)
@given(st.integers(0, 300), PARALLELISM, st.integers(0, 100))
def test_a_rate_with_a_count_gives_each_number_once(size, parallelism, offset):
    everything = []
    for subtask in range(parallelism):
        clock = ManualClock()
        source = RateSource(1000, size, str, clock=clock)
        whole = [record for _, record in run_rate(source, (subtask, parallelism), clock, 1e9)]
        rest = [record for _, record in run_rate(source, (subtask, parallelism), clock, 1e9, offset)]
        assert rest == whole[offset:]
        everything += whole
    assert sorted(everything, key=int) == [str(n) for n in range(size)]


def test_a_rate_catches_up_in_small_batches():
    clock = ManualClock()
    batches = RateSource(10_000, clock=clock).read((0, 1), 0, None)
    assert next(batches) == [0]
    assert isinstance(next(batches), Wait)
    clock.advance_ms(1000)  # the pipeline was held back
    caught_up = list(islice(batches, 100))
    assert max(map(len, caught_up)) == 100
    assert functools.reduce(operator.iadd, caught_up, []) == list(range(1, 10_001))
    assert isinstance(next(batches), Wait)


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ConfigError, match="records in a second"):
        RateSource(rate)


@pytest.mark.parametrize("make", [lambda: RateSource(1, -1), lambda: GeneratorSource(str, -1)])
def test_a_negative_count_is_refused(make):
    with pytest.raises(ConfigError, match="count is -1"):
        make()


def test_skip_lets_waits_through():
    assert list(skip(iter([[1], Wait(1), [2, 3]]), 2)) == [Wait(1), [3]]
