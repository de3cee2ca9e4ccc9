"""The graph of a job as whatever shows it needs it: vertices with their operators, and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from headgate.graph.plan import Plan, Vertex

__all__ = ["EdgeView", "GraphView", "VertexView", "graph_view"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexView:
    """Operators that run as one task, as many times as the parallelism says.

    >>> VertexView(id=0, name="words", parallelism=2, operators=("collection", "map(len)")).source
    False
    """

    id: int
    name: str
    parallelism: int
    operators: tuple[str, ...]  # the head first
    source: bool = False  # it reads from outside the job
    sink: bool = False  # nobody reads from it
    ends: tuple[str, ...] = ()  # of its operators, those whose output nobody reads
    in_driver: bool = False
    workers: tuple[int, ...] = ()  # of each subtask


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeView:
    """An exchange.

    >>> EdgeView(id=0, producer=0, consumer=1, ship="hash").ship
    'hash'
    """

    id: int
    producer: int
    consumer: int
    ship: str
    tag: str | None = None
    blocking: bool = False  # through disk: its consumer begins when its producer has finished


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """All vertices and edges.

    >>> GraphView(vertices=(), edges=()).edges
    ()
    """

    vertices: tuple[VertexView, ...]
    edges: tuple[EdgeView, ...]


def graph_view(plan: Plan) -> GraphView:
    """The graph of a plan.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> graph_view(plan).vertices[0].source
    True
    """
    read = {one.producer for one in plan.exchanges}
    left = {(one.producer, one.operator) for one in plan.exchanges}  # operators that write to an exchange
    return GraphView(
        vertices=tuple(
            VertexView(
                id=one.id,
                name=one.name,
                parallelism=one.parallelism,
                operators=tuple(operator.name for operator in one.operators),
                source=one.inputs == 0,
                sink=one.id not in read,
                ends=_ends(one, left),
                in_driver=one.in_driver,
                workers=tuple(one.workers(plan)),
            )
            for one in plan.vertices
        ),
        edges=tuple(
            EdgeView(
                id=one.id,
                producer=one.producer,
                consumer=one.consumer,
                ship=str(one.ship.kind),
                tag=one.tag,
                blocking=one.blocking,
            )
            for one in plan.exchanges
        ),
    )


def _ends(vertex: Vertex, left: AbstractSet[tuple[int, int]]) -> tuple[str, ...]:
    read = {operator.reads for operator in vertex.operators}
    return tuple(
        operator.name
        for position, operator in enumerate(vertex.operators)
        if position not in read and (vertex.id, position) not in left
    )
