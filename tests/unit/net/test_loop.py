"""The event loops: calls from other threads, timers, file descriptors, and their end."""

import itertools
import logging
import os
import socket
import threading
from collections import deque

import pytest
from tests.support.leaks import open_files
from tests.support.streams import LOOPS
from tests.support.threads import Thread, run_threads, switching_often
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.errors import ConfigError
from headgate.net import loop as loop_module
from headgate.net.loop import THREAD_NAME, SharedLoop, open_loop, poller
from headgate.net.loop.asyncio_loop import AsyncioLoop
from headgate.net.loop.poller import Poller
from headgate.net.loop.timers import Timers

DAY_NS = 24 * 3600 * 10**9


@pytest.fixture(params=LOOPS)
def name(request):
    return request.param


@pytest.fixture
def loop(name):
    """A loop that runs; afterwards it must end and leave no file behind."""
    before = open_files()
    made = open_loop(name)
    made.start()
    yield made
    made.stop()
    made.join()
    assert open_files() <= before, "the loop left files open"


def on(loop, function):
    """Run a function in the loop; return its result."""
    results, done = [], threading.Event()
    loop.post(lambda: (results.append(function()), done.set()))
    assert done.wait(PATIENCE_S), "the loop does not answer"
    return results[0]


# --- which loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", SharedLoop),
        ("shared", SharedLoop),
        ("asyncio", AsyncioLoop),
    ],
)
def test_the_setting_chooses_the_loop(name, kind):
    loop = open_loop(name)
    assert isinstance(loop, kind)
    loop.stop()


def test_auto_without_epoll_is_asyncio(monkeypatch):
    monkeypatch.delattr(loop_module.select, "epoll")
    loop = open_loop("auto")
    assert isinstance(loop, AsyncioLoop)
    loop.stop()
    with pytest.raises(ConfigError, match=r"network\.transport.*no epoll.*'asyncio'"):
        open_loop("shared")


@pytest.mark.parametrize("name", ["", "Shared", "io_uring", "aut", "epoll", "uvloop"])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError) as refused:
        open_loop(name)
    for word in ("network.transport", repr(name), "'auto'", "'shared'", "'asyncio'"):
        assert word in str(refused.value)
    assert ("was removed" in str(refused.value)) == (name in ("epoll", "uvloop"))


# --- calls from other threads ----------------------------------------------------------------------------------------


def test_calls_happen_in_order_on_the_network_thread(loop):
    seen = []
    for i in range(100):
        loop.post(lambda i=i: seen.append((i, threading.current_thread().name)))
    on(loop, lambda: None)
    assert [i for i, _ in seen] == list(range(100))
    # A thread that posts to a shared loop runs the callback itself if no other thread dispatches.
    callers = {threading.current_thread().name} if isinstance(loop, SharedLoop) else set()
    assert {thread for _, thread in seen} <= {THREAD_NAME, *callers}


def test_calls_before_the_start_are_kept(name):
    loop, seen = open_loop(name), []
    loop.post(lambda: seen.append("soon"))
    loop.call_at(loop.now_ns(), lambda: (seen.append("timer"), loop.stop()))
    loop.start()
    loop.join()
    assert sorted(seen) == ["soon", "timer"]


def test_of_calls_from_many_threads_none_is_lost(loop):
    seen = []

    def caller(number):
        return lambda: [loop.post(lambda i=i: seen.append((number, i))) for i in range(3000)]

    with switching_often():
        run_threads(*(caller(number) for number in range(6)))
    on(loop, lambda: None)
    assert len(seen) == 6 * 3000
    for number in range(6):
        assert [i for who, i in seen if who == number] == list(range(3000)), "each thread's calls stay in order"


@pytest.mark.parametrize("threads", [1, 3])
def test_no_wake_up_is_lost_when_the_loop_begins_to_block(loop, threads):
    def ping():
        answered = threading.Semaphore(0)
        for i in range(1500):  # each finds the loop blocked, or about to block, or just woken
            loop.post(answered.release)
            assert answered.acquire(timeout=PATIENCE_S), f"call {i} was never made"

    with switching_often():
        run_threads(*[ping] * threads)


class Interrupted(deque):
    """A queue of callbacks; just after the loop has checked it for the n-th time, another thread adds one."""

    looks = 0

    def interrupt(self, at, function):
        self.at, self.function, self._numbers = at, function, itertools.count(1)

    def __bool__(self):
        return len(self) > 0

    def __len__(self):
        found = super().__len__()
        self.looks = look = next(self._numbers)  # in one step: two threads may look at once
        if look == self.at:
            caller = threading.Thread(target=self.function)
            caller.start()
            caller.join()
        return found


