"""The result of a job does not depend on parallelism, batches, buffers, flushing or the way records are shipped."""

from collections import Counter

import pytest
from tests.support.pipelines import Batches, Gathered, WithSubtask, collected, cut, failure, run, small_env

import headgate as hg

WORDS = [f"word{n * n % 37}" for n in range(600)]


def word_counts(env, words=WORDS):
    """Count words over two exchanges, and take the last count of each."""
    stream = env.from_collection(words).map(lambda word: (word, 1)).rebalance()
    return collected(stream.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1])))


@pytest.mark.spec("T2", "T3", "T5", "M9")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_the_same_at_every_parallelism(parallelism):
    counts = word_counts(small_env(parallelism))
    assert len(counts) == len(WORDS), "a rolling aggregate gives out one value for each"
    assert dict(Counter(word for word, _ in counts)) == dict(Counter(WORDS))
    last = {}
    for word, n in counts:  # by subtask, and a word belongs to one: in order
        assert n == last.get(word, 0) + 1
        last[word] = n
    assert last == dict(Counter(WORDS))


@pytest.mark.spec("T5")
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_the_same_for_every_batch(size, batch_size):
    env = small_env(2, record__batch_size=batch_size)
    values = list(range(300))
    stream = env.from_source(Batches(cut(values[:100], size), cut(values[100:], size)))
    assert sorted(collected(stream.rebalance().map(lambda n: n * 3))) == [n * 3 for n in values]


@pytest.mark.spec("T5", "R1")
@pytest.mark.parametrize("segment", ["512 B", "4 KiB", "32 KiB"])
@pytest.mark.parametrize("length", [0, 1, 511, 513, 5000])
def test_the_same_for_every_size_of_record_and_buffer(segment, length):
    env = small_env(2, memory__segment_size=segment, memory__network__min="2 MiB", memory__network__max="2 MiB")
    values = [f"{n}:" + "x" * length for n in range(20)]
    assert sorted(collected(env.from_collection(values).rebalance().map(str))) == sorted(values)


@pytest.mark.spec("W4")
@pytest.mark.parametrize("timeout", ["auto", "0", "1 ms", "-1"])
def test_the_same_however_buffers_are_flushed(timeout):
    env = small_env(2, execution__buffer_timeout=timeout)
    assert sorted(collected(env.from_collection(range(200)).rebalance().map(str))) == sorted(map(str, range(200)))


@pytest.mark.spec("N5", "M9")
def test_the_same_without_credits():
    env = small_env(3, network__flow_control="tcp")
    assert dict(Counter(word for word, _ in word_counts(env))) == dict(Counter(WORDS))


def test_the_same_with_the_fewest_buffers_that_the_sum_asks_for():
    env = small_env(
        2, network__buffers_per_channel=1, network__floating_buffers_per_gate=0, network__max_overdraft_buffers=0,
        memory__network__min="7 KiB", memory__network__max="7 KiB",
    )  # fmt: skip
    values = list(range(500))
    stream = env.from_collection(values).rebalance().map(lambda n: n)
    assert sorted(collected(stream.key_by(lambda n: n % 5).reduce(lambda a, b: b))) == values


# Ship kinds. Each shows by which subtask a record was seen.


def shipped(stream, parallelism):
    """What each subtask behind a stream has seen."""
    sink = Gathered()
    stream.map(WithSubtask()).set_parallelism(parallelism).sink_to(sink).set_parallelism(parallelism)
    run(stream._env)
    seen = {}
    for subtask, value in sink.values:
        seen.setdefault(subtask, []).append(value)
    return seen


def all_of(seen):
    return [value for values in seen.values() for value in values]


@pytest.mark.spec("W1")
def test_forward_keeps_the_subtask():
    env = small_env(3, chaining=False)
    seen = shipped(env.from_collection(range(90)).map(WithSubtask()).forward(), 3)
    assert sorted(seen) == [0, 1, 2]
    assert all({before for before, _ in values} == {subtask} for subtask, values in seen.items())


@pytest.mark.spec("W1")
def test_forward_between_unequal_numbers_is_refused():
    env = small_env(3)
    env.from_collection(range(3)).forward().map(str).set_parallelism(2).for_each(print)
    with pytest.raises(hg.ConfigError, match="forward needs the same parallelism"):
        env.execute_async()


