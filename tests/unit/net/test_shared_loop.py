"""The shared event loop: every blocked task is woken and every callback runs, whichever threads poll."""

import contextlib
import functools
import random
import socket
import threading
import time
from collections import deque

import pytest
from tests.support.threads import Thread, switching_often
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.net.loop import THREAD_NAME, SharedLoop
from headgate.net.loop.decide import FREQUENT_NS, LONG_REST_NS, SHORT_REST_NS
from headgate.net.loop.shared import NetworkThreadState
from headgate.net.loop.thread import NetworkThread
from headgate.sync import ThreadSync


@pytest.fixture
def loop():
    made = SharedLoop()
    made.start()
    yield made
    made.stop()
    made.join()


@pytest.fixture
def sync(loop):
    made = ThreadSync()
    made.driver = loop
    return made


def run(*functions):
    """Each on a thread of its own; their errors here."""
    for thread in [Thread(function) for function in functions]:
        thread.end()


def test_a_task_that_blocks_does_the_network_s_work(loop, sync):
    worked_on = []

    def task():
        for _ in range(10_000):  # now and then the network thread is faster
            signal = sync.new_signal()

            def work(wake=signal.wake):
                worked_on.append(threading.current_thread())
                wake()

            loop.post(work, urgent=False)
            assert signal.wait(PATIENCE_S)
            if worked_on[-1] is threading.current_thread():
                return
        pytest.fail("it was always the network thread")

    run(task)


def test_ctrl_c_in_a_dispatch_on_the_main_thread_is_raised_after_it(loop, sync):
    def interrupt():
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    def wait_until_interrupted():
        for _ in range(10_000):  # now and then the network thread is faster
            loop.post(lambda: None, urgent=False)
            time.sleep(0.0002)  # the network thread ran that, found no blocked task, and rests
            loop.post(interrupt, urgent=False)
            sync.new_signal().wait(0.001)

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()
    signal = sync.new_signal()
    loop.post(signal.wake)
    assert signal.wait(PATIENCE_S), "the loop goes on"


def test_the_thread_that_posts_an_urgent_callback_runs_it_while_another_polls(loop, sync):
    def ask():
        """Return whether this thread has run the callback before `post` returned."""
        done_on = []
        loop.post(lambda: done_on.append(threading.current_thread()))
        return done_on == [threading.current_thread()]

    signal = sync.new_signal()
    task = Thread(lambda: signal.wait(PATIENCE_S))
    wait_until(loop._poll_lock.locked, "taking the poll lock")
    wait_until(ask, "running it on this thread")  # until then the network thread may still dispatch
    assert loop._poll_lock.locked(), "the other thread still polls"
    signal.wake()
    task.end()


def test_urgent_callbacks_run_in_the_order_of_posting(loop):
    asked = []
    done = threading.Event()

    def first():
        loop.post(lambda: asked.append("third"))
        loop.post(done.set)
        asked.append("first")

    def ask():
        loop.post(first)
        asked.append("second")  # a callback that a callback posts runs after it

    loop.post(ask)
    assert done.wait(PATIENCE_S)
    assert asked == ["second", "first", "third"]


def test_ctrl_c_ends_a_wait_that_nothing_else_would_end(loop, sync):
    def interrupt(signal):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        signal.wake()  # try again

    def wait_until_interrupted():
        for _ in range(10_000):  # now and then the network thread is faster
            signal = sync.new_signal()
            loop.post(functools.partial(interrupt, signal), urgent=False)
            signal.wait(None)

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()


@pytest.fixture
def watched(loop):
    """Return the other end of a socket that the loop watches, and the threads that have read it."""
    ours, theirs = socket.socketpair()
    read_on = []

    def read():
        ours.recv(100)
        read_on.append(threading.current_thread())

    loop.post(lambda: loop.watch(ours.fileno(), read, None))
    yield theirs, read_on
    loop.post(lambda: loop.watch(ours.fileno(), None, None))
    ours.close()
    theirs.close()


