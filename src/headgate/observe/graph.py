"""The graph of a job as plain data for views: vertices with their operators, and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from headgate.graph.plan import Plan, Vertex

__all__ = ["EdgeView", "GraphView", "VertexView", "graph_view"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexView:
    """A chain of operators that runs as `parallelism` tasks."""

    id: int
    name: str
    parallelism: int
    operators: tuple[str, ...]  # the head first
    source: bool = False  # it reads from outside the job
    sink: bool = False  # no vertex reads from it
    ends: tuple[str, ...] = ()  # of its operators, those whose output no operator reads
    in_driver: bool = False
    workers: tuple[int, ...] = ()  # of each subtask


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeView:
    """An exchange."""

    id: int
    producer: int
    consumer: int
    ship: str
    tag: str | None = None
    blocking: bool = False  # through disk: its consumer starts when its producer has finished


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """All vertices and edges."""

    vertices: tuple[VertexView, ...]
    edges: tuple[EdgeView, ...]


def graph_view(plan: Plan) -> GraphView:
    """Return the graph of a plan.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> graph_view(plan).vertices[0].source
    True
    """
    producers = {one.producer for one in plan.exchanges}
    writing = {(one.producer, one.operator) for one in plan.exchanges}  # operators that write to an exchange
    return GraphView(
        vertices=tuple(
            VertexView(
                id=one.id,
                name=one.name,
                parallelism=one.parallelism,
                operators=tuple(operator.name for operator in one.operators),
                source=one.inputs == 0,
                sink=one.id not in producers,
                ends=_ends(one, writing),
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


def _ends(vertex: Vertex, writing: AbstractSet[tuple[int, int]]) -> tuple[str, ...]:
    read = {operator.reads for operator in vertex.operators}
    return tuple(
        operator.name
        for position, operator in enumerate(vertex.operators)
        if position not in read and (vertex.id, position) not in writing
    )
