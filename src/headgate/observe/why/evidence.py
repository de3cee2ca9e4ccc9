"""What the rules of `why` read: the bottleneck, the tasks that limit it, their time, and sentences about them.

Created by `diagnose` from the facts; pure. A rule reads an `Evidence` and returns a `Diagnosis` or None.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from headgate.observe.why.advice import advise_less_work
from headgate.observe.why.bottleneck import find_bottleneck
from headgate.observe.why.busy_time import divide_busy_time
from headgate.observe.why.diagnosis import Diagnosis
from headgate.observe.why.hot_spot import find_hot_spot
from headgate.observe.why.text import inflect, names_text, percent, subtasks_text
from headgate.observe.why.thresholds import (
    BACK_PRESSURED,
    MENTIONED,
    OTHER_THREADS,
    RUN_QUEUE,
    SATURATED,
    UNEVEN,
    WAITS,
    WAITS_AT_LEAST,
    WAITS_WITHOUT_RUN_QUEUE,
)

if TYPE_CHECKING:
    from headgate.observe.graph import EdgeView
    from headgate.observe.why.bottleneck import Bottleneck
    from headgate.observe.why.busy_time import BusyTime
    from headgate.observe.why.diagnosis import Cause
    from headgate.observe.why.facts import JobFacts, TaskFacts, VertexFacts
    from headgate.observe.why.hot_spot import HotSpot

__all__ = ["Evidence"]


class Evidence:
    """The bottleneck of a job, its tasks, and sentences about them."""

    def __init__(self, facts: JobFacts) -> None:
        self.facts = facts
        self.bottleneck: Bottleneck | None = find_bottleneck(facts)

    @property
    def edge(self) -> EdgeView | None:
        """Return the exchange that is the bottleneck."""
        return None if self.bottleneck is None else self.bottleneck.edge

    @cached_property
    def vertex(self) -> VertexFacts | None:
        """Return the vertex that is the bottleneck; without one, a vertex that is busy all the time."""
        if self.bottleneck is not None:
            return None if self.bottleneck.vertex is None else self.facts.vertices[self.bottleneck.vertex]
        busiest = max(self.facts.topological_order, key=lambda one: one.busiest_task.busy, default=None)
        return busiest if busiest is not None and busiest.busiest_task.busy >= SATURATED else None

    # The rest is about `vertex`, and must be used only if that is not None.

    @property
    def _vertex(self) -> VertexFacts:
        assert self.vertex is not None, "the bottleneck is an exchange, or there is none"
        return self.vertex

    @cached_property
    def outlier(self) -> TaskFacts | None:
        """Return the task that is much busier than the vertex's others; its only task if it has one."""
        busiest = self._vertex.busiest_task
        return busiest if len(self._vertex.tasks) == 1 or self._vertex.busy <= UNEVEN * busiest.busy else None

    @cached_property
    def tasks(self) -> list[TaskFacts]:
        """Return the tasks that limit the job: the outlier, or all that are as busy as the busiest."""
        if self.outlier is not None:
            return [self.outlier]
        return [one for one in self._vertex.tasks if one.busy >= UNEVEN * self._vertex.busiest_task.busy]

    @cached_property
    def busy_time(self) -> BusyTime | None:
        """Return the parts of their busy time."""
        return divide_busy_time(self.facts, self.tasks)

    @cached_property
    def hot_spot(self) -> HotSpot | None:
        """Return the place in the code where they were sampled most often."""
        return find_hot_spot(self.tasks)

    @property
    def operator(self) -> str:
        """Return the operator in which they work; without samples, the name of the whole chain."""
        if self.hot_spot is not None and self.hot_spot.operator:
            return self.hot_spot.operator
        operators = self._vertex.view.operators
        return operators[0] if len(operators) == 1 else self._vertex.view.name

    @property
    def function(self) -> str | None:
        """Return the user's function in which they work, if there are samples of one."""
        return None if self.hot_spot is None else self.hot_spot.function

    @property
    def in_function(self) -> str:
        """Return the function for a sentence."""
        return "" if self.function is None else f" in {self.function}"

    @property
    def reads(self) -> bool:
        """Return True if they work at reading from outside the job."""
        return self._vertex.source and self.operator in {self._vertex.source_operator, self._vertex.view.name}

    @property
    def writes(self) -> bool:
        """Return True if they work at writing to a system outside: in an operator whose output no operator reads."""
        view = self._vertex.view
        ends = view.ends or (view.operators[-1:] if view.sink else ())
        return self.operator in ends and not (view.source and self.operator == self._vertex.source_operator)

    @property
    def waits(self) -> bool:
        """Return True if they wait in user code.

        Without CPU times of the threads, the CPU time of the process decides, if that is known.
        """
        if self.busy_time is not None:
            run_queue_known = all(one.progress.run_queue is not None for one in self.tasks)
            threshold = WAITS if run_queue_known else WAITS_WITHOUT_RUN_QUEUE
            return self.busy_time.waiting >= max(WAITS_AT_LEAST, (1 - self.busy_time.run_queue) * threshold)
        if self.coroutines >= WAITS * sum(one.busy for one in self.tasks) / len(self.tasks) > 0:
            return True
        used = self.facts.process_cpu(self.tasks[0].process)
        return used is not None and used < 1 - WAITS

    @property
    def coroutines(self) -> float:
        """Return the share of their time in which they wait for coroutines."""
        return sum(one.waiting for one in self.tasks) / len(self.tasks)

    @property
    def behind_other_threads(self) -> bool:
        """Return True if other threads of the process hold the interpreter's lock for much of their time."""
        return self.busy_time is not None and self.busy_time.other_threads >= OTHER_THREADS

    @property
    def consequence(self) -> str:
        """Return what follows for the other tasks, for a sentence."""
        if self.bottleneck is None and not self._vertex.source:
            return "and buffers still hide it: no task waits for it yet"
        return "and the rest of the pipeline waits for it"

    def less_work(self) -> str:
        """Return what to try if their CPU time is the limit."""
        return advise_less_work(
            self._vertex,
            self.operator,
            self.function,
            moves_records=self.hot_spot is not None and self.hot_spot.moves_records,
            process_full=self.behind_other_threads,
            machine_full=self.busy_time is not None and self.busy_time.run_queue >= RUN_QUEUE,
        )

    def diagnosis(self, cause: Cause, summary: str, advice: str, evidence: list[str | None]) -> Diagnosis:
        """Return a diagnosis of the vertex; sentences that are None are left out."""
        sentences = [self.producers_text(), self.tasks_text(), *evidence, self.alternation_text()]
        return Diagnosis(
            cause=cause,
            vertex=self._vertex.id,
            operator=self.operator,
            subtask=None if self.outlier is None else self.outlier.subtask,
            function=self.function,
            summary=summary,
            evidence=tuple(one for one in sentences if one),
            advice=advice,
        )

    # Sentences.

    def producers_text(self) -> str | None:
        """Return the producers that are back-pressured."""
        blocked = [one for one in self.facts.producers(self._vertex.id) if one.back_pressured >= BACK_PRESSURED]
        if not blocked:
            return None
        most = percent(max(one.back_pressured for one in blocked))
        return f"{names_text(blocked)} before it {inflect('waits', blocked)} for an output buffer {most} of the time"

    def tasks_text(self) -> str:
        """Return how busy the tasks are, and that they are not back-pressured."""
        vertex, outlier = self._vertex, self.outlier
        busy = sum(one.busy for one in self.tasks) / len(self.tasks) - self.coroutines
        text = f"{vertex.view.name}: {subtasks_text(vertex, outlier)} busy {percent(busy)} of the time"
        if self.coroutines >= MENTIONED:
            text += f", waiting for coroutines {percent(self.coroutines)}"
        others = [one for one in vertex.tasks if one is not outlier]
        if outlier is not None and others:
            text += f", the others {percent(sum(one.busy for one in others) / len(others))}"
        return f"{text}, and back-pressured {percent(vertex.back_pressured)}"

    def busy_time_text(self) -> str:
        """Return the parts of the busy time."""
        spent = self.busy_time
        if spent is None:
            return "the system does not report for how much of that its threads are on a CPU"
        parts = [f"on a CPU {percent(spent.cpu)}"]
        if spent.run_queue >= MENTIONED:
            parts.append(f"in the run queue {percent(spent.run_queue)}")
        if spent.other_threads >= MENTIONED:
            parts.append(f"behind other threads of the process {percent(spent.other_threads)}")
        if spent.waiting >= MENTIONED:
            parts.append(f"waiting {percent(spent.waiting)}")
        return f"of {'that' if self.coroutines >= MENTIONED else 'its busy'} time it is {', '.join(parts)}"

    def samples_text(self) -> str | None:
        """Return the number of samples in the hot spot."""
        spot = self.hot_spot
        if spot is None:
            return None
        text = (
            f"{spot.count} of {spot.taken} samples of its work are in {spot.function or spot.operator or 'no operator'}"
        )
        if spot.moves_records:
            text += f", {spot.own} in headgate's own code: records are read, serialized and written"
        return text

    def process_text(self) -> str | None:
        """Return that the process of the tasks is at its limit."""
        process = self.tasks[0].process
        used = self.facts.process_cpu(process)
        if not self.behind_other_threads or used is None:
            return None
        others = len(self.facts.tasks_in(process)) - 1
        return (
            f"its process uses {used:.1f} CPUs in all: Python runs one thread of a process at a time, and"
            f" {others} other {'task is' if others == 1 else 'tasks are'} in the same process"
        )

    def alternation_text(self) -> str | None:
        """Return that another vertex alternates with this one."""
        found = self.bottleneck
        if found is None or found.other is None:
            return None
        other = self.facts.vertices[found.other].view.name
        return (
            f"they alternate: while a task is back-pressured, it is the slowest {percent(found.share)} of the time,"
            f" {other} {percent(found.other_share)}"
        )
