"""Where a pipeline is held back: the vertex that works while those before it wait for it, or the exchange between two.

The first step of `why`. Each moment of the past has one vote, since two operators that take turns at being slow look
like two half-busy ones on average; where no past is known, the last report is the only moment.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headgate.observe.graph import EdgeView
    from headgate.observe.why_facts import Facts

__all__ = ["HELD", "Place", "find_place"]

HELD: Final = 0.2
"""A task that waits for an output buffer for more than this share of the time is held back. Less is the give and take
of bounded buffers: B1 calls up to 0.1 OK, and a moment of 100 ms is a shorter look than that."""

_WORKS: Final = 0.5
"""A consumer that is busy for this share of a moment has something to do: then its work is the limit, and not the way
to it. A consumer behind a thin exchange is idle most of the time."""

_HELD_TIME: Final = 0.3
"""A job in which somebody is held back in fewer of the moments than this is not held back: it began, or had a burst."""

_TURNS: Final = 0.25
"""Of the moments in which somebody was held back, so many belong to another place before we say that they alternate."""

_Moment = dict[int, tuple[float, float]]  # of each vertex: the greatest share held back, the greatest busy
_NOTHING: Final = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is, and how sure that is.

    >>> Place(vertex=1, share=0.9).edge is None
    True
    """

    vertex: int | None = None  # that works while others wait for it
    edge: EdgeView | None = None  # or: whose producer waits while its consumer does, too
    share: float = 0.0  # of the moments in which somebody was held back
    other: int | None = None  # a vertex that takes turns with it,
    other_share: float = 0.0  # and its share


def find_place(facts: Facts) -> Place | None:
    """Where the job is held back; None: it is not.

    >>> from headgate.observe.graph import GraphView
    >>> from headgate.observe.progress import Progress
    >>> from headgate.observe.status import JobStatus
    >>> from headgate.observe.view import JobView
    >>> from headgate.observe.why_facts import Facts
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=2.5, workers=(), vertices=())
    >>> find_place(Facts(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), (), None))
    """
    moments = _moments(facts)
    votes = Counter(vote for vote in (_vote(facts, one) for one in moments) if vote is not None)
    if votes.total() < _HELD_TIME * len(moments) or not votes:
        return None
    ranked = votes.most_common()
    (vertex, edge), count = ranked[0]
    place = Place(vertex, _edge(facts, edge), count / votes.total())
    for (other, _), turns in ranked[1:]:
        if vertex is not None and other is not None and turns >= _TURNS * votes.total():
            return Place(vertex, place.edge, place.share, other, turns / votes.total())
    return place


_Vote = tuple[int | None, int | None]  # a vertex, or an edge's id


def _vote(facts: Facts, moment: Mapping[int, tuple[float, float]]) -> _Vote | None:
    """The place of one moment, looking from the sinks back: whoever is held back has its reason further on."""
    edge: EdgeView | None = None
    for vertex in reversed(facts.order):
        held, busy = moment.get(vertex.id, _NOTHING)
        if held >= HELD:
            continue
        waiting = [one for one in facts.inputs(vertex.id) if moment.get(one.producer, _NOTHING)[0] >= HELD]
        if waiting and busy >= _WORKS:
            return vertex.id, None
        for one in waiting:
            if edge is None and not _explained(facts, moment, one):
                edge = one
    return None if edge is None else (None, edge.id)


def _explained(facts: Facts, moment: Mapping[int, tuple[float, float]], edge: EdgeView) -> bool:
    """Whether another consumer of the same producer is why it waits."""
    others = [one.id for one in facts.consumers(edge.producer) if one.id != edge.consumer]
    return any(max(moment.get(one, _NOTHING)) >= HELD for one in others)


def _edge(facts: Facts, number: int | None) -> EdgeView | None:
    return next((one for one in facts.edges if one.id == number), None) if number is not None else None


def _moments(facts: Facts) -> list[_Moment]:
    found: defaultdict[int, _Moment] = defaultdict(dict)
    now: _Moment = {}  # of vertices without a past
    for vertex in facts.vertices.values():
        if not any(task.past for task in vertex.tasks):
            now[vertex.id] = _greatest((task.held, task.busy) for task in vertex.tasks)
        for task in vertex.tasks:
            for one in task.past:
                moment = found[one.at_ms // facts.step_ms]
                moment[vertex.id] = _greater(moment.get(vertex.id, _NOTHING), (one.held, one.busy))
    # A moment of which less is known than of others, such as the last one, has no say.
    most = max(map(len, found.values()), default=0)
    return [{**now, **one} for one in found.values() if len(one) == most] or [now]


def _greatest(values: Iterable[tuple[float, float]]) -> tuple[float, float]:
    result = _NOTHING
    for value in values:
        result = _greater(result, value)
    return result


def _greater(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return max(one[0], other[0]), max(one[1], other[1])
