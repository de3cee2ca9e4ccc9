"""Async enrichment: ask a slow service about every record, many at a time.

    $ python -m headgate.examples.async_enrichment

Shows: `map_async`. Each subtask has an event loop and keeps up to `capacity` calls on their way; when all of them are
taken it accepts no more records, and the source slows down. A thousand calls of 10 ms take a second one by one, and
here some tens of milliseconds.
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
    """Somebody has ordered something."""

    id: int
    customer: int


class Shipment(NamedTuple):
    """An order, and where it goes."""

    order: int
    customer: int
    city: str


class Registry:
    """Stands for a client of some service or database on the network."""

    async def city_of(self, customer: int) -> str:
        """Some take longer than others."""
        await asyncio.sleep(0.002 * (customer % 5))
        return CITIES[customer % len(CITIES)]

    def close(self) -> None:
        """Give back connections."""


class AddCity(hg.MapFunction[Order, Awaitable[Shipment]]):
    """A plain `async def` would do; a class can keep a client. All its methods run on the event loop of the subtask."""

    def open(self, context: hg.RuntimeContext) -> None:  # noqa: ARG002
        """Connections are made here, in the worker: they could not travel there with the function."""
        self.registry = Registry()
        self.known: dict[int, asyncio.Future[str]] = {}

    async def map(self, value: Order) -> Shipment:
        """Ask once for each customer; who comes while the answer is on its way waits for the same answer."""
        if value.customer not in self.known:
            self.known[value.customer] = asyncio.ensure_future(self.registry.city_of(value.customer))
        return Shipment(value.id, value.customer, await self.known[value.customer])

    def close(self) -> None:
        """Called whatever happened."""
        self.registry.close()


def main(
    env: hg.StreamExecutionEnvironment | None = None,
    orders: Iterable[Order] | None = None,
    *,
    capacity: int = 100,
    ordered: bool = False,
) -> list[Shipment]:
    """Find out where orders go.

    >>> main(hg.environment(local=True, parallelism=2), [Order(1, 9), Order(2, 3)])
    [Shipment(order=1, customer=9, city='Cork'), Shipment(order=2, customer=3, city='Delft')]
    """
    env = env or hg.environment()
    if orders is None:
        orders = [Order(n, n * n % 211) for n in range(2_000)]
    shipments = (
        env.from_collection(orders, type_info=Order)
        # Unordered, a slow answer holds up nobody; a watermark never overtakes a record in either case. An answer that
        # takes longer than `timeout_s` fails the job, with the record's error.
        .map_async(AddCity(), capacity=capacity, ordered=ordered, timeout_s=30, output_type=Shipment)
    )
    return sorted(shipments.execute_and_collect("async enrichment"))


if __name__ == "__main__":
    for shipment in main()[:10]:
        print(f"order {shipment.order} of customer {shipment.customer} goes to {shipment.city}")