@pytest.mark.parametrize("at", range(1, 12))
def test_a_callback_posted_at_any_point_before_the_loop_blocks_is_run(name, at):
    loop, heard = open_loop(name), threading.Event()
    loop._urgent = Interrupted()
    loop._urgent.interrupt(at, lambda: loop.post(heard.set))
    loop.post(lambda: None)  # a first dispatch, and no work after it
    loop.start()
    for _ in range(200):  # the loop may block before so many checks: a callback makes it check again
        if loop._urgent.looks >= at:
            break
        on(loop, lambda: None)
    assert heard.wait(PATIENCE_S), "the wake-up was lost"
    loop.stop()
    loop.join()


def test_a_poller_that_does_not_block_is_not_interrupted(monkeypatch):
    loop, writes = SharedLoop(), []
    monkeypatch.setattr(poller.os, "eventfd_write", lambda fd, _: writes.append(fd))
    started, go_on = threading.Event(), threading.Event()
    loop.post(lambda: (started.set(), go_on.wait(PATIENCE_S)))
    loop.start()
    assert started.wait(PATIENCE_S)
    for _ in range(100):
        loop.post(lambda: loop.post(lambda: None))
        loop.post(lambda: None, urgent=False)
    assert writes == [], "neither from here nor from the loop itself"
    loop.post(loop.stop)
    go_on.set()
    loop.join()


def test_a_poller_that_blocks_is_interrupted_once(monkeypatch):
    one, writes = Poller(), []
    monkeypatch.setattr(poller.os, "eventfd_write", lambda fd, _: writes.append(fd))
    one._armed.append(None)  # as if a thread blocked
    for _ in range(10):
        one.interrupt()
    assert writes == [one._wake_fd]
    one.close()


def test_callbacks_that_post_callbacks_do_not_starve_sockets(loop):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arrived = threading.Event()
        theirs.send(b"x")

        def again():
            if not arrived.is_set():
                loop.post(again)

        loop.post(again)
        on(loop, lambda: loop.watch(ours.fileno(), arrived.set, None))
        assert arrived.wait(PATIENCE_S)
        on(loop, lambda: loop.watch(ours.fileno(), None, None))


# --- what callbacks raise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("oops"), SystemExit("oops"), KeyboardInterrupt("oops")], ids=repr)
def test_an_error_of_a_callback_is_logged_and_the_loop_continues(loop, caplog, error):
    if isinstance(loop, SharedLoop) and isinstance(error, KeyboardInterrupt):
        return  # there it may be Ctrl-C, which is raised after the dispatch: see test_shared_loop
    ours, theirs = socket.socketpair()
    with ours, theirs:
        called = []

        def fail(where):
            called.append(where)
            if where in ("read", "write"):
                loop.watch(ours.fileno(), None, None)
            raise error

        with caplog.at_level(logging.ERROR):
            loop.post(lambda: fail("soon"))
            on(loop, lambda: loop.call_at(loop.now_ns(), lambda: fail("timer")))
            theirs.send(b"x")
            on(loop, lambda: loop.watch(ours.fileno(), lambda: fail("read"), None))
            while "read" not in called:
                on(loop, lambda: None)
            on(loop, lambda: loop.watch(ours.fileno(), None, lambda: fail("write")))
            while len(called) < 4:
                on(loop, lambda: None)
            on(loop, lambda: None)  # the last one's log entry
        assert sorted(called) == ["read", "soon", "timer", "write"]
        assert [record.exc_info[1] for record in caplog.records] == [error] * 4


# --- timers ----------------------------------------------------------------------------------------------------------


def test_timers_fire_by_time_and_equal_ones_in_order(loop):
    seen, done = [], threading.Event()

    def set_timers():
        base = loop.now_ns() + 5_000_000
        for i, offset in enumerate([3, 1, 2, 1, 0, 3_000_000, 2_000_001, 2_000_000]):
            loop.call_at(base + offset, lambda i=i, at=base + offset: seen.append((i, loop.now_ns() >= at)))
        loop.call_at(base + 4_000_000, done.set)

    on(loop, set_timers)
    assert done.wait(PATIENCE_S)
    assert [i for i, _ in seen] == [4, 1, 3, 2, 0, 7, 6, 5]
    assert all(in_time for _, in_time in seen), "never before its time"


