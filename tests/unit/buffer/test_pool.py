"""A local pool: what it may use, who waits for it, and how it shrinks, lends and ends."""

import gc
from collections.abc import Iterator

import pytest
from tests.support.buffers import Listener, filled, give, listen, small_network, take, take_all
from tests.support.syncs import ScriptedSync
from tests.support.threads import run_threads
from tests.support.waiting import PATIENCE_S

from headgate.buffer import UNCHANNELLED, Answer, NetworkPool
from headgate.clock import ManualClock
from headgate.errors import Cancelled, InvariantViolated, RequestTimeout
from headgate.meters import Activity, TaskTimer

ENOUGH, MORE, NOT_USED = Answer.USED_ENOUGH, Answer.USED_MORE_WANTED, Answer.NOT_USED


@pytest.mark.spec("M3")
def test_segments_are_taken_only_when_needed() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=4)
        assert (pool.size, pool.held, network.statistics().free) == (8, 0, 8)
        segment = take(pool)
        assert (pool.held, network.statistics().free) == (1, 7)
        give(pool, segment)
        assert (pool.held, pool.statistics().available) == (1, 1), "kept for the next request"
        assert take(pool) is segment
        assert network.statistics().free == 7
        give(pool, segment)


@pytest.mark.spec("M3")
def test_a_pool_gives_no_more_than_its_size() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=2, maximum=3)
        taken = take_all(pool)
        assert len(taken) == 3
        assert take(pool) is None
        assert network.statistics().free == 5
        assert pool.statistics().usage == 1.0
        give(pool, *taken)
        assert pool.statistics().usage == 0.0


@pytest.mark.spec("M3")
@pytest.mark.parametrize(
    ("required", "maximum", "largest"),
    [(2, None, 8), (2, 100, 8), (2, 5, 5), (3, 1, 3), (0, 0, 0)],
)
def test_the_maximum_lies_between_required_and_total_segments(required: int, maximum: int | None, largest: int) -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=required, maximum=maximum)
        assert (pool.maximum, pool.size) == (largest, largest)
        assert pool.statistics().usage == 0.0
        taken = take_all(pool)
        assert len(taken) == largest
        give(pool, *taken)


@pytest.mark.spec("M3")
def test_a_pool_that_shrank_gives_its_excess_back_as_buffers_return() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=2)
        taken = take_all(pool)
        give(pool, taken.pop())
        assert (pool.held, pool.statistics().available) == (8, 1)
        network.create_pool("other", required=4, maximum=4)
        assert pool.size == 4
        assert (pool.held, network.statistics().free) == (7, 1), "what was at hand goes at once"
        assert take(pool) is None
        assert pool.statistics().usage == 7 / 4
        for held in (6, 5, 4):
            give(pool, taken.pop())
            assert (pool.held, pool.statistics().available) == (held, 0)
        assert network.statistics().free == 4
        give(pool, *taken)
        assert (pool.held, pool.statistics().available) == (4, 4)


@pytest.mark.spec("M3")
def test_a_pool_that_grew_grants_segments_to_its_listeners() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=1)
        other = network.create_pool("other", required=2, maximum=2)
        taken = take_all(pool)
        assert len(taken) == 2
        listener = listen(pool, Listener(MORE, ENOUGH))
        other.destroy()
        assert len(listener.segments) == 2
        assert listener.woken == 2
        give(pool, *taken, *listener.segments)


def test_a_channel_has_a_limit_of_its_own() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=2, channels=2, max_per_channel=2)
        first = take_all(pool, 0)
        assert len(first) == 2
        second = take_all(pool, 1)
        assert len(second) == 2
        rest = take_all(pool, UNCHANNELLED)
        assert len(rest) == 4, "broadcast buffers count against no channel"
        give(pool, first.pop(), channel=0)
        assert take(pool, 1) is None
        again = take(pool, 0)
        assert again is not None
        give(pool, again, *first, channel=0)
        give(pool, *second, channel=1)
        give(pool, *rest)


def test_an_overdraft_goes_past_size_and_channel_limit_but_not_further() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=2, maximum=2, channels=1, max_per_channel=2, overdraft=3)
        taken = take_all(pool, 0)
        assert len(taken) == 2
        for _ in range(3):
            assert take(pool, 0) is None, "only for those who ask for it"
            taken.append(take(pool, 0, overdraft=True))  # type: ignore[arg-type]
        assert None not in taken
        assert take(pool, 0, overdraft=True) is None
        assert pool.statistics().usage == 2.5
        while pool.held > pool.size:
            give(pool, taken.pop(), channel=0)
            assert take(pool, 0) is None, "the debt is paid first"
        assert network.statistics().free == 6
        give(pool, *taken, channel=0)


