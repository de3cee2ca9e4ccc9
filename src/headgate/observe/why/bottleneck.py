"""Which part limits a pipeline: a vertex that works while its producers are blocked, or the exchange between two.

The first step of `diagnose`. Each step of the past has one vote: two operators that alternate at being slow are two
half-busy ones on average. Without a past, the last report is the only step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.observe.why.thresholds import ALTERNATES, BACK_PRESSURED, BACK_PRESSURED_STEPS, CONSUMER_WORKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headgate.observe.graph import EdgeView
    from headgate.observe.why.facts import JobFacts

__all__ = ["Bottleneck", "find_bottleneck"]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A vertex or an exchange, and its share of the votes."""

    vertex: int | None = None  # it works while its producers are blocked
    edge: EdgeView | None = None  # or: its producer is blocked, and its consumer is idle
    share: float = 0.0  # of the steps with a back-pressured task
    other: int | None = None  # a vertex that alternates with it,
    other_share: float = 0.0  # and its share


def find_bottleneck(facts: JobFacts) -> Bottleneck | None:
    """Return the vertex or exchange that limits the job, or None if no task is back-pressured for long enough."""
    steps = _steps(facts)
    votes = Counter(vote for vote in (_vote(facts, step) for step in steps) if vote is not None)
    if votes.total() < BACK_PRESSURED_STEPS * len(steps) or not votes:
        return None
    ranked = votes.most_common()
    (vertex, edge_id), count = ranked[0]
    edge = next((one for one in facts.edges if one.id == edge_id), None)
    share = count / votes.total()
    for (other, _), other_count in ranked[1:]:
        if vertex is not None and other is not None and other_count >= ALTERNATES * votes.total():
            return Bottleneck(vertex, edge, share, other, other_count / votes.total())
    return Bottleneck(vertex, edge, share)


class _Shares(NamedTuple):
    """The greatest shares of a vertex's tasks in one step."""

    back_pressured: float
    busy: float


_UNKNOWN: Final = _Shares(0.0, 0.0)
_Step = dict[int, _Shares]  # by vertex
_Vote = tuple[int | None, int | None]  # a vertex's id, or an edge's


def _vote(facts: JobFacts, step: Mapping[int, _Shares]) -> _Vote | None:
    """Return the bottleneck of one step. Sinks are examined first: the cause of back pressure is always downstream."""
    edge: EdgeView | None = None
    for vertex in reversed(facts.topological_order):
        shares = step.get(vertex.id, _UNKNOWN)
        if shares.back_pressured >= BACK_PRESSURED:
            continue
        blocked = [
            one for one in facts.inputs(vertex.id) if step.get(one.producer, _UNKNOWN).back_pressured >= BACK_PRESSURED
        ]
        if blocked and shares.busy >= CONSUMER_WORKS:
            return vertex.id, None
        for one in blocked:
            if edge is None and not _explained_by_sibling(facts, step, one):
                edge = one
    return None if edge is None else (None, edge.id)


def _explained_by_sibling(facts: JobFacts, step: Mapping[int, _Shares], edge: EdgeView) -> bool:
    """Return True if another consumer of the same producer explains why the producer is blocked."""
    siblings = [one.id for one in facts.consumers(edge.producer) if one.id != edge.consumer]
    return any(max(step.get(one, _UNKNOWN)) >= BACK_PRESSURED for one in siblings)


def _steps(facts: JobFacts) -> list[_Step]:
    steps: defaultdict[int, _Step] = defaultdict(dict)
    reported: _Step = {}  # vertices without a past
    for vertex in facts.vertices.values():
        has_past = any(task.past for task in vertex.tasks)
        for task in vertex.tasks:
            if not has_past:
                _raise_to(reported, vertex.id, task.back_pressured, task.busy)
            for one in task.past:
                _raise_to(steps[one.at_ms // facts.step_ms], vertex.id, one.back_pressured, one.busy)
    # A step that fewer vertices have reported, such as the last one, has no vote.
    most = max(map(len, steps.values()), default=0)
    return [{**reported, **step} for step in steps.values() if len(step) == most] or [reported]


def _raise_to(step: _Step, vertex: int, back_pressured: float, busy: float) -> None:
    before = step.get(vertex, _UNKNOWN)
    step[vertex] = _Shares(max(before.back_pressured, back_pressured), max(before.busy, busy))
