"""The loop that waiting tasks drive: nobody sleeps for ever, nothing is left undone, whoever comes and goes."""

import contextlib
import functools
import random
import socket
import threading
import time
from collections import deque

import pytest
from tests.support import JOIN_S, Thread, switching_often
from tests.support_streams import wait_until

from headgate.net.loop import THREAD_NAME, NetworkThread
from headgate.net.shared_loop import SharedLoop
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


def test_a_task_that_waits_does_the_network_s_work(loop, sync):
    worked_on = []

    def task():
        for _ in range(10_000):  # now and then the network thread is faster
            waiter = sync.waiter()

            def work(wake=waiter.wake):
                worked_on.append(threading.current_thread())
                wake()

            loop.call_lazily(work)
            assert waiter.wait(JOIN_S)
            if worked_on[-1] is threading.current_thread():
                return
        pytest.fail("it was always the network thread")

    run(task)


def test_ctrl_c_in_a_turn_of_the_main_thread_comes_after_it(loop, sync):
    def interrupt():
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    def wait_until_interrupted():
        for _ in range(10_000):  # now and then the network thread is faster
            loop.call_lazily(lambda: None)
            time.sleep(0.0002)  # the network thread did that, saw that nobody sleeps, and rests
            loop.call_lazily(interrupt)
            sync.waiter().wait(0.001)

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()
    waiter = sync.waiter()
    loop.call_soon(waiter.wake)
    assert waiter.wait(JOIN_S), "the loop goes on"


def test_who_asks_does_it_itself_whoever_sits_there_asleep(loop, sync):
    def ask():
        """Whether it was done by the time that it was asked for."""
        done_on = []
        loop.call_soon(lambda: done_on.append(threading.current_thread()))
        return done_on == [threading.current_thread()]

    waiter = sync.waiter()
    task = Thread(lambda: waiter.wait(JOIN_S))
    wait_until(loop._seat.locked, "taking the seat")
    wait_until(ask, "doing it oneself")  # who just took it, or was called, may still have the turn
    assert loop._seat.locked(), "the other still sleeps there"
    waiter.wake()
    task.end()


def test_calls_are_run_in_the_order_of_asking_also_those_of_calls(loop):
    asked = []
    done = threading.Event()

    def first():
        loop.call_soon(lambda: asked.append("third"))
        loop.call_soon(done.set)
        asked.append("first")

    def ask():
        loop.call_soon(first)
        asked.append("second")  # what a call asks for comes after it, and after what is asked for in the meantime

    loop.call_soon(ask)
    assert done.wait(JOIN_S)
    assert asked == ["second", "first", "third"]


def test_ctrl_c_ends_a_wait_that_nothing_else_would_end(loop, sync):
    def interrupt(waiter):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        waiter.wake()  # try again

    def wait_until_interrupted():
        for _ in range(10_000):  # now and then the network thread is faster
            waiter = sync.waiter()
            loop.call_lazily(functools.partial(interrupt, waiter))
            waiter.wait(None)

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()


@pytest.fixture
def watched(loop):
    """A socket of the loop's, whose other end is returned, and who has read it."""
    ours, theirs = socket.socketpair()
    read_on = []

    def read():
        ours.recv(100)
        read_on.append(threading.current_thread())

    loop.call_soon(lambda: loop.watch(ours.fileno(), read, None))
    yield theirs, read_on
    loop.call_soon(lambda: loop.watch(ours.fileno(), None, None))
    ours.close()
    theirs.close()


class Sleeping:
    """A task asleep, as far as the loop knows it."""

    def __init__(self, *, woken=False):
        self.woken = woken
        self.woken_asleep = None

    def sleep(self, timeout_s):
        self.woken_asleep = self.woken
        return True


def was_called(loop):
    """Whether the network thread was called since the last look at that."""
    called, loop._called = loop._called, False
    return called


class Rests:
    """In place of the alarm of a loop, by whose clock it was set: to what; and what happens while it is waited for."""

    def __init__(self, *meanwhile):
        self.delays_ms = []
        self._meanwhile = list(meanwhile)

    def set(self, delay_ns):
        self.delays_ms.append(delay_ns / 1e6)

    def wait(self):
        self._meanwhile.pop(0)()

    def close(self):
        pass


def resting(loop, *meanwhile):
    """Let the network thread rest, at a time that stands still, until nobody keeps it from the seat."""
    loop._alarm.close()
    loop._alarm = rests = Rests(*meanwhile)
    loop.now_ns = lambda: 10**9
    loop._rest()
    assert not rests._meanwhile, "it waited for all of that"
    return rests.delays_ms