def test_an_overdraft_also_passes_the_channel_limit_when_the_pool_has_room() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=8, channels=2, max_per_channel=1, overdraft=1)
        taken = [take(pool, 0), take(pool, 0, overdraft=True)]
        assert None not in taken
        assert take(pool, 0, overdraft=True) is None
        give(pool, *taken, channel=0)


def test_an_overdraft_needs_a_free_segment() -> None:
    with small_network(count=2) as network:
        pool = network.create_pool("pool", required=2, overdraft=5)
        taken = take_all(pool)
        assert take(pool, overdraft=True) is None
        give(pool, *taken)


@pytest.mark.spec("M7")
def test_a_segment_that_comes_back_twice_is_an_error_that_names_pool_and_segment() -> None:
    with small_network(count=2) as network:
        pool = network.create_pool("sink", required=1, maximum=2, channels=1)
        segment = take(pool, 0)
        assert segment is not None
        give(pool, segment, channel=0)
        name = rf"Segment\({segment.index}\)"
        with pool.lock, pytest.raises(InvariantViolated, match=f"<LocalPool sink: .*{name}.* twice"):
            pool.recycle_locked(segment, 0)


# Those who wait.


@pytest.mark.spec("M6")
def test_a_blocking_request_that_need_not_wait_does_not() -> None:
    sync = ScriptedSync()
    with small_network(count=1, sync=sync) as network:
        pool = network.create_pool("pool", required=1)
        give(pool, pool.request())
        assert sync.timeouts == []


@pytest.mark.spec("M6")
def test_a_blocking_request_sleeps_until_a_segment_returns() -> None:
    sync = ScriptedSync()
    with small_network(count=1, sync=sync) as network:
        pool = network.create_pool("pool", required=1, channels=2)
        segment = take(pool, 1)
        waiting: list[int] = []

        def meanwhile() -> None:
            waiting.append(pool.statistics().waiting)
            give(pool, segment, channel=1)

        sync.on_wait = meanwhile
        assert pool.request(0, timeout_s=12.5) is segment
        assert waiting == [1]
        assert sync.timeouts == [12.5]
        assert pool.statistics().waiting == 0
        give(pool, segment, channel=0)


@pytest.mark.spec("M6")
def test_a_sleeping_thread_is_woken_by_a_release_on_another() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1)
        part = filled(pool)

        def requester() -> None:
            give(pool, pool.request(timeout_s=PATIENCE_S))

        run_threads(requester, requester, part.release)


@pytest.mark.spec("M6")
@pytest.mark.parametrize("timeout_s", [0, 0.001])
def test_a_request_that_waits_too_long_is_a_clear_error(timeout_s: float) -> None:
    with small_network(count=2) as network:
        pool = network.create_pool("map (1/2)", required=2)
        taken = take_all(pool)
        with pytest.raises(RequestTimeout, match=rf"map \(1/2\).*within {timeout_s:g} s.*its 2 buffers") as caught:
            pool.request(timeout_s=timeout_s)
        assert "network.buffers_request_timeout" in str(caught.value)
        assert "memory.network.min" in str(caught.value)
        assert pool.statistics().waiting == 0, "a late segment is for somebody else"
        give(pool, *taken)
        assert pool.statistics().available == 2


@pytest.mark.spec("M6")
def test_a_segment_granted_as_the_request_times_out_is_not_lost() -> None:
    sync = ScriptedSync()
    with small_network(count=1, sync=sync) as network:
        pool = network.create_pool("pool", required=1)
        segment = take(pool)

        def granted_but_not_yet_woken() -> None:
            assert segment is not None
            with pool.lock:
                pool.recycle_locked(segment, UNCHANNELLED)  # its wake is still to be performed

        sync.on_wait = granted_but_not_yet_woken
        assert pool.request(timeout_s=1) is segment
        give(pool, segment)


