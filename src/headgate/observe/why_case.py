"""What the rules of `why` are asked about: the place that was found, the tasks there that matter, evidence in words.

Made once by `diagnose` from the facts; pure. A rule reads a case and answers with a `Diagnosis`, or with None.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from headgate.observe.diagnosis import Diagnosis
from headgate.observe.why_place import HELD, find_place
from headgate.observe.why_spent import hot_of, spent_of
from headgate.observe.why_text import named, percent, tasks_text, try_less_work, verb

if TYPE_CHECKING:
    from headgate.observe.diagnosis import Cause
    from headgate.observe.graph import EdgeView
    from headgate.observe.why_facts import Facts, Task, Vertex
    from headgate.observe.why_place import Place
    from headgate.observe.why_spent import Hot, Spent

__all__ = ["Case"]

_SATURATED: Final = 0.85
"""A task that is busy for more of the time than this has no room worth speaking of."""

_EVEN: Final = 0.75
"""If the mean of a vertex's tasks is below this share of the busiest one, that one stands apart: with the work spread
evenly, the vertex could go a third faster, which is worth more than most other things that can be tried."""

_WAITS: Final = 0.5
"""A task that does nothing for this share of its busy time, by nobody else's doing, is limited by what it waits for:
it could do twice as much in the same time without a faster line of code. The time in line for a CPU is left out: on a
busy machine those who work have it, and those who wake up as well."""

_WAITS_LEAST: Final = 0.25
"""With less than this of all its busy time, nothing is said: what is left beside a long line is not measured well."""

_WAITS_BLIND: Final = 0.8
"""The same where the system does not say who stands in line for a CPU: on a machine with more to do than CPUs, work
would otherwise be taken for waiting."""

_LOCKED: Final = 0.25
"""If other threads of its process explain so much of a task's busy time, the interpreter's lock is worth a word."""

_OUTNUMBERED: Final = 0.4
"""A task that stands in line for a CPU for this share of its busy time lacks CPUs before anything else."""

_SIDE: Final = 0.15
"""Less than this is left out of the evidence."""


class Case:
    """A job that is to be explained.

    >>> from headgate.observe.graph import GraphView
    >>> from headgate.observe.progress import Progress
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.observe.view import JobView
    >>> from headgate.observe.why_facts import Facts
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> case = Case(Facts(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), (), None))
    >>> case.place, case.vertex
    (None, None)
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.place: Place | None = find_place(facts)

    @property
    def edge(self) -> EdgeView | None:
        """The exchange that is the place."""
        return None if self.place is None else self.place.edge

    @cached_property
    def vertex(self) -> Vertex | None:
        """The vertex that is the place: all wait for it, or it is busy all the time."""
        if self.place is not None:
            return None if self.place.vertex is None else self.facts.vertices[self.place.vertex]
        busiest = max(self.facts.order, key=lambda one: one.hottest.busy, default=None)
        return busiest if busiest is not None and busiest.hottest.busy >= _SATURATED else None

    @cached_property
    def apart(self) -> Task | None:
        """The task of the vertex that works while others have room; the only one, where there is one."""
        assert self.vertex is not None, "only a vertex has tasks"
        hottest = self.vertex.hottest
        return hottest if len(self.vertex.tasks) == 1 or self.vertex.busy <= _EVEN * hottest.busy else None

    @cached_property
    def tasks(self) -> list[Task]:
        """The tasks of the vertex that hold the others back."""
        assert self.vertex is not None, "only a vertex has tasks"
        if self.apart is not None:
            return [self.apart]
        return [one for one in self.vertex.tasks if one.busy >= _EVEN * self.vertex.hottest.busy]

    @cached_property
    def spent(self) -> Spent | None:
        """Where their busy time goes."""
        return spent_of(self.facts, self.tasks)

    @cached_property
    def hot(self) -> Hot | None:
        """Where their samples stand."""
        return hot_of(self.tasks)

    @property
    def operator(self) -> str:
        """The operator of the vertex in which they work, as well as that is known."""
        assert self.vertex is not None, "only a vertex has operators"
        if self.hot is not None and self.hot.operator:
            return self.hot.operator
        operators = self.vertex.view.operators
        return operators[0] if len(operators) == 1 else self.vertex.view.name

    @property
    def function(self) -> str | None:
        """The user's function in which they work, if samples say so."""
        return None if self.hot is None else self.hot.function

    @property
    def in_function(self) -> str:
        """The same for a sentence."""
        return "" if self.function is None else f" in {self.function}"

    @property
    def reads(self) -> bool:
        """Whether they work at reading from outside."""
        assert self.vertex is not None, "only a vertex has operators"
        return self.vertex.source and self.operator in {self.vertex.source_name, self.vertex.view.name}

    @property
    def writes(self) -> bool:
        """Whether they work at writing to something outside: in an operator whose output nobody reads."""
        assert self.vertex is not None, "only a vertex has operators"
        view = self.vertex.view
        ends = view.ends or (view.operators[-1:] if view.sink else ())
        return self.operator in ends and not (view.source and self.operator == self.vertex.source_name)

    @property
    def waits(self) -> bool:
        """Whether they wait in user code. Where the system does not say, the CPU time of the process tells, if any."""
        if self.spent is not None:
            blind = any(one.now.run_queue is None for one in self.tasks)
            most = (1 - self.spent.queue) * (_WAITS_BLIND if blind else _WAITS)
            return self.spent.waiting >= max(_WAITS_LEAST, most)
        used = self.facts.process_cpu(self.tasks[0].process)
        return used is not None and used < 1 - _WAITS

    @property
    def locked(self) -> bool:
        """Whether other threads of the process keep them from running."""
        return self.spent is not None and self.spent.others >= _LOCKED

    @property
    def so(self) -> str:
        """What follows for the others, for a sentence."""
        assert self.vertex is not None, "only a vertex is the place"
        if self.place is None and not self.vertex.source:
            return "which nobody has to wait for yet"
        return "and the rest of the pipeline waits for it"

    def less_work(self) -> str:
        """What to try if their CPU is the limit."""
        assert self.vertex is not None, "only a vertex is the place"
        return try_less_work(
            self.vertex,
            self.operator,
            self.function,
            moves=self.hot is not None and self.hot.moves,
            crowded=self.locked,
            outnumbered=self.spent is not None and self.spent.queue >= _OUTNUMBERED,
        )

    def found(self, cause: Cause, summary: str, advice: str, evidence: list[str | None]) -> Diagnosis:
        """The answer about the vertex."""
        assert self.vertex is not None, "only a vertex is the place"
        return Diagnosis(
            cause=cause,
            vertex=self.vertex.id,
            operator=self.operator,
            subtask=None if self.apart is None else self.apart.subtask,
            function=self.function,
            summary=summary,
            evidence=tuple(one for one in [self.held_text(), self.busy_text(), *evidence, self.turns_text()] if one),
            advice=advice,
        )

    # Evidence.

    def held_text(self) -> str | None:
        """Who waits for the vertex."""
        assert self.vertex is not None, "only a vertex is the place"
        held = [one for one in self.facts.producers(self.vertex.id) if one.held >= HELD]
        if not held:
            return None
        most = max(one.held for one in held)
        return f"{named(held)} before it {verb('waits', held)} for an output buffer {percent(most)} of the time"

    def busy_text(self) -> str:
        """How busy the vertex is, and that it is not held back itself."""
        assert self.vertex is not None, "only a vertex is the place"
        vertex, apart = self.vertex, self.apart
        busy = sum(one.busy for one in self.tasks) / len(self.tasks)
        text = f"{vertex.view.name}: {tasks_text(vertex, apart)} busy {percent(busy)} of the time"
        others = [one for one in vertex.tasks if one is not apart]
        if apart is not None and others:
            text += f", the others {percent(sum(one.busy for one in others) / len(others))}"
        return f"{text}, and held back {percent(vertex.held)}"

    def spent_text(self) -> str | None:
        """Where the busy time goes."""
        if self.spent is None:
            return "the system does not say how much of that its threads are on a CPU"
        parts = [f"on a CPU {percent(self.spent.cpu)}"]
        if self.spent.queue >= _SIDE:
            parts.append(f"in line for one {percent(self.spent.queue)}")
        if self.spent.others >= _SIDE:
            parts.append(f"behind other threads of the process {percent(self.spent.others)}")
        if self.spent.waiting >= _SIDE:
            parts.append(f"waiting {percent(self.spent.waiting)}")
        return f"of its busy time it is {', '.join(parts)}"

    def samples_text(self) -> str | None:
        """Where the samples stand."""
        hot = self.hot
        if hot is None:
            return None
        where = hot.function or f"{hot.operator or 'no operator'}"
        text = f"{hot.count} of {hot.taken} samples of its work stand in {where}"
        if hot.moves:
            text += f", {hot.ours} in headgate's own code: records are read, serialized and moved"
        return text

    def lock_text(self) -> str | None:
        """That its process is at its limit."""
        process = self.tasks[0].process
        used = self.facts.process_cpu(process)
        if not self.locked or used is None:
            return None
        others = len(self.facts.tasks_in(process)) - 1
        return (
            f"its process uses {used:.1f} CPUs in all: Python runs one thread of a process at a time, and"
            f" {others} other {'task is' if others == 1 else 'tasks are'} in the same"
        )

    def turns_text(self) -> str | None:
        """That another vertex takes turns with it."""
        place = self.place
        if place is None or place.other is None:
            return None
        other = self.facts.vertices[place.other].view.name
        return (
            f"they alternate: it is the slowest {percent(place.share)} of the time in which somebody is held back,"
            f" {other} {percent(place.other_share)}"
        )
