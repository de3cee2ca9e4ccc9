"""Jobs of every shape: unions, connected streams, side outputs, fan-out, chains, slot groups."""

import threading

import pytest
from tests.support.pipelines import Gathered, WithSubtask, collected, run, small_env

import headgate as hg

BOTH = pytest.mark.parametrize("chaining", [True, False], ids=["chained", "apart"])


@pytest.mark.spec("G2", "T5")
@BOTH
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_union_has_everything_of_all(parallelism, chaining):
    env = small_env(parallelism, chaining=chaining)
    first, second, third = (env.from_collection(range(n, 300, 3)) for n in range(3))
    assert sorted(collected(first.union(second, third).map(lambda n: n))) == list(range(300))


@pytest.mark.spec("G2")
def test_a_union_with_itself_has_everything_twice():
    stream = small_env(2).from_collection(range(50))
    assert sorted(collected(stream.union(stream).map(str))) == sorted([*map(str, range(50))] * 2)


@pytest.mark.spec("G2", "W1")
def test_parts_of_a_union_may_be_shipped_and_serialized_differently():
    env = small_env(2)
    texts = env.from_collection(list("abc"), type_info=str).broadcast()
    numbers = env.from_collection([1, 2, 3]).set_parallelism(1).rebalance()
    shouted = env.from_collection(["d"]).map(str.upper).global_()
    assert sorted(map(str, collected(texts.union(numbers, shouted).map(lambda value: value)))) == sorted("aabbcc123D")


@pytest.mark.spec("K2")
@BOTH
@pytest.mark.parametrize("parallelism", [1, 3])
def test_connected_streams_have_a_function_each(parallelism, chaining):
    env = small_env(parallelism, chaining=chaining)
    both = env.from_collection(range(100)).connect(env.from_collection(list("abc")))
    got = collected(both.map(lambda n: ("number", n), lambda word: ("word", word)))
    assert sorted(got) == sorted([("number", n) for n in range(100)] + [("word", word) for word in "abc"])


@pytest.mark.spec("K2")
def test_a_stream_connected_with_itself():
    stream = small_env(2).from_collection(range(1, 20))
    assert sorted(collected(stream.connect(stream).map(int, lambda n: -n))) == [*range(-19, 0), *range(1, 20)]


@pytest.mark.spec("K2", "W2")
def test_connected_streams_share_the_state_of_a_key():
    class Paid(hg.KeyedCoProcessFunction):
        def open(self, context):
            self.balance = context.get_reducing_state("balance", lambda a, b: a + b)

        def process_element1(self, bill, ctx):
            yield from self.add(-bill[1])

        def process_element2(self, payment, ctx):
            yield from self.add(payment[1])

        def add(self, amount):
            self.balance.add(amount)
            if self.balance.get() == 0:
                yield "even"

    env = small_env(3)
    bills = env.from_collection([(n, n + 1) for n in range(40)]).key_by(lambda one: one[0])
    payments = env.from_collection([(n, n + 1) for n in reversed(range(40))]).key_by(lambda one: one[0])
    assert collected(bills.connect(payments).process(Paid())) == ["even"] * 40


class Sorting(hg.ProcessFunction):
    """Numbers by what they can be divided by."""

    def process_element(self, value, ctx):
        if value % 2 == 0:
            yield hg.OutputTag("even"), value
        if value % 3 == 0:
            yield hg.OutputTag("threes"), value
        yield value


@pytest.mark.spec("K1")
@BOTH
@pytest.mark.parametrize("shipped", [False, True], ids=["in the chain", "over an exchange"])
def test_side_outputs_have_the_values_yielded_to_their_tags(chaining, shipped):
    env = small_env(2, chaining=chaining)
    main = env.from_collection(range(60)).process(Sorting())
    even, threes = main.get_side_output(hg.OutputTag("even")), main.get_side_output(hg.OutputTag("threes"))
    sinks = [Gathered(), Gathered(), Gathered()]
    for stream, sink in zip((main, even, threes), sinks, strict=True):
        (stream.rebalance() if shipped else stream).map(str).sink_to(sink)
    run(env)
    expected = [range(60), range(0, 60, 2), range(0, 60, 3)]
    assert [sorted(sink.values) for sink in sinks] == [sorted(map(str, one)) for one in expected]