class BlockedTask:
    """A blocked task thread, as the loop sees it."""

    def __init__(self, *, woken=False):
        self.woken = woken
        self.woken_when_blocked = None

    def block(self, timeout_s):
        self.woken_when_blocked = self.woken
        return True


def was_called(loop):
    """Return whether the network thread was called since the last use of this function."""
    called, loop._call_requested = loop._call_requested, False
    return called


class FakeRestTimer:
    """A rest timer that records its delays; `wait` runs the next of `meanwhile` instead of blocking."""

    def __init__(self, *meanwhile):
        self.delays_ns = []
        self._meanwhile = list(meanwhile)

    def set(self, delay_ns):
        self.delays_ns.append(delay_ns)

    def wait(self):
        self._meanwhile.pop(0)()

    def close(self):
        pass


def rest(loop, *meanwhile):
    """Run the network thread's rest at a constant time; return the delays of its timer."""
    loop._rest_timer.close()
    loop._rest_timer = timer = FakeRestTimer(*meanwhile)
    loop.now_ns = lambda: 10**9
    loop._rest()
    assert not timer._meanwhile, "it waited for all of that"
    return timer.delays_ns


@pytest.fixture
def loop_without_thread():
    """A loop whose network thread does nothing by itself; the other end of a socket of it, and what was read there."""
    loop = SharedLoop()
    ended = threading.Event()
    loop._thread = NetworkThread(ended.wait)
    loop.start()
    ours, theirs = socket.socketpair()
    read = []
    loop.post(lambda: loop.watch(ours.fileno(), lambda: read.append(ours.recv(100)), None))
    loop._policy.task_dispatched = False
    yield loop, theirs, read
    loop.post(lambda: loop.watch(ours.fileno(), None, None))
    ended.set()
    loop.join()
    loop._close()
    ours.close()
    theirs.close()


def poll_before_blocking(loop):
    return loop.poll_once(before_blocking=True)


def test_a_reply_that_is_expected_is_read_whether_it_is_there_or_arrives_later(loop, watched):
    theirs, read_on = watched
    for number in range(1, 50):
        if number % 2:
            theirs.send(b"before")
            loop.poll_once(reply_expected=True)
        else:
            loop.poll_once(reply_expected=True)
            theirs.send(b"after")
        wait_until(lambda expected=number: len(read_on) == expected, "reading")


def test_a_poll_reads_received_bytes_and_does_not_block(loop_without_thread):
    loop, theirs, read = loop_without_thread
    assert not loop.poll_once()
    theirs.send(b"x")
    assert loop.poll_once()
    assert read == [b"x"]
    assert not was_called(loop)


@pytest.mark.parametrize("before_blocking", [True, False])
def test_a_poll_does_nothing_while_another_thread_polls_or_in_a_dispatch(loop_without_thread, before_blocking):
    loop, theirs, read = loop_without_thread
    theirs.send(b"x")
    with loop._poll_lock:
        assert not loop.poll_once(before_blocking=before_blocking)
    assert not read
    loop.post(lambda: loop.poll_once(before_blocking=before_blocking))
    assert not read
    assert loop.poll_once(before_blocking=before_blocking)


def test_a_reply_that_a_callback_expects_is_read_after_the_dispatch(loop_without_thread):
    loop, theirs, read = loop_without_thread
    read_in_dispatch = []

    def act():
        theirs.send(b"x")
        loop.poll_once(reply_expected=True)
        read_in_dispatch.extend(read)

    loop.post(act)
    assert not read_in_dispatch
    assert read == [b"x"]
    assert not was_called(loop), "no further reply is expected"


def test_a_reply_that_a_callback_expects_is_read_without_a_task(loop, watched):
    theirs, read_on = watched
    done = threading.Event()
    loop.post(lambda: (loop.poll_once(reply_expected=True), done.set()))
    assert done.wait(PATIENCE_S)
    theirs.send(b"after")
    wait_until(lambda: read_on, "reading")


