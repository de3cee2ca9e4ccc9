"""Hot keys: how far off the sketch and its samples are, how soon they follow, and what odd keys cannot break."""

import datetime as dt
import itertools
import random
from bisect import bisect_right
from collections import Counter
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.exchange import partition_id
from tests.support.threads import Thread, switching_often

from headgate.clock import ManualClock
from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rebalance, Rescale, Shuffle
from headgate.output.columns import HashColumns
from headgate.output.hot_keys import HotKeys, KeyShare, Sketch
from headgate.record import StrSerializer
from headgate.record.arrow import ArrowSerializer
from headgate.worker import Environment

pytestmark = pytest.mark.spec("B2")

BOUND = 0.06
"""How far a share may be from the truth: a hundredth that the sketch lacks, and five standard deviations."""


class Stream:
    """Records of a writer in virtual time; keys are made where they are looked at, so that it may be long."""

    def __init__(self, seed=0):
        self.clock = ManualClock()
        self.chance = random.Random(seed)
        self.hot = HotKeys(self.clock.now_ns, self.chance.randrange)
        self.position = 0
        self.looked_at = 0

    def batch(self, size, key_at):
        """A batch of keys by their position in the stream."""
        start, self.position = self.position, self.position + size

        def keys(some):
            self.looked_at += some.stop - some.start
            return [key_at(start + index) for index in range(some.start, some.stop)]

        if self.hot.count(size):
            self.hot.sample(size, keys)

    def run(self, seconds, per_second, sizes, key_at):
        """Emit batches for some seconds, and read the shares once per second."""
        passed, sizes = 0.0, itertools.cycle(sizes)
        while passed < seconds:
            size = next(sizes)
            self.batch(size, key_at)
            self.clock.advance_ms(1000 * size / per_second)
            if int(passed) != int(passed + size / per_second):
                self.hot.shares()
            passed += size / per_second

    @property
    def shares(self):
        return {one.key: one.share_permille / 1000 for one in self.hot.shares()}


