"""How soon a thread runs that has something to do: when it gets a processor, and when it asks for the interpreter.

Linux gives the threads that share a processor equal parts of it, in slices of a millisecond or more: one that is woken
beside a busy thread may wait for the end of that one's slice. A thread that asks for shorter slices gets the same part,
in smaller pieces, and sooner. That needs no privilege, and does something since Linux 6.12; before, and elsewhere, the
call changes nothing.

Sooner than others, that is: where all ask for short slices, nobody gains. So a task asks for them unless it spends most
of its time on long runs, from one wait to the next. Such a task steps back: it has the system's slices, takes a
processor from nobody when it is woken (as a batch job: its part stays the same), is a little nicer (its part is smaller
where there is not enough for all), and asks later for the interpreter.

A thread that finds the interpreter taken asks for it after `sys.getswitchinterval()`, by a timer of the system's. All
threads have one interval, but each its own timer slack: so who has slept asks at once, and who computes asks later.

Everything happens on the thread that it is about.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Slices", "ask_as_usual", "ask_at_once", "ask_for_slices", "ask_late"]

_SET_AND_GET: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}  # the numbers of sched_setattr and sched_getattr
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_NORMAL: Final = 0  # the policy that this is about
_NOT_FOR_CHILDREN: Final = 1  # what the thread starts has the system's own slices
_SET_SLACK: Final = 29  # the number of prctl's option
_LATE_NS: Final = 200_000  # more than most of what a task does that has slept
_LONG_NS: Final = 1_000_000  # of a run: about a slice of the system's own
_LOOK_NS: Final = 20_000_000  # of running, between two looks at what kind of runs it was spent on
_MOST_NS: Final = 5_000_000  # of one run that counts: none decides alone, not even the first, with all the set-up in it


def ask_for_slices(slice_ns: int) -> bool:
    """Let the calling thread run in slices of that length from now on; the system takes 0.1 to 100 ms. Whether it does.

    0: in the system's own. Threads and processes that it starts are not concerned. Nothing changes if the thread is one
    that somebody has given another policy.

    >>> ask_for_slices(0) in (True, False)
    True
    """
    numbers = _SET_AND_GET.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None:
        return False
    call = ctypes.CDLL(None).syscall
    attributes = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if call(numbers[1], 0, attributes, _ATTRIBUTES.size, 0):
        return False
    size, policy, flags, nice, *_ = _ATTRIBUTES.unpack(attributes.raw)
    if policy != _NORMAL:
        return False
    wanted = _ATTRIBUTES.pack(size, policy, flags | _NOT_FOR_CHILDREN, nice, 0, slice_ns, 0, 0)
    refused: int = call(numbers[0], 0, wanted, 0)
    return not refused


class _Usual(threading.local):
    slack_ns = 0  # as the system likes, which is 50 us


_usual = _Usual()


def _find_slack() -> Callable[[int], object]:
    if sys.platform != "linux":
        return lambda _: None
    prctl = ctypes.PyDLL(None).prctl
    prctl.argtypes = ctypes.c_int, ctypes.c_ulong
    return lambda slack_ns: prctl(_SET_SLACK, slack_ns)


_set_slack = _find_slack()


def ask_late(slack_ns: int) -> None:
    """Let the calling thread's timers be so late, usually: by one of them it asks for the interpreter. 0: as before.

    >>> ask_late(200_000); ask_late(0)
    """
    _usual.slack_ns = slack_ns
    _set_slack(slack_ns)


def ask_at_once() -> None:
    """Before a wait: when that is over, the calling thread asks for the interpreter with no more delay than it must.

    >>> ask_at_once(); ask_as_usual()
    """
    _set_slack(1)


def ask_as_usual() -> None:
    """After a wait: from now on as before it.

    >>> ask_at_once(); ask_as_usual()
    """
    _set_slack(_usual.slack_ns)


class Slices:
    """The slices of one task's thread: short ones, but not while it mostly runs for long; none if `slice_ns` is 0.

    While it does, it also steps back: as a batch job, by `nice` of the system's steps, and when it asks for the
    interpreter. Linux does not let everybody take back the nice value: then that stays so.

    >>> slices = Slices(100_000, ask=print)
    >>> slices.begin()
    100000
    >>> for _ in range(4): slices.ran(5_000_000)
    0
    >>> for _ in range(400): slices.ran(50_000)
    100000
    """

    __slots__ = ("_ask", "_before", "_brief_ns", "_long_ns", "_nice", "_normal", "_short", "_slice_ns")

    def __init__(self, slice_ns: int, nice: int = 0, ask: Callable[[int], object] = ask_for_slices) -> None:
        self._slice_ns = slice_ns
        self._nice = nice
        self._ask = ask
        self._short = True
        self._before = 0  # how nice it was
        self._normal = False  # nobody has given it another policy
        # Spent on runs of each kind since the last look. Not their number: between a look at the network that finds
        # nothing and the wait for it there is a very brief one, and who is kept from running has a long one at times.
        self._brief_ns = self._long_ns = 0

    def begin(self) -> None:
        """The thread has started."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # some systems' libraries, and sandboxes, know nothing of policies
                self._normal = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
        if self._nice and sys.platform == "linux":  # elsewhere it is the process that is nice
            self._before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if self._slice_ns:
            self._ask(self._slice_ns)

    def ran(self, run_ns: int) -> None:
        """The thread is about to wait, or to look whether it must, after so long a run."""
        if run_ns > _LONG_NS:
            self._long_ns += min(run_ns, _MOST_NS)
        else:
            self._brief_ns += run_ns
        if self._brief_ns + self._long_ns < _LOOK_NS:
            return
        short = self._brief_ns >= self._long_ns
        self._brief_ns = self._long_ns = 0
        if short is not self._short:
            self._short = short
            self._change(short=short)

    def _change(self, *, short: bool) -> None:
        ask_late(0 if short else _LATE_NS)
        if short:  # slices are for normal threads
            self._be_batch_job(batch=False)
        if self._slice_ns:
            self._ask(self._slice_ns if short else 0)
        if not short:
            self._be_batch_job(batch=True)
        if self._nice and sys.platform == "linux":
            nice = self._before if short else self._before + self._nice
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)

    def _be_batch_job(self, *, batch: bool) -> None:
        """Who wakes a batch job goes on: it does not lose its processor, for up to a tick, by waking somebody."""
        if not self._normal:
            return
        with contextlib.suppress(OSError):  # not allowed: then it goes on as it is
            kept = os.sched_getscheduler(0) & os.SCHED_RESET_ON_FORK  # which `ask_for_slices` has set
            os.sched_setscheduler(0, (os.SCHED_BATCH if batch else os.SCHED_OTHER) | kept, os.sched_param(0))
