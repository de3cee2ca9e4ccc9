"""The log of what happened to a job, for whoever looks at it: the last few hundred events, in words.

The coordinator writes it on its network thread; others may add to it and read it on any.

Invariants: it holds at most `MAX_EVENTS`; tasks that do the same are one event of their vertex, so that a large job's
beginning and end fit in; no text is longer than a line.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from headgate.observe.status import JobStatus
from headgate.observe.view import JobEvent
from headgate.worker.messages import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.graph.plan import Plan, Vertex
    from headgate.worker.messages import Register

__all__ = ["MAX_EVENTS", "EventLog", "wall_ms"]

MAX_EVENTS: Final = 500

_MAX_TEXT: Final = 500  # characters
_MANY: Final = 16  # workers, above which they are not named one by one
_ENDS: Final = {
    TaskState.FINISHED: "finished",
    TaskState.CANCELLED: "been cancelled",
    TaskState.FAILED: "failed",
}
_OVER: Final = {
    JobStatus.FINISHED: ("finished", "info"),
    JobStatus.CANCELLED: ("been cancelled", "info"),
    JobStatus.FAILED: ("failed", "error"),
}


def wall_ms() -> int:
    """The time by the driver's clock.

    >>> wall_ms() > 1_700_000_000_000
    True
    """
    return time.time_ns() // 1_000_000


class EventLog:
    """What happened to one job.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 2, 128, (), inputs=0),), (), workers=2, settings=Settings())
    >>> log = EventLog(plan)
    >>> for subtask in range(2):
    ...     log.moved(0, subtask, TaskState.RUNNING)
    >>> [event.text for event in log.events()]
    ['words: all 2 tasks run']
    """

    def __init__(self, plan: Plan, now_ms: Callable[[], int] = wall_ms) -> None:
        self._plan = plan
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._events: deque[JobEvent] = deque(maxlen=MAX_EVENTS)
        self._runs = {vertex.id: set[int]() for vertex in plan.vertices}
        self._ends: dict[int, dict[int, TaskState]] = {vertex.id: {} for vertex in plan.vertices}
        self._is_over = False
        self._partitions = sum(plan.vertex(one.producer).parallelism for one in plan.exchanges)

    def note(self, text: str, level: str = "info") -> None:
        """Something happened; of a longer text, its first line."""
        line = (text.splitlines() or [""])[0]
        if len(line) > _MAX_TEXT:
            line = f"{line[: _MAX_TEXT - 3]}..."
        line = line.encode("utf-8", "backslashreplace").decode()  # names of operators may be anything
        event = JobEvent(at_ms=self._now_ms(), text=line, level=level)
        with self._lock:
            self._events.append(event)

    def events(self) -> tuple[JobEvent, ...]:
        """The last ones, the oldest first; for any thread."""
        with self._lock:
            return tuple(self._events)

    # What the coordinator knows of.

    def registered(self, worker: int, register: Register, *, missing: int) -> None:
        """A worker is there, and so many are not yet."""
        count = self._plan.workers + self._plan.uses_driver
        if count <= _MANY:
            self.note(f"worker {worker} is there: {register.host}, process {register.pid}")
        elif not missing:
            self.note(f"all {count} workers are there")

    def moved(self, vertex: int, subtask: int, state: TaskState) -> None:
        """A task is in another state; it must be one of the plan's. After the end of the job that is no news."""
        if self._is_over:
            return
        of = self._plan.vertex(vertex)
        if state is TaskState.DEPLOYED:  # perhaps again
            self._runs[vertex].discard(subtask)
            self._ends[vertex].pop(subtask, None)
        elif state is TaskState.RUNNING:
            runs = self._runs[vertex]
            if subtask not in runs:
                runs.add(subtask)
                if len(runs) == of.parallelism:
                    self.note(f"{of.name}: {_all_of(of, 'runs', 'run')}")
        elif state.over:
            ends = self._ends[vertex]
            if subtask not in ends:
                ends[subtask] = state
                if state is TaskState.FAILED:
                    self.note(f"{of.name}: subtask {subtask} has failed", "error")
                if len(ends) == of.parallelism:
                    self._note_end(of, Counter(ends.values()))

    def _note_end(self, vertex: Vertex, ends: Counter[TaskState]) -> None:
        if len(ends) > 1:
            said = ", ".join(f"{count} {_have(count)} {_ENDS[state]}" for state, count in sorted(ends.items()))
            self.note(f"{vertex.name}: of {vertex.parallelism} tasks {said}")
            return
        (state,) = ends
        if state is not TaskState.FAILED or vertex.parallelism > 1:  # else it was said
            self.note(f"{vertex.name}: {_all_of(vertex, f'has {_ENDS[state]}', f'have {_ENDS[state]}')}")

    def renewed(self) -> None:
        """The job goes on with other workers: what was running is not."""
        for vertex, runs in self._runs.items():
            runs.intersection_update([one for one, end in self._ends[vertex].items() if end is TaskState.FINISHED])

    def over(self, status: JobStatus) -> None:
        """The job is over."""
        self._is_over = True
        text, level = _OVER[status]
        self.note(f"the job has {text}", level)

    def consumable(self, count: int) -> None:
        """So many partitions can be read by now."""
        if count in {1, self._partitions}:
            self.note(f"{count} of {self._partitions} partitions can be read")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _all_of(vertex: Vertex, one: str, many: str) -> str:
    return f"its task {one}" if vertex.parallelism == 1 else f"all {vertex.parallelism} tasks {many}"
