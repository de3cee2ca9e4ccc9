"""Chains, exchanges, workers and slot groups of a plan, and what is refused before anything runs."""

from dataclasses import replace

import pytest

from headgate.config import Settings, load_settings
from headgate.config.units import BufferTimeout
from headgate.errors import ConfigError
from headgate.functions.source import Source
from headgate.graph import Chaining, Edge, Ship, ShipKind, StreamGraph, make_plan
from headgate.ids import JobId
from headgate.task.operators.basic import PassOn

FORWARD, HASH, REBALANCE, GLOBAL = ShipKind.FORWARD, ShipKind.HASH, ShipKind.REBALANCE, ShipKind.GLOBAL


class Numbers(Source[int]):
    """A split for each subtask."""

    def splits(self, parallelism):
        return [(i, parallelism) for i in range(parallelism)]

    def read(self, split, offset, place):
        yield []


@pytest.fixture
def graph():
    return StreamGraph()


def source(graph, name="source", **options):
    return graph.add(name, PassOn, source=Numbers(), **options)


def after(graph, name, *nodes, ship=None, **options):
    edges = [node if isinstance(node, Edge) else Edge(node, ship) for node in nodes]
    return graph.add(name, PassOn, inputs=edges, **options)


def planned(graph, parallelism=2, settings=None, **options):
    return make_plan(
        graph.take(),
        job=JobId("job-1"),
        name="job",
        parallelism=parallelism,
        settings=settings or Settings(),
        **options,
    )


def names(plan):
    return [vertex.name for vertex in plan.vertices]


def kinds(plan):
    return [exchange.ship.kind for exchange in plan.exchanges]


@pytest.mark.spec("K1")
def test_operators_without_an_exchange_are_one_vertex(graph):
    first = source(graph)
    second = after(graph, "map", first)
    after(graph, "filter", second)
    plan = planned(graph)
    assert names(plan) == ["source -> map -> filter"]
    assert plan.exchanges == ()
    assert [operator.reads for operator in plan.vertices[0].operators] == [None, 0, 1]
    assert plan.vertices[0].inputs == 0


def test_one_output_to_several_operators_of_the_same_chain(graph):
    first = source(graph)
    after(graph, "a", first)
    b = after(graph, "b", Edge(first, tag="late"))
    after(graph, "c", b)
    (vertex,) = planned(graph).vertices
    assert [(one.name, one.reads, one.tag) for one in vertex.operators] == [
        ("source", None, None),
        ("a", 0, None),
        ("b", 0, "late"),
        ("c", 2, None),
    ]


def test_a_hash_begins_a_vertex_and_the_exchange_names_its_producing_operator(graph):
    mapped = after(graph, "map", source(graph))
    mapped.hint, mapped.buffer_timeout = str, BufferTimeout.parse("5ms")
    after(graph, "count", mapped, ship=Ship(HASH, key=len))
    plan = planned(graph)
    assert names(plan) == ["source -> map", "count"]
    (exchange,) = plan.exchanges
    assert (exchange.producer, exchange.operator, exchange.consumer) == (0, 1, 1)
    assert (exchange.ship.kind, exchange.ship.key, exchange.hint) == (HASH, len, str)
    assert str(exchange.buffer_timeout) == "5 ms"
    assert plan.vertices[1].inputs == 1


def test_another_parallelism_is_reached_by_rebalance(graph):
    after(graph, "map", source(graph)).parallelism = 3
    plan = planned(graph)
    assert kinds(plan) == [REBALANCE]
    assert plan.workers == 3


@pytest.mark.parametrize(
    ("producer", "consumer", "chained"),
    [
        (Chaining.ALWAYS, Chaining.ALWAYS, True),
        (Chaining.HEAD, Chaining.ALWAYS, True),
        (Chaining.ALWAYS, Chaining.HEAD, False),
        (Chaining.ALWAYS, Chaining.NEVER, False),
        (Chaining.NEVER, Chaining.ALWAYS, False),
    ],
)
def test_chaining_can_be_refused_by_either_side(graph, producer, consumer, chained):
    first = source(graph)
    first.chaining = producer
    after(graph, "map", first).chaining = consumer
    plan = planned(graph)
    assert len(plan.vertices) == (1 if chained else 2)
    assert kinds(plan) == ([] if chained else [FORWARD])


def test_no_chains_at_all(graph):
    after(graph, "map", source(graph))
    assert len(planned(graph, chaining=False).vertices) == 2


def test_another_max_parallelism_is_another_vertex(graph):
    after(graph, "map", source(graph)).max_parallelism = 64
    plan = planned(graph)
    assert [vertex.max_parallelism for vertex in plan.vertices] == [128, 64]


