"""Whole pipelines on the local host: the same answer whatever the parallelism, chains and buffers."""

import itertools
from collections import Counter

import pytest

import headgate as hg

LINES = ["to be or not to be", "that is the question", "", "whether tis nobler in the mind to suffer"] * 5
COUNTS = Counter(" ".join(LINES).split())
TINY = {
    "memory.segment_size": 512,
    "memory.network.min": "64 KiB",
    "memory.network.max": "64 KiB",
    "network.buffers_per_channel": 1,
    "network.floating_buffers_per_gate": 1,
}


def last(pairs):
    """The largest count of each word, which is the last."""
    counts = {}
    for word, n in pairs:
        counts[word] = max(n, counts.get(word, 0))
    return counts


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("settings", [{}, TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("chaining", [True, False])
def test_word_count(parallelism, settings, chaining):
    env = hg.environment(local=True, parallelism=parallelism, settings=settings)
    if not chaining:
        env.disable_operator_chaining()
    words = env.from_collection(LINES).flat_map(str.split).map(lambda word: (word, 1))
    counts = words.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert last(counts.execute_and_collect()) == COUNTS


def test_different_parallelisms_and_slot_groups():
    env = hg.environment(local=True, parallelism=2)
    words = env.from_collection(LINES).set_parallelism(1).flat_map(str.split).set_parallelism(3)
    counts = words.rescale().map(lambda word: word).slot_sharing_group("second").key_by(lambda word: word).count()
    assert last(counts.execute_and_collect()) == COUNTS


def test_every_subtask_of_a_broadcast_gets_everything():
    class Where(hg.MapFunction):
        def open(self, context):
            self.subtask = context.subtask_index

        def map(self, value):
            return self.subtask, value

    env = hg.environment(local=True, parallelism=3)
    pairs = env.from_collection("ab").broadcast().map(Where()).execute_and_collect()
    assert sorted(pairs) == list(itertools.product(range(3), "ab"))


def test_equal_keys_reach_one_subtask_and_a_partitioner_chooses_the_subtask():
    class Where(hg.MapFunction):
        def open(self, context):
            self.subtask = context.subtask_index

        def map(self, value):
            return self.subtask, value

    env = hg.environment(local=True, parallelism=3)
    numbers = env.from_collection(range(30))
    keyed = set(
        numbers.key_by(lambda n: n % 7).map(Where()).map(lambda pair: (pair[0], pair[1] % 7)).execute_and_collect()
    )
    assert len(keyed) == 7
    assert {where for where, _ in numbers.global_().map(Where()).execute_and_collect()} == {0}
    custom = numbers.partition_custom(lambda n, subtasks: n % subtasks).map(Where())
    assert all(where == n % 3 for where, n in custom.execute_and_collect())


def test_a_stream_can_be_used_again_after_it_was_executed():
    env = hg.environment(local=True, parallelism=2)
    squares = env.from_collection(range(4)).map(lambda n: n * n)
    for _ in range(2):
        assert sorted(squares.execute_and_collect()) == [0, 1, 4, 9]
    assert sorted(squares.map(lambda n: -n).execute_and_collect()) == [-9, -4, -1, 0]


def test_one_stream_to_several_ends():
    kept = hg.MemorySink()
    env = hg.environment(local=True, parallelism=2)
    numbers = env.from_collection(range(10))
    numbers.filter(lambda n: n % 2).sink_to(kept)
    assert sorted(numbers.union(numbers).execute_and_collect()) == sorted([*range(10), *range(10)])
    assert sorted(kept.values) == [1, 3, 5, 7, 9]


@pytest.mark.spec("K6")
def test_an_error_of_a_function_names_operator_and_subtask():
    def explode(n):
        return 1 // (n - 7)

    env = hg.environment(local=True, parallelism=2)
    broken = env.from_collection(range(10), parallel=True).map(explode)
    with pytest.raises(hg.UserCodeError, match="ZeroDivisionError") as caught:
        list(broken.execute_and_collect())
    assert (caught.value.operator, caught.value.subtask) == ("map(explode)", 1)
    assert "in explode" in str(caught.value)
    broken.print()
    with pytest.raises(hg.UserCodeError):
        env.execute()


def test_enough_of_a_stream_without_an_end():
    env = hg.environment(local=True, parallelism=2)
    assert len(list(env.generate(lambda n: n).execute_and_collect(limit=20_000))) == 20_000
    with env.generate(lambda n: n).execute_and_collect() as results:
        assert next(results) >= 0
    assert results.job.status is hg.JobStatus.CANCELLED


def test_late_data_and_windows():
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
    late = hg.OutputTag("late")
    env = hg.environment(local=True, parallelism=1)

    def events(subtask):
        yield ("a", 1_000)
        yield ("a", 5_000)
        yield hg.Wait(0.0)  # so that the watermark is there before what comes next
        yield ("a", 1_001)

    timed = env.generate(events).assign_timestamps_and_watermarks(strategy).key_by(lambda pair: pair[0])
    windows = timed.window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1))).side_output_late_data(late)
    sums = windows.apply(lambda key, window, values: [("on time", window.start, len(values))])
    both = sums.union(sums.get_side_output(late).map(lambda pair: ("late", pair[1], 1)))
    assert sorted(both.execute_and_collect()) == [("late", 1_001, 1), ("on time", 1_000, 1), ("on time", 5_000, 1)]


def test_arrow_there_and_back():
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    env = hg.environment(local=True, parallelism=2)
    rows = env.from_collection([(word, 1) for word in " ".join(LINES).split()])

    def summed(batch):
        table = pa.Table.from_batches([batch]).group_by("word").aggregate([("n", "sum")])
        return table.rename_columns(["word", "n"]).combine_chunks().to_batches()[0]

    sums = rows.to_arrow(schema, batch_rows=7).map_batches(summed, form="arrow").key_by("word").from_arrow()
    counts = Counter()
    for word, n in sums.execute_and_collect():
        counts[word] += n
    assert counts == COUNTS


def test_two_jobs_at_once():
    env = hg.environment(local=True, parallelism=2)
    first = env.from_collection(range(5)).execute_and_collect()
    second = env.from_collection("abc").execute_and_collect()
    assert sorted(second) == ["a", "b", "c"]
    assert sorted(first) == [0, 1, 2, 3, 4]


@pytest.mark.spec("W2", "K6")
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_nan_as_a_key_ends_the_job(parallelism, mode):
    env = hg.environment(local=True, parallelism=parallelism, runtime_mode=mode)
    counts = env.from_collection([1.0, float("nan"), 2.0]).key_by(lambda n: ("price", n)).count()
    with pytest.raises(hg.UserCodeError, match="at position 1 of a tuple: NaN cannot be a key"):
        list(counts.execute_and_collect())
