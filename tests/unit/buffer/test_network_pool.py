"""All segments of a worker: sharing out over the pools, and exclusive ones."""

import logging

import pytest
from tests.support.buffers import Listener, give, listen, make_network, small_network, take_all
from tests.support.syncs import ScriptedSync
from tests.support.threads import run_threads
from tests.support.waiting import PATIENCE_S

from headgate.buffer import Answer, NetworkPool, Segment, share_out
from headgate.errors import InsufficientBuffers, InvariantViolated, RequestTimeout

ENOUGH, MORE = Answer.USED_ENOUGH, Answer.USED_MORE_WANTED


@pytest.mark.spec("M1")
def test_its_size_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headgate.buffer.network"):
        make_network(count=96, segment_size=32768)
    assert caplog.messages == ["network memory: 3.0 MiB, 96 segments of 32768 bytes"]


@pytest.mark.spec("M1")
def test_a_new_network_pool_is_all_free() -> None:
    statistics = make_network(count=5, segment_size=64).statistics()
    assert (statistics.total, statistics.free, statistics.segment_size) == (5, 5, 64)
    assert (statistics.required, statistics.exclusive, statistics.pools) == (0, 0, 0)


@pytest.mark.spec("M3")
@pytest.mark.parametrize(
    ("spare", "excess", "shares"),
    [
        (0, [5, 5], [0, 0]),
        (10, [], []),
        (10, [0, 0], [0, 0]),
        (10, [3, 4], [3, 4]),  # enough for all: everybody's maximum
        (7, [3, 4], [3, 4]),
        (6, [3, 3, 3], [2, 2, 2]),
        (10, [10, 10, 10], [3, 3, 4]),  # 3.33 each; the running total rounds the last one up
        (1, [1, 1, 1], [0, 0, 1]),
        (2, [1, 1, 1], [0, 1, 1]),
        (10, [1000, 10], [5, 5]),  # never in proportion to more than there is
        (10, [5, 100, 0, 3], [2, 6, 0, 2]),
        (10, [100, 5, 0, 3], [5, 3, 0, 2]),  # rounding depends on the order
        (5, [1, 2, 3], [0, 2, 3]),
        (5, [3, 2, 1], [2, 2, 1]),
    ],
)
def test_sharing_out_exact_cases(spare: int, excess: list[int], shares: list[int]) -> None:
    assert share_out(spare, excess) == shares


@pytest.mark.spec("M3")
def test_spare_segments_are_shared_out_anew_at_every_change() -> None:
    with small_network(count=20) as network:
        first = network.create_pool("first", required=2, maximum=6)
        assert first.size == 6
        second = network.create_pool("second", required=3)
        # 15 spare over min(15, 4) and min(15, 17)
        assert (first.size, second.size) == (2 + 3, 3 + 12)
        third = network.create_pool("third", required=10, maximum=10)
        # 5 spare over 4, 5 and 0
        assert (first.size, second.size, third.size) == (2 + 2, 3 + 3, 10)
        second.destroy()
        assert (first.size, third.size) == (6, 10)
        third.destroy()
        assert first.size == 6
        assert network.statistics().required == 2


@pytest.mark.spec("M3")
def test_a_pool_that_requires_more_segments_than_are_left_is_refused() -> None:
    with small_network(count=8, segment_size=32) as network:
        first = network.create_pool("first", required=5)
        exclusive = network.request_exclusive("gate", 1)
        with pytest.raises(InsufficientBuffers, match=r"sink needs 3 network buffers, but only 2 of 8 ") as caught:
            network.create_pool("sink", required=3)
        for remedy in ("memory.network.min", "memory.network.max", "network.buffers_per_channel", "32 bytes"):
            assert remedy in str(caught.value)
        assert (first.size, network.statistics().pools) == (7, 1), "nothing has changed"
        network.create_pool("fits", required=2)
        assert first.size == 5
        network.recycle_exclusive(exclusive)


@pytest.mark.spec("M3")
def test_a_required_segment_is_had_though_others_took_all_there_were() -> None:
    with small_network(count=4) as network:
        first = network.create_pool("first", required=1)
        taken = take_all(first)
        assert len(taken) == 4
        second = network.create_pool("second", required=2, maximum=2)
        listener = listen(second, Listener(MORE, ENOUGH))
        for returned in (1, 2):
            give(first, taken.pop())
            assert len(listener.segments) == returned
        give(first, *taken)
        assert first.held == 2
        give(second, *listener.segments)


