"""Shorter slices of a processor's time: asked for by the threads of tasks, and by nobody else."""

import ctypes
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
from headgate.slices import ask_for_slices

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
    one = slices.Slices(wanted, ask=lambda ns: found.append((at, ns)))
    one.begin()
    for at, run_ns in enumerate(runs_ns, start=1):  # noqa: B007 - `ask` looks at it
        one.ran(run_ns)
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