@pytest.mark.spec("W1", "T5")
@pytest.mark.parametrize(("producers", "consumers"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 4)])
def test_rebalance_sends_each_subtask_equally_many_records(producers, consumers):
    env = small_env(2)
    stream = env.from_collection(range(120)).set_parallelism(producers).rebalance()
    seen = shipped(stream, consumers)
    assert sorted(all_of(seen)) == list(range(120))
    sizes = [len(values) for values in seen.values()]
    assert len(sizes) == consumers
    assert max(sizes) - min(sizes) <= producers


@pytest.mark.spec("W1", "T5")
@pytest.mark.parametrize(("producers", "consumers"), [(1, 4), (4, 1), (2, 4), (4, 2), (2, 3), (3, 2), (3, 3)])
def test_rescale_stays_nearby(producers, consumers):
    env = small_env(2)
    stream = env.from_collection(range(120)).set_parallelism(producers).map(WithSubtask()).set_parallelism(producers)
    seen = shipped(stream.rescale(), consumers)
    assert sorted(value for values in seen.values() for _, value in values) == list(range(120))
    pairs = {(before, subtask) for subtask, values in seen.items() for before, _ in values}
    assert {after for _, after in pairs} == set(range(consumers)), "every consumer receives records"
    assert len(pairs) == max(producers, consumers), "fewer channels than all with all"


@pytest.mark.spec("W1", "T5")
def test_shuffle_loses_nothing_and_reaches_all():
    seen = shipped(small_env(2).from_collection(range(400)).shuffle(), 3)
    assert sorted(all_of(seen)) == list(range(400))
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.spec("W1", "W2")
def test_hash_brings_equal_keys_together_whatever_the_parallelism():
    where = []
    for _ in range(2):
        seen = shipped(small_env(2).from_collection(range(400)).key_by(lambda n: n % 23), 3)
        assert sorted(all_of(seen)) == list(range(400))
        where.append({n % 23: subtask for subtask, values in seen.items() for n in values})
        assert sum(len({n % 23 for n in values}) for values in seen.values()) == 23, "no key is in two subtasks"
    assert where[0] == where[1], "nor elsewhere next time"


@pytest.mark.spec("W1", "W3")
@pytest.mark.parametrize("producers", [1, 3])
def test_broadcast_sends_each_subtask_all_records_in_order(producers):
    seen = shipped(small_env(2).from_collection(range(100)).set_parallelism(producers).broadcast(), 3)
    assert {subtask: sorted(values) for subtask, values in seen.items()} == {n: list(range(100)) for n in range(3)}
    for values in seen.values():
        for split in (range(i * 100 // producers, (i + 1) * 100 // producers) for i in range(producers)):
            assert [value for value in values if value in split] == list(split)


@pytest.mark.spec("W1")
def test_global_gives_everything_to_the_first():
    seen = shipped(small_env(3).from_collection(range(100)).global_(), 3)
    assert sorted(seen) == [0]
    assert sorted(seen[0]) == list(range(100))


@pytest.mark.spec("W1")
def test_a_user_defined_partitioner_chooses_the_subtask():
    stream = small_env(3).from_collection(range(100))
    seen = shipped(stream.partition_custom(lambda key, channels: key % channels, key_selector=lambda n: n // 10), 3)
    assert sorted(all_of(seen)) == list(range(100))
    assert all(n // 10 % 3 == subtask for subtask, values in seen.items() for n in values)


@pytest.mark.spec("W1", "K6")
@pytest.mark.parametrize("answer", [2, -1, None, 0.5, True, "1"], ids=repr)
def test_a_partitioners_bad_answer_names_it(answer):
    def off_the_map(value, channels):
        return answer

    env = small_env(2)
    env.from_collection(range(9)).partition_custom(off_the_map).map(str).for_each(print)
    error = failure(env)
    assert "off_the_map" in str(error)
    assert repr(answer) in str(error)
    assert "from 0 to 1" in str(error)


@pytest.mark.spec("R1", "R2")
def test_records_of_every_type_arrive_as_they_were():
    values = [
        None,
        True,
        2**70,
        -1.5,
        float("inf"),
        "ü\U0001f600",
        b"\x00",
        (1, "a"),
        [1, [2]],
        {"k": {1, 2}},
        range(3),
    ]
    got = collected(small_env(2).from_collection(values).rebalance().map(lambda value: value))
    assert sorted(map(repr, got)) == sorted(map(repr, values))


@pytest.mark.spec("R2", "M9")
def test_a_record_far_larger_than_all_buffers_arrives():
    env = small_env(2, memory__network__min="64 KiB", memory__network__max="64 KiB")
    values = [b"%d" % n + b"x" * 200_000 for n in range(4)]
    assert sorted(collected(env.from_collection(values).rebalance().map(lambda value: value))) == sorted(values)