@pytest.mark.spec("K1", "P4", "P6")
def test_a_side_output_without_records_ends_too():
    env = small_env(2)
    main = env.from_collection([1, 5, 7]).process(Sorting())
    nothing, sink = Gathered(), Gathered()
    main.get_side_output(hg.OutputTag("even")).rebalance().map(str).sink_to(nothing)
    main.sink_to(sink)
    run(env)
    assert (sorted(sink.values), nothing.values) == ([1, 5, 7], [])
    assert sorted(what for what, _ in nothing.calls) == ["close", "close", "finish", "finish", "open", "open"]


@pytest.mark.spec("K1")
@BOTH
def test_one_stream_feeds_many(chaining):
    env = small_env(2, chaining=chaining)
    stream = env.from_collection(range(100))
    sinks = [Gathered() for _ in range(4)]
    stream.map(lambda n: n + 1).sink_to(sinks[0])
    stream.filter(lambda n: n % 2).sink_to(sinks[1])
    stream.rebalance().map(lambda n: -n).sink_to(sinks[2])
    stream.broadcast().sink_to(sinks[3])
    run(env)
    expected = [range(1, 101), range(1, 100, 2), range(-99, 1), [n // 2 for n in range(200)]]
    assert [sorted(sink.values) for sink in sinks] == list(map(list, expected))


@pytest.mark.spec("K1")
@pytest.mark.parametrize("apart", ["spoiler", "reader", "neither", "both"])
def test_changing_a_value_in_one_branch_does_not_change_the_others(apart):
    def spoil(value):
        value["n"] = -1
        return value

    env = small_env(1)
    stream = env.from_collection([{"n": n} for n in range(40)])
    spoiled, read = Gathered(), Gathered()
    (stream.rebalance() if apart in {"spoiler", "both"} else stream).map(spoil).sink_to(spoiled)
    (stream.rebalance() if apart in {"reader", "both"} else stream).map(lambda value: value["n"]).sink_to(read)
    run(env)
    assert [value["n"] for value in spoiled.values] == [-1] * 40
    assert read.values == list(range(40))


@pytest.mark.spec("K1")
def test_a_function_may_give_out_the_same_object_again():
    class Growing(hg.MapFunction):
        def open(self, context):
            self.all = []

        def map(self, value):
            self.all.append(value)
            return self.all

    got = collected(small_env(1).from_collection(range(4)).map(Growing()).rebalance().map(tuple))
    assert got == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]


@pytest.mark.spec("K1")
def test_a_running_aggregate_may_change_its_value():
    def gather(a, b):
        a.extend(b)
        return a

    stream = small_env(1).from_collection([[n] for n in range(4)]).key_by(lambda _: "all")
    assert collected(stream.reduce(gather).map(tuple)) == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]


@pytest.mark.spec("T1", "K1")
@pytest.mark.parametrize("tune", ["chained", "disable_operator_chaining", "disable_chaining", "start_new_chain"])
def test_chaining_changes_threads_and_not_results(tune):
    env = small_env(2, chaining=tune != "disable_operator_chaining")
    stream = env.from_collection(range(100)).map(lambda n: (n, threading.current_thread().name)).name("first")
    second = stream.map(lambda pair: (*pair, threading.current_thread().name)).name("second")
    if tune in {"disable_chaining", "start_new_chain"}:
        getattr(second, tune)()
    got = collected(second)
    assert sorted(n for n, _, _ in got) == list(range(100))
    assert {before == after for _, before, after in got} == {tune == "chained"}