def mixed(shares, run, seed=1):
    """Keys of given shares among very many rare ones, in runs of equal ones."""

    ends = list(itertools.accumulate(shares))

    def key_at(position):
        spread = hash((position // run, seed))  # of numbers: the same in every process, and as good as random
        at = spread % 2**40 / 2**40
        number = bisect_right(ends, at)
        return f"hot {number}" if number < len(ends) else spread

    return key_at


@given(st.lists(st.lists(st.integers(0, 400) | st.sampled_from(["a", "b", "c"]), max_size=100), max_size=60))
def test_a_count_is_never_above_the_truth_and_little_below(samples):
    sketch, truth = Sketch(), Counter()
    for sample in samples:
        sketch = sketch.plus(sample)
        truth.update(sample)
        assert sketch.total == truth.total()
        assert len(sketch.counts) <= 100
        for key, count in truth.items():
            assert count - sketch.total / 101 <= sketch.counts.get(key, 0) <= count
        assert truth.keys() >= sketch.counts.keys()


def test_a_key_that_comes_late_is_not_kept_out_by_those_that_were_there():
    sketch = Sketch()
    for _ in range(20):
        sketch = sketch.plus(list(range(100)))
    for n in range(2_000):
        sketch = sketch.plus(["late", *range(1000 + 9 * n, 1009 + 9 * n)])
    assert 2_000 - sketch.total / 101 <= sketch.counts["late"] <= 2_000


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_every_hot_key_of_a_long_stream_is_found_and_no_other(data):
    count = data.draw(st.integers(0, 4))
    shares = data.draw(st.lists(st.floats(0.1, 0.9 / max(1, count)), min_size=count, max_size=count))
    run = data.draw(st.sampled_from([1, 3, 10]))
    per_second, largest = data.draw(st.sampled_from([(2_000, 20), (50_000, 500), (1_000_000, 10_000)]))
    sizes = [*data.draw(st.lists(st.integers(1, largest), max_size=3)), largest]
    stream = Stream(data.draw(st.integers(0, 2**32)))
    stream.run(20, per_second, sizes, mixed(shares, run))
    found = stream.shares
    assert found.keys() == {f"'hot {number}'" for number in range(count)}
    for number, share in enumerate(shares):
        assert abs(found[f"'hot {number}'"] - share) < BOUND


def test_the_hottest_is_first():
    stream = Stream()
    stream.run(20, 50_000, [1000], mixed([0.1, 0.5, 0.3], 1))
    assert [one.key for one in stream.hot.shares()] == ["'hot 1'", "'hot 2'", "'hot 0'"]


@pytest.mark.parametrize("per_second", [100, 20_000, 200_000])
def test_it_follows_within_half_a_minute(per_second):
    stream = Stream()
    stream.run(40, per_second, [10, 500], lambda position: "old" if position % 3 else position)
    assert abs(stream.shares["'old'"] - 2 / 3) < BOUND
    stream.run(31, per_second, [10, 500], lambda position: "new" if position % 2 else position)
    assert stream.shares.keys() == {"'new'"}
    assert abs(stream.shares["'new'"] - 1 / 2) < BOUND


def test_it_follows_when_the_stream_becomes_slow_and_when_it_goes_on_after_a_silence():
    stream = Stream()
    stream.run(5, 2_000_000, [5000], lambda position: "fast")
    stream.run(45, 20, [1], lambda position: "slow")
    assert stream.shares == {"'slow'": 1.0}
    stream.clock.advance_ms(3_600_000)
    assert stream.shares == {"'slow'": 1.0}, "what was last"
    stream.run(10, 20, [1], lambda position: "again")
    assert stream.shares == {"'again'": 1.0}


def test_few_records_prove_nothing():
    stream = Stream()
    stream.batch(48, lambda position: "a")
    stream.clock.advance_ms(1000)
    stream.batch(1, lambda position: "a")
    assert stream.hot._sketches[0].total == 49
    assert stream.shares == {}
    stream.clock.advance_ms(1000)
    stream.batch(1, lambda position: "a")
    assert stream.shares == {"'a'": 1.0}


@pytest.mark.parametrize("per_second", [1_000, 100_000, 5_000_000])
def test_about_as_much_is_looked_at_however_fast_the_stream_is(per_second):
    stream = Stream()
    stream.run(2, per_second, [1000], lambda position: position)
    stream.looked_at = 0
    stream.run(10, per_second, [1000], lambda position: position)
    assert 0.7 * min(1280, per_second) < stream.looked_at / 10 < 1.5 * 1280


def test_a_stream_that_becomes_fast_is_not_held_up():
    stream = Stream()
    stream.run(20, 50, [1], lambda position: position)
    stream.looked_at = 0
    stream.run(0.5, 2_000_000, [1000], lambda position: position)
    assert stream.looked_at < 4 * 1280


@pytest.mark.parametrize(
    ("sizes", "of_a", "share"),
    [
        ([1000, 1], lambda at: at < 1000, 1000 / 1001),
        ([64, *[1] * 64], lambda at: at < 64, 0.5),
        ([2000, *[20] * 100], lambda at: at >= 2000, 0.5),
        ([7, 7], lambda at: at % 2 == 0, 0.5),
        ([100], lambda at: at < 10, 0.1),
    ],
    ids=["a large and a small one", "one and many single ones", "many small ones", "in turns", "at the beginning"],
)
@pytest.mark.parametrize("per_second", [3_000, 40_000])
def test_a_share_does_not_depend_on_how_records_come_in_batches(sizes, of_a, share, per_second):
    stream, period = Stream(), sum(sizes)
    stream.run(16, per_second, sizes, lambda position: "a" if of_a(position % period) else position)
    assert abs(stream.shares.get("'a'", 0.0) - share) < BOUND


def test_memory_is_bounded():
    stream = Stream()
    stream.run(40, 100_000, [1000], lambda position: position)
    assert all(len(sketch.counts) <= 100 for sketch in stream.hot._sketches)
    assert len(stream.hot._sample) < 64
    assert stream.shares == {}


# Odd keys.


class Odd:
    """A key that does what it likes."""

    def __init__(self, hashing=None, showing=None, equal=None):
        self._hashing, self._showing, self._equal = hashing, showing, equal

    def __hash__(self):
        if self._hashing:
            raise self._hashing
        return 7

    def __eq__(self, other):
        if self._equal and self is not other:
            raise self._equal
        return isinstance(other, Odd)

    def __repr__(self):
        if isinstance(self._showing, BaseException):
            raise self._showing
        return self._showing


class Unsafe(str):
    __slots__ = ()

    def __getitem__(self, item):
        raise RuntimeError("not this one")


def told(make, count=100):
    """What is told of a stream of one key, made again for each record."""
    stream = Stream()
    stream.batch(count, lambda position: make())
    return stream.hot.shares()


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("london", "'london'"),
        (("a", 1), "('a', 1)"),
        (None, "None"),
        (b"\x00\xff", r"b'\x00\xff'"),
        ("größe", "'größe'"),
        ("a\n\x1b[31m\u202eb", r"'a\n\x1b[31m\u202eb'"),
        ("\udc80", r"'\udc80'"),
        (Odd(showing="red \x1b[31m \udc80"), r"red \x1b[31m \udc80"),
        (Odd(showing=ValueError("no")), "<Odd>"),
        (Odd(showing=SystemExit(1)), "<Odd>"),
        (Odd(showing=Unsafe("text")), "<Odd>"),
        (Odd(showing=""), ""),
        ("x" * 10**6, "'" + "x" * 78 + "…"),
        (b"x" * 10**6, "b'" + "x" * 77 + "…"),
        (("x" * 100,), "('" + "x" * 77 + "…"),
        ("\x1b" * 40, "'" + r"\x1b" * 19 + r"\x" + "…"),
        ("x" * 78, "'" + "x" * 78 + "'"),
    ],
    ids=range(17),
)
def test_keys_are_shown_short_and_harmless(key, shown):
    (one,) = told(lambda: key)
    assert one == KeyShare(shown, 1000)
    assert len(one.key) <= 80
    assert one.key.isprintable()


