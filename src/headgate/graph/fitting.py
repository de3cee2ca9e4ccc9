"""The check that the workers of a job have the network buffers that its plan requires (M5).

Called in the driver: by a host, before it starts a worker or calls a source's `splits`, with the expected numbers; and
by the coordinator, before it deploys a task, with the numbers that the workers have registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.buffer import Limits, WorkerDemand, preflight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.graph.plan import Plan

__all__ = ["check_memory"]


def check_memory(plan: Plan, segments: Sequence[int]) -> None:
    """Check that no worker needs more buffers than it has.

    Args:
        plan: The plan of the whole job.
        segments: The number of buffers of each worker; the driver's worker is the last.

    Raises:
        InsufficientBuffers: A worker has too few. The text contains the sum and the smallest sufficient changes.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> vertices = Vertex(0, "words", 2, 128, (), inputs=0), Vertex(1, "count", 2, 128, ())
    >>> exchange = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH))
    >>> plan = Plan("1", "word count", vertices, (exchange,), workers=2, settings=Settings())
    >>> check_memory(plan, [2048, 2048])
    >>> check_memory(plan, [2048, 4])
    Traceback (most recent call last):
        ...
    headgate.errors.InsufficientBuffers: the job needs 5 network buffers on worker 1, which has 4:
      words (1): partition of 2 subpartitions: 3
      count (1): gate of 1 remote and 1 local channels: 2
    Any of these is enough: memory.network.min = 160KiB ...
    """
    settings = plan.settings
    workers = [
        WorkerDemand(
            f"worker {number}" if number < plan.workers else "the driver",
            tuple(plan.demands_of(number)),
            available,
            read_ahead=plan.batch,
        )
        for number, available in enumerate(segments)
    ]
    preflight(workers, segment_size=settings.memory.segment_size, limits=Limits.of(settings.network))
