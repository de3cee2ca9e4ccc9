"""The loop that waiting tasks drive: nobody sleeps for ever, nothing is left undone, whoever comes and goes."""

import contextlib
import functools
import random
import threading
import time

import pytest
from tests.support import JOIN_S, Thread, switching_often

from headgate.net.loop import THREAD_NAME
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
            loop.call_lazily(interrupt)
            sync.waiter().wait(0.001)

    with pytest.raises(KeyboardInterrupt):
        wait_until_interrupted()
    waiter = sync.waiter()
    loop.call_soon(waiter.wake)
    assert waiter.wait(JOIN_S), "the loop goes on"


def test_who_asks_while_nobody_drives_does_it_itself(loop):
    """For a moment after each turn the network thread gives way."""
    deadline, done_on = time.monotonic() + JOIN_S, []
    while threading.current_thread() not in done_on:
        assert time.monotonic() < deadline, "the network thread never gave way"
        loop.call_soon(lambda: done_on.append(threading.current_thread()))
        time.sleep(0.0001)


def test_what_is_lazy_is_done_by_the_network_thread_in_the_end(loop):
    done = threading.Event()
    for _ in range(50):
        done.clear()
        loop.call_lazily(done.set)
        assert done.wait(JOIN_S)


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
