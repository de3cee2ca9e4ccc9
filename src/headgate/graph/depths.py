"""The depth of an exchange in the job, which selects its connection in tcp mode (`lane` on the wire, see `net.peers`).

Without credit, a worker stops reading a connection while one channel has no buffer. With a single connection, a task
that waits until other tasks read its output could keep its own worker from reading: a deadlock. So each depth has its
own connection. Called by the planner, and by workers that set up their tasks.

Invariant: the output of a task is deeper than all of its inputs, except those on disk. A task that reads from disk
waits for no other task: its region also writes to disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.config import FlowControl
from headgate.errors import ConfigError
from headgate.wire.handshake import MAX_LANES

if TYPE_CHECKING:
    from headgate.graph.plan import Exchange, Plan

__all__ = ["check_depth", "depth_of"]


def depth_of(plan: Plan, exchange: Exchange) -> int:
    """Return the maximum number of exchanges before this one on a record's path; 0 for an exchange on disk.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Exchange, Ship, ShipKind, Vertex
    >>> vertices = tuple(Vertex(number, name, 2, 128, ()) for number, name in enumerate(["words", "count", "both"]))
    >>> edges = [(0, 1), (0, 2), (1, 2)]  # producer and consumer: a stream is joined with its own count
    >>> ship = Ship(ShipKind.REBALANCE)
    >>> exchanges = tuple(Exchange(number, one, 0, other, ship) for number, (one, other) in enumerate(edges))
    >>> plan = Plan("1", "etl", vertices, exchanges, workers=2, settings=Settings())
    >>> [depth_of(plan, exchange) for exchange in exchanges]
    [0, 0, 1]
    """
    return 0 if exchange.blocking else _depths(plan)[exchange.producer]


def check_depth(plan: Plan) -> None:
    """Check that a plan in tcp mode is not deeper than the number of connections allows.

    Raises:
        ConfigError: The plan is too deep; the text names the first operator that is.
    """
    if plan.settings.network.flow_control is not FlowControl.TCP:
        return
    depths = _depths(plan)
    for vertex in plan.vertices:
        if depths[vertex.id] > MAX_LANES:
            raise ConfigError(
                f"{vertex.name} is behind more than {MAX_LANES} exchanges: with network.flow_control = tcp, workers"
                " keep a connection for each; use credit"
            )


def _depths(plan: Plan) -> list[int]:
    """Return for each vertex the maximum number of exchanges from a source, or from disk, to it."""
    depths = [0] * len(plan.vertices)
    for exchange in sorted(plan.exchanges, key=lambda one: one.consumer):  # producers have smaller numbers
        if not exchange.blocking:
            depths[exchange.consumer] = max(depths[exchange.consumer], depths[exchange.producer] + 1)
    return depths
