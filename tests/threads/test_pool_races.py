"""Pools under real threads that take turns as often as they can.

Each segment has a slot that its holder puts its name in: a segment in two hands shows at once. At the end all
segments are back, nobody waits, and no thread is left.
"""

import queue
import random
import time
from collections.abc import Iterator

import pytest
from tests.support.buffers import filled, give, make_network, take, take_all, wrap
from tests.support.threads import run_threads, switching_often
from tests.support.waiting import PATIENCE_S

from headgate.buffer import BufferSlice, LocalPool, NetworkPool, Segment
from headgate.errors import Cancelled, RequestTimeout


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    with switching_often():
        yield


class Hands:
    """Who has which segment."""

    def __init__(self) -> None:
        self._holders: dict[int, object] = {}

    def take(self, segment: Segment, who: object) -> None:
        assert self._holders.setdefault(segment.index, who) is who, "a segment has one user"

    def drop(self, segment: Segment, who: object) -> None:
        assert self._holders.pop(segment.index) is who


def all_back(network: NetworkPool, *pools: LocalPool) -> None:
    for pool in pools:
        statistics = pool.statistics()
        assert (statistics.waiting, statistics.lent) == (0, 0)
        assert statistics.held == statistics.available
        assert set(pool._in_use) == {0}
        pool.destroy()
    assert network.statistics().free == network.total
    assert sorted(segment.index for segment in network.free) == list(range(network.total))


@pytest.mark.spec("M6", "M7", "M9")
def test_requesters_and_recyclers_on_several_pools() -> None:
    network, hands = make_network(count=8), Hands()
    pools = [
        network.create_pool(f"pool-{number}", required=1, channels=2, max_per_channel=2, overdraft=1)
        for number in range(3)
    ]
    returns: queue.SimpleQueue[tuple[LocalPool, Segment, int] | None] = queue.SimpleQueue()
    rounds, requesters = 3000, 6

    def requester(number: int) -> None:
        chance, who = random.Random(number), object()
        pool = pools[number % 3]
        for _ in range(rounds):
            channel = chance.randrange(-1, 2)
            segment = pool.request(channel, chance.random() < 0.1, timeout_s=PATIENCE_S)
            hands.take(segment, who)
            hands.drop(segment, who)
            if chance.random() < 0.5:
                give(pool, segment, channel=channel)
            else:
                returns.put((pool, segment, channel))
        returns.put(None)

    def recycler() -> None:
        ended = 0
        while ended < requesters:
            item = returns.get(timeout=PATIENCE_S)
            if item is None:
                ended += 1
                continue
            pool, segment, channel = item
            give(pool, segment, channel=channel)

    run_threads(recycler, *[lambda number=number: requester(number) for number in range(requesters)])
    all_back(network, *pools)


@pytest.mark.spec("M3", "M9")
def test_pools_made_and_destroyed_while_others_use_theirs() -> None:
    network, hands = make_network(count=16), Hands()
    lasting = network.create_pool("lasting", required=2)

    def maker(number: int) -> None:
        chance, who = random.Random(number), object()
        for _ in range(1500):
            required = chance.randrange(1, 4)
            pool = network.create_pool(f"pool-{number}", required=required, maximum=chance.choice([None, 4, 8]))
            segments = [pool.request(timeout_s=PATIENCE_S) for _ in range(required)]
            for segment in segments:
                hands.take(segment, who)
            keep = chance.randrange(required + 1)
            for segment in segments:
                hands.drop(segment, who)
            give(pool, *segments[:keep])
            pool.destroy()
            give(pool, *segments[keep:])
            assert pool.held == 0

    def user() -> None:
        who = object()
        for _ in range(4000):
            segment = lasting.request(timeout_s=PATIENCE_S)
            hands.take(segment, who)
            hands.drop(segment, who)
            give(lasting, segment)

    run_threads(user, user, *[lambda number=number: maker(number) for number in range(4)])
    all_back(network, lasting)


@pytest.mark.spec("M6", "M9")
def test_destroying_a_pool_wakes_all_blocked_requests() -> None:
    network = make_network(count=4)
    rounds = 1500
    inboxes: list[queue.SimpleQueue[LocalPool]] = [queue.SimpleQueue() for _ in range(3)]
    outcomes: queue.SimpleQueue[str] = queue.SimpleQueue()

    def blocked(inbox: queue.SimpleQueue[LocalPool]) -> None:
        for _ in range(rounds):
            pool = inbox.get(timeout=PATIENCE_S)
            try:
                give(pool, pool.request(timeout_s=PATIENCE_S))
            except Cancelled:
                outcomes.put("cancelled")
            else:
                outcomes.put("served")

    seen = set()

    def destroyer() -> None:
        chance = random.Random(0)
        for _ in range(rounds):
            pool = network.create_pool("pool", required=1, maximum=1)
            segment = take(pool)
            for inbox in inboxes:
                inbox.put(pool)
            asleep = chance.randrange(4)
            for _ in range(100_000):
                with pool.lock:
                    if len(pool._listeners) >= asleep:
                        break
                time.sleep(0)
            if chance.random() < 0.5:
                give(pool, segment)
                pool.destroy()
            else:
                pool.destroy()
                give(pool, segment)
            seen.update(outcomes.get(timeout=PATIENCE_S) for _ in inboxes)

    run_threads(destroyer, *[lambda inbox=inbox: blocked(inbox) for inbox in inboxes])
    assert seen == {"cancelled", "served"}
    all_back(network)


