"""Cheap, always-on measures: counters, rates, and where a task's time goes.

A meter has one writing thread (the task's, or whoever holds the exchange lock) and any number of readers;
readers see a value that was true a moment ago. Nothing here takes a lock or asks for the time by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Counter", "Rate", "TaskState", "TaskTimer", "TimeSpent"]


class Counter:
    """Counts up.

    >>> records = Counter()
    >>> records.add(); records.add(9); records.value
    10
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, n: int = 1) -> None:
        """Count `n` more."""
        self.value += n


class Rate:
    """How fast a counter rose between the last two looks.

    >>> count, seconds = Counter(), iter([0, 1_000_000_000, 3_000_000_000])
    >>> rate = Rate(count, lambda: next(seconds))
    >>> count.add(500); rate.per_second()
    500.0
    >>> count.add(500); rate.per_second()
    250.0
    """

    __slots__ = ("_at_ns", "_counter", "_now_ns", "_value")

    def __init__(self, counter: Counter, now_ns: Callable[[], int]) -> None:
        self._counter = counter
        self._now_ns = now_ns
        self._at_ns = now_ns()
        self._value = counter.value

    def per_second(self) -> float:
        """The mean since the last call (or since the start); 0 when no time has passed."""
        now_ns, value = self._now_ns(), self._counter.value
        elapsed_ns, risen = now_ns - self._at_ns, value - self._value
        if elapsed_ns <= 0:
            return 0.0
        self._at_ns, self._value = now_ns, value
        return risen * 1e9 / elapsed_ns


class TaskState(Enum):
    """What a task thread is doing.

    >>> TaskTimer(lambda: 0).state
    <TaskState.BUSY: 'busy'>
    """

    BUSY = "busy"  # running operators
    IDLE = "idle"  # asleep until there is input
    BACK_PRESSURED = "back-pressured"  # asleep until there is an output buffer


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Nanoseconds in each state since the timer was made, the running state included.

    >>> now = iter([0, 25])
    >>> TaskTimer(lambda: next(now)).statistics()
    TimeSpent(busy_ns=25, idle_ns=0, back_pressured_ns=0)
    """

    busy_ns: int
    idle_ns: int
    back_pressured_ns: int


class TaskTimer:
    """Splits a task's time into busy, idle and back-pressured.

    The two places where a task thread sleeps (input, output buffer) call `enter` before and `leave` after. Whenever the
    task ceases to be busy, `ran` is told for how long it was.

    >>> now = iter([0, 10, 25, 30])
    >>> timer = TaskTimer(lambda: next(now))
    >>> timer.enter(TaskState.IDLE); timer.leave(); timer.statistics()
    TimeSpent(busy_ns=15, idle_ns=15, back_pressured_ns=0)
    """

    __slots__ = ("_now_ns", "_ran", "_seen")

    def __init__(self, now_ns: Callable[[], int], ran: Callable[[int], object] | None = None) -> None:
        self._now_ns = now_ns
        self._ran = ran
        # State, since when, and what was spent before: replaced as one, so that a reader never sees parts of two.
        self._seen = (TaskState.BUSY, now_ns(), dict.fromkeys(TaskState, 0))

    @property
    def state(self) -> TaskState:
        """What the task is doing."""
        return self._seen[0]

    @property
    def back_pressured_ns(self) -> int:
        """How long it has waited for output buffers, but for a wait that goes on: for its own thread, cheap."""
        return self._seen[2][TaskState.BACK_PRESSURED]

    def enter(self, state: TaskState) -> None:
        """The task goes from one state to another."""
        now_ns = self._now_ns()
        before, since_ns, _ = self._seen
        self._seen = (state, now_ns, self._spent_until(now_ns, *self._seen))
        if self._ran is not None and before is TaskState.BUSY:
            self._ran(now_ns - since_ns)

    def leave(self) -> None:
        """The task is busy again."""
        self.enter(TaskState.BUSY)

    def statistics(self) -> TimeSpent:
        """Where the time has gone until now."""
        now_ns = self._now_ns()
        spent_ns = self._spent_until(now_ns, *self._seen)
        return TimeSpent(
            busy_ns=spent_ns[TaskState.BUSY],
            idle_ns=spent_ns[TaskState.IDLE],
            back_pressured_ns=spent_ns[TaskState.BACK_PRESSURED],
        )

    @staticmethod
    def _spent_until(
        now_ns: int, running: TaskState, since_ns: int, before_ns: dict[TaskState, int]
    ) -> dict[TaskState, int]:
        return {**before_ns, running: before_ns[running] + max(0, now_ns - since_ns)}
