"""NEXMark: nine queries about an auction house, as pipelines.

    $ python -m headgate.examples.nexmark.queries [query] [events]

Each query takes the stream of events, with event time and watermarks, and returns a stream of tuples:

0. All bids (the cost of the exchange alone).  1. All bids, in another currency.  2. Bids for certain auctions.
3. Who in certain states sells things of a certain category?  4. What do things of each category sell for on average?
5. Which auctions had most bids in the last minute?  6. What were the last ten sales of each seller worth on average?
7. What was the highest bid in each minute?  8. Who registered and sold something within the same minute?
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import headgate as hg
from headgate.examples.nexmark.generator import DISORDER_MS, Auction, Bid, Person, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE = hg.Time.minutes(1)
"""The size of all windows."""

SLIDE = hg.Time.seconds(10)
"""A window of query 5 begins every so often."""

SOME_STATES = ("CA", "ID", "OR")
"""Query 3: the states of the persons."""

SOME_CATEGORY = 10
"""Query 3: the category of their auctions."""


def source(env: hg.StreamExecutionEnvironment, count: int) -> hg.DataStream[Any]:
    """Return the first `count` events, made in all subtasks in parallel."""
    event_time = hg.WatermarkStrategy.for_bounded_out_of_orderness(DISORDER_MS)
    return env.generate(event, count, parallel=True).assign_timestamps_and_watermarks(
        event_time.with_timestamp_assigner(lambda one: one.at)
    )


def only(events: hg.DataStream[Any], kind: type[Any]) -> hg.DataStream[Any]:
    """Return the events of one kind; from here on they have a type, and a serializer for it."""
    return events.flat_map(lambda one: (one,) if type(one) is kind else (), output_type=kind).name(kind.__name__)


# Queries without state.


def q0(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return every bid."""
    return only(events, Bid)