@pytest.mark.spec("M6", "M9")
def test_timeouts_racing_with_grants_lose_neither_segment_nor_claim() -> None:
    network, hands = make_network(count=2), Hands()
    pool = network.create_pool("pool", required=2, channels=1, max_per_channel=1)
    seen = set()

    def requester(number: int) -> None:
        chance, who = random.Random(number), object()
        for _ in range(5000):
            channel = chance.randrange(-1, 1)
            try:
                segment = pool.request(channel, timeout_s=chance.choice([0, 1e-6, 1e-5, 1e-4]))
            except RequestTimeout:
                seen.add("late")
                continue
            seen.add("served")
            hands.take(segment, who)
            hands.drop(segment, who)
            give(pool, segment, channel=channel)

    run_threads(*[lambda number=number: requester(number) for number in range(5)])
    assert seen == {"late", "served"}
    all_back(network, pool)


@pytest.mark.spec("M4", "M6", "M9")
def test_exclusive_requests_racing_with_pools_and_time() -> None:
    network, hands = make_network(count=8), Hands()
    pool = network.create_pool("pool", required=2)

    def gate(number: int) -> None:
        chance, who = random.Random(number), object()
        for _ in range(2000):
            try:
                segments = network.request_exclusive("gate", 2, timeout_s=chance.choice([0, 1e-5, PATIENCE_S]))
            except RequestTimeout:
                continue
            assert len(segments) == 2
            for segment in segments:
                hands.take(segment, who)
            for segment in segments:
                hands.drop(segment, who)
            network.recycle_exclusive(segments)

    def user() -> None:
        who = object()
        for _ in range(4000):
            segment = pool.request(timeout_s=PATIENCE_S)
            hands.take(segment, who)
            hands.drop(segment, who)
            give(pool, segment)

    run_threads(*[lambda number=number: gate(number) for number in range(3)], user, user, user)
    assert network.statistics().exclusive == 0
    all_back(network, pool)


@pytest.mark.spec("M7", "M9")
def test_the_last_of_many_releases_on_many_threads_returns_the_segment() -> None:
    network = make_network(count=4)
    pool = network.create_pool("pool", required=1)
    rounds, threads = 2500, 4
    inboxes: list[queue.SimpleQueue[BufferSlice]] = [queue.SimpleQueue() for _ in range(threads)]

    def releaser(inbox: queue.SimpleQueue[BufferSlice]) -> None:
        for _ in range(rounds):
            part = inbox.get(timeout=PATIENCE_S)
            with pool.lock:
                part.buffer.retain_locked()
            second = BufferSlice(part.buffer, part.memory, part.offset)
            part.release()
            assert second.memory[0] == second.memory[-1]
            second.release()

    def sender() -> None:
        for number in range(rounds):
            buffer = wrap(pool, pool.request(timeout_s=PATIENCE_S))
            buffer.append(bytes([number % 256]) * 16)
            with pool.lock:
                parts = [BufferSlice(buffer, buffer.memory, 0) for _ in inboxes]
                for _ in parts:
                    buffer.retain_locked()
                buffer.finish_locked()
            for inbox, part in zip(inboxes, parts, strict=True):
                inbox.put(part)

    run_threads(sender, *[lambda inbox=inbox: releaser(inbox) for inbox in inboxes])
    all_back(network, pool)


@pytest.mark.spec("M8", "M9")
def test_lent_views_that_die_on_other_threads_all_come_back() -> None:
    network = make_network(count=8)
    pool = network.create_pool("pool", required=4, channels=1, max_per_channel=4)
    dying: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    rounds = 5000

    def lender() -> None:
        for number in range(rounds):
            segment = pool.request(0, timeout_s=PATIENCE_S)
            data = number.to_bytes(8, "big")
            give(pool, segment, channel=0)
            part = filled(pool, data)
            view = part.lend()
            part.release()
            if view is not None:
                assert view.tobytes() == data
                dying.put(view)
        dying.put(None)

    def killer() -> None:
        while (view := dying.get(timeout=PATIENCE_S)) is not None:
            del view

    def user() -> None:
        for _ in range(rounds):
            give(pool, pool.request(0, timeout_s=PATIENCE_S), channel=0)

    run_threads(lender, killer, user)
    all_back(network, pool)


@pytest.mark.spec("M6", "M8")
def test_a_request_blocked_on_lent_memory_is_granted_it_when_its_view_dies() -> None:
    """Nothing else moves: if the return of the view is missed, nobody ever serves the sleeper."""
    network = make_network(count=2)
    pool = network.create_pool("pool", required=1)
    rounds = 3000
    dying: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()

    def sleep_for_a_view() -> None:
        part = filled(pool)
        view = part.lend()
        part.release()
        assert view is not None
        others = take_all(pool)
        dying.put(view)
        del view
        try:
            others.append(pool.request(timeout_s=10))
        finally:
            give(pool, *others)

    def sleeper() -> None:
        try:
            for _ in range(rounds):
                sleep_for_a_view()
        finally:
            dying.put(None)

    def killer() -> None:
        while (view := dying.get(timeout=PATIENCE_S)) is not None:
            del view

    run_threads(sleeper, killer)
    all_back(network, pool)