def test_keys_that_cannot_be_counted_are_counted_as_text():
    assert told(lambda: {"city": "london"}) == [KeyShare("{'city': 'london'}", 1000)]
    assert told(lambda: [1, 2]) == [KeyShare("[1, 2]", 1000)]
    assert told(lambda: Odd(hashing=ValueError("no"), showing="odd")) == [KeyShare("odd", 1000)]
    assert told(lambda: Odd(equal=ValueError("no"), showing="odd")) == [KeyShare("odd", 1000)]
    assert told(lambda: Odd(hashing=ValueError("no"), showing=ValueError("no"))) == [KeyShare("<Odd>", 1000)]


def test_not_a_number_is_one_key():
    assert told(lambda: float("nan")) == [KeyShare("nan", 1000)]


def test_keys_that_cannot_even_be_had_are_passed_over():
    stream = Stream()

    def fails(position):
        raise OverflowError("a date that Python has not")

    for _ in range(10_000):
        stream.batch(10, fails)
    assert stream.shares == {}
    assert stream.looked_at < 20_000, "and not asked for all the time"
    stream.run(2, 1_000, [10], lambda position: "a")
    assert stream.shares == {"'a'": 1.0}


def test_keys_that_stop_being_comparable_are_no_error():
    stream = Stream()
    odd = [Odd(showing="one"), Odd(showing="two")]
    stream.run(14, 100, [10], lambda position: odd[0])
    stream.run(3, 100, [10], lambda position: odd[1])
    for one in odd:
        one._equal = ValueError("no")
    stream.hot.shares()


