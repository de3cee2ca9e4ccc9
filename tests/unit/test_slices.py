"""How soon the threads of tasks run: slices of a processor's time, nice values, when they ask for the interpreter."""

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
import threading
import time

import pytest
from tests.support import Thread
from tests.support_pipeline import collected, small_env

from headgate import slices
from headgate.slices import Slices, ask_as_usual, ask_at_once, ask_for_slices, ask_late

SLICE_NS = 250_000


def slice_ns(thread=0):
    """What the system says of a thread, by its number; 0: the caller's."""
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(slices._SET_AND_GET[platform.machine()][1], thread, attributes, 48, 0) == 0
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


def release():
    return tuple(int(part) for part in platform.release().split(".")[:2]) if sys.platform == "linux" else (0, 0)


needs_slices = pytest.mark.skipif(
    release() < (6, 12) or platform.machine() not in slices._SET_AND_GET, reason="Linux 6.12 is the first with slices"
)


@needs_slices
def test_the_calling_thread_alone_has_them():
    before_ns, inside_ns = slice_ns(), []

    def ask():
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert ask_for_slices(SLICE_NS)
        inside_ns.append(slice_ns())
        child = threading.Thread(target=lambda: inside_ns.append(slice_ns()))
        child.start()
        child.join()
        assert os.getpriority(os.PRIO_PROCESS, 0) == nice

        assert ask_for_slices(0)
        inside_ns.append(slice_ns())

    Thread(ask).end()
    assert inside_ns == [SLICE_NS, before_ns, before_ns]
    assert slice_ns() == before_ns


@needs_slices
def test_a_thread_with_another_policy_is_left_alone():
    def ask():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        assert not ask_for_slices(SLICE_NS)
        assert os.sched_getscheduler(0) == os.SCHED_BATCH

    Thread(ask).end()


@pytest.mark.parametrize(("owner", "name"), [(platform, "machine"), (sys, "platform")])
def test_elsewhere_nothing_happens(owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, "abacus" if owner is sys else lambda: "abacus")
    assert not ask_for_slices(SLICE_NS)


BRIEF_NS, LONG_NS = 1_000_000, 5_000_000  # of these, twenty and four are as long as it takes to look


def asked(*runs_ns, wanted=SLICE_NS):
    """What is asked for, and after how many runs."""
    found, at = [], 0
    one = Slices(wanted, ask=lambda ns: found.append((at, ns)))

    def run():
        nonlocal at
        one.begin()
        for at, run_ns in enumerate(runs_ns, start=1):  # noqa: B007 - `ask` looks at it
            one.ran(run_ns)

    Thread(run).end()
    return found


def test_a_task_whose_runs_are_long_gives_short_slices_back_and_asks_again_when_they_are_brief():
    runs_ns = [*[LONG_NS] * 8, *[BRIEF_NS] * 40, *[LONG_NS] * 4]
    assert asked(*runs_ns) == [(0, SLICE_NS), (4, 0), (28, SLICE_NS), (52, 0)]


def test_what_most_of_the_time_is_spent_on_counts_not_how_often():
    assert asked(*[LONG_NS, 1_000, 1_000, 1_000] * 4) == [(0, SLICE_NS), (13, 0)]
    assert asked(*[LONG_NS, *[BRIEF_NS] * 15] * 4) == [(0, SLICE_NS)], "once it was kept from running"


def test_one_run_does_not_decide_however_long_it_was():
    second_ns = 1_000_000_000  # from the set-up to the first wait, say
    assert asked(second_ns, *[BRIEF_NS] * 40, second_ns, *[BRIEF_NS] * 40) == [(0, SLICE_NS)]
    assert asked(*[second_ns] * 4) == [(0, SLICE_NS), (4, 0)]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has none of its own")


def own_nice():
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def may_come_forward():
    """Whether a thread may take back what it has stepped back."""
    before = own_nice()
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before + 1)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before)
    return own_nice() == before


def own_slack_ns():
    return ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)


