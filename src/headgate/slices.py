"""How soon the system lets a thread run that has something to do.

Linux gives the threads that share a processor equal parts of it, in slices of a millisecond or more: one that is woken
beside a busy thread may wait for the end of that one's slice. A thread that asks for shorter slices gets the same part,
in smaller pieces, and sooner. That needs no privilege, and does something since Linux 6.12; before, and elsewhere, the
call changes nothing.

Sooner than others, that is: where all ask for short slices, nobody gains. So a task asks for them unless it spends most
of its time on long runs, from one wait to the next. Everything happens on the task's own thread.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Slices", "ask_for_slices"]

_SET_AND_GET: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}  # the numbers of sched_setattr and sched_getattr
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_NORMAL: Final = 0  # the policy that this is about
_NOT_FOR_CHILDREN: Final = 1  # what the thread starts has the system's own slices
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


class Slices:
    """The slices of one task's thread: short ones, but not while it mostly runs for long; none if `slice_ns` is 0.

    >>> slices = Slices(100_000, ask=print)
    >>> slices.begin()
    100000
    >>> for _ in range(4): slices.ran(5_000_000)
    0
    >>> for _ in range(400): slices.ran(50_000)
    100000
    """

    __slots__ = ("_ask", "_brief_ns", "_long_ns", "_short", "_slice_ns")

    def __init__(self, slice_ns: int, ask: Callable[[int], object] = ask_for_slices) -> None:
        self._slice_ns = slice_ns
        self._ask = ask
        self._short = False
        # Spent on runs of each kind since the last look. Not their number: between a look at the network that finds
        # nothing and the wait for it there is a very brief one, and who is kept from running has a long one at times.
        self._brief_ns = self._long_ns = 0

    def begin(self) -> None:
        """The thread has started."""
        if self._slice_ns:
            self._short = True
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
        if short is not self._short and self._slice_ns:
            self._short = short
            self._ask(self._slice_ns if short else 0)