def test_a_timer_is_never_early(loop):
    early, done = [], threading.Semaphore(0)

    def next_one(left):
        at = loop.now_ns() + left * 100_000

        def due():
            early.append(loop.now_ns() < at)
            if left:
                next_one(left - 1)
            else:
                done.release()

        loop.call_at(at, due)

    loop.post(lambda: next_one(25))
    assert done.acquire(timeout=PATIENCE_S)
    assert early == [False] * 26


def test_a_cancelled_timer_does_not_happen(loop):
    seen, done = [], threading.Event()

    def set_timers():
        now = loop.now_ns()
        first = loop.call_at(now, lambda: seen.append("cancelled at once"))
        first.cancel()
        first.cancel()
        second = loop.call_at(now + 1, lambda: seen.append("cancelled by one that is due with it"))
        loop.call_at(now, second.cancel)
        last = loop.call_at(now + 2_000_000, lambda: (seen.append("happened"), done.set()))
        loop.call_at(now + 4_000_000, last.cancel)  # too late, and no harm

    on(loop, set_timers)
    assert done.wait(PATIENCE_S)
    assert seen == ["happened"]


def test_an_earlier_timer_overtakes_a_later_one_and_far_ones_are_allowed(loop):
    done = threading.Event()
    on(loop, lambda: loop.call_at(loop.now_ns() + 10_000 * DAY_NS, done.set))
    assert not done.is_set()
    on(loop, lambda: loop.call_at(loop.now_ns() + 1_000_000, done.set))
    assert done.wait(PATIENCE_S)


def test_a_timer_in_the_past_does_not_starve_callbacks(loop):
    again = []

    def repeat():
        again.append(None)
        if len(again) < 50:
            loop.call_at(0, repeat)

    on(loop, lambda: loop.call_at(0, repeat))
    while len(again) < 50:
        on(loop, lambda: None)


def test_cancelled_timers_do_not_pile_up():
    timers = Timers()
    kept = timers.add(DAY_NS + 1, lambda: None)
    for _ in range(10_000):
        timers.add(DAY_NS, lambda: None).cancel()
    assert len(timers) < 200
    assert timers.next_ns() == DAY_NS + 1
    kept.cancel()
    assert timers.next_ns() is None
    assert len(timers) == 0


def test_timers_added_while_others_run_wait_for_the_next_time():
    timers, seen = Timers(), []
    timers.add(1, lambda: timers.add(0, lambda: seen.append("second")))
    due = timers.take_due(5)
    assert len(due) == 1
    due[0].run()
    assert seen == []
    [second] = timers.take_due(5)
    second.run()
    second.run()
    assert seen == ["second"], "once"


# --- file descriptors ------------------------------------------------------------------------------------------------


def test_readable_and_writable_run_different_callbacks(loop):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen = []

        def told(what, *watch):
            def tell():
                seen.append(what)
                loop.watch(ours.fileno(), *watch)

            return tell

        on(loop, lambda: loop.watch(ours.fileno(), told("readable", None, None), None))
        for _ in range(5):
            on(loop, lambda: None)
        assert seen == [], "there is nothing to read"
        on(loop, lambda: loop.watch(ours.fileno(), told("readable", None, None), told("writable", None, None)))
        while not seen:
            on(loop, lambda: None)
        for _ in range(5):
            on(loop, lambda: None)
        assert seen == ["writable"], "and no more, once it is not watched"
        theirs.send(b"x")
        both = told("readable", None, told("writable", None, None))
        on(loop, lambda: loop.watch(ours.fileno(), both, None))
        while len(seen) < 3:
            on(loop, lambda: None)
        assert seen == ["writable", "readable", "writable"]


def test_a_callback_runs_again_until_the_descriptor_is_read(loop):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen, done = [], threading.Event()
        theirs.send(b"abc")

        def read_one():
            seen.append(ours.recv(1))
            if len(seen) == 3:
                loop.watch(ours.fileno(), None, None)
                done.set()

        on(loop, lambda: loop.watch(ours.fileno(), read_one, None))
        assert done.wait(PATIENCE_S)
        assert seen == [b"a", b"b", b"c"]


@pytest.mark.parametrize("way", ["readable", "writable", "both"])
def test_a_broken_descriptor_runs_the_callbacks_that_watch_it(loop, way):
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        told = threading.Event()

        def tell():
            told.set()
            loop.watch(ours.fileno(), None, None)

        readable, writable = (tell if way in (one, "both") else None for one in ("readable", "writable"))
        on(loop, lambda: loop.watch(ours.fileno(), readable, writable))
        assert told.wait(PATIENCE_S)


