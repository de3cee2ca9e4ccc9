"""Meters that are always on: counters, and the time that a task spends in each state.

A meter is written by one thread (the task's, or any thread under the exchange lock) and read by any thread, without a
lock, so a reader may miss the last change. The clock is passed in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Activity", "Counter", "TaskTimer", "TimeSpent"]


class Counter:
    """A number that only increases.

    >>> records = Counter()
    >>> records.add(); records.add(9); records.value
    10
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        """Add `n`."""
        self.value += n


class Activity(Enum):
    """The activity of a task thread.

    >>> TaskTimer(lambda: 0).state
    <Activity.BUSY: 'busy'>
    """

    BUSY = "busy"  # running operators
    IDLE = "idle"  # blocked until there is input
    BACK_PRESSURED = "back-pressured"  # blocked until its pool grants an output buffer
    WAITING = "waiting"  # blocked until coroutines of `map_async` have results


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Nanoseconds in each state since the timer was created, including the current state."""

    busy_ns: int
    idle_ns: int
    back_pressured_ns: int
    waiting_ns: int = 0


class TaskTimer:
    """Divides a task's time into busy, idle, back-pressured and waiting.

    Code that blocks a task thread (for input, in a source's `Wait`, for an output buffer, for results of `map_async`)
    calls `enter` before and `leave` after.

    >>> now = iter([0, 10, 25, 30])
    >>> timer = TaskTimer(lambda: next(now))
    >>> timer.enter(Activity.IDLE); timer.leave(); timer.statistics()
    TimeSpent(busy_ns=15, idle_ns=15, back_pressured_ns=0, waiting_ns=0)
    """

    __slots__ = ("_now_ns", "_seen")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        # (state, its start, time spent before): replaced as one tuple, so that a reader never sees parts of two.
        self._seen = (Activity.BUSY, now_ns(), dict.fromkeys(Activity, 0))

    @property
    def state(self) -> Activity:
        """The current state."""
        return self._seen[0]

    @property
    def back_pressured_ns(self) -> int:
        """The time blocked for output buffers, without a block that has not ended; for the task's own thread, cheap."""
        return self._seen[2][Activity.BACK_PRESSURED]

    def enter(self, state: Activity) -> None:
        """Change to another state."""
        now_ns = self._now_ns()
        self._seen = (state, now_ns, self._spent_until(now_ns, *self._seen))

    def leave(self) -> None:
        """Change back to busy."""
        self.enter(Activity.BUSY)

    def statistics(self) -> TimeSpent:
        """Return the time spent in each state."""
        now_ns = self._now_ns()
        spent_ns = self._spent_until(now_ns, *self._seen)
        return TimeSpent(
            busy_ns=spent_ns[Activity.BUSY],
            idle_ns=spent_ns[Activity.IDLE],
            back_pressured_ns=spent_ns[Activity.BACK_PRESSURED],
            waiting_ns=spent_ns[Activity.WAITING],
        )

    @staticmethod
    def _spent_until(
        now_ns: int, running: Activity, since_ns: int, before_ns: dict[Activity, int]
    ) -> dict[Activity, int]:
        return {**before_ns, running: before_ns[running] + max(0, now_ns - since_ns)}
