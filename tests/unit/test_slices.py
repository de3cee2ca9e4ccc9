"""Shorter slices of a processor's time: asked for by the threads of tasks, and by nobody else."""

import ctypes
import os
import platform
import struct
import sys
import threading

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

    Thread(ask).end()
    assert inside_ns == [SLICE_NS, before_ns]
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


@needs_slices
@pytest.mark.parametrize("wanted", ["250 us", "0 s"])
def test_every_task_asks_for_them(wanted):
    env = small_env(2, execution__time_slice=wanted)
    found = set(collected(env.from_collection(range(10)).rebalance().map(lambda _: slice_ns())))
    assert found == {SLICE_NS if wanted != "0 s" else slice_ns()}
