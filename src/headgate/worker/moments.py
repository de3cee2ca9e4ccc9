"""What a task did in each of many short moments: the states that the driver keeps as its past (B2).

A `TaskMeter` looks at one task from outside, on the thread that serves the control connection; `end` is the task's own
last call. It takes no lock: what it reads was true a moment ago. Callers see to it that one is in here at a time.

Moments are counted from the epoch of the worker's clock, all of the same length, so that those of all tasks and workers
lie beside each other. Whoever looks late has several moments to tell of, and they all look the same: the past keeps its
place in time, and what was counted is counted once.

Invariants: states are of moments without a gap, the last of which ended at `ended_ms`; the times of a state add up to
1000; records are neither lost nor counted twice, except those of moments so long ago that they are not kept.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.worker.messages import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.config import MetricsSettings
    from headgate.input import InputGate
    from headgate.meters import TaskTimer, TimeSpent
    from headgate.output import AnyPartition
    from headgate.task.task import Task

__all__ = ["TaskMeter", "moment_ms", "wall_ms"]

_MOST: Final = 1000  # states that wait to be reported
_SET_BACK: Final = 20  # moments that a clock may go back and be waited for; more: it was set


def wall_ms() -> int:
    """Processing time.

    >>> wall_ms() > 1_700_000_000_000
    True
    """
    return time.time_ns() // 1_000_000


def moment_ms(settings: MetricsSettings) -> int:
    """How long a moment is: whole milliseconds; 0: no past is kept.

    >>> from headgate.config import MetricsSettings
    >>> moment_ms(MetricsSettings())
    100
    """
    interval_ns = settings.interval.ns
    return max(1, interval_ns // 1_000_000) if interval_ns else 0


class TaskMeter:
    """Takes the states of one task.

    >>> from types import SimpleNamespace
    >>> from headgate.meters import TaskTimer
    >>> clock = SimpleNamespace(ns=0)
    >>> task = SimpleNamespace(loop=SimpleNamespace(records_in=0), writers=[])
    >>> meter = TaskMeter(task, TaskTimer(lambda: clock.ns), [], length_ms=100)
    >>> meter.begin(1000)
    >>> clock.ns, task.loop.records_in = 200_000_000, 7
    >>> meter.take(1207)  # 100 ms late
    >>> [(one.busy, one.records_in) for one in meter.drain()], meter.ended_ms
    ([(1000, 3), (1000, 4)], 1200)
    """

    __slots__ = ("_gates", "_length_ms", "_moment", "_partitions", "_seen", "_spent", "_task", "_timer", "_waiting")

    def __init__(self, task: Task, timer: TaskTimer, gates: Sequence[InputGate], *, length_ms: int) -> None:
        self._task = task
        self._timer = timer
        self._gates = tuple(gates)
        self._partitions: tuple[AnyPartition, ...] = tuple(writer.partition for writer in task.writers)
        self._length_ms = length_ms  # 0: no states are taken
        self._moment: int | None = None  # the first that no state tells of
        self._seen = (0, 0, 0, 0, 0)  # times and records until then
        self._spent: TimeSpent | None = None  # by a task that is over
        self._waiting: deque[State] = deque(maxlen=_MOST)

    @property
    def ended_ms(self) -> int:
        """When the last moment ended that a state was taken of, by the worker's clock."""
        return 0 if self._moment is None else self._moment * self._length_ms

    @property
    def over(self) -> bool:
        """Whether the task has ended."""
        return self._spent is not None

    def spent(self) -> TimeSpent:
        """Where the task's time went, until now or until its end."""
        return self._timer.statistics() if self._spent is None else self._spent

    def begin(self, now_ms: int) -> None:
        """The task begins: from here on there is something to tell."""
        if self._length_ms:
            spent = self._timer.statistics()
            self._moment = now_ms // self._length_ms
            self._seen = (spent.busy_ns, spent.idle_ns, spent.back_pressured_ns, 0, 0)

    def take(self, now_ms: int) -> None:
        """Take the states of all moments that are over."""
        if self._moment is not None and self._spent is None:
            self._take_until(now_ms // self._length_ms, self._timer.statistics())

    def end(self, now_ms: int) -> None:
        """The task ends: the last moment counts though it is not over, and nothing changes from here on."""
        if self._spent is not None:
            return
        spent = self._timer.statistics()
        if self._moment is not None:
            self._take_until(now_ms // self._length_ms + 1, spent)
        self._spent = spent

    def drain(self) -> list[State]:
        """The states since the last call."""
        states = list(self._waiting)
        self._waiting.clear()
        return states

    def _take_until(self, moment: int, spent: TimeSpent) -> None:
        assert self._moment is not None, "it has begun"
        count = moment - self._moment
        if count < -_SET_BACK:
            count = 1  # the clock was set: what comes lies over what was
        if count <= 0:
            return
        task, before = self._task, self._seen
        seen = (
            spent.busy_ns,
            spent.idle_ns,
            spent.back_pressured_ns,
            task.loop.records_in,
            sum([writer.records_out.value for writer in task.writers]),
        )
        busy_ns, idle_ns, held_ns, records_in, records_out = [
            max(0, now - then) for now, then in zip(seen, before, strict=True)
        ]
        self._moment, self._seen = moment, seen
        all_ns = busy_ns + idle_ns + held_ns
        idle = 1000 * idle_ns // all_ns if all_ns else 0
        held = 1000 * held_ns // all_ns if all_ns else 0
        busy = 1000 - idle - held if all_ns else 0
        queued, backlog = self.queues()
        pools = _permille(*self.in_pool()), _permille(*self.out_pool())
        for one in range(max(0, count - _MOST), count):
            came = records_in * (one + 1) // count - records_in * one // count
            went = records_out * (one + 1) // count - records_out * one // count
            self._waiting.append(State(busy, idle, held, came, went, queued, backlog, *pools))

    def queues(self) -> tuple[int, int]:
        """Buffers that wait to be read, and at the producers."""
        found = [gate.waiting() for gate in self._gates]
        return sum([queued for queued, _ in found]), sum([backlog for _, backlog in found])

    def in_pool(self) -> tuple[int, int]:
        """Of the buffers that its gates' remote channels share: how many are in use, and how many there may be."""
        pools = [gate.pool for gate in self._gates if gate.pool is not None]
        return sum([pool.in_use for pool in pools if pool.size]), sum([pool.size for pool in pools])

    def out_pool(self) -> tuple[int, int]:
        """Likewise of its partitions' buffers; more are in use than there may be where some are overdraft."""
        pools = [partition.pool for partition in self._partitions]
        return sum([pool.in_use for pool in pools if pool.size]), sum([pool.size for pool in pools])


def _permille(used: int, size: int) -> int:
    return min(1000, 1000 * used // size) if size > 0 else 0
