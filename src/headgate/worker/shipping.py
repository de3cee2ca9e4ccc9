"""Which selector ships the records of an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.graph.plan import Ship, ShipKind
from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rebalance, Rescale, Selector, Shuffle

if TYPE_CHECKING:
    from headgate.output.selector import Below

__all__ = ["selector_of"]


def selector_of(ship: Ship, max_parallelism: int, below: Below) -> Selector[Any]:  # noqa: PLR0911 - one for each kind
    """A new selector; `below` is where its randomness comes from, `max_parallelism` the consumer's.

    >>> type(selector_of(Ship(ShipKind.BROADCAST), 128, lambda n: 0)).__name__
    'Broadcast'
    """
    match ship.kind:
        case ShipKind.HASH:
            assert ship.key is not None, "hash needs a key"
            return Hash(ship.key, max_parallelism)
        case ShipKind.HASH_COLUMNS:
            from headgate.output.columns import HashColumns  # noqa: PLC0415 - needs pyarrow

            return HashColumns(ship.columns, max_parallelism)
        case ShipKind.CUSTOM:
            assert ship.function is not None, "custom needs a function"
            return Custom(ship.function)
        case ShipKind.REBALANCE:
            return Rebalance(below)
        case ShipKind.SHUFFLE:
            return Shuffle(below)
        case ShipKind.FORWARD:
            return Forward()
        case ShipKind.RESCALE:
            return Rescale()
        case ShipKind.BROADCAST:
            return Broadcast()
        case ShipKind.GLOBAL:
            return Global()
