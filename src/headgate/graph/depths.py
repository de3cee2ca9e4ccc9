"""How deep in the job an exchange is, which is the lane that workers read it in (`net.peers`).

Without credit a worker stops reading a connection for want of one buffer. If everything came over one, a task that
waits for others to read what it has written could be what keeps its own worker from reading. So each depth has a
connection of its own. Called by the planner, and by workers that set up their tasks. Plain data; nothing runs here.

Invariant: what a task writes is deeper than all that it reads, unless that is on disk. Who reads from disk does not
wait for others to read: its region writes to disk, too.
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
    """The most exchanges that a record can have come through before this one; 0 for what is read from disk.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Exchange, Ship, ShipKind, Vertex
    >>> vertices = tuple(Vertex(number, name, 2, 128, ()) for number, name in enumerate(["words", "count", "both"]))
    >>> ways = [(0, 1), (0, 2), (1, 2)]  # producer and consumer: what is read is joined with its own count
    >>> ship = Ship(ShipKind.REBALANCE)
    >>> exchanges = tuple(Exchange(number, one, 0, other, ship) for number, (one, other) in enumerate(ways))
    >>> plan = Plan("1", "etl", vertices, exchanges, workers=2, settings=Settings())
    >>> [depth_of(plan, exchange) for exchange in exchanges]
    [0, 0, 1]
    """
    return 0 if exchange.blocking else _depths(plan)[exchange.producer]


def check_depth(plan: Plan) -> None:
    """Refuse a plan that is deeper than there are lanes, where these are needed.

    Raises:
        ConfigError: It is; the text names the first operator that is too deep.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> check_depth(Plan("1", "etl", (Vertex(0, "words", 2, 128, ()),), (), workers=2, settings=Settings()))
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
    """Of each vertex: the most exchanges between a source, or a disk, and it."""
    depths = [0] * len(plan.vertices)
    for exchange in sorted(plan.exchanges, key=lambda one: one.consumer):  # producers come before their consumers
        if not exchange.blocking:
            depths[exchange.consumer] = max(depths[exchange.consumer], depths[exchange.producer] + 1)
    return depths
