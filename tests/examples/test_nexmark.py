"""The queries return the answers of plain Python, with any number of workers and buffers."""

from collections import Counter
from functools import cache

import pytest
from tests.examples.answers import Nexmark
from tests.examples.conftest import tiny_buffers

import headgate as hg
from headgate.examples.nexmark.generator import DISORDER_MS, START_MS, STEP_MS, Auction, Bid, Person, event, events
from headgate.examples.nexmark.queries import QUERIES, main

COUNT = 4_000


@cache
def answer(query, count=COUNT):
    return Nexmark(count).answer(query)


@pytest.mark.parametrize("query", QUERIES)
def test_the_answer_is_right(env, query):
    assert main(env, query, COUNT) == answer(query)


@pytest.mark.parametrize("query", QUERIES)
def test_no_answer_is_empty(query):
    assert len(answer(query)) >= (3 if query in {2, 4, 7} else 9)


@pytest.mark.parametrize("count", [0, 1, 2, 51])
@pytest.mark.parametrize("query", QUERIES)
def test_few_events(query, count):
    assert main(hg.environment(local=True, parallelism=2), query, count) == answer(query, count)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    "settings",
    [
        {"execution.buffer_timeout": "0"},
        {"execution.buffer_timeout": "-1"},
        {"execution.object_reuse": "true"},
        {"record.batch_size": 1},
        {"network.flow_control": "tcp"},
    ],
    ids=str,
)
def test_settings_do_not_change_the_answer(query, settings):
    env = hg.environment(local=True, parallelism=2, settings=settings)
    assert main(env, query, 1_500) == answer(query, 1_500)


@pytest.mark.parametrize("query", QUERIES)
def test_without_chains_the_answer_is_the_same(query):
    env = hg.environment(local=True, parallelism=2).disable_operator_chaining()
    assert main(env, query, 1_500) == answer(query, 1_500)


def test_the_tiny_buffers_are_the_fewest_possible():
    settings = tiny_buffers(4)
    for key in ("memory.network.min", "memory.network.max"):
        settings[key] = f"{int(str(settings[key]).split()[0]) - 512} B"
    with pytest.raises(hg.HeadgateError, match="35 network buffers on worker 0, which has 34"):
        main(hg.environment(local=True, parallelism=4, settings=settings), 4, 100)


def test_events_have_their_proportions():
    kinds = Counter(map(type, events(5_000)))
    assert kinds == {Person: 100, Auction: 300, Bid: 4_600}


def test_an_event_is_always_the_same():
    assert events(200) == [event(n) for n in range(200)]
    assert event(1_234_567) == event(1_234_567)
    assert event(4) == Bid(1000, 1001, 1946, START_MS + 4 * STEP_MS - 1_930, "large")


def test_events_are_out_of_order_by_at_most_the_limit():
    times = [one.at for one in events(5_000)]
    behind = [max(times[: n + 1]) - at for n, at in enumerate(times[:2_000])]
    assert 0 < max(behind) <= DISORDER_MS
    assert all(0 <= START_MS + STEP_MS * n - at <= DISORDER_MS for n, at in enumerate(times))


def test_ids_increase_and_references_exist():
    made = events(20_000)
    persons = [one.id for one in made if type(one) is Person]
    auctions = [one for one in made if type(one) is Auction]
    assert persons == list(range(1_000, 1_400))
    assert [one.id for one in auctions] == list(range(1_000, 2_200))
    assert {one.seller for one in auctions} <= set(persons)
    assert {one.auction for one in made if type(one) is Bid} <= {one.id for one in auctions}
    assert all(one.at < one.expires for one in auctions)


def test_some_sellers_and_auctions_are_hot():
    made = events(20_000)
    bids = [one for one in made if type(one) is Bid]
    by_auction = Counter(bid.auction for bid in bids)
    hot = sum(n for auction, n in by_auction.items() if auction % 100 == 0)
    assert 0.45 < hot / len(bids) < 0.6
    sellers = Counter(one.seller for one in made if type(one) is Auction)
    assert 0.7 < sum(n for seller, n in sellers.items() if seller % 100 == 0) / sellers.total() < 0.85
    assert 0.7 < sum(bid.bidder % 100 == 1 for bid in bids) / len(bids) < 0.85