def test_a_union_is_one_input_with_several_exchanges(graph):
    one, two = source(graph, "one"), source(graph, "two")
    after(graph, "map", one, two)
    plan = planned(graph)
    assert names(plan) == ["one", "two", "map"]
    assert [(exchange.producer, exchange.input) for exchange in plan.exchanges] == [(0, 0), (1, 0)]
    assert plan.vertices[2].inputs == 1


def test_two_inputs(graph):
    one, two = source(graph, "one"), source(graph, "two")
    after(graph, "co_map", Edge(one), Edge(two, input=1))
    plan = planned(graph)
    assert [(exchange.producer, exchange.input) for exchange in plan.inputs(2)] == [(0, 0), (1, 1)]
    assert plan.vertices[2].inputs == 2


def test_an_operator_that_reads_the_same_output_twice_has_two_exchanges(graph):
    first = source(graph)
    after(graph, "co_map", Edge(first), Edge(first, input=1))
    plan = planned(graph)
    assert [exchange.output for exchange in plan.outputs(0)] == [0, 1]
    assert [exchange.id for exchange in plan.exchanges] == [0, 1]


def test_outputs_of_a_vertex_are_numbered(graph):
    first = source(graph)
    for name in "abc":
        after(graph, name, first, ship=Ship(REBALANCE))
    assert [exchange.output for exchange in planned(graph).outputs(0)] == [0, 1, 2]


def test_a_sink_in_the_driver(graph):
    after(graph, "print", source(graph), in_driver=True)
    plan = planned(graph)
    assert kinds(plan) == [GLOBAL]
    assert plan.uses_driver
    assert plan.workers == 2
    assert plan.vertices[1].parallelism == 1
    assert plan.vertices[1].workers(plan) == range(2, 3)


def test_a_sink_in_the_driver_is_no_chain_even_with_one_subtask(graph):
    after(graph, "print", source(graph), in_driver=True)
    assert len(planned(graph, parallelism=1).vertices) == 2


def test_slot_groups_have_workers_of_their_own(graph):
    first = source(graph)
    heavy = after(graph, "heavy", first)
    heavy.slot_group, heavy.parallelism = "gpu", 3
    after(graph, "light", heavy)  # as its input
    back = after(graph, "back", heavy)
    back.slot_group = "default"
    plan = planned(graph)
    assert plan.slot_groups == (("default", 0), ("gpu", 2))
    assert plan.workers == 5
    assert {vertex.name: list(vertex.workers(plan)) for vertex in plan.vertices} == {
        "source": [0, 1],
        "heavy": [2, 3, 4],
        "light": [2, 3],
        "back": [0, 1],
    }


def test_inputs_of_different_groups_meet_in_the_default_one(graph):
    one, two = source(graph, "one"), source(graph, "two")
    one.slot_group, two.slot_group = "a", "b"
    after(graph, "map", one, two)
    plan = planned(graph)
    assert plan.vertices[2].slot_group == "default"
    assert plan.workers == 6


def test_splits_are_asked_for_with_the_parallelism_of_the_source(graph):
    source(graph).parallelism = 3
    (vertex,) = planned(graph).vertices
    assert vertex.operators[0].splits == ((0, 3), (1, 3), (2, 3))


def test_a_plan_to_look_at_asks_for_no_splits(graph):
    source(graph)
    assert planned(graph, splits=False).vertices[0].operators[0].splits == ()


def test_an_error_of_splits_is_raised_with_the_name_of_the_source(graph):
    class Broken(Numbers):
        def splits(self, parallelism):
            raise FileNotFoundError("no such directory")

    graph.add("read files", PassOn, source=Broken())
    with pytest.raises(FileNotFoundError) as caught:
        planned(graph)
    assert "read files" in caught.value.__notes__[0]


# Refused, with the operator's name.


def test_forward_between_different_parallelisms(graph):
    after(graph, "map", source(graph), ship=Ship(FORWARD)).parallelism = 3
    with pytest.raises(ConfigError, match=r"source -> map: forward needs the same parallelism .* not 2 and 3"):
        planned(graph)


def test_more_subtasks_than_key_groups(graph):
    source(graph).max_parallelism = 1
    with pytest.raises(ConfigError, match="source: its parallelism of 2 is above its max_parallelism of 1"):
        planned(graph)


def test_more_subtasks_than_the_setting_allows(graph):
    source(graph)
    with pytest.raises(ConfigError, match=r"execution\.max_parallelism"):
        planned(graph, parallelism=9, settings=load_settings(code={"execution.max_parallelism": 8}))


def test_the_same_uid_twice(graph):
    first = source(graph)
    first.uid = "one"
    after(graph, "map", first).uid = "one"
    with pytest.raises(ConfigError, match="source and map have the same uid 'one'"):
        planned(graph)