@needs_linux
@pytest.mark.parametrize("allowed", [True, False])
def test_a_task_whose_runs_are_long_steps_back_and_comes_forward_again_as_far_as_it_may(monkeypatch, allowed):
    before, change, found = own_nice(), os.setpriority, []

    def set_priority(which, who, nice):  # as it is for those with no privilege, whoever runs this
        if not allowed and nice < own_nice():
            raise PermissionError
        change(which, who, nice)

    def run():
        one = Slices(0, nice=3)
        one.begin()
        usual_ns = own_slack_ns()
        for run_ns in (LONG_NS, BRIEF_NS, LONG_NS):
            for _ in range(20):
                one.ran(run_ns)
            found.append((own_nice() - before, own_slack_ns() - usual_ns))

    if allowed and not Thread(may_come_forward).end():
        pytest.skip("it takes a privilege")
    monkeypatch.setattr(os, "setpriority", set_priority)
    Thread(run).end()
    later_ns = found[0][1]
    assert found == [(3, later_ns), (0 if allowed else 3, 0), (3, later_ns)]
    assert later_ns > 100_000
    assert own_nice() == before, "the other thread's alone"


def own_policy():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


@needs_linux
@pytest.mark.parametrize("wanted", [SLICE_NS, 0])
def test_a_task_whose_runs_are_long_takes_a_processor_from_nobody_when_it_is_woken(wanted):
    found = []

    def run():
        one = Slices(wanted)
        one.begin()
        for run_ns in (LONG_NS, BRIEF_NS, LONG_NS):
            for _ in range(20):
                one.ran(run_ns)
            found.append(own_policy())

    Thread(run).end()
    assert found == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_BATCH]
    assert own_policy() == os.SCHED_OTHER, "the other thread's alone"


@needs_linux
@pytest.mark.parametrize("refused", ["sched_getscheduler", "sched_setscheduler"])
def test_where_policies_are_refused_a_task_goes_on_as_it_is(monkeypatch, refused):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "not here")

    policy = os.sched_getscheduler(0)
    monkeypatch.setattr(os, refused, refuse)
    assert asked(*[LONG_NS] * 8, *[BRIEF_NS] * 40) == [(0, SLICE_NS), (4, 0), (28, SLICE_NS)]
    monkeypatch.undo()
    assert os.sched_getscheduler(0) == policy


@needs_linux
def test_a_policy_that_somebody_has_given_a_task_stays():
    def run():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        one = Slices(SLICE_NS)
        one.begin()
        for run_ns in (LONG_NS, BRIEF_NS):
            for _ in range(20):
                one.ran(run_ns)
        return own_policy()

    assert Thread(run).end() == os.SCHED_BATCH


@needs_linux
def test_who_waits_asks_at_once_after_it_and_later_otherwise():
    found_ns = []

    def run():
        found_ns.append(own_slack_ns())
        ask_at_once()
        found_ns.append(own_slack_ns())
        ask_as_usual()
        found_ns.append(own_slack_ns())
        ask_late(300_000)
        ask_at_once()
        ask_as_usual()
        found_ns.append(own_slack_ns())

    Thread(run).end()
    usual_ns = found_ns[0]
    assert found_ns == [usual_ns, 1, usual_ns, 300_000]


def test_where_none_are_wanted_none_are_asked_for():
    assert asked(*[LONG_NS] * 8, *[BRIEF_NS] * 40, wanted=0) == []


@needs_slices
@pytest.mark.parametrize("wanted", ["250 us", "0 s"])
def test_every_task_asks_for_them(wanted):
    env = small_env(2, execution__time_slice=wanted)
    found = set(collected(env.from_collection(range(10)).rebalance().map(lambda _: slice_ns())))
    assert found == {SLICE_NS if wanted != "0 s" else slice_ns()}


@needs_slices
def test_a_task_that_computes_for_long_gives_them_back():
    def compute(_):
        time.sleep(0.002)  # as long as it takes: to the task this is a run of its own
        return slice_ns()

    env = small_env(1, execution__time_slice="250 us")
    found = collected(env.rate(200, count=100).rebalance().map(compute))
    assert {SLICE_NS, slice_ns()} == set(found), "first, and later"


@needs_linux
def test_a_task_that_computes_for_long_steps_back_by_as_much_as_is_set():
    def compute(_):
        time.sleep(0.002)
        return own_nice()

    before = own_nice()
    env = small_env(1, execution__long_run_nice=2)
    assert set(collected(env.rate(200, count=100).rebalance().map(compute))) == {before, before + 2}
    env = small_env(1, execution__long_run_nice=0)
    assert set(collected(env.rate(200, count=50).rebalance().map(compute))) == {before}