@pytest.mark.spec("T2", "T3")
def test_slot_groups_have_workers_of_their_own():
    env = small_env(2)
    stream = env.from_collection(range(100), parallel=True).slot_sharing_group("left").map(lambda n: n)
    sink = Gathered()
    stream.rebalance().map(WithSubtask()).slot_sharing_group("right").set_parallelism(3).sink_to(sink).set_parallelism(
        3
    )
    job = run(env)
    assert sorted(n for _, n in sink.values) == list(range(100))
    left, right = job.last_progress.vertices
    assert {one.worker for one in left.subtasks}.isdisjoint(one.worker for one in right.subtasks)
    assert len(job.last_progress.workers) == 5


def test_a_diamond_comes_together_again():
    stream = small_env(3).from_collection(range(90))
    left, right = (
        stream.rebalance().map(lambda n: ("left", n)),
        stream.key_by(lambda n: n % 7).map(lambda n: ("right", n)),
    )
    got = collected(left.union(right).key_by(lambda pair: pair[1]).reduce(lambda a, b: ("both", a[1])))
    assert sorted(n for side, n in got if side == "both") == list(range(90))


def test_a_long_pipeline_of_many_exchanges():
    stream = small_env(2).from_collection(range(100))
    for _ in range(8):
        stream = stream.rebalance().map(lambda n: n + 1)
    assert sorted(collected(stream)) == list(range(8, 108))


def test_a_second_job_of_an_environment_runs_the_operators_added_since():
    env = small_env(2)
    stream = env.from_collection(range(10)).map(lambda n: n * n)
    assert sorted(collected(stream)) == [n * n for n in range(10)]
    assert sorted(collected(stream.rebalance().map(lambda n: -n))) == sorted(-n * n for n in range(10))


def test_the_driver_can_read_while_the_job_runs():
    with small_env(2).generate(lambda n: n).rebalance().map(lambda n: n).execute_and_collect() as results:
        assert len({next(results) for _ in range(1000)}) == 1000
    assert results.job.status.over


def test_a_limit_of_results_cancels_the_job():
    results = small_env(2).generate(lambda n: n).execute_and_collect(limit=25)
    assert len(list(results)) == 25
    assert results.job.status.over


def test_arrow_batches_cross_exchanges():
    rows = small_env(2, memory__network__min="2 MiB", memory__network__max="2 MiB").from_collection(
        [{"word": f"w{n % 5}", "n": n} for n in range(200)]
    )
    batches = (
        rows.to_arrow(batch_rows=30)
        .key_by("word")
        .map_batches(lambda frame: frame.assign(n=frame.n + 1), form="pandas")
    )
    got = collected(batches.rebalance().map_batches(lambda batch: batch, form="arrow").from_arrow("dict"))
    assert sorted(row["n"] for row in got) == list(range(1, 201))


@pytest.mark.spec("K1")
@BOTH
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_split_stream_goes_several_ways_which_share_nothing(mode, reuse, chaining):
    def spoil(value):
        value.append("spoilt")
        return value

    env = small_env(2, chaining=chaining, execution__runtime_mode=mode, execution__object_reuse=reuse)
    values = env.from_collection([[n] for n in range(30)])
    split = values.split(lambda value: [name for name, by in (("even", 2), ("third", 3)) if value[0] % by == 0])
    even, third = split.select("even").map(spoil), split.select("third").map(spoil)
    sinks = [Gathered() for _ in range(4)]
    for stream, sink in zip([even, third, split.select("even", "third"), split.select("even")], sinks, strict=True):
        stream.sink_to(sink)
    run(env)
    found = [sorted(sink.values) for sink in sinks]
    assert found[0] == [[n, "spoilt"] for n in range(0, 30, 2)]
    assert found[1] == [[n, "spoilt"] for n in range(0, 30, 3)]
    assert found[2] == [[n] for n in range(30) if n % 2 == 0 or n % 3 == 0]
    assert found[3] == [[n] for n in range(0, 30, 2)]
