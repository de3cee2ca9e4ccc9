"""The order of records: sources that have one keep it up to the first operator, and so does every key."""

import pytest
from tests.support.pipelines import collected, small_env

import headgate as hg
from headgate.connectors.generators import CollectionSource

RECORDS = [(f"key-{n % 7}", n) for n in range(3000)]
MODES = pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])


class Seen(hg.KeyedProcessFunction):
    """The numbers of each key, in the order in which the function gets them."""

    def open(self, context):
        self.seen = context.get_list_state("seen")

    def process_element(self, value, ctx):
        self.seen.add(value[1])
        yield ctx.get_current_key(), self.seen.get()


def orders_of(keyed):
    """The longest list that each key has given out."""
    longest = {}
    for key, numbers in collected(keyed.process(Seen())):
        if len(numbers) >= len(longest.get(key, [])):
            longest[key] = numbers
    return longest


EXPECTED = {f"key-{key}": list(range(key, 700, 7)) for key in range(7)}


def in_order(env):
    return {
        "from_collection": lambda: env.from_collection(RECORDS[:700]),
        "generate": lambda: env.generate(lambda n: RECORDS[n], count=700),
        "rate": lambda: env.rate(1_000_000, count=700, function=lambda n: RECORDS[n]),
    }


@pytest.mark.spec("T5", "W1")
@MODES
@pytest.mark.parametrize("parallelism", [2, 4])
@pytest.mark.parametrize("source", ["from_collection", "generate", "rate"])
def test_a_key_meets_its_records_in_the_order_of_the_source(source, parallelism, mode):
    env = small_env(parallelism).set_runtime_mode(mode)
    assert orders_of(in_order(env)[source]().key_by(lambda pair: pair[0])) == EXPECTED


@MODES
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_collection_comes_to_the_driver_in_its_order(parallelism, mode):
    env = small_env(parallelism).set_runtime_mode(mode)
    with env.from_collection(RECORDS).execute_and_collect() as results:
        assert list(results) == RECORDS


@MODES
def test_a_collection_is_rebalanced_to_an_operator_with_more_subtasks(mode):
    class Where(hg.MapFunction):
        def open(self, context):
            self.subtask = context.subtask_index

        def map(self, value):
            return self.subtask, value

    env = small_env(3).set_runtime_mode(mode)
    got = collected(env.from_collection(range(300)).map(Where()))
    assert sorted(value for _, value in got) == list(range(300))
    for subtask in range(3):
        assert sum(where == subtask for where, _ in got) == 100, "in turns"


@pytest.mark.parametrize("parallelism", [2, 4])
def test_a_collection_with_event_times_keeps_its_order(parallelism):
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
    env = small_env(parallelism)
    timed = env.from_collection(RECORDS[:700]).assign_timestamps_and_watermarks(strategy)
    assert orders_of(timed.key_by(lambda pair: pair[0])) == EXPECTED
    env = small_env(parallelism)
    timed = env.from_source(CollectionSource(RECORDS[:700]), strategy)
    assert orders_of(timed.key_by(lambda pair: pair[0])) == EXPECTED


def test_timestamps_have_the_parallelism_of_their_input():
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    env = small_env(2)
    numbers = env.from_collection([1])
    numbers.assign_timestamps_and_watermarks(strategy).for_each(print).name("one")
    numbers.rebalance().assign_timestamps_and_watermarks(strategy).for_each(print).name("two")
    numbers.assign_timestamps_and_watermarks(strategy).set_parallelism(2).for_each(print).name("set")
    assert vertices(env) == [
        ("collection -> timestamps", 1), ("one", 2), ("timestamps -> two", 2), ("timestamps -> set", 2)
    ]  # fmt: skip


def vertices(env):
    return [(vertex.name, vertex.parallelism) for vertex in env._plan(env._graph.nodes(), None).vertices]


@pytest.mark.parametrize("chaining", [True, False])
def test_a_collection_has_a_task_of_its_own_only_where_the_next_operator_has_more_subtasks(chaining):
    env = small_env(2, chaining=chaining)
    env.from_collection([1]).map(str).for_each(print)
    together = [("collection", 1), ("map(str) -> for_each(print)", 2)]
    assert vertices(env) == (together if chaining else [("collection", 1), ("map(str)", 2), ("for_each(print)", 2)])
    env = small_env(1, chaining=chaining)
    env.from_collection([1]).map(str).for_each(print)
    assert len(vertices(env)) == (1 if chaining else 3)


@pytest.mark.parametrize(
    "made",
    [
        lambda env: env.from_collection(range(600), parallel=True),
        lambda env: env.from_collection(range(600)).set_parallelism(3),
        lambda env: env.generate(lambda n: n, count=600, parallel=True),
        lambda env: env.rate(1_000_000, count=600, parallel=True),
        lambda env: env.generate(lambda n: n),
        lambda env: env.rate(10),
    ],
    ids=["collection", "set_parallelism", "generate", "rate", "generate without an end", "rate without an end"],
)
def test_a_source_is_split_over_the_subtasks_where_asked_or_endless(made):
    env = small_env(3)
    made(env).for_each(print)
    ((_, parallelism),) = vertices(env)
    assert parallelism == 3


def test_a_parallel_collection_has_everything_once():
    got = collected(small_env(3).from_collection(range(600), parallel=True))
    assert sorted(got) == list(range(600))


def test_a_generator_function_is_called_in_every_subtask_also_with_a_count():
    def numbers(subtask):
        while True:
            yield subtask

    assert sorted(collected(small_env(3).generate(numbers, count=9))) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_user_defined_source_may_keep_its_order():
    class Numbers(hg.Source):
        default_parallelism = 1

        def splits(self, parallelism):
            return [range(i * 100, i * 100 + 100) for i in range(7)]

        def read(self, split, offset, place):
            for number in split[offset:]:
                yield [RECORDS[number]]

    assert orders_of(small_env(4).from_source(Numbers()).key_by(lambda pair: pair[0])) == EXPECTED


def test_a_small_file_keeps_its_order(tmp_path):
    path = tmp_path / "records.txt"
    path.write_text("".join(f"{key} {number}\n" for key, number in RECORDS[:700]))

    def parsed(line):
        key, number = line.split()
        return key, int(number)

    records = small_env(4).read_files(path).map(parsed)
    assert orders_of(records.key_by(lambda pair: pair[0])) == EXPECTED