def test_a_poll_before_blocking_runs_deferred_callbacks_only_if_there_are_no_events(loop_without_thread):
    loop, theirs, read = loop_without_thread
    deferred = []
    loop.post(lambda: deferred.append(1), urgent=False)
    theirs.send(b"x")
    assert poll_before_blocking(loop)
    assert (len(read), deferred) == (1, [])
    assert not poll_before_blocking(loop)
    assert (len(read), deferred) == (1, [1])
    assert not loop._poll_lock.locked()


def test_a_callback_posted_during_the_dispatch_of_a_poll_is_run_after_it(loop_without_thread):
    loop, theirs, _ = loop_without_thread
    ran = []
    end_dispatch = loop._end_dispatch

    def end_after_another_post():
        loop._end_dispatch = end_dispatch
        Thread(lambda: loop.post(lambda: ran.append(1))).end()
        assert not ran, "the poster found the dispatch lock taken"
        end_dispatch()

    loop._end_dispatch = end_after_another_post
    theirs.send(b"x")
    loop.poll_once()
    assert ran == [1]


def test_a_task_that_polled_calls_the_network_thread_for_a_blocked_task(loop_without_thread):
    loop, theirs, _ = loop_without_thread
    loop._policy.blocked[BlockedTask()] = False
    theirs.send(b"x")
    assert poll_before_blocking(loop)
    assert was_called(loop)


