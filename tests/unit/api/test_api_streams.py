"""What the API makes of a program: checked on its plan, without running it."""

import copy
import pickle

import pytest

import headgate as hg
from headgate.coordinator import Job, JobStatus
from headgate.errors import ConfigError
from headgate.graph import ShipKind

TAG = hg.OutputTag("late", str)


class Host:
    """Takes plans and runs none."""

    def __init__(self):
        self.plans = []

    def check(self, plan):
        pass

    def run(self, plan):
        self.plans.append(plan)
        job = Job(plan.job, plan.name, progress=lambda: None, cancel=print)
        job.end(JobStatus.FINISHED)
        return job


@pytest.fixture
def env():
    return hg.environment(host=Host(), parallelism=2)


def plan(env):
    env.execute_async()
    return env._own_host.plans[-1]


def names(env):
    return [vertex.name for vertex in plan(env).vertices]


def only_exchange(env):
    (exchange,) = plan(env).exchanges
    return exchange


def ints(env):
    return env.from_collection([1, 2, 3], type_info=int, parallel=True)


@pytest.mark.parametrize("kind", ["rebalance", "rescale", "shuffle", "broadcast", "global_"])
def test_shipping(env, kind):
    getattr(ints(env), kind)().map(str)
    assert only_exchange(env).ship.kind == kind.rstrip("_")


def test_forward_is_no_exchange(env):
    ints(env).forward().map(str)
    assert names(env) == ["collection -> map(str)"]


def test_the_last_call_that_sets_shipping_wins(env):
    ints(env).rebalance().shuffle().map(str)
    assert only_exchange(env).ship.kind is ShipKind.SHUFFLE


def test_partition_custom_by_record_and_by_key(env):
    ints(env).partition_custom(lambda n, channels: n % channels).map(str)
    assert only_exchange(env).ship.function(7, 2) == 1
    ints(env).partition_custom(lambda key, channels: key % channels, lambda n: n * 10).map(str)
    assert only_exchange(env).ship.function(7, 4) == 70 % 4


def test_key_by(env):
    key = str
    ints(env).key_by(key).count()
    exchange = only_exchange(env)
    assert (exchange.ship.kind, exchange.ship.key, exchange.hint) == (ShipKind.HASH, key, int)


def test_types_go_along(env):
    stream = ints(env)
    assert stream.hint is int
    assert stream.filter(bool).hint is int
    assert stream.key_by(str).reduce(max).hint is int
    assert stream.key_by(str).count().hint == tuple[str, int]
    assert stream.key_by(lambda n: n).count().hint is None
    assert stream.map(lambda n: n).hint is None
    assert stream.map(lambda n: n, output_type=float).hint is float
    assert stream.union(stream.map(lambda n: n, output_type=int)).hint is int
    assert stream.union(stream.map(str)).hint is None
    assert stream.rebalance().hint is int
    assert stream.map(str).get_side_output(TAG).hint is str
    assert stream.key_by(lambda n: n).window(hg.GlobalWindows.create()).reduce(max).hint is int


def test_names(env):
    class Length(hg.MapFunction):
        def map(self, value):
            return len(value)

    stream = (
        env.from_collection(["to"], parallel=True)
        .map(Length())
        .map(str.upper)
        .map(lambda w: w)
        .filter(len)
        .name("mine")
    )
    stream.key_by(len).sum(1)
    assert names(env) == ["collection -> map(Length) -> map(upper) -> map -> mine", "sum(1)"]


def test_settings_of_an_operator(env):
    stream = ints(env).map(str).set_parallelism(3).set_max_parallelism(60).set_buffer_timeout(7).uid("m")
    stream.map(len).start_new_chain()
    stream.map(len).disable_chaining()
    stream.map(len).slot_sharing_group("b")
    made = plan(env)
    assert [(vertex.name, vertex.parallelism, vertex.max_parallelism) for vertex in made.vertices][1] == (
        "map(str)",
        3,
        60,
    )
    assert {str(exchange.buffer_timeout) for exchange in made.outputs(1)} == {"7 ms"}
    assert len(made.vertices) == 5
    assert made.slot_groups == (("default", 0), ("b", 3))


def test_settings_of_an_operator_are_refused_after_shipping_or_union(env):
    with pytest.raises(ConfigError, match="set_parallelism belongs right after an operator"):
        ints(env).rebalance().set_parallelism(3)
    with pytest.raises(ConfigError, match="name belongs right after an operator"):
        ints(env).union(ints(env)).name("both")
    with pytest.raises(ConfigError, match="get_side_output belongs right after an operator"):
        ints(env).rebalance().get_side_output(TAG)


