"""NEXMark: nine queries about an auction house, as pipelines.

    $ python -m headgate.examples.nexmark.queries [query] [events]

Each query takes the stream of events, with event time and watermarks, and gives a stream of tuples. What they ask:

0. All bids (what the machinery costs).  1. All bids, in another currency.  2. Bids for certain auctions.
3. Who in certain states sells things of a certain category?  4. What do things of each category sell for on average?
5. Which auctions had most bids in the last minute?  6. What were the last ten sales of each seller worth on average?
7. What was the highest bid in each minute?  8. Who has come and sold something within the same minute?
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import headgate as hg
from headgate.examples.nexmark.generator import DISORDER_MS, Auction, Bid, Person, event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MINUTE = hg.Time.minutes(1)
"""The size of all windows,"""

SLIDE = hg.Time.seconds(10)
"""and how often one of query 5 begins."""

SOME_STATES = ("CA", "ID", "OR")
"""Query 3: where persons must live,"""

SOME_CATEGORY = 10
"""and what they must sell."""


def source(env: hg.StreamExecutionEnvironment, count: int) -> hg.DataStream[Any]:
    """The first events, made in all subtasks at once."""
    event_time = hg.WatermarkStrategy.for_bounded_out_of_orderness(DISORDER_MS)
    return env.generate(event, count).assign_timestamps_and_watermarks(
        event_time.with_timestamp_assigner(lambda one: one.at)
    )


def only(events: hg.DataStream[Any], kind: type[Any]) -> hg.DataStream[Any]:
    """Those of one kind: only from here on headgate knows the type, and a serializer that is made for it."""
    return events.flat_map(lambda one: (one,) if type(one) is kind else (), output_type=kind).name(kind.__name__)


# Queries without state.


def q0(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Pass on every bid."""
    return only(events, Bid)