def test_nothing_at_all(graph):
    with pytest.raises(ConfigError, match="nothing to execute"):
        planned(graph)


def test_neither_input_nor_source(graph):
    graph.add("map", PassOn)
    with pytest.raises(ConfigError, match="map has neither an input nor a source"):
        planned(graph)


BATCH = load_settings(code={"execution.runtime_mode": "BATCH"}, environ={})
AUTO = load_settings(code={"execution.runtime_mode": "AUTO"}, environ={})


def ending(graph, bounded, name="source"):
    node = source(graph, name)
    node.source.bounded = bounded
    return node


@pytest.mark.spec("T4")
@pytest.mark.parametrize(
    ("mode", "bounded", "batch"),
    [
        (Settings(), [True], False),
        (Settings(), [False], False),
        (BATCH, [True, True], True),
        (BATCH, [None], True),  # the user says so, and should know
        (AUTO, [True, True], True),
        (AUTO, [True, None], False),
        (AUTO, [False, True], False),
    ],
)
def test_the_mode_that_is_chosen(graph, mode, bounded, batch):
    for one in bounded:
        ending(graph, one)
    assert planned(graph, settings=mode).batch is batch


@pytest.mark.spec("T4")
def test_batch_refuses_a_source_without_an_end_by_name(graph):
    ending(graph, True, "files")
    ending(graph, False, "clicks")
    with pytest.raises(ConfigError, match=r"^clicks: this source has no end.*STREAMING.*AUTO.*runtime_mode"):
        planned(graph, settings=BATCH)


def test_in_batch_the_driver_fetches_the_input_of_its_sinks_first(graph):
    numbers, words = source(graph, "numbers", hint=int), source(graph, "words", hint=str)
    after(graph, "print", numbers, in_driver=True)
    after(graph, "print all", numbers, words, in_driver=True)
    plan = planned(graph, settings=BATCH)
    assert names(plan) == ["numbers", "words", "fetch", "print", "fetch", "print all"]
    assert [vertex.in_driver for vertex in plan.vertices] == [False, False, True, True, True, True]
    assert [(one.producer, one.consumer, one.ship.kind, one.hint) for one in plan.exchanges] == [
        (0, 2, GLOBAL, int),
        (2, 3, FORWARD, int),
        (0, 4, GLOBAL, int),
        (1, 4, GLOBAL, str),
        (4, 5, FORWARD, None),
    ]
    assert all(one.blocking for one in plan.exchanges)
    operators = [operator.id for vertex in plan.vertices for operator in vertex.operators]
    assert len(set(operators)) == len(operators)


def test_planning_changes_no_node(graph):
    """The same stream can be executed again, in another mode."""
    printed = after(graph, "print", source(graph), in_driver=True)
    nodes = graph.take()
    options = {"job": JobId("1"), "name": "job", "parallelism": 2}
    assert names(make_plan(nodes, settings=BATCH, **options)) == ["source", "fetch", "print"]
    assert names(make_plan(nodes, settings=Settings(), **options)) == ["source", "print"]
    assert [edge.node.name for edge in printed.inputs] == ["source"]


def test_nothing_is_blocking_in_streaming(graph):
    after(graph, "print", after(graph, "map", source(graph), ship=Ship(REBALANCE)), in_driver=True)
    assert not any(one.blocking for one in planned(graph).exchanges)


def test_slot_groups_share_the_workers_in_batch(graph):
    model = after(graph, "model", source(graph))
    model.slot_group, model.parallelism = "gpu", 3
    after(graph, "end", model).slot_group = "other"
    plan = planned(graph, settings=BATCH)
    assert plan.workers == 3
    assert plan.slot_groups == (("default", 0),)
    assert [list(vertex.workers(plan)) for vertex in plan.vertices] == [[0, 1], [0, 1, 2], [0, 1]]


@pytest.mark.spec("M5")
def test_a_worker_needs_the_buffers_of_its_largest_region(graph):
    first = source(graph)
    wide = after(graph, "wide", first, ship=Ship(HASH, key=hash))
    wide.parallelism = 4
    after(graph, "print", wide, in_driver=True)
    plan = planned(graph, settings=BATCH)
    demands = [[task.name for task in plan.demands_of(worker)] for worker in range(plan.workers + 1)]
    assert demands == [["wide (0)"], ["wide (1)"], ["wide (2)"], ["wide (3)"], ["fetch (0)"]]
    [gate] = plan.demands_of(0)[0].gates
    assert (gate.remote_channels, gate.local_channels) == (2, 0), "after a restart all may be elsewhere"
    assert [task.name for task in replace(plan, batch=False).demands_of(0)] == ["source (0)", "wide (0)"]