def test_shares_can_be_read_by_another_thread_while_records_pass():
    hot = HotKeys(itertools.count(0, 100_000).__next__, random.Random(0).randrange)
    keys = ["a", "b", *range(998)]

    def write():
        for n in range(3_000):
            if hot.count(1000):
                hot.sample(1000, ([f"hot {n // 300}"] * 900 + keys).__getitem__)

    with switching_often():
        writing = Thread(write)
        for _ in range(300):
            assert all(one.share_permille <= 1000 for one in hot.shares())
        writing.end()
    assert hot.shares()[0].key.startswith("'hot ")


# Selectors and writers.


def watched(selector, channels=3):
    clock = ManualClock()
    selector.watch_keys(HotKeys(clock.now_ns, random.Random(0).randrange))
    selector.connect(channels)
    return selector


def test_hash_feeds_it_with_batches():
    pairs = [("london" if n % 4 else f"city {n}", n) for n in range(400)]
    selector, unwatched = watched(Hash(lambda pair: pair[0])), Hash(lambda pair: pair[0])
    unwatched.connect(3)
    assert selector.split(pairs) == unwatched.split(pairs)
    times = list(range(400))
    assert selector.split_timed(pairs, times) == unwatched.split_timed(pairs, times)
    (found,) = selector.hot_keys()
    assert (found.key, round(found.share_permille, -1)) == ("'london'", 750)
    assert unwatched.hot_keys() == []


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(["city"], "'london'"), (["city", "n"], "('london', 1)"), (["at"], repr(dt.date(2026, 1, 2))), (["who"], None)],
)
def test_columns_feed_it_with_rows(columns, shown):
    rows = 400
    batch = pa.record_batch(
        {
            "city": ["london"] * rows,
            "n": pa.array([1] * rows, pa.int64()),
            "at": pa.array([dt.date(2026, 1, 2)] * rows),
            "who": [{"name": "ann", "age": 7}] * rows,
        }
    )
    selector = watched(HashColumns(columns))
    assert sum(part.num_rows for _, part in selector.scatter(batch.slice(100, 200))) == 200
    assert selector.hot_keys() == [KeyShare(shown or "{'name': 'ann', 'age': 7}", 1000)]


def test_rows_that_python_has_no_value_for_are_written_all_the_same():
    times = pa.array([2**62] * 100, pa.timestamp("us"))
    selector = watched(HashColumns(["at"]))
    assert sum(part.num_rows for _, part in selector.scatter(pa.record_batch({"at": times}))) == 100
    assert selector.hot_keys() == []


@pytest.mark.parametrize(
    "make",
    [
        Global,
        Rescale,
        Broadcast,
        partial(Rebalance, lambda n: 0),
        partial(Shuffle, lambda n: 0),
        partial(Custom, lambda value, channels: 0),
    ],
)
def test_other_selectors_have_no_keys(make):
    selector = watched(make())
    selector.split(["a"] * 1000)
    assert selector.hot_keys() == []


@pytest.mark.parametrize("hot_keys", [True, False])
def test_a_writer_of_a_worker_counts_hot_keys_if_they_are_enabled(hot_keys):
    with Environment(memory_bytes=2**20) as worker:
        words = worker.partition(partition_id(0), subpartitions=2)
        writer = worker.writer(words, Hash(lambda word: word), StrSerializer(), hot_keys=hot_keys)
        writer.emit_batch(["to"] * 100)
        rows = worker.partition(partition_id(1), subpartitions=2)
        by_column = worker.writer(rows, HashColumns(["word"]), ArrowSerializer(), hot_keys=hot_keys)
        by_column.emit_batch([pa.record_batch({"word": ["be"] * 100})])
        assert writer.hot_keys() == ([KeyShare("'to'", 1000)] if hot_keys else [])
        assert by_column.hot_keys() == ([KeyShare("'be'", 1000)] if hot_keys else [])
        one = worker.partition(partition_id(2), subpartitions=1)
        forward = worker.writer(one, Forward(), StrSerializer(), hot_keys=hot_keys)
        forward.emit_batch(["to"] * 100)
        assert forward.hot_keys() == []
        for each in (writer, by_column, forward):
            each.close()