@pytest.mark.spec("M3")
def test_no_pool_is_granted_segments_beyond_its_next_size() -> None:
    with small_network(count=6) as network:
        debtor = network.create_pool("debtor", required=0, maximum=4)
        owed = take_all(debtor)
        giving = network.create_pool("giving", required=0, maximum=4)
        waiting = network.create_pool("waiting", required=0, maximum=6)
        assert [pool.size for pool in (debtor, giving, waiting)] == [1, 2, 3]
        with network.lock:
            at_hand = [giving.try_request_locked() for _ in range(2)]
        listener = listen(waiting, Listener(MORE, MORE, MORE))
        give(giving, *at_hand)
        newcomer = network.create_pool("newcomer", required=5, maximum=5)
        assert waiting.held <= waiting.size, "it would owe the newcomer what it just got"
        assert len(listener.segments) == waiting.held
        give(debtor, *owed)
        mine = take_all(newcomer)
        assert len(mine) == 5
        give(newcomer, *mine)
        waiting.destroy()  # so that the listener is not offered what it gives back
        give(waiting, *listener.segments)


@pytest.mark.spec("M3")
def test_free_segments_of_a_destroyed_pool_are_not_granted_beyond_the_next_size() -> None:
    with small_network(count=6) as network:
        debtor = network.create_pool("debtor", required=0, maximum=4)
        owed = take_all(debtor)
        giving, waiting, other = (
            network.create_pool(name, required=0, maximum=most)
            for name, most in (("giving", 1), ("waiting", 1), ("other", 3))
        )
        with network.lock:
            at_hand, taken = giving.try_request_locked(), other.try_request_locked()
        listener = listen(waiting, Listener(ENOUGH))
        give(giving, at_hand)
        assert (giving.size, waiting.size, listener.offered) == (1, 1, 0)
        giving.destroy()
        assert (waiting.size, waiting.held, listener.offered) == (0, 0, 0)
        waiting.destroy()  # so that the listener is not offered what comes back
        give(debtor, *owed)
        give(other, taken)


@pytest.mark.spec("M3", "M6")
def test_a_pool_that_grows_by_rounding_grants_segments_to_its_listeners() -> None:
    with small_network(count=4) as network:
        pools = [network.create_pool(f"pool-{most}", required=0, maximum=most) for most in (2, 1, 4)]
        assert [pool.size for pool in pools] == [1, 0, 3]
        listener = listen(pools[1], Listener(ENOUGH))
        network.create_pool("newcomer", required=0, maximum=2)
        assert [pool.size for pool in pools] == [0, 1, 2]
        assert listener.woken == 1
        give(pools[1], *listener.segments)


@pytest.mark.spec("M6")
def test_a_free_segment_goes_to_the_pool_that_waited_longest() -> None:
    with small_network(count=2) as network:
        busy = network.create_pool("busy", required=0)
        taken = take_all(busy)
        first = network.create_pool("first", required=1, maximum=1)
        second = network.create_pool("second", required=1, maximum=1)
        # asked in the order opposite to their making
        late, early = Listener(ENOUGH), Listener(ENOUGH)
        listen(second, early)
        listen(first, late)
        give(busy, taken.pop())
        assert (early.woken, late.woken) == (1, 0)
        give(busy, taken.pop())
        assert (early.woken, late.woken) == (1, 1)
        give(second, *early.segments)
        give(first, *late.segments)


@pytest.mark.spec("M7")
def test_a_segment_that_comes_back_to_the_network_twice_is_an_error_that_names_it() -> None:
    with small_network(count=2) as network:
        pool = network.create_pool("pool", required=1)
        with network.lock, pytest.raises(InvariantViolated, match=r"Segment\(1\).*twice"):
            network.give_back_locked(network.free[1])
        network.free.pop()
        pool.destroy()


# Exclusive segments.


@pytest.mark.spec("M4")
def test_exclusive_segments_come_straight_from_the_network_pool() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=2)
        exclusive = network.request_exclusive("gate", 3)
        assert len({segment.index for segment in exclusive}) == 3
        assert (network.statistics().free, network.statistics().exclusive) == (5, 3)
        assert (pool.size, pool.held) == (5, 0)
        network.recycle_exclusive(exclusive[:1])
        assert (network.statistics().free, network.statistics().exclusive, pool.size) == (6, 2, 6)
        network.recycle_exclusive(exclusive[1:])
        assert pool.size == 8
        assert network.request_exclusive("gate", 0) == []


