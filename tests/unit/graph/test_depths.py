"""How deep exchanges are: what a task writes is deeper than what it reads."""

import pytest

import headgate as hg
from headgate.config import load_settings
from headgate.errors import ConfigError
from headgate.graph.depths import check_depth, depth_of
from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
from headgate.ids import JobId
from headgate.wire.handshake import MAX_LANES

pytestmark = pytest.mark.spec("N5")


def plan(ways, *, blocking=(), flow_control="tcp"):
    """Vertices with exchanges between them: (producer, consumer), numbered as they are given."""
    count = 1 + max(max(way) for way in ways)
    vertices = tuple(Vertex(number, f"vertex {number}", 2, 128, ()) for number in range(count))
    exchanges = tuple(
        Exchange(number, one, 0, other, Ship(ShipKind.REBALANCE), blocking=number in blocking)
        for number, (one, other) in enumerate(ways)
    )
    settings = load_settings(code={"network.flow_control": flow_control})
    return Plan(JobId("1"), "etl", vertices, exchanges, workers=2, settings=settings)


@pytest.mark.parametrize(
    ("ways", "depths"),
    [
        ([(0, 1)], [0]),
        ([(0, 1), (1, 2), (2, 3)], [0, 1, 2]),
        ([(0, 2), (1, 2), (2, 3)], [0, 0, 1]),
        ([(0, 1), (1, 2), (0, 3), (2, 3), (3, 4)], [0, 1, 0, 2, 3]),
        ([(3, 4), (0, 3), (2, 3), (1, 2), (0, 1)], [3, 0, 2, 1, 0]),
    ],
    ids=["one", "in a row", "two sources", "a shorter way", "in any order"],
)
def test_the_longest_way_counts(ways, depths):
    made = plan(ways)
    assert [depth_of(made, exchange) for exchange in made.exchanges] == depths


def test_blocking_exchanges_have_depth_zero():
    made = plan([(0, 1), (1, 2), (2, 3), (3, 4)], blocking={1, 3})
    assert [depth_of(made, exchange) for exchange in made.exchanges] == [0, 0, 0, 0]


def test_every_task_writes_deeper_than_it_reads():
    env = hg.environment(local=True, parallelism=2)
    left, right = env.from_collection(range(5)), env.from_collection(range(5)).rebalance().map(lambda n: n)
    both = left.union(right).rebalance().map(lambda n: n)
    both.connect(left.rebalance()).map(lambda n: n, lambda n: n).rebalance().print()
    right.rebalance().print()
    made = env._plan(env._graph.nodes(), None)
    assert {depth_of(made, one) for one in made.exchanges} == {0, 1, 2, 3}
    for vertex in made.vertices:
        read = [depth_of(made, one) for one in made.inputs(vertex.id)]
        written = [depth_of(made, one) for one in made.outputs(vertex.id)]
        assert not written or max(read, default=-1) < min(written)


def test_a_job_deeper_than_there_are_lanes_is_refused_without_credit():
    ways = [(number, number + 1) for number in range(MAX_LANES + 1)]
    check_depth(plan(ways[:-1]))
    check_depth(plan(ways, flow_control="credit"))
    with pytest.raises(ConfigError, match=f"vertex {MAX_LANES + 1} is behind more than 1024 exchanges.*use credit"):
        check_depth(plan(ways))