@pytest.mark.spec("M6")
def test_time_asleep_is_back_pressure() -> None:
    clock, sync = ManualClock(), ScriptedSync()
    timer = TaskTimer(clock.now_ns)
    with small_network(count=1, sync=sync) as network:
        pool = network.create_pool("pool", required=1)
        segment = pool.request(timer=timer)
        states: list[Activity] = []

        def meanwhile() -> None:
            states.append(timer.state)
            clock.advance_ms(7)

        sync.on_wait = meanwhile
        with pytest.raises(RequestTimeout):
            pool.request(timeout_s=1, timer=timer)
        assert states == [Activity.BACK_PRESSURED]
        assert timer.state is Activity.BUSY
        assert timer.statistics().back_pressured_ns == 7_000_000
        give(pool, segment)


@pytest.mark.spec("M6")
def test_a_request_polls_the_network_before_it_blocks() -> None:
    states: list[Activity] = []

    class Helped(ScriptedSync):
        def poll_once(self) -> bool:
            states.append(timer.state)
            give(pool, segment)
            return True

    timer = TaskTimer(ManualClock().now_ns)
    with small_network(count=1, sync=Helped()) as network:
        pool = network.create_pool("pool", required=1)
        segment = take(pool)
        assert segment is not None
        assert pool.request(timer=timer) is segment  # a sleep would have no end
        assert states == [Activity.BACK_PRESSURED]
        assert timer.state is Activity.BUSY
        give(pool, segment)


@pytest.mark.spec("M6", "M9")
@pytest.mark.parametrize("granted", [False, True])
def test_an_interrupted_sleep_leaves_no_claim_and_no_segment(granted: bool) -> None:
    clock, sync = ManualClock(), ScriptedSync()
    timer = TaskTimer(clock.now_ns)
    with small_network(count=1, sync=sync) as network:
        pool = network.create_pool("pool", required=1, channels=2)
        segment = take(pool, 1)
        other = Listener(ENOUGH)

        def interrupt() -> None:
            listen(pool, other, 1)
            if granted:
                give(pool, segment, channel=1)
            raise KeyboardInterrupt

        sync.on_wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            pool.request(0, timer=timer)
        assert timer.state is Activity.BUSY
        if not granted:
            assert pool.statistics().waiting == 1
            give(pool, segment, channel=1)
        assert other.segments == [segment], "the next in the queue has it"
        assert other.woken == 1
        assert pool.statistics().waiting == 0
        assert pool._in_use == [0, 1, 0]
        give(pool, segment, channel=1)


@pytest.mark.spec("M6")
def test_a_returning_segment_goes_to_the_first_listener_that_still_wants_it() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1)
        segment = take(pool)
        listeners = [listen(pool, Listener(answer)) for answer in (NOT_USED, NOT_USED, ENOUGH, ENOUGH)]
        give(pool, segment)
        assert [listener.offered for listener in listeners] == [1, 1, 1, 0]
        assert listeners[2].segments == [segment]
        assert [listener.woken for listener in listeners] == [0, 0, 1, 0]
        assert pool.statistics().waiting == 1
        give(pool, segment)
        assert [listener.offered for listener in listeners] == [1, 1, 1, 1]
        assert pool.statistics().waiting == 0
        give(pool, segment)


@pytest.mark.spec("M6")
def test_a_segment_that_no_listener_uses_stays_available() -> None:
    with small_network(count=1) as network:
        pool = network.create_pool("pool", required=1, channels=1, max_per_channel=1)
        segment = take(pool, 0)
        listener = listen(pool, Listener(NOT_USED), 0)
        give(pool, segment, channel=0)
        assert (listener.offered, pool.statistics().available, pool.statistics().waiting) == (1, 1, 0)
        assert take(pool, 0) is segment, "nor does it count against the channel"
        give(pool, segment, channel=0)


@pytest.mark.spec("M6")
def test_a_listener_that_wants_more_is_queued_behind_the_others() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=4)
        taken = take_all(pool)
        greedy, modest = listen(pool, Listener(MORE, MORE, ENOUGH)), listen(pool, Listener(ENOUGH))
        give(pool, taken[0])
        assert (greedy.segments, modest.segments) == ([taken[0]], [])
        give(pool, taken[1])
        assert (greedy.segments, modest.segments) == ([taken[0]], [taken[1]])
        give(pool, taken[2])
        assert greedy.segments == [taken[0], taken[2]]
        assert pool.statistics().waiting == 1
        give(pool, taken[3])
        assert greedy.segments == [taken[0], taken[2], taken[3]]
        assert pool.statistics().waiting == 0, "enough is enough"
        give(pool, *taken)


