"""The log of a job's events, for its users: the last few hundred, in words.

The coordinator writes it on its network thread; any thread may add to it and read it.

Invariants: it holds at most `MAX_EVENTS`; equal state changes of all tasks of a vertex are one event, so the start and
end of a large job fit; no text is longer than a line.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from headgate.clock import wall_ms
from headgate.control.messages import TaskState
from headgate.names import printable
from headgate.observe.status import JobStatus
from headgate.observe.view import JobEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.control.messages import Register
    from headgate.graph.plan import Plan, Vertex

__all__ = ["MAX_EVENTS", "EventLog"]

MAX_EVENTS: Final = 500

_MAX_TEXT: Final = 500  # characters
_MAX_NAMED: Final = 16  # workers that are named one by one
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


class EventLog:
    """The events of one job.

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
        """Add an event with the first line of a text."""
        line = printable((text.splitlines() or [""])[0])
        if len(line) > _MAX_TEXT:
            line = f"{line[: _MAX_TEXT - 3]}..."
        event = JobEvent(at_ms=self._now_ms(), text=line, level=level)
        with self._lock:
            self._events.append(event)

    def events(self) -> tuple[JobEvent, ...]:
        """Return the events, the oldest first; from any thread."""
        with self._lock:
            return tuple(self._events)

    # Called by the coordinator.

    def registered(self, worker: int, register: Register, *, missing: int) -> None:
        """Record that a worker has registered; `missing` have not yet."""
        count = self._plan.workers + self._plan.uses_driver
        if count <= _MAX_NAMED:
            self.note(f"worker {worker} is there: {register.host}, process {register.pid}")
        elif not missing:
            self.note(f"all {count} workers are there")

    def moved(self, vertex: int, subtask: int, state: TaskState) -> None:
        """Record the new state of a task of the plan. Ignored after the end of the job."""
        if self._is_over:
            return
        of = self._plan.vertex(vertex)
        if state is TaskState.DEPLOYED:  # perhaps a second run
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
            counts = ", ".join(f"{count} {_have(count)} {_ENDS[state]}" for state, count in sorted(ends.items()))
            self.note(f"{vertex.name}: of {vertex.parallelism} tasks {counts}")
            return
        (state,) = ends
        if state is not TaskState.FAILED or vertex.parallelism > 1:  # else its failure is an event already
            self.note(f"{vertex.name}: {_all_of(vertex, f'has {_ENDS[state]}', f'have {_ENDS[state]}')}")

    def renewed(self) -> None:
        """Forget the running tasks: another attempt begins, with new workers."""
        for vertex, runs in self._runs.items():
            runs.intersection_update([one for one, end in self._ends[vertex].items() if end is TaskState.FINISHED])

    def over(self, status: JobStatus) -> None:
        """Record the end of the job."""
        self._is_over = True
        text, level = _OVER[status]
        self.note(f"the job has {text}", level)

    def consumable(self, count: int) -> None:
        """Record that `count` partitions can be read."""
        if count in {1, self._partitions}:
            self.note(f"{count} of {self._partitions} partitions can be read")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _all_of(vertex: Vertex, one: str, many: str) -> str:
    return f"its task {one}" if vertex.parallelism == 1 else f"all {vertex.parallelism} tasks {many}"