@pytest.mark.parametrize(("away_ns", "called"), [(FREQUENT_NS // 200, False), (FREQUENT_NS * 5, True)])
def test_a_frequent_task_does_not_call_it(loop_without_thread, away_ns, called):
    loop, theirs, _ = loop_without_thread
    now_ns = 10**9
    loop.now_ns = lambda: now_ns
    loop._policy.blocked[BlockedTask()] = False
    theirs.send(b"x")
    poll_before_blocking(loop)
    was_called(loop)
    now_ns += away_ns
    assert not poll_before_blocking(loop), "it is about to block"
    assert not was_called(loop)
    now_ns += 1_000
    theirs.send(b"x")
    assert poll_before_blocking(loop)
    assert was_called(loop) is called, "the work before the first poll counts, not the poll"


@pytest.mark.parametrize("frequent", [True, False])
def test_a_leader_leaves_the_poll_lock_to_a_frequent_task_that_was_woken(loop_without_thread, frequent):
    loop, _, _ = loop_without_thread
    mine, other = BlockedTask(), BlockedTask()
    loop._policy.blocked[other] = frequent

    def wake_other():
        other.woken = True
        loop.post(lambda: setattr(mine, "woken", True), urgent=False)

    loop.post(wake_other, urgent=False)
    loop.drive_until(mine, None)
    assert mine.woken_when_blocked is not frequent, "it blocks without the poll lock, or led to the end"
    assert not loop._poll_lock.locked()
    assert not was_called(loop), "no other thread is needed"
    assert list(loop._policy.blocked) == [other]


def test_the_network_thread_rests_longer_after_a_task_has_dispatched(loop_without_thread):
    loop, _, _ = loop_without_thread
    for dispatched in (False, True, False):
        if dispatched:
            loop.post(lambda: None)
        assert rest(loop, lambda: None) == [LONG_REST_NS if dispatched else SHORT_REST_NS]


def test_the_network_thread_rests_on_while_another_thread_dispatches_or_polls(loop_without_thread):
    loop, _, _ = loop_without_thread
    loop._dispatch_lock.acquire()
    assert rest(loop, lambda: None, loop._dispatch_lock.release) == [SHORT_REST_NS, SHORT_REST_NS]

    loop._poll_lock.acquire()
    leave = functools.partial(loop._leave_poll_lock, to_work=True)  # which sets the timer
    assert rest(loop, lambda: None, lambda: None, leave) == [SHORT_REST_NS, LONG_REST_NS]


def test_a_network_thread_that_is_called_does_not_rest(loop_without_thread):
    loop, _, _ = loop_without_thread
    loop._poll_lock.acquire()
    loop._call_network_thread()
    rest(loop)
    assert rest(loop, loop._call_network_thread) == [SHORT_REST_NS, 1]
    loop._poll_lock.release()


@pytest.fixture
def resting_loop(loop_without_thread):
    """A loop whose network thread rests; a clock to set, and the delays of the rest timer."""
    loop, _, _ = loop_without_thread
    loop._rest_timer.close()
    loop._rest_timer = timer = FakeRestTimer()
    clock = {"now_ns": 10**9}
    loop.now_ns = lambda: clock["now_ns"]
    loop._state = NetworkThreadState.RESTING
    return loop, clock, timer.delays_ns


def test_a_task_that_polls_postpones_the_network_thread_and_not_more_often_than_necessary(resting_loop):
    loop, clock, delays_ns = resting_loop
    for _ in range(100):
        poll_before_blocking(loop)
        clock["now_ns"] += LONG_REST_NS // 8
    assert set(delays_ns) == {LONG_REST_NS}
    assert len(delays_ns) == pytest.approx(100 / 4, abs=1), "at half of its rest"


def test_with_a_blocked_task_or_a_deferred_callback_the_rest_is_short(resting_loop):
    loop, clock, delays_ns = resting_loop
    long, short = LONG_REST_NS, SHORT_REST_NS
    poll_before_blocking(loop)
    loop._policy.blocked[BlockedTask()] = True
    poll_before_blocking(loop)
    assert delays_ns == [long, short]
    loop._policy.blocked.clear()
    poll_before_blocking(loop)
    loop.post(lambda: None, urgent=False)
    assert delays_ns == [long, short, long, short]
    clock["now_ns"] += short * 9 // 10
    loop.post(lambda: None, urgent=False)
    assert delays_ns == [long, short, long, short], "deferring a callback postpones nothing"
    clock["now_ns"] += short * 2 // 10
    loop.post(lambda: None, urgent=False)
    assert delays_ns == [long, short, long, short, short], "the timer has fired, and no thread has polled"


def test_a_network_thread_that_was_called_is_not_postponed(resting_loop):
    loop, clock, delays_ns = resting_loop
    loop._call_network_thread()
    for _ in range(10):
        poll_before_blocking(loop)
        loop.post(lambda: None, urgent=False)
        loop.post(lambda: None)
        loop._call_network_thread()
        clock["now_ns"] += SHORT_REST_NS // 2
    assert delays_ns == [1]


def test_dispatching_without_polling_postpones_the_network_thread_once(resting_loop):
    loop, clock, delays_ns = resting_loop
    poll_before_blocking(loop)
    for _ in range(40):
        clock["now_ns"] += LONG_REST_NS // 8
        loop.post(lambda: None)
    assert len(delays_ns) == 2, "it fires less than two long rests after the poll"


def test_a_leader_postpones_the_network_thread_for_long(resting_loop):
    loop, _, delays_ns = resting_loop
    mine = BlockedTask()
    loop.post(lambda: loop.post(lambda: setattr(mine, "woken", True), urgent=False), urgent=False)
    loop.drive_until(mine, None)
    assert delays_ns[0] == SHORT_REST_NS, "while no thread leads"
    assert delays_ns[-1] == LONG_REST_NS


def test_before_the_start_a_poll_finds_nothing():
    loop = SharedLoop()
    assert not poll_before_blocking(loop)
    loop.stop()


def test_a_deferred_callback_is_run_by_the_network_thread_if_no_task_polls(loop):
    done = threading.Event()
    for _ in range(50):
        done.clear()
        loop.post(done.set, urgent=False)
        assert done.wait(PATIENCE_S)


class ActsBeforeArming(deque):
    """A poller's `_armed`: just before the token is put, when a thread is about to block, another thread acts."""

    def __init__(self, meanwhile):
        super().__init__()
        self._meanwhile = [meanwhile]

    def append(self, token):
        while self._meanwhile:
            run(self._meanwhile.pop())
        super().append(token)


def test_a_loop_that_is_stopped_just_before_it_blocks_ends():
    loop = SharedLoop()
    loop._poller._armed = ActsBeforeArming(loop.stop)
    loop.start()
    ended = Thread(loop.join)
    ended.end()


def test_a_timer_that_is_set_just_before_the_loop_blocks_fires():
    loop, fired = SharedLoop(), threading.Event()
    loop._poller._armed = ActsBeforeArming(lambda: loop.post(lambda: loop.call_at(0, fired.set)))
    loop.start()
    assert fired.wait(PATIENCE_S)
    loop.stop()
    loop.join()


def test_a_wait_ends_with_its_time(sync):
    signal = sync.new_signal()
    assert not signal.wait(0.01)
    assert not signal.wait(0)
    signal.wake()
    assert signal.wait(0)


def test_a_signal_that_was_woken_before_does_not_block(sync):
    signal = sync.new_signal()
    signal.wake()
    assert signal.wait(None)


def test_a_timer_fires_while_a_task_leads(loop, sync):
    signal = sync.new_signal()
    loop.post(lambda: loop.call_at(loop.now_ns() + 1_000_000, signal.wake))
    assert signal.wait(PATIENCE_S)


def test_two_tasks_that_wake_each_other_never_both_block(sync):
    rounds = 2000
    signals = [[sync.new_signal() for _ in range(rounds)] for _ in range(2)]

    def play(mine, other):
        for at in range(rounds):
            if mine == 0:
                signals[1][at].wake()
                assert signals[0][at].wait(PATIENCE_S)
            else:
                assert signals[1][at].wait(PATIENCE_S)
                signals[0][at].wake()

    run(lambda: play(0, 1), lambda: play(1, 0))


@pytest.mark.parametrize("often", [False, True])
def test_no_task_is_forgotten_among_many(loop, sync, often):
    """Tasks post their own wake-up in every way that there is, at random."""

    def deferred(wake):
        loop.post(wake, urgent=False)

    def at_a_time(wake):
        loop.post(lambda: loop.call_at(loop.now_ns() + 10_000, wake))

    def task(seed):
        rng = random.Random(seed)
        for _ in range(300):
            signal = sync.new_signal()
            rng.choice([loop.post, functools.partial(loop.post, urgent=False), at_a_time, lambda wake: wake()])(
                signal.wake
            )
            if rng.random() < 0.1:
                time.sleep(0.0005)
            assert signal.wait(PATIENCE_S if rng.random() < 0.5 else None)

    with switching_often() if often else contextlib.nullcontext():
        run(*[functools.partial(task, seed) for seed in range(4)])


def test_a_leader_leaves_when_the_loop_stops():
    loop, sync = SharedLoop(), ThreadSync()
    sync.driver = loop
    loop.start()
    signal = sync.new_signal()
    waited = []
    task = threading.Thread(target=lambda: waited.append(signal.wait(PATIENCE_S)))
    task.start()
    time.sleep(0.01)
    loop.stop()
    loop.join()
    assert task.is_alive(), "it blocks without the loop"
    signal.wake()
    task.join(PATIENCE_S)
    assert waited == [True]


def test_after_the_end_tasks_block_without_the_loop():
    loop, sync = SharedLoop(), ThreadSync()
    sync.driver = loop
    loop.start()
    loop.stop()
    loop.join()
    signal = sync.new_signal()
    assert not signal.wait(0.001)
    threading.Timer(0.005, signal.wake).start()
    assert signal.wait(PATIENCE_S)


def test_it_has_one_thread_and_that_ends(loop):
    assert [thread.name for thread in threading.enumerate()].count(THREAD_NAME) == 1