@pytest.mark.parametrize("parallelism", [0, -1])
def test_a_parallelism_below_one(env, parallelism):
    with pytest.raises(ConfigError, match="at least 1"):
        ints(env).set_parallelism(parallelism)
    with pytest.raises(ConfigError, match="at least 1"):
        env.set_parallelism(parallelism)


def test_one_subtask_only(env):
    windows = ints(env).count_window_all(2).reduce(max)
    assert only_exchange(env).ship.kind is ShipKind.GLOBAL
    assert windows.set_parallelism(1) is windows
    with pytest.raises(ConfigError, match="its parallelism is 1 and cannot be another"):
        windows.set_parallelism(2)
    with pytest.raises(ConfigError, match="print: its parallelism is 1"):
        ints(env).print().set_parallelism(2)


def test_operators_after_a_window_of_all_are_parallel_again(env):
    ints(env).count_window_all(2).reduce(max).map(str)
    made = plan(env)
    assert [vertex.parallelism for vertex in made.vertices] == [2, 1, 2]
    assert [exchange.ship.kind for exchange in made.exchanges] == [ShipKind.GLOBAL, ShipKind.REBALANCE]


def test_connected_streams_have_two_inputs(env):
    keyed = ints(env).connect(env.from_collection(["a"], parallel=True)).key_by(str, str.upper)
    keyed.co_map(str, str)
    made = plan(env)
    assert [(one.input, one.ship.kind, one.hint) for one in made.inputs(2)] == [
        (0, ShipKind.HASH, int),
        (1, ShipKind.HASH, str),
    ]
    assert made.vertices[2].inputs == 2


def test_a_union_can_be_connected(env):
    ints(env).union(ints(env)).connect(ints(env)).co_map(str, str)
    assert [exchange.input for exchange in plan(env).inputs(3)] == [0, 0, 1]


def test_late_data_has_the_type_of_the_stream(env):
    windows = ints(env).key_by(str).window(hg.TumblingEventTimeWindows.of(10)).allowed_lateness(5)
    result = windows.side_output_late_data(hg.OutputTag("late")).reduce(max)
    assert result.get_side_output(hg.OutputTag("late")).hint is int


# Execution.


def test_a_second_execution_has_only_what_was_added_since(env):
    stream = ints(env).map(str)
    stream.print()
    assert names(env) == ["collection -> map(str)", "print"]
    stream.for_each(print)
    assert names(env) == ["collection -> map(str) -> for_each(print)"]
    with pytest.raises(ConfigError, match="nothing to execute"):
        env.execute()


def test_a_refused_pipeline_can_be_corrected_and_executed(env):
    mapped = ints(env).forward().map(str).set_parallelism(3)
    with pytest.raises(ConfigError):
        env.execute()
    mapped.set_parallelism(2)
    assert names(env) == ["collection -> map(str)"]


def test_makers_can_be_copied_and_pickled(env):
    ints(env).map(str).key_by(str).count().print()
    for vertex in plan(env).vertices:
        for operator in vertex.operators:
            for make in (copy.deepcopy(operator.make), pickle.loads(pickle.dumps(operator.make))):
                assert type(make()) is type(operator.make())


def test_streams_know_their_environment(env):
    other = hg.environment(host=Host(), parallelism=2)
    for method in ("union", "connect", "join"):
        with pytest.raises(ValueError, match="same environment"):
            getattr(ints(env), method)(ints(other))
        with pytest.raises(TypeError, match="wants a DataStream"):
            getattr(ints(env), method)([1, 2])


# Functions that are none.


def test_arguments_that_are_not_callable_are_refused(env):
    stream = ints(env)
    for method in ("map", "flat_map", "filter", "process", "map_batches", "map_async", "for_each"):
        with pytest.raises(TypeError, match=f"{method} wants a callable"):
            getattr(stream, method)("nonsense")
    with pytest.raises(TypeError, match=r"reduce wants a callable, or a Function with reduce"):
        stream.key_by(str).reduce(None)
    with pytest.raises(TypeError, match="make an instance"):
        stream.map(hg.MapFunction)
    with pytest.raises(TypeError, match="with map"):
        stream.map(hg.Function())
    with pytest.raises(TypeError, match="sink_to wants a Sink"):
        stream.sink_to(print)
    with pytest.raises(TypeError, match="from_source wants a Source"):
        env.from_source([1, 2])