def q1(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Every bid with its price in another currency: (auction, bidder, price, time)."""
    return only(events, Bid).map(lambda bid: (bid.auction, bid.bidder, bid.price * 908 // 1000, bid.at))


def q2(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Auction and price of the bids for every 123rd auction."""
    return only(events, Bid).filter(lambda bid: bid.auction % 123 == 0).map(lambda bid: (bid.auction, bid.price))


# Joins with state: persons and auctions wait for each other.


class Offers(hg.KeyedCoProcessFunction[int, Person, Auction, Any]):
    """Query 3: a seller's auctions, with the seller; keyed by the seller's id. Whoever comes first is remembered."""

    def open(self, context: hg.RuntimeContext) -> None:
        """State of each seller."""
        self.person = context.get_state("person")
        self.auctions = context.get_list_state("auctions")  # that are here before their seller

    def process_element1(self, value: Person, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """The seller."""
        self.person.update(value)
        for auction in self.auctions.get():
            yield value.name, value.city, value.state, auction
        self.auctions.clear()

    def process_element2(self, value: Auction, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """One of the auctions."""
        person = self.person.value()
        if person is None:
            self.auctions.add(value.id)
        else:
            yield person.name, person.city, person.state, value.id


def q3(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Who in some states sells things of a category: (name, city, state, auction).

    Not bounded by a window: somebody may sell something years after registering.
    """
    persons = only(events, Person).filter(lambda person: person.state in SOME_STATES)
    auctions = only(events, Auction).filter(lambda auction: auction.category == SOME_CATEGORY)
    return (
        persons.connect(auctions)
        .key_by(lambda person: person.id, lambda auction: auction.seller)
        .process(Offers(), output_type=tuple[str, str, str, int])
    )


class Sale(NamedTuple):
    """An auction that is over, and its highest bid."""

    auction: int
    seller: int
    category: int
    expires: int
    price: int


class Close(hg.KeyedCoProcessFunction[int, Auction, Bid, Sale]):
    """Queries 4 and 6: the highest bid of each auction, when it is over; keyed by the auction's id.

    A bid counts from the auction's beginning to before its end. Bids may be here before their auction is, for they
    travel on their own; but when the watermark has passed a bid and the auction is still not known, then it has
    begun later, or is over, and the bid does not count. So nothing is kept for ever.
    """

    def open(self, context: hg.RuntimeContext) -> None:
        """State of each auction."""
        self.auction = context.get_state("auction")
        self.highest = context.get_reducing_state("highest", max)
        self.early = context.get_list_state("early")  # bids that are here before their auction

    def process_element1(self, value: Auction, ctx: Any) -> None:
        """The auction: it will be closed when it expires."""
        self.auction.update(value)
        ctx.timer_service().register_event_time_timer(value.expires)
        for bid in self.early.get():
            self.bid_for(value, bid)
        self.early.clear()

    def process_element2(self, value: Bid, ctx: Any) -> None:
        """A bid for it."""
        auction = self.auction.value()
        if auction is None:
            self.early.add(value)
            ctx.timer_service().register_event_time_timer(value.at)
        else:
            self.bid_for(auction, value)

    def bid_for(self, auction: Auction, bid: Bid) -> None:
        """Remember the highest."""
        if auction.at <= bid.at < auction.expires:
            self.highest.add(bid.price)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Sale]:  # noqa: ARG002
        """The auction is over, or early bids are out of date."""
        auction, price = self.auction.value(), self.highest.get()
        if auction is None:
            self.early.update(bid for bid in self.early.get() if bid.at > timestamp)
        elif timestamp >= auction.expires:
            self.auction.clear()
            self.highest.clear()
            if price is not None:
                yield Sale(auction.id, auction.seller, auction.category, auction.expires, price)


def sales(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """All auctions that somebody has bid for, when they are over."""
    return (
        only(events, Auction)
        .connect(only(events, Bid))
        .key_by(lambda auction: auction.id, lambda bid: bid.auction)
        .process(Close(), output_type=Sale)
    )


def q4(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Each category and its average price so far, for every sale: the last of a category is the answer."""
    return (
        sales(events)
        .map(lambda sale: (sale.category, sale.price, 1), output_type=tuple[int, int, int])
        .key_by(lambda total: total[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2]))
        .map(lambda total: (total[0], total[1] / total[2]), output_type=tuple[int, float])
    )


class LastTen(hg.KeyedProcessFunction[int, Sale, Any]):
    """Query 6: the sales of each seller, in the order of their ends, whatever the order in which they come."""

    def open(self, context: hg.RuntimeContext) -> None:
        """State of each seller."""
        self.waiting = context.get_list_state("waiting")
        self.last = context.get_list_state("last")

    def process_element(self, value: Sale, ctx: hg.KeyedProcessFunction.Context) -> None:
        """Wait for all that were over before this one."""
        self.waiting.add((value.expires, value.auction, value.price))
        ctx.timer_service().register_event_time_timer(value.expires)

    def on_timer(self, timestamp: int, ctx: hg.KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """All sales up to now are here."""
        waiting = sorted(self.waiting.get())
        self.waiting.update(sale for sale in waiting if sale[0] > timestamp)
        for expires, auction, price in waiting:
            if expires <= timestamp:
                self.last.update([*self.last.get()[-9:], price])
                prices = self.last.get()
                yield ctx.get_current_key(), auction, sum(prices) / len(prices)


def q6(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """For every sale its seller, its auction, and the average price of the seller's last ten: this and nine before."""
    return sales(events).key_by(lambda sale: sale.seller).process(LastTen(), output_type=tuple[int, int, float])


# Windows.


class Count(hg.AggregateFunction[Any, int, int]):
    """How many there are."""

    def create_accumulator(self) -> int:
        """None yet."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:  # noqa: ARG002
        """One more."""
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """All."""
        return accumulator


def hottest(counts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those with the most bids; several if they have as many."""
    most = max(n for _, _, n in counts)
    return [count for count in counts if count[2] == most]


def q5(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """The auctions with most bids in the last minute, every ten seconds: (end of the minute, auction, bids)."""
    counts = (
        only(events, Bid)
        .key_by(lambda bid: bid.auction)
        .window(hg.SlidingEventTimeWindows.of(MINUTE, SLIDE))
        .aggregate(Count(), lambda auction, window, n: [(window.end, auction, n[0])], output_type=tuple[int, int, int])
    )
    # The results of a window have the time of its last millisecond. So those of one sliding window, and of no other,
    # are together in a window as long as the slide.
    return (
        counts.key_by(lambda count: count[0])
        .window(hg.TumblingEventTimeWindows.of(SLIDE))
        .apply(lambda _end, _window, counts: hottest(counts), output_type=tuple[int, int, int])
    )


def higher(a: Bid, b: Bid) -> Bid:
    """The higher bid; of two that are as high the first, then that for the older auction, by the older bidder."""
    return max(a, b, key=lambda bid: (bid.price, -bid.at, -bid.auction, -bid.bidder))


def q7(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """The highest bid of each minute: (begin of the minute, auction, bidder, price, time)."""
    minutes = hg.TumblingEventTimeWindows.of(MINUTE)
    return (
        only(events, Bid)
        .key_by(lambda bid: bid.auction)
        .window(minutes)
        .reduce(higher)  # in parallel: few are left for the one subtask that finds the highest of all
        .window_all(minutes)
        .reduce(higher, lambda window, bids: [(window.start, *bid[:4]) for bid in bids])
    )


def q8(events: hg.DataStream[Any]) -> hg.DataStream[Any]:
    """Who has come and begun an auction within the same minute: (person, name, begin of the minute)."""
    minutes = hg.TumblingEventTimeWindows.of(MINUTE)
    sellers = (
        only(events, Auction)
        .map(lambda auction: auction.seller, output_type=int)
        .key_by(lambda seller: seller)
        .window(minutes)
        .reduce(lambda first, _: first)  # each seller once, however many auctions
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
    """Run a query on the first events; the answer is sorted.

    >>> main(hg.environment(local=True, parallelism=2), query=7, count=800)
    [(1749999960000, 1003, 1000, 100997, 1750000007153)]
    """
    env = env or hg.environment()
    results = QUERIES[query](source(env, count)).execute_and_collect(f"NEXMark query {query}")
    # Query 4 gives out every new average. Those of one category stay in order: keep the last of each.
    return sorted(dict(results).items() if query == 4 else results)


if __name__ == "__main__":
    for answer in main(None, *map(int, sys.argv[1:])):
        print(*answer)