def q1(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return every bid with its price in another currency: (auction, bidder, price, time)."""
    return only(events, Bid).map(lambda bid: (bid.auction, bid.bidder, bid.price * 908 // 1000, bid.at))


def q2(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return auction and price of the bids for every 123rd auction."""
    return only(events, Bid).filter(lambda bid: bid.auction % 123 == 0).map(lambda bid: (bid.auction, bid.price))


# Joins with state: the first of a person and an auction is kept until the other arrives.


class JoinSellers(hg.KeyedCoProcessFunction[int, Person, Auction, Any]):
    """Query 3: joins a seller and the auctions of that seller; keyed by the seller's id."""

    def open(self, context: hg.RuntimeContext) -> None:
        """Get the state of the current seller."""
        self.person = context.get_state("person")
        self.auctions = context.get_list_state("auctions")  # that arrived before their seller

    def process_element1(self, value: Person, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """Receive the seller."""
        self.person.update(value)
        for auction in self.auctions.get():
            yield value.name, value.city, value.state, auction
        self.auctions.clear()

    def process_element2(self, value: Auction, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """Receive one of the auctions."""
        person = self.person.value()
        if person is None:
            self.auctions.add(value.id)
        else:
            yield person.name, person.city, person.state, value.id


def q3(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return sellers in some states of things of a category: (name, city, state, auction).

    Without a window: a person may sell a thing years after registering.
    """
    persons = only(events, Person).filter(lambda person: person.state in SOME_STATES)
    auctions = only(events, Auction).filter(lambda auction: auction.category == SOME_CATEGORY)
    return (
        persons.connect(auctions)
        .key_by(lambda person: person.id, lambda auction: auction.seller)
        .process(JoinSellers(), output_type=tuple[str, str, str, int])
    )


class Sale(NamedTuple):
    """An auction that is over, and its highest bid."""

    auction: int
    seller: int
    category: int
    expires: int
    price: int


class CloseAuctions(hg.KeyedCoProcessFunction[int, Auction, Bid, Sale]):
    """Queries 4 and 6: emits the highest bid of each auction when it is over; keyed by the auction's id.

    A bid counts from the auction's begin to before its end. A bid may arrive before its auction. If the watermark has
    passed a bid and its auction has not arrived, the auction began later or is over, and the bid does not count. So
    no state is kept for ever.
    """

    def open(self, context: hg.RuntimeContext) -> None:
        """Get the state of the current auction."""
        self.auction = context.get_state("auction")
        self.highest = context.get_reducing_state("highest", max)
        self.early = context.get_list_state("early")  # bids that arrived before their auction

    def process_element1(self, value: Auction, ctx: Any) -> None:
        """Receive the auction; a timer closes it when it expires."""
        self.auction.update(value)
        ctx.timer_service().register_event_time_timer(value.expires)
        for bid in self.early.get():
            self.bid_for(value, bid)
        self.early.clear()

    def process_element2(self, value: Bid, ctx: Any) -> None:
        """Receive a bid for it."""
        auction = self.auction.value()
        if auction is None:
            self.early.add(value)
            ctx.timer_service().register_event_time_timer(value.at)
        else:
            self.bid_for(auction, value)

    def bid_for(self, auction: Auction, bid: Bid) -> None:
        """Keep the highest bid."""
        if auction.at <= bid.at < auction.expires:
            self.highest.add(bid.price)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Sale]:  # noqa: ARG002
        """Close the auction, or drop early bids that are out of date."""
        auction, price = self.auction.value(), self.highest.get()
        if auction is None:
            self.early.update(bid for bid in self.early.get() if bid.at > timestamp)
        elif timestamp >= auction.expires:
            self.auction.clear()
            self.highest.clear()
            if price is not None:
                yield Sale(auction.id, auction.seller, auction.category, auction.expires, price)


def sales(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return all auctions with a bid, when they are over."""
    return (
        only(events, Auction)
        .connect(only(events, Bid))
        .key_by(lambda auction: auction.id, lambda bid: bid.auction)
        .process(CloseAuctions(), output_type=Sale)
    )


def q4(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return each category and its average price so far, for every sale: the last of a category is the answer."""
    return (
        sales(events)
        .map(lambda sale: (sale.category, sale.price, 1), output_type=tuple[int, int, int])
        .key_by(lambda total: total[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2]))
        .map(lambda total: (total[0], total[1] / total[2]), output_type=tuple[int, float])
    )


class LastTen(hg.KeyedProcessFunction[int, Sale, Any]):
    """Query 6: the sales of each seller, in the order of their ends; they arrive in any order."""

    def open(self, context: hg.RuntimeContext) -> None:
        """Get the state of the current seller."""
        self.waiting = context.get_list_state("waiting")
        self.last = context.get_list_state("last")

    def process_element(self, value: Sale, ctx: hg.KeyedProcessFunction.Context) -> None:
        """Keep the sale until all earlier ones have arrived."""
        self.waiting.add((value.expires, value.auction, value.price))
        ctx.timer_service().register_event_time_timer(value.expires)

    def on_timer(self, timestamp: int, ctx: hg.KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Emit the averages of the sales up to `timestamp`: all of them have arrived."""
        waiting = sorted(self.waiting.get())
        self.waiting.update(sale for sale in waiting if sale[0] > timestamp)
        for expires, auction, price in waiting:
            if expires <= timestamp:
                self.last.update([*self.last.get()[-9:], price])
                prices = self.last.get()
                yield ctx.get_current_key(), auction, sum(prices) / len(prices)


def q6(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return for every sale its seller, its auction, and the average price of the seller's last ten sales."""
    return sales(events).key_by(lambda sale: sale.seller).process(LastTen(), output_type=tuple[int, int, float])


# Windows.


class Count(hg.AggregateFunction[Any, int, int]):
    """The number of records."""

    def create_accumulator(self) -> int:
        """Return 0."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:  # noqa: ARG002
        """Add one."""
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """Return the number."""
        return accumulator


def hottest(counts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the counts with the most bids; several if they are equal."""
    most = max(n for _, _, n in counts)
    return [count for count in counts if count[2] == most]


def q5(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return the auctions with most bids in the last minute, every ten seconds: (end of the minute, auction, bids)."""
    counts = (
        only(events, Bid)
        .key_by(lambda bid: bid.auction)
        .window(hg.SlidingEventTimeWindows.of(MINUTE, SLIDE))
        .aggregate(Count(), lambda auction, window, n: [(window.end, auction, n[0])], output_type=tuple[int, int, int])
    )
    # The results of a window have the time of its last millisecond. So a window as long as the slide has the results
    # of exactly one sliding window.
    return (
        counts.key_by(lambda count: count[0])
        .window(hg.TumblingEventTimeWindows.of(SLIDE))
        .apply(lambda _end, _window, counts: hottest(counts), output_type=tuple[int, int, int])
    )


def higher(a: Bid, b: Bid) -> Bid:
    """Return the higher bid; of equal ones the first, then that for the older auction, by the older bidder."""
    return max(a, b, key=lambda bid: (bid.price, -bid.at, -bid.auction, -bid.bidder))


def q7(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return the highest bid of each minute: (begin of the minute, auction, bidder, price, time)."""
    minutes = hg.TumblingEventTimeWindows.of(MINUTE)
    return (
        only(events, Bid)
        .key_by(lambda bid: bid.auction)
        .window(minutes)
        .reduce(higher)  # in parallel: the one subtask of `window_all` receives few records
        .window_all(minutes)
        .reduce(higher, lambda window, bids: [(window.start, *bid[:4]) for bid in bids])
    )


def q8(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Return persons who registered and began an auction within one minute: (person, name, begin of the minute)."""
    minutes = hg.TumblingEventTimeWindows.of(MINUTE)
    sellers = (
        only(events, Auction)
        .map(lambda auction: auction.seller, output_type=int)
        .key_by(lambda seller: seller)
        .window(minutes)
        .reduce(lambda first, _: first)  # each seller once
    )
    return (
        only(events, Person)
        .join(sellers)
        .where(lambda person: person.id)
        .equal_to(lambda seller: seller)
        .window(minutes)
        .apply(lambda person, _: (person.id, person.name, person.at - person.at % MINUTE))
    )


QUERIES: dict[int, Callable[[hg.DataStream[Any]], hg.DataStream[Any]]] = dict(
    enumerate([q0, q1, q2, q3, q4, q5, q6, q7, q8])
)
"""All queries, by number."""


def main(env: hg.StreamExecutionEnvironment | None = None, query: int = 5, count: int = 10_000) -> list[Any]:
    """Run a query on the first `count` events and return its sorted answer.

    >>> main(hg.environment(local=True, parallelism=2), query=7, count=800)
    [(1749999960000, 1003, 1000, 100997, 1750000007153)]
    """
    env = env or hg.environment()
    results = QUERIES[query](source(env, count)).execute_and_collect(f"NEXMark query {query}")
    # Query 4 emits every new average. Those of one category stay in order: keep the last of each.
    return sorted(dict(results).items() if query == 4 else results)


if __name__ == "__main__":
    for answer in main(None, *map(int, sys.argv[1:])):
        print(*answer)