@pytest.mark.spec("M6")
def test_a_listener_of_a_full_channel_keeps_its_position_and_does_not_block_the_others() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=4, channels=2, max_per_channel=2)
        zero, one = take_all(pool, 0), take_all(pool, 1)
        first, second = listen(pool, Listener(ENOUGH), 0), listen(pool, Listener(ENOUGH), 1)
        third = listen(pool, Listener(ENOUGH), 0)
        give(pool, one.pop(), channel=1)
        assert [first.offered, second.offered, third.offered] == [0, 1, 0]
        give(pool, zero.pop(), channel=0)
        assert [first.offered, third.offered] == [1, 0]
        give(pool, zero.pop(), channel=0)
        assert third.offered == 1
        give(pool, *first.segments, *third.segments, channel=0)
        give(pool, *one, *second.segments, channel=1)


@pytest.mark.spec("M6")
def test_a_listener_past_the_pools_size_gets_none_even_if_the_network_has_some() -> None:
    with small_network(count=8) as network:
        pool = network.create_pool("pool", required=1, maximum=1, overdraft=2)
        taken = [take(pool, overdraft=True) for _ in range(3)]
        listener = listen(pool, Listener(ENOUGH))
        give(pool, taken.pop())
        give(pool, taken.pop())
        assert listener.offered == 0
        give(pool, taken.pop())
        assert listener.offered == 1
        give(pool, *listener.segments)


@pytest.mark.spec("M6", "M9")
def test_destroying_a_pool_cancels_waiting_requests_and_refuses_new_ones() -> None:
    sync = ScriptedSync()
    with small_network(count=2, sync=sync) as network:
        pool = network.create_pool("split (3/4)", required=2)
        taken = take_all(pool)
        listener = listen(pool, Listener(ENOUGH))
        sync.on_wait = pool.destroy
        with pytest.raises(Cancelled, match=r"split \(3/4\).*destroyed"):
            pool.request()
        assert (listener.cancelled, listener.woken, listener.offered) == (1, 1, 0)
        assert pool.destroyed
        pool.destroy()  # may be repeated
        assert listener.cancelled == 1
        with pool.lock:
            for ask in (pool.try_request_locked, lambda: pool.listen_locked(listener)):
                with pytest.raises(Cancelled, match=r"split \(3/4\)"):
                    ask()
        with pytest.raises(Cancelled, match=r"split \(3/4\)"):
            pool.request()
        assert network.statistics().free == 0
        give(pool, *taken)
        assert network.statistics().free == 2, "what was in use goes straight to the network pool"


@pytest.mark.spec("M6", "M9")
def test_destroying_a_pool_with_free_segments_cancels_a_listener_of_a_full_channel() -> None:
    with small_network(count=4) as network:
        pool = network.create_pool("pool", required=4, channels=2, max_per_channel=1)
        full, spare = take(pool, 0), take(pool, 1)
        listener = listen(pool, Listener(ENOUGH), 0)
        give(pool, spare, channel=1)
        pool.destroy()
        assert (listener.cancelled, listener.woken, listener.offered) == (1, 1, 0)
        give(pool, full, channel=0)
        assert network.statistics().free == 4


@pytest.mark.spec("M9")
def test_a_destroyed_pool_leaves_its_segments_to_the_others() -> None:
    with small_network(count=4) as network:
        first = network.create_pool("first", required=1)
        second = network.create_pool("second", required=1)
        taken, others = take_all(first), take_all(second)
        listener = listen(second, Listener(MORE, MORE))
        first.destroy()
        assert second.size == 4
        assert listener.offered == 0, "still in use"
        give(first, *taken)
        assert listener.segments == taken
        give(second, *others, *taken)


# Lending.


@pytest.fixture
def network() -> Iterator[NetworkPool]:
    with small_network(count=9) as made:
        yield made


@pytest.mark.spec("M8")
@pytest.mark.parametrize(("required", "lendable"), [(9, 0), (8, 1), (7, 1), (6, 2), (5, 2), (1, 4), (0, 5)])
def test_at_most_half_of_the_spare_segments_are_lent(network: NetworkPool, required: int, lendable: int) -> None:
    pool = network.create_pool("pool", required=required)
    slices = [filled(pool) for _ in range(9)]
    views = [view for part in slices if (view := part.lend()) is not None]
    assert len(views) == lendable
    assert pool.statistics().lent == lendable
    if views:
        views.pop()
        assert pool.statistics().lent == lendable - 1
        again = slices[-1].lend()
        assert again is not None, "one came back, so one more may go"
        del again
    views.clear()
    for part in slices:
        part.release()
    assert pool.statistics().lent == 0


