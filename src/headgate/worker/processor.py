"""How much of the processors a thread and this process have had, as far as the system says.

`ThreadClock.of_this_thread` is called on the thread that is to be measured; its clock is read by others, once a second.

Invariant: a clock is not read after `close`, for the system may have given its number to another thread.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Final, Self

__all__ = ["UNKNOWN_NS", "ThreadClock", "process_cpu_ns", "resident_bytes"]

UNKNOWN_NS: Final = -1
"""What stands for a time that the system does not say."""


class ThreadClock:
    """What one thread has had of the processors.

    >>> clock = ThreadClock.of_this_thread()
    >>> clock.cpu_ns() > 0, clock.run_queue_ns() >= -1
    (True, True)
    >>> clock.close(); clock.cpu_ns(), clock.run_queue_ns()
    (-1, -1)
    """

    __slots__ = ("_clock", "_closed", "_native")

    def __init__(self, clock: int | None, native: int | None) -> None:
        self._clock = clock
        self._native = native
        self._closed = False

    @classmethod
    def of_this_thread(cls) -> Self:
        """The clock of the calling thread."""
        clock = None
        if hasattr(time, "pthread_getcpuclockid"):  # not everywhere
            with suppress(OSError):
                clock = time.pthread_getcpuclockid(threading.get_ident())  # asked of a thread that is gone, it crashes
        return cls(clock, threading.get_native_id())

    def close(self) -> None:
        """The thread is about to end. May be repeated."""
        self._closed = True

    def cpu_ns(self) -> int:
        """For how long it was on a processor; -1: nobody knows."""
        if self._clock is None or self._closed:
            return UNKNOWN_NS
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # it has ended
            return UNKNOWN_NS

    def run_queue_ns(self) -> int:
        """For how long it could have been on one, had one been free; -1: nobody knows."""
        if self._native is None or self._closed:
            return UNKNOWN_NS
        try:
            with open(f"/proc/self/task/{self._native}/schedstat", "rb", buffering=0) as schedstat:
                return int(schedstat.read().split()[1])
        except (OSError, ValueError, IndexError):  # another system, or it has ended
            return UNKNOWN_NS


def process_cpu_ns() -> int:
    """For how long all threads of this process were on processors.

    >>> process_cpu_ns() > 0
    True
    """
    return time.process_time_ns()


def resident_bytes() -> int:
    """The memory of this process; 0: the system does not say.

    >>> resident_bytes() >= 0
    True
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system: it is only a figure
        return 0
