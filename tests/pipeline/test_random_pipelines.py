"""Random pipelines of random parallelism give what plain Python gives, in STREAMING and in BATCH."""

from collections import Counter
from itertools import count

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings
from tests.support.pipelines import Batches, collected, cut, small_env

import headgate as hg


class FirstOnly(hg.KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state("seen", default=False)

    def process_element(self, value, ctx):
        if not self.seen.value():
            self.seen.update(True)
            yield value % 10


def counted(values):
    """What a rolling count per key gives out, whatever the order."""
    return [
        key * 1000 + n for key, total in Counter(value % 10 for value in values).items() for n in range(1, total + 1)
    ]


# Each is what is done to a stream, and to the list of its values; the results are equal as multisets.
STEPS = {
    "map": (lambda s: s.map(lambda n: n * 3 + 1), lambda v: [n * 3 + 1 for n in v]),
    "filter": (lambda s: s.filter(lambda n: n % 3), lambda v: [n for n in v if n % 3]),
    "flat_map": (lambda s: s.flat_map(lambda n: range(n % 4)), lambda v: [i for n in v for i in range(n % 4)]),
    "batches": (lambda s: s.map_batches(lambda batch: [n + 1 for n in batch]), lambda v: [n + 1 for n in v]),
    "count": (
        lambda s: s.key_by(lambda n: n % 10).count().map(lambda pair: pair[0] * 1000 + pair[1]),
        counted,
    ),
    "first": (lambda s: s.key_by(lambda n: n % 10).process(FirstOnly()), lambda v: [*{n % 10 for n in v}]),
    "twice": (lambda s: s.union(s.map(lambda n: -n)), lambda v: v + [-n for n in v]),
    "self": (lambda s: s.union(s).map(lambda n: n), lambda v: v + v),
    "connect": (lambda s: s.connect(s).map(lambda n: n, lambda n: n + 7), lambda v: v + [n + 7 for n in v]),
    "rebalance": (lambda s: s.rebalance().map(lambda n: n), list),
    "rescale": (lambda s: s.rescale().map(lambda n: n), list),
    "shuffle": (lambda s: s.shuffle().map(lambda n: n), list),
    "global": (lambda s: s.global_().map(lambda n: n), list),
    "custom": (lambda s: s.partition_custom(lambda n, channels: n % channels).map(lambda n: n), list),
}

# What is different in BATCH: only the last value of each key.
BATCH_STEPS = {
    **STEPS,
    "count": (STEPS["count"][0], lambda v: [key * 1000 + n for key, n in Counter(value % 10 for value in v).items()]),
}

steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.none() | st.integers(1, 4)), max_size=5)
_numbers = count()


@pytest.mark.spec("T1", "T2", "T3", "T5", "K1", "W1", "M9")
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    splits=st.lists(st.lists(st.integers(0, 200), max_size=60), max_size=4),
    size=st.integers(1, 40),
    steps=steps,
    parallelism=st.integers(1, 4),
    chaining=st.booleans(),
    timeout=st.sampled_from(["auto", "0", "-1"]),
    batch_size=st.sampled_from([1, 7, 1000]),
)
@example(
    splits=[list(range(50))] * 3, size=7, steps=[("twice", None), ("count", 3), ("self", 2), ("first", None)],
    parallelism=3, chaining=False, timeout="0", batch_size=1,
)  # fmt: skip
def test_the_same_as_plain_python(splits, size, steps, parallelism, chaining, timeout, batch_size):
    env = small_env(parallelism, chaining=chaining, execution__buffer_timeout=timeout, record__batch_size=batch_size)
    assert_same_as_plain_python(env, STEPS, splits, size, steps)


@pytest.mark.spec("T4", "M9")
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    splits=st.lists(st.lists(st.integers(0, 200), max_size=60), max_size=4),
    size=st.integers(1, 40),
    steps=steps,
    parallelism=st.integers(1, 4),
    chaining=st.booleans(),
    batch_size=st.sampled_from([1, 7, 1000]),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
)
@example(
    splits=[list(range(50))] * 3, size=7, steps=[("twice", None), ("count", 3), ("self", 2), ("first", None)],
    parallelism=3, chaining=False, batch_size=1, compression="lz4",
)  # fmt: skip
def test_the_same_as_plain_python_in_batch(splits, size, steps, parallelism, chaining, batch_size, compression):
    env = small_env(
        parallelism,
        chaining=chaining,
        execution__runtime_mode="BATCH",
        record__batch_size=batch_size,
        batch__compression=compression,
        batch__group_memory="64 KiB",
    )
    assert_same_as_plain_python(env, BATCH_STEPS, splits, size, steps)


def assert_same_as_plain_python(env, known, splits, size, steps):
    stream = env.from_source(Batches(*[cut(split, size) for split in splits]))
    values = [n for split in splits for n in split]
    for name, width in steps:
        do, model = known[name]
        stream, values = do(stream), model(values)
        if width is not None and stream._node is not None:
            stream.set_parallelism(width)
    assert Counter(collected(stream)) == Counter(values)