@pytest.fixture
def watched_apart():
    """A loop whose network thread does nothing by itself; the other end of a socket of it, and what was read there."""
    loop = SharedLoop()
    ended = threading.Event()
    loop._thread = NetworkThread(ended.wait)
    loop.start()
    ours, theirs = socket.socketpair()
    read = []
    loop.call_soon(lambda: loop.watch(ours.fileno(), lambda: read.append(ours.recv(100)), None))
    loop._helped = False
    yield loop, theirs, read
    loop.call_soon(lambda: loop.watch(ours.fileno(), None, None))
    ended.set()
    loop.join()
    loop._release()
    ours.close()
    theirs.close()


def test_who_attends_sees_what_has_happened_or_lets_the_network_thread_wait_for_it(loop, watched):
    theirs, read_on = watched
    for number in range(1, 50):
        if number % 2:
            theirs.send(b"before")
            loop.attend()
        else:
            loop.attend()
            theirs.send(b"after")
        wait_until(lambda expected=number: len(read_on) == expected, "reading")


def test_who_glances_sees_what_has_happened_and_waits_for_nothing(watched_apart):
    loop, theirs, read = watched_apart
    loop.glance()
    assert not read
    theirs.send(b"x")
    loop.glance()
    assert read == [b"x"]
    assert not was_called(loop)


def test_who_glances_while_another_has_the_seat_leaves_it_to_that(watched_apart):
    loop, theirs, read = watched_apart
    theirs.send(b"x")
    with loop._seat:
        loop.glance()
    assert not read
    loop.call_soon(loop.glance)
    assert not read, "nor in a turn: whoever has it goes on"


def test_who_attends_in_its_turn_sees_after_it_what_has_happened(watched_apart):
    loop, theirs, read = watched_apart
    read_in_turn = []

    def act():
        theirs.send(b"x")
        loop.attend()
        read_in_turn.extend(read)

    loop.call_soon(act)
    assert not read_in_turn
    assert read == [b"x"]
    assert not was_called(loop), "nothing is waited for"


def test_attention_in_a_turn_waits_for_no_other(loop, watched):
    theirs, read_on = watched
    done = threading.Event()
    loop.call_soon(lambda: (loop.attend(), done.set()))
    assert done.wait(JOIN_S)
    theirs.send(b"after")
    wait_until(lambda: read_on, "reading")


def test_who_helps_does_what_has_happened_and_lazy_calls_only_if_nothing_has(watched_apart):
    loop, theirs, read = watched_apart
    lazy = []
    loop.call_lazily(lambda: lazy.append(1))
    theirs.send(b"x")
    assert loop.help()
    assert (len(read), lazy) == (1, [])
    assert not loop.help()
    assert (len(read), lazy) == (1, [1])
    assert not loop._seat.locked()


def test_nobody_helps_who_sits_there(watched_apart):
    loop, theirs, read = watched_apart
    theirs.send(b"x")
    with loop._seat:
        assert not loop.help()
    assert not read
    assert loop.help()


def test_who_helped_calls_the_network_thread_for_those_who_sleep(watched_apart):
    loop, theirs, _ = watched_apart

    loop._asleep[Sleeping()] = False
    theirs.send(b"x")
    assert loop.help()
    assert was_called(loop)


@pytest.mark.parametrize(("away_ns", "called"), [(1_000, False), (1_000_000, True)])
def test_who_was_back_soon_the_last_time_does_not_call_it(watched_apart, away_ns, called):
    loop, theirs, _ = watched_apart
    now_ns = 10**9
    loop.now_ns = lambda: now_ns
    loop._asleep[Sleeping()] = False
    theirs.send(b"x")
    loop.help()
    was_called(loop)
    now_ns += away_ns
    assert not loop.help(), "it is about to sleep"
    assert not was_called(loop)
    now_ns += 1_000
    theirs.send(b"x")
    assert loop.help()
    assert was_called(loop) is called, "not the look counts, but the work before it"


@pytest.mark.parametrize(
    ("expected", "asleep", "needed"),
    [
        (True, [(False, False)], False),  # who is away will be back
        (False, [(False, False)], True),
        (False, [(False, False), (True, True)], False),  # who was woken will be
        (False, [(False, False), (True, False)], True),
        (False, [(True, False)], False),
        (False, [], False),
    ],
)
def test_the_network_thread_stays_for_those_whom_nobody_else_will_wake(watched_apart, expected, asleep, needed):
    loop, _, _ = watched_apart
    loop._back_ns = loop.now_ns() + (10**12 if expected else 0)
    for woken, brief in asleep:
        loop._asleep[Sleeping(woken=woken)] = brief
    assert loop._is_needed() is needed


