"""What passes over each edge of a job's graph, as sums over its channels: the numbers that a drawing has on its edges.

Made of a `Progress` and the graph by whoever shows them; pure, any thread. Tasks report records and bytes for all their
inputs together, so a rate is known where the consumer has one input, or the producer one output.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.observe.graph import GraphView
    from headgate.observe.progress import Progress, VertexProgress

__all__ = ["EdgeProgress", "edge_progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeProgress:
    """One exchange, all its channels together.

    >>> EdgeProgress(id=0, backlog=7).records_per_s is None
    True
    """

    id: int
    records_per_s: float | None = None  # None: tasks do not say it for each of their edges
    bytes_per_s: float | None = None
    backlog: int = 0  # buffers that wait at the producers
    queued: int = 0  # that wait to be read at the consumers


def edge_progress(progress: Progress, graph: GraphView) -> tuple[EdgeProgress, ...]:
    """The edges of a graph, in its order.

    >>> from headgate.observe.graph import GraphView
    >>> from headgate.observe.progress import Progress
    >>> from headgate.observe.status import JobStatus
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> edge_progress(progress, GraphView(vertices=(), edges=()))
    ()
    """
    vertices = {one.id: one for one in progress.vertices}
    inputs = Counter(one.consumer for one in graph.edges)
    outputs = Counter(one.producer for one in graph.edges)
    found = []
    for edge in graph.edges:
        producer, consumer = vertices.get(edge.producer), vertices.get(edge.consumer)
        records = size = None
        if consumer is not None and inputs[edge.consumer] == 1:
            records, size = consumer.records_in_per_s, consumer.bytes_in_per_s
        elif producer is not None and outputs[edge.producer] == 1:
            records, size = producer.records_out_per_s, producer.bytes_out_per_s
        backlog, queued = _waiting(consumer, edge.id, alone=inputs[edge.consumer] == 1)
        found.append(EdgeProgress(id=edge.id, records_per_s=records, bytes_per_s=size, backlog=backlog, queued=queued))
    return tuple(found)


def _waiting(consumer: VertexProgress | None, exchange: int, *, alone: bool) -> tuple[int, int]:
    """Buffers at the producers and at the consumers. A task's own sums are whole, however many channels it has."""
    if consumer is None:
        return 0, 0
    if alone:
        return sum(one.backlog for one in consumer.subtasks), sum(one.in_queued for one in consumer.subtasks)
    channels = [one for task in consumer.subtasks for one in task.channels if one.exchange == exchange]
    return sum(one.backlog for one in channels), sum(one.queued for one in channels)
