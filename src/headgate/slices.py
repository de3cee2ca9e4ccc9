"""How soon the system lets a thread run that has something to do.

Linux gives the threads that share a processor equal parts of it, in slices of a millisecond or more: one that is woken
beside a busy thread may wait for the end of that one's slice. A thread that asks for shorter slices gets the same part,
in smaller pieces, and sooner. That needs no privilege, and does something since Linux 6.12; before, and elsewhere, the
call changes nothing.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import Final

__all__ = ["ask_for_slices"]

_SET_AND_GET: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}  # the numbers of sched_setattr and sched_getattr
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_NORMAL: Final = 0  # the policy that this is about
_NOT_FOR_CHILDREN: Final = 1  # what the thread starts has the system's own slices


def ask_for_slices(slice_ns: int) -> bool:
    """Let the calling thread run in slices of that length from now on; the system takes 0.1 to 100 ms. Whether it does.

    Threads and processes that it starts are not concerned. Nothing changes if `slice_ns` is 0, or the thread is one
    that somebody has given another policy.

    >>> ask_for_slices(0)
    False
    """
    numbers = _SET_AND_GET.get(platform.machine()) if sys.platform == "linux" else None
    if not slice_ns or numbers is None:
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
