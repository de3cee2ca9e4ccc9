"""Async enrichment: call a slow service for every record, many calls at a time.

    $ python -m headgate.examples.async_enrichment

Shows: `map_async`. Each subtask has an event loop and up to `capacity` calls under way; at that number it accepts no
more records, and the source slows down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Iterable

CITIES = ["Aachen", "Bergen", "Cork", "Delft", "Evora", "Faenza", "Ghent"]


class Order(NamedTuple):
    """An order of a customer."""

    id: int
    customer: int


class Shipment(NamedTuple):
    """An order and its destination."""

    order: int
    customer: int
    city: str


class Registry:
    """Stands for the client of a service or database on the network."""

    async def city_of(self, customer: int) -> str:
        """Return the city of a customer, after up to 8 ms."""
        await asyncio.sleep(0.002 * (customer % 5))
        return CITIES[customer % len(CITIES)]

    def close(self) -> None:
        """Close connections."""


class AddCity(hg.MapFunction[Order, Awaitable[Shipment]]):
    """Adds the city. Unlike an `async def`, a class can keep a client; its methods run on the subtask's event loop."""

    def open(self, context: hg.RuntimeContext) -> None:  # noqa: ARG002
        """Connect here, in the worker: a connection cannot be pickled with the function."""
        self.registry = Registry()
        self.known: dict[int, asyncio.Future[str]] = {}

    async def map(self, value: Order) -> Shipment:
        """Call the service once for each customer; later orders of the customer wait for the same answer."""
        if value.customer not in self.known:
            self.known[value.customer] = asyncio.ensure_future(self.registry.city_of(value.customer))
        return Shipment(value.id, value.customer, await self.known[value.customer])

    def close(self) -> None:
        """Close the client; also called after a failure."""
        self.registry.close()


def main(
    env: hg.StreamExecutionEnvironment | None = None,
    orders: Iterable[Order] | None = None,
    *,
    capacity: int = 100,
    ordered: bool = False,
) -> list[Shipment]:
    """Return the destinations of orders.

    >>> main(hg.environment(local=True, parallelism=2), [Order(1, 9), Order(2, 3)])
    [Shipment(order=1, customer=9, city='Cork'), Shipment(order=2, customer=3, city='Delft')]
    """
    env = env or hg.environment()
    if orders is None:
        orders = [Order(n, n * n % 211) for n in range(2_000)]
    shipments = (
        env.from_collection(orders, type_info=Order)
        # Unordered, a slow answer delays no other record; a watermark never overtakes a record in either case.
        # An answer that takes longer than `timeout_s` fails the job.
        .map_async(AddCity(), capacity=capacity, ordered=ordered, timeout_s=30, output_type=Shipment)
    )
    return sorted(shipments.execute_and_collect("async enrichment"))


if __name__ == "__main__":
    for shipment in main()[:10]:
        print(f"order {shipment.order} of customer {shipment.customer} goes to {shipment.city}")