def test_who_is_back_is_not_expected_any_more(watched_apart):
    loop, theirs, _ = watched_apart
    now_ns = 10**9
    loop.now_ns = lambda: now_ns
    loop._asleep[Sleeping()] = False
    for _ in range(2):  # the second time it has been away for no time
        theirs.send(b"x")
        assert loop.help()
    assert not loop._is_needed()
    assert not loop.help(), "it is about to sleep"
    assert loop._is_needed()


@pytest.mark.parametrize("brief", [True, False])
def test_the_seat_is_left_to_another_that_got_something_if_it_will_be_back(watched_apart, brief):
    loop, _, _ = watched_apart
    mine, other = Sleeping(), Sleeping()
    loop._asleep[other] = brief

    def wake_other():
        other.woken = True
        loop.call_lazily(lambda: setattr(mine, "woken", True))

    loop.call_lazily(wake_other)
    loop.sleep(mine, None)
    assert mine.woken_asleep is not brief, "it sleeps without the seat, or was in it to the end"
    assert not loop._seat.locked()
    assert not was_called(loop), "nobody else is needed"
    assert list(loop._asleep) == [other]


def test_the_network_thread_rests_for_a_moment_and_longer_after_a_task_has_acted_by_itself(watched_apart):
    loop, _, _ = watched_apart
    for helped in (False, True, False):
        if helped:
            loop.call_soon(lambda: None)
        assert resting(loop, lambda: None) == [4 if helped else 1]


def test_what_was_asked_for_and_left_undone_is_done_a_moment_later(watched_apart):
    loop, _, _ = watched_apart
    loop.call_soon(lambda: None)
    loop._soon.append(print)
    assert resting(loop, lambda: None) == [1]
    loop._soon.clear()


def test_the_network_thread_waits_for_who_acts_and_without_a_time_for_who_sits_there(watched_apart):
    loop, _, _ = watched_apart
    loop._turn_lock.acquire()
    assert resting(loop, lambda: None, loop._turn_lock.release) == [1, 1]

    loop._seat.acquire()
    leave = functools.partial(loop._leave_seat, going=True)  # which sets the alarm
    assert resting(loop, lambda: None, lambda: None, leave) == [1, 4]


def test_who_is_called_does_not_rest(watched_apart):
    loop, _, _ = watched_apart
    loop._seat.acquire()
    loop._call_network_thread()
    resting(loop)
    assert resting(loop, loop._call_network_thread) == [1, 1e-6]
    loop._seat.release()


@pytest.fixture
def resting_apart(watched_apart):
    """A loop whose network thread rests; a clock to set, and what the alarm was set to."""
    loop, _, _ = watched_apart
    loop._alarm.close()
    loop._alarm = rests = Rests()
    clock = {"now_ns": 10**9}
    loop.now_ns = lambda: clock["now_ns"]
    loop._resting = True
    return loop, clock, rests.delays_ms


def test_who_looks_puts_the_network_thread_off_and_not_more_often_than_it_must(resting_apart):
    loop, clock, delays_ms = resting_apart
    for _ in range(100):
        loop.help()
        clock["now_ns"] += 500_000
    assert set(delays_ms) == {4}
    assert len(delays_ms) == pytest.approx(50 / 2, abs=1), "every 2 ms"


def test_while_somebody_sleeps_or_something_waits_it_is_not_put_off_for_long(resting_apart):
    loop, clock, delays_ms = resting_apart
    loop.help()
    loop._asleep[Sleeping()] = True
    loop.help()
    assert delays_ms == [4, 1]
    loop._asleep.clear()
    loop.help()
    loop.call_lazily(lambda: None)
    assert delays_ms == [4, 1, 4, 1]
    clock["now_ns"] += 900_000
    loop.call_lazily(lambda: None)
    assert delays_ms == [4, 1, 4, 1], "who only asks puts nothing off"
    clock["now_ns"] += 200_000
    loop.call_lazily(lambda: None)
    assert delays_ms == [4, 1, 4, 1, 1], "it has rung, and nobody has looked"


def test_who_was_called_is_put_off_by_nobody(resting_apart):
    loop, clock, delays_ms = resting_apart
    loop._call_network_thread()
    for _ in range(10):
        loop.help()
        loop.call_lazily(lambda: None)
        loop.call_soon(lambda: None)
        loop._call_network_thread()
        clock["now_ns"] += 500_000
    assert delays_ms == [1e-6]


def test_who_acts_without_a_look_puts_it_off_once_and_no_further(resting_apart):
    loop, clock, delays_ms = resting_apart
    loop.help()
    for _ in range(40):
        clock["now_ns"] += 500_000
        loop.call_soon(lambda: None)
    assert len(delays_ms) == 2, "it rings less than 8 ms after the look"


