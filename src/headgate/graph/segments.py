"""The default size of buffers: larger for jobs in BATCH, and for jobs with Arrow record batches.

The cost of a buffer hardly depends on its size. A record batch fills many small buffers. Data on disk is compressed,
written and read buffer by buffer, and no reader waits for it. Called by the planner, last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.buffer import Limits
from headgate.config.units import KIB
from headgate.record.registry import is_record_batch

if TYPE_CHECKING:
    from headgate.graph.plan import Plan

__all__ = ["with_fitting_segments"]

_KEY: Final = "memory.segment_size"
_SIZES: Final = (256 * KIB, 128 * KIB, 64 * KIB)
_SPARE: Final = 2  # a job runs well with twice the buffers that it requires


def with_fitting_segments(plan: Plan) -> Plan:
    """Return the plan with the largest buffers of which the minimum network memory holds enough.

    >>> import pyarrow as pa
    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> made, kept = Vertex(0, "made", 2, 128, (), inputs=0), Vertex(1, "kept", 2, 128, ())
    >>> batches = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.REBALANCE), hint=pa.RecordBatch)
    >>> plan = Plan("1", "etl", (made, kept), (batches,), workers=2, settings=Settings())
    >>> settings = with_fitting_segments(plan).settings
    >>> settings.memory.segment_size, settings.origin("memory.segment_size")
    (262144, 'chosen for record batches')
    """
    settings = plan.settings
    configured = settings.origin(_KEY) != "default"
    if configured or not (plan.batch or any(is_record_batch(exchange.hint) for exchange in plan.exchanges)):
        return plan
    limits, least_bytes = Limits.of(settings.network), min(settings.memory.network.min, settings.memory.network.max)
    most = max(
        sum(task.required(limits) for task in plan.demands_of(worker))
        for worker in range(plan.workers + plan.uses_driver)
    )
    fitting = [size for size in _SIZES if most * _SPARE * size <= least_bytes]
    if not fitting:
        return plan
    chosen = replace(
        settings,
        memory=replace(settings.memory, segment_size=fitting[0]),
        origins={**settings.origins, _KEY: f"chosen for {'BATCH' if plan.batch else 'record batches'}"},
    )
    return replace(plan, settings=chosen)
