"""The measurements of one task: what it did in each `metrics.interval`, and the processor time of its thread (B2).

A `TaskMeter` reads the counters of one task on the control thread; the task's own thread calls `end`, last. It takes no
lock: its caller sees to it that one thread at a time is in here, and the counters that it reads may be slightly old.

Intervals are counted from 1970 by the worker's clock and all have the same length, so the intervals of all tasks and
workers align. A measurement that comes late is spread evenly over the intervals that it missed.

A `ThreadClock` is made on the thread that it measures and read by the control thread, once a second.

Invariants: the intervals have no gap, and the last one ends at `ended_ms`; the times of an interval add up to 1000;
records are neither lost nor counted twice, except those of intervals that are dropped because they are too many; a
`ThreadClock` is not read after `close`, for the system may have given its id to another thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from headgate.control.reports import SubtaskInterval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.input import InputGate
    from headgate.meters import TaskTimer, TimeSpent
    from headgate.output import AnyPartition
    from headgate.task.runtime.task import Task

__all__ = ["UNKNOWN_NS", "TaskMeter", "ThreadClock", "process_cpu_ns", "resident_bytes"]

_MAX_INTERVALS: Final = 1000  # that wait to be reported
_MAX_BACKWARDS: Final = 20  # intervals; a clock that goes further back was set


class TaskMeter:
    """Measures one task.

    >>> from types import SimpleNamespace
    >>> from headgate.meters import TaskTimer
    >>> clock = SimpleNamespace(ns=0)
    >>> task = SimpleNamespace(loop=SimpleNamespace(records_in=0), writers=[])
    >>> meter = TaskMeter(task, TaskTimer(lambda: clock.ns), [], length_ms=100)
    >>> meter.begin(1000)
    >>> clock.ns, task.loop.records_in = 200_000_000, 7
    >>> meter.measure(1207)  # 100 ms late
    >>> [(one.busy, one.records_in) for one in meter.drain()], meter.ended_ms
    ([(1000, 3), (1000, 4)], 1200)
    """

    __slots__ = ("_gates", "_length_ms", "_next", "_partitions", "_seen", "_spent", "_task", "_timer", "_waiting")

    def __init__(self, task: Task, timer: TaskTimer, gates: Sequence[InputGate], *, length_ms: int) -> None:
        self._task = task
        self._timer = timer
        self._gates = tuple(gates)
        self._partitions: tuple[AnyPartition, ...] = tuple(writer.partition for writer in task.writers)
        self._length_ms = length_ms  # of an interval; 0: none are measured
        self._next: int | None = None  # the first interval that is not measured yet
        self._seen = (0, 0, 0, 0, 0, 0)  # times and records at its beginning
        self._spent: TimeSpent | None = None  # set when the task has ended
        self._waiting: deque[SubtaskInterval] = deque(maxlen=_MAX_INTERVALS)

    @property
    def ended_ms(self) -> int:
        """The end of the last measured interval, by the worker's clock."""
        return 0 if self._next is None else self._next * self._length_ms

    @property
    def over(self) -> bool:
        """Return True if the task has ended."""
        return self._spent is not None

    def spent(self) -> TimeSpent:
        """Return the time in each activity, until now or until the task's end."""
        return self._timer.statistics() if self._spent is None else self._spent

    def begin(self, now_ms: int) -> None:
        """Begin with the interval of `now_ms`."""
        if self._length_ms:
            spent = self._timer.statistics()
            self._next = now_ms // self._length_ms
            self._seen = (spent.busy_ns, spent.idle_ns, spent.back_pressured_ns, spent.waiting_ns, 0, 0)

    def measure(self, now_ms: int) -> None:
        """Measure all intervals that have ended."""
        if self._next is not None and self._spent is None:
            self._measure_until(now_ms // self._length_ms, self._timer.statistics())

    def end(self, now_ms: int) -> None:
        """Measure the last interval, though it has not ended, and freeze all figures. May be repeated."""
        if self._spent is not None:
            return
        spent = self._timer.statistics()
        if self._next is not None:
            self._measure_until(now_ms // self._length_ms + 1, spent)
        self._spent = spent

    def drain(self) -> list[SubtaskInterval]:
        """Return the intervals since the last call, and forget them."""
        intervals = list(self._waiting)
        self._waiting.clear()
        return intervals

    def _measure_until(self, interval: int, spent: TimeSpent) -> None:
        assert self._next is not None, "begin() was called"
        count = interval - self._next
        if count < -_MAX_BACKWARDS:
            count = 1  # the clock was set: later intervals overwrite earlier ones
        if count <= 0:
            return
        task, before = self._task, self._seen
        seen = (
            spent.busy_ns,
            spent.idle_ns,
            spent.back_pressured_ns,
            spent.waiting_ns,
            task.loop.records_in,
            sum([writer.records_out.value for writer in task.writers]),
        )
        busy_ns, idle_ns, held_ns, waiting_ns, records_in, records_out = [
            max(0, now - then) for now, then in zip(seen, before, strict=True)
        ]
        self._next, self._seen = interval, seen
        all_ns = busy_ns + idle_ns + held_ns + waiting_ns
        idle = 1000 * idle_ns // all_ns if all_ns else 0
        held = 1000 * held_ns // all_ns if all_ns else 0
        waiting = 1000 * waiting_ns // all_ns if all_ns else 0
        busy = 1000 - idle - held - waiting if all_ns else 0
        queued, backlog = self.queues()
        pools = _permille(*self.in_pool()), _permille(*self.out_pool())
        for one in range(max(0, count - _MAX_INTERVALS), count):
            arrived = records_in * (one + 1) // count - records_in * one // count
            sent = records_out * (one + 1) // count - records_out * one // count
            self._waiting.append(SubtaskInterval(busy, idle, held, arrived, sent, queued, backlog, *pools, waiting))

    def queues(self) -> tuple[int, int]:
        """Return how many buffers wait to be read, and how many at the producers."""
        found = [gate.waiting() for gate in self._gates]
        return sum([queued for queued, _ in found]), sum([backlog for _, backlog in found])

    def in_pool(self) -> tuple[int, int]:
        """Return the buffers in use by its gates' pools, and the sizes of these pools."""
        pools = [gate.pool for gate in self._gates if gate.pool is not None]
        return sum([pool.in_use for pool in pools if pool.size]), sum([pool.size for pool in pools])

    def out_pool(self) -> tuple[int, int]:
        """Return the same for its partitions' pools; with overdraft more are in use than the size."""
        pools = [partition.pool for partition in self._partitions]
        return sum([pool.in_use for pool in pools if pool.size]), sum([pool.size for pool in pools])


def _permille(used: int, size: int) -> int:
    return min(1000, 1000 * used // size) if size > 0 else 0


UNKNOWN_NS: Final = -1
"""A time that the system does not report."""


class ThreadClock:
    """The processor time of one thread.

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
        """Return the clock of the calling thread."""
        clock = None
        if hasattr(time, "pthread_getcpuclockid"):  # missing on some systems
            with suppress(OSError):
                clock = time.pthread_getcpuclockid(threading.get_ident())  # crashes for a thread that has ended
        return cls(clock, threading.get_native_id())

    def close(self) -> None:
        """Stop reading: the thread is about to end. May be repeated."""
        self._closed = True

    def cpu_ns(self) -> int:
        """Return how long it ran on a processor; -1 if unknown."""
        if self._clock is None or self._closed:
            return UNKNOWN_NS
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError:  # it has ended
            return UNKNOWN_NS

    def run_queue_ns(self) -> int:
        """Return how long it waited for a processor while it could run; -1 if unknown."""
        if self._native is None or self._closed:
            return UNKNOWN_NS
        try:
            with open(f"/proc/self/task/{self._native}/schedstat", "rb", buffering=0) as schedstat:
                return int(schedstat.read().split()[1])
        except (OSError, ValueError, IndexError):  # another system, or it has ended
            return UNKNOWN_NS


def process_cpu_ns() -> int:
    """Return how long all threads of this process ran on processors.

    >>> process_cpu_ns() > 0
    True
    """
    return time.process_time_ns()


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if unknown.

    >>> resident_bytes() >= 0
    True
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # another system
        return 0