def test_who_drives_puts_it_off_for_those_that_sleep_are_looked_after(resting_apart):
    loop, _, delays_ms = resting_apart
    mine = Sleeping()
    loop.call_lazily(lambda: loop.call_lazily(lambda: setattr(mine, "woken", True)))
    loop.sleep(mine, None)
    assert delays_ms[0] == 1, "as long as nobody drives"
    assert delays_ms[-1] == 4


def test_before_the_start_there_is_nothing_to_help_with():
    loop = SharedLoop()
    assert not loop.help()
    loop.stop()


def test_what_is_lazy_is_done_by_the_network_thread_in_the_end(loop):
    done = threading.Event()
    for _ in range(50):
        done.clear()
        loop.call_lazily(done.set)
        assert done.wait(JOIN_S)


class Falling(deque):
    """In place of the bell: just before it is hung, when the loop is about to sleep, another thread does something."""

    def __init__(self, meanwhile):
        super().__init__()
        self._meanwhile = [meanwhile]

    def append(self, token):
        while self._meanwhile:
            run(self._meanwhile.pop())
        super().append(token)


def test_a_loop_that_is_stopped_by_another_while_it_falls_asleep_ends():
    loop = SharedLoop()
    loop._bell = Falling(loop.stop)
    loop.start()
    ended = Thread(loop.join)
    ended.end()


def test_a_timer_that_another_sets_while_the_loop_falls_asleep_comes():
    loop, come = SharedLoop(), threading.Event()
    loop._bell = Falling(lambda: loop.call_soon(lambda: loop.call_at(0, come.set)))
    loop.start()
    assert come.wait(JOIN_S)
    loop.stop()
    loop.join()


def test_a_wait_ends_with_its_time(sync):
    waiter = sync.waiter()
    assert not waiter.wait(0.01)
    assert not waiter.wait(0)
    waiter.wake()
    assert waiter.wait(0)


def test_who_was_woken_before_does_not_wait(sync):
    waiter = sync.waiter()
    waiter.wake()
    assert waiter.wait(None)


def test_a_timer_comes_while_a_task_drives(loop, sync):
    waiter = sync.waiter()
    loop.call_soon(lambda: loop.call_at(loop.now_ns() + 1_000_000, waiter.wake))
    assert waiter.wait(JOIN_S)


def test_two_tasks_that_wake_each_other_never_both_sleep(sync):
    rounds = 2000
    waiters = [[sync.waiter() for _ in range(rounds)] for _ in range(2)]

    def play(mine, other):
        for at in range(rounds):
            if mine == 0:
                waiters[1][at].wake()
                assert waiters[0][at].wait(JOIN_S)
            else:
                assert waiters[1][at].wait(JOIN_S)
                waiters[0][at].wake()

    run(lambda: play(0, 1), lambda: play(1, 0))


@pytest.mark.parametrize("often", [False, True])
def test_nobody_is_forgotten_among_many(loop, sync, often):
    """Tasks that ask the network for their own wake-up, in every way there is, at random."""

    def at_a_time(wake):
        loop.call_soon(lambda: loop.call_at(loop.now_ns() + 10_000, wake))

    def task(seed):
        rng = random.Random(seed)
        for _ in range(300):
            waiter = sync.waiter()
            rng.choice([loop.call_soon, loop.call_lazily, at_a_time, lambda wake: wake()])(waiter.wake)
            if rng.random() < 0.1:
                time.sleep(0.0005)
            assert waiter.wait(JOIN_S if rng.random() < 0.5 else None)

    with switching_often() if often else contextlib.nullcontext():
        run(*[functools.partial(task, seed) for seed in range(4)])


def test_a_task_that_drives_is_let_go_when_the_loop_stops():
    loop, sync = SharedLoop(), ThreadSync()
    sync.driver = loop
    loop.start()
    waiter = sync.waiter()
    waited = []
    task = threading.Thread(target=lambda: waited.append(waiter.wait(JOIN_S)))
    task.start()
    time.sleep(0.01)
    loop.stop()
    loop.join()
    assert task.is_alive(), "it sleeps on without the loop"
    waiter.wake()
    task.join(JOIN_S)
    assert waited == [True]


def test_after_the_end_tasks_sleep_as_usual():
    loop, sync = SharedLoop(), ThreadSync()
    sync.driver = loop
    loop.start()
    loop.stop()
    loop.join()
    waiter = sync.waiter()
    assert not waiter.wait(0.001)
    threading.Timer(0.005, waiter.wake).start()
    assert waiter.wait(JOIN_S)


def test_it_has_one_thread_and_that_ends(loop):
    assert [thread.name for thread in threading.enumerate()].count(THREAD_NAME) == 1