def test_functions_for_keys_need_keys(env):
    class Keyed(hg.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

    class Both(hg.KeyedCoProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        def process_element2(self, value, ctx):
            yield value

    with pytest.raises(TypeError, match="use key_by before"):
        ints(env).process(Keyed())
    with pytest.raises(TypeError, match="use key_by on both"):
        ints(env).connect(ints(env).key_by(str)).process(Both())
    with pytest.raises(TypeError, match="wants a KeyedProcessFunction"):
        ints(env).key_by(str).process(print)
    with pytest.raises(TypeError, match="wants a CoMapFunction, or a function for each"):
        ints(env).connect(ints(env)).map(str)


def test_windows_want_assigners(env):
    with pytest.raises(TypeError, match="wants an assigner"):
        ints(env).key_by(str).window(10)
    with pytest.raises(TypeError, match="wants an assigner"):
        ints(env).window_all(10)
    with pytest.raises(TypeError, match="AggregateFunction"):
        ints(env).key_by(str).count_window(3).aggregate(max)


def test_a_join_needs_keys_and_a_window(env):
    joined = ints(env).join(ints(env))
    with pytest.raises(TypeError, match="use where"):
        joined.apply(max)
    with pytest.raises(TypeError, match="use equal_to"):
        joined.where(str).apply(max)
    with pytest.raises(TypeError, match="needs a window"):
        joined.where(str).equal_to(str).apply(max)
    with pytest.raises(TypeError, match="wants an assigner"):
        joined.window(10)


# Arrow streams.


def test_key_by_columns(env):
    arrow = env.from_collection([("to", 1)], parallel=True).to_arrow()
    arrow.key_by("word").map_batches(lambda batch: batch, form="arrow")
    exchange = only_exchange(env)
    assert (exchange.ship.kind, exchange.ship.columns, exchange.hint) == (ShipKind.HASH_COLUMNS, ("word",), "arrow")
    arrow.key_by(["a", "b"]).from_arrow()
    assert only_exchange(env).ship.columns == ("a", "b")


def test_rows_and_batches_are_not_mixed_up(env):
    rows = env.from_collection([("to", 1)], parallel=True)
    arrow = rows.to_arrow()
    assert arrow.is_arrow
    assert arrow.rebalance().is_arrow
    assert not arrow.from_arrow().is_arrow
    for method in ("map", "flat_map", "filter", "map_async", "process"):
        with pytest.raises(TypeError, match="is an Arrow stream"):
            getattr(arrow, method)(str)
    with pytest.raises(TypeError, match="to_arrow is for rows"):
        arrow.to_arrow()
    with pytest.raises(TypeError, match="names of columns, not"):
        arrow.key_by(str)
    with pytest.raises(TypeError, match="names of columns, not"):
        arrow.key_by([])
    with pytest.raises(TypeError, match="names of columns are for Arrow streams"):
        rows.key_by("word")
    with pytest.raises(TypeError, match="union: one is an Arrow stream"):
        rows.union(arrow)
    with pytest.raises(TypeError, match="from_arrow is for Arrow streams"):
        rows.from_arrow()
    with pytest.raises(TypeError, match="form='pandas' is for Arrow streams"):
        rows.map_batches(len, form="pandas")
    with pytest.raises(TypeError, match="form='list' is for rows"):
        arrow.map_batches(len)
    with pytest.raises(TypeError, match="co_map is for rows"):
        arrow.connect(rows).co_map(str, str)
    keyed = arrow.key_by("word")
    for method in ("count", "sum", "min"):
        with pytest.raises(TypeError, match="keyed by columns of record batches"):
            getattr(keyed, method)()
    with pytest.raises(ValueError, match="'list', 'arrow' or 'pandas'"):
        rows.map_batches(len, form="polars")
    with pytest.raises(ValueError, match="'tuple' or 'dict'"):
        arrow.from_arrow("list")


SHIPPING = {
    "shuffle": (), "rebalance": (), "rescale": (), "broadcast": (), "forward": (), "global_": (),
    "partition_custom": (lambda n, subtasks: 0,),
}  # fmt: skip


@pytest.mark.spec("W1")
@pytest.mark.parametrize("how", SHIPPING)
@pytest.mark.parametrize("arrow", [False, True])
def test_shipping_does_not_undo_key_by(env, how, arrow):
    keyed = ints(env).to_arrow().key_by("n") if arrow else ints(env).key_by(lambda n: n % 2)
    with pytest.raises(TypeError, match=rf"^{how} .*key_by"):
        getattr(keyed, how)(*SHIPPING[how])


def test_a_keyed_stream_has_windows_of_all_records(env):
    ints(env).key_by(lambda n: n % 2).count_window_all(2).reduce(max)
    assert only_exchange(env).ship.kind.value == "global"