@pytest.mark.spec("M4")
def test_exclusive_segments_that_are_promised_to_others_are_refused() -> None:
    with small_network(count=8) as network:
        network.create_pool("pool", required=6)
        with pytest.raises(InsufficientBuffers, match="gate needs 3 network buffers, but only 2 of 8"):
            network.request_exclusive("gate", 3)
        assert network.statistics().exclusive == 0


@pytest.mark.spec("M4", "M6")
def test_exclusive_segments_are_waited_for_while_a_shrunk_pool_uses_them() -> None:
    sync = ScriptedSync()
    with small_network(count=8, sync=sync) as network:
        pool = network.create_pool("pool", required=2)
        taken = take_all(pool)
        greedy = listen(pool, Listener(MORE))
        returned: list[Segment] = []

        def meanwhile() -> None:
            assert pool.size == 5
            for _ in range(3):
                assert greedy.offered == 0, "before any pool"
                returned.append(taken[-1])
                give(pool, taken.pop())

        sync.on_wait = meanwhile
        exclusive = network.request_exclusive("gate", 3, timeout_s=9)
        assert {segment.index for segment in exclusive} == {segment.index for segment in returned}
        assert sync.timeouts == [9]
        assert pool.held == pool.size == 5
        network.recycle_exclusive(exclusive)
        assert greedy.offered == 2, "taken once, then not used"
        give(pool, *taken, *greedy.segments)


@pytest.mark.spec("M4", "M9")
@pytest.mark.parametrize("returned", [0, 1, 2])
def test_an_exclusive_request_that_times_out_recycles_its_segments(returned: int) -> None:
    sync = ScriptedSync()
    with small_network(count=8, sync=sync) as network:
        pool = network.create_pool("pool", required=2)
        taken = take_all(pool)
        sync.on_wait = lambda: give(pool, *[taken.pop() for _ in range(returned)])
        with pytest.raises(RequestTimeout, match=rf"gate got {returned} of 3 exclusive buffers within 9 s") as caught:
            network.request_exclusive("gate", 3, timeout_s=9)
        assert "network.buffers_request_timeout" in str(caught.value)
        assert (network.statistics().free, network.statistics().exclusive) == (returned, 0)
        assert pool.size == 8
        give(pool, *taken)
        assert network.request_exclusive("gate", 0) == [], "no claim is left in the way"


@pytest.mark.spec("M6", "M9")
@pytest.mark.parametrize("returned", [0, 1, 2])
def test_an_interrupted_exclusive_request_leaves_no_claim_and_no_segment(returned: int) -> None:
    sync = ScriptedSync()
    with small_network(count=4, sync=sync) as network:
        pool = network.create_pool("pool", required=2)
        taken = take_all(pool)

        def interrupt() -> None:
            give(pool, *[taken.pop() for _ in range(returned)])
            raise KeyboardInterrupt

        sync.on_wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            network.request_exclusive("gate", 2)
        give(pool, *taken)
        assert network.statistics().exclusive == 0
        assert pool.size == 4
        assert network.statistics().free + pool.held == 4


@pytest.mark.spec("M4")
def test_exclusive_requests_are_served_in_order_and_by_several_returns() -> None:
    with small_network(count=6) as network:
        pool = network.create_pool("pool", required=0)
        taken = take_all(pool)
        got: dict[str, list[Segment]] = {}

        def request(name: str, count: int) -> None:
            got[name] = network.request_exclusive(name, count, timeout_s=PATIENCE_S)

        run_threads(
            lambda: request("a", 2),
            lambda: request("b", 3),
            lambda: request("c", 1),
            lambda: give(pool, *taken),
        )
        assert {name: len(segments) for name, segments in got.items()} == {"a": 2, "b": 3, "c": 1}
        assert pool.held == pool.size == 0
        for segments in got.values():
            network.recycle_exclusive(segments)
        assert pool.size == 6


def test_more_exclusive_segments_than_were_given_do_not_come_back() -> None:
    network: NetworkPool = make_network(count=2)
    exclusive = network.request_exclusive("gate", 1)
    network.recycle_exclusive(exclusive)
    with pytest.raises(AssertionError, match="more exclusive"):
        network.recycle_exclusive(exclusive)
    network._exclusive = 0