@pytest.mark.parametrize("end", [0, 1])
def test_a_descriptor_that_is_only_broken_runs_its_callback(loop, end):
    """A pipe whose other end is closed can neither be read nor, for epoll, be written: it hung up, or has an error."""
    ends = os.pipe()
    ours, theirs = ends[end], ends[1 - end]
    os.close(theirs)
    told = threading.Event()

    def tell():
        told.set()
        loop.watch(ours, None, None)

    on(loop, lambda: loop.watch(ours, *((tell, None) if end == 0 else (None, tell))))
    assert told.wait(PATIENCE_S)
    on(loop, lambda: os.close(ours))


def test_one_callback_may_stop_the_watching_of_another_that_is_ready_too(loop):
    pairs = [socket.socketpair() for _ in range(8)]
    seen = []

    def first():
        seen.append("one")
        for ours, _ in pairs:
            loop.watch(ours.fileno(), None, None)

    def set_up():
        for ours, theirs in pairs:
            theirs.send(b"x")
            loop.watch(ours.fileno(), first, None)

    on(loop, set_up)
    while not seen:
        on(loop, lambda: None)
    on(loop, lambda: None)
    assert seen == ["one"]
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_read_callback_may_stop_the_watching_before_the_write_callback_runs(loop):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        seen, done = [], threading.Event()

        def readable():
            seen.append("readable")
            loop.watch(ours.fileno(), None, None)
            done.set()

        def set_up():  # on the loop's thread, so that both are ready when it looks
            theirs.send(b"x")
            loop.watch(ours.fileno(), readable, lambda: seen.append("writable"))

        on(loop, set_up)
        assert done.wait(PATIENCE_S)
        on(loop, lambda: None)
        assert seen[-1] == "readable", "nothing after the end of the watching"


def test_a_number_that_is_used_again_is_watched_anew(loop):
    for round_ in range(20):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            told = threading.Event()
            theirs.send(b"x")
            on(loop, lambda ours=ours, told=told: loop.watch(ours.fileno(), told.set, None))
            assert told.wait(PATIENCE_S), f"round {round_}"
            on(loop, lambda ours=ours: loop.watch(ours.fileno(), None, None))


# --- threads and the end ---------------------------------------------------------------------------------------------


def test_calls_of_the_network_thread_are_refused_to_other_threads(loop):
    on(loop, lambda: None)
    with pytest.raises(AssertionError, match="network thread"):
        loop.call_at(0, lambda: None)
    with pytest.raises(AssertionError, match="network thread"):
        loop.watch(0, lambda: None, None)


def test_stop_runs_callbacks_posted_before_it(name):
    loop, seen = open_loop(name), []
    loop.start()
    for i in range(1000):
        loop.post(lambda i=i: seen.append(i))
    loop.stop()
    loop.join()
    assert seen == list(range(1000))
    loop.post(lambda: seen.append("too late"))
    loop.stop()
    loop.join()
    assert len(seen) == 1000


def test_a_loop_can_be_stopped_by_its_own_thread(name):
    loop = open_loop(name)
    loop.start()
    on(loop, lambda: (loop.stop(), loop.join()))
    loop.join()
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}


def test_a_loop_that_never_ran_leaves_nothing(name):
    before = open_files()
    loop = open_loop(name)
    loop.stop()
    loop.stop()
    loop.join()
    assert open_files() <= before


def test_close_waits_for_a_thread_that_is_about_to_write(monkeypatch):
    one, write = Poller(), os.eventfd_write  # which raises an OSError at a closed file
    may_write = threading.Event()
    monkeypatch.setattr(poller.os, "eventfd_write", lambda fd, one: (may_write.wait(PATIENCE_S), write(fd, one)))
    writers = []

    def change():  # as a thread that takes the token while another is about to block
        writers.append(Thread(one.interrupt))
        wait_until(lambda: not one.blocks, "taking the token")
        return 0.0

    one.wait(change)
    closing = Thread(one.close)
    assert not one.closed, "the eventfd would be closed under the writer"
    may_write.set()
    closing.end()
    writers[0].end()
    assert one.closed


def test_callers_that_race_with_the_end_do_no_harm(name):
    """Above all: no thread writes to a descriptor that was closed, and may be another file by then."""
    before = open_files()
    with switching_often():
        for _ in range(100):
            loop = open_loop(name)
            loop.start()

            def call(loop=loop):
                for _ in range(100):
                    loop.post(lambda: None)

            def end(loop=loop):
                loop.stop()
                loop.join()

            run_threads(call, call, end)
    assert open_files() <= before