@pytest.mark.spec("M8")
def test_a_lent_segment_does_not_count_against_its_channel(network: NetworkPool) -> None:
    pool = network.create_pool("pool", required=2, channels=2, max_per_channel=2)
    parts = [filled(pool, channel=0), filled(pool, channel=0)]
    listener = listen(pool, Listener(ENOUGH), 0)
    view = parts[0].lend()
    assert view is not None
    assert listener.woken == 1, "room for the next in the queue"
    assert take(pool, 0) is None
    second = parts[0].lend()  # again: it is already off the channel's account
    assert second is not None
    assert take(pool, 0) is None
    parts[0].release()
    assert take(pool, 0) is None
    del view, second
    assert pool._in_use == [2, 0, 0]
    parts[1].release()
    give(pool, *listener.segments, channel=0)
    assert pool._in_use == [0, 0, 0]


@pytest.mark.spec("M8", "M9")
def test_a_lent_segment_of_a_destroyed_pool_returns_to_the_network_pool(network: NetworkPool) -> None:
    pool = network.create_pool("pool", required=1)
    part = filled(pool)
    view = part.lend()
    late = filled(pool)
    part.release()
    pool.destroy()
    assert late.lend() is None, "a destroyed pool lends nothing"
    late.release()
    assert network.statistics().free == 8
    assert view is not None
    del view
    assert network.statistics().free == 9


@pytest.mark.spec("M6", "M8")
def test_a_lent_segment_that_returns_wakes_a_waiting_listener(network: NetworkPool) -> None:
    pool = network.create_pool("pool", required=1)
    part = filled(pool)
    view = part.lend()
    part.release()
    taken = take_all(pool)
    listener = listen(pool, Listener(ENOUGH))
    assert view is not None
    del view
    assert listener.woken == 1
    give(pool, *taken, *listener.segments)


@pytest.mark.spec("M8")
@pytest.mark.parametrize("collector", ["request", "release", "statistics", "network statistics", "collect"])
def test_a_view_that_died_while_the_lock_was_held_is_collected_by_the_next_call(
    network: NetworkPool, collector: str
) -> None:
    pool = network.create_pool("pool", required=1)
    part = filled(pool)
    view = part.lend()
    part.release()
    taken = take_all(pool)
    with network.lock:
        del view
        gc.collect()
        assert pool.lent == 1, "the lock was taken: it could only leave a note"
    match collector:
        case "request":
            taken.append(pool.request(timeout_s=0))
        case "release":
            give(pool, taken.pop())
        case "statistics":
            pool.statistics()
        case "network statistics":
            network.statistics()
        case "collect":
            network.collect_returned()
    assert pool.lent == 0
    give(pool, *taken)
    assert len(pool._available) == 9


@pytest.mark.spec("M6", "M8")
def test_a_view_that_dies_inside_a_request_serves_that_request() -> None:
    sync = ScriptedSync()
    with small_network(count=2, sync=sync) as network:
        pool = network.create_pool("pool", required=1)
        part = filled(pool)
        views = [part.lend()]
        assert views[0] is not None
        part.release()
        taken = take_all(pool)
        sync.in_request = views.clear  # the garbage collector, while the requester holds the lock
        taken.append(pool.request(timeout_s=0))
        give(pool, *taken)


@pytest.mark.spec("M6", "M8")
def test_a_refused_request_still_wakes_the_listeners_it_granted_segments_to() -> None:
    with small_network(count=4) as network:
        gone = network.create_pool("gone", required=1)
        pool = network.create_pool("pool", required=1, maximum=3)
        part = filled(pool)
        view = part.lend()
        part.release()
        gone.destroy()
        taken = take_all(pool)
        listener = listen(pool, Listener(ENOUGH))
        with network.lock:
            del view
        with pytest.raises(Cancelled):
            gone.request()
        if listener.segments:
            assert listener.woken == 1
        give(pool, *taken)
        assert listener.woken == 1
        give(pool, *listener.segments)


@pytest.mark.spec("M8", "M9")
def test_any_number_of_views_may_die_while_the_lock_is_held() -> None:
    with small_network(count=2048, segment_size=16) as network:
        pool = network.create_pool("pool", required=0)
        slices = [filled(pool) for _ in range(1024)]
        views = [part.lend() for part in slices]
        assert None not in views
        for part in slices:
            part.release()
        with network.lock:
            views.clear()
        network.collect_returned()
        assert pool.statistics().lent == 0
        assert pool.statistics().available == 1024
