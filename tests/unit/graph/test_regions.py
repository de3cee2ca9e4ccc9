"""Which vertices of a job in BATCH run together, and what regions read from each other."""

import pytest
from tests.support.schedule import Numbers, planned, word_count

from headgate.graph import Edge, Ship, ShipKind, StreamGraph
from headgate.graph.plan import Partition
from headgate.graph.regions import Region, Regions
from headgate.task.operators.basic import PassOn


@pytest.fixture
def graph():
    return StreamGraph()


def source(graph, name="source", **options):
    return graph.add(name, PassOn, source=Numbers(**options))


def after(graph, name, *nodes, ship=None):
    edges = [Edge(node, None if ship is None else Ship(ship, key=hash), input=i) for i, node in enumerate(nodes)]
    return graph.add(name, PassOn, inputs=edges)


def stages(plan):
    return [[plan.vertex(one).name for one in stage.vertices] for stage in Regions(plan).stages]


def test_vertices_connected_by_forward_are_one_stage(graph):
    first = source(graph)
    left = after(graph, "left", first)
    after(graph, "further", left)
    after(graph, "right", first)
    after(graph, "by key", first, ship=ShipKind.HASH)
    plan = planned(graph)
    assert stages(plan) == [["source", "left", "further", "right"], ["by key"]]
    assert [exchange.blocking for exchange in plan.exchanges] == [False, False, False, True]


def test_a_vertex_with_two_exchanges_begins_a_stage(graph):
    first, second = source(graph, "first"), source(graph, "second")
    both = after(graph, "both", first, second)
    after(graph, "end", both)
    assert stages(planned(graph)) == [["first"], ["second"], ["both", "end"]]


def test_a_diamond_does_not_run_at_once(graph):
    first = source(graph)
    after(graph, "joined", after(graph, "left", first), after(graph, "right", first))
    assert stages(planned(graph)) == [["source", "left", "right"], ["joined"]]


def test_another_parallelism_begins_a_stage(graph):
    after(graph, "one", source(graph)).parallelism = 1
    plan = planned(graph)
    assert stages(plan) == [["source"], ["one"]]
    regions = Regions(plan)
    assert regions.all() == (Region(0, 0), Region(0, 1), Region(1, 0))
    assert [regions.worker(region) for region in regions.all()] == [0, 1, 0]


def test_the_driver():
    plan = word_count(printed=True)
    regions = Regions(plan)
    assert stages(plan) == [["words"], ["count"], ["fetch"], ["end"]]
    assert [(stage.in_driver, stage.sink_in_driver) for stage in regions.stages] == [
        (False, False),
        (False, False),
        (True, False),
        (True, True),
    ]
    assert regions.worker(Region(3, 0)) == plan.workers == 2


def test_readers_and_writers_agree(graph):
    wide = source(graph, "wide")
    wide.parallelism = 3
    narrow = after(graph, "narrow", wide, ship=ShipKind.RESCALE)
    narrow.parallelism = 2
    after(graph, "joined", wide, narrow, ship=ShipKind.HASH).parallelism = 3
    plan = planned(graph)
    regions = Regions(plan)
    for region in regions.all():
        assert regions.outputs(region) == tuple(
            Partition(vertex, one.output, region.subtask)
            for vertex in regions.vertices(region)
            for one in plan.outputs(vertex)
        )
        for partition in regions.outputs(region):
            assert regions.knows(partition)
            assert regions.producer(partition) == region
            readers = {one for one in regions.all() if partition in regions.inputs(one)}
            assert set(regions.consumers(partition)) == readers != set()
    assert [one.subtask for one in regions.inputs(Region(1, 0))] == [0, 1]


def test_regions_do_not_know_pipelined_partitions(graph):
    after(graph, "end", source(graph))
    regions = Regions(planned(graph))
    assert regions.outputs(Region(0, 0)) == ()
    assert not regions.knows(Partition(0, 0, 0))
    assert regions.stage_of(1) == 0


def test_feeds(graph):
    after(graph, "by key", source(graph, "rows", fed=True), source(graph, "made"), ship=ShipKind.HASH)
    regions = Regions(planned(graph))
    assert [regions.has_feed(stage.id) for stage in regions.stages] == [True, False, False]
    assert [regions.is_source(stage.id) for stage in regions.stages] == [True, True, False]
