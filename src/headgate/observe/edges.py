"""The figures of each edge of a job's graph: sums over its channels.

Pure; any thread. Tasks report records and bytes for all their inputs together, so a rate is known only if the consumer
has one input, or the producer one output.
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
    """The sums over all channels of one exchange."""

    id: int
    records_per_s: float | None = None  # None: not known for this edge alone
    bytes_per_s: float | None = None
    backlog: int = 0  # buffers that wait at the producers
    queued: int = 0  # buffers that wait to be read by the consumers


def edge_progress(progress: Progress, graph: GraphView) -> tuple[EdgeProgress, ...]:
    """Return the figures of a graph's edges, in the order of the graph."""
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
        backlog, queued = _waiting_buffers(consumer, edge.id, only_input=inputs[edge.consumer] == 1)
        found.append(EdgeProgress(id=edge.id, records_per_s=records, bytes_per_s=size, backlog=backlog, queued=queued))
    return tuple(found)


def _waiting_buffers(consumer: VertexProgress | None, exchange: int, *, only_input: bool) -> tuple[int, int]:
    """Return the buffers at the producers and at the consumers.

    The sums of a task cover all its channels, of which only a limited number is reported.
    """
    if consumer is None:
        return 0, 0
    if only_input:
        return sum(one.backlog for one in consumer.subtasks), sum(one.in_queued for one in consumer.subtasks)
    channels = [one for task in consumer.subtasks for one in task.channels if one.exchange == exchange]
    return sum(one.backlog for one in channels), sum(one.queued for one in channels)
