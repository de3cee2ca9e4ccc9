"""Why a pipeline is as fast as it is: `diagnose` names the task that holds it back and the limit that it meets.

Called by `Job.why` on any thread, with a view, the last half minute of every vertex, and sampled stacks if there are
some. Pure: the same figures give the same answer, and any view gives one. The rules are below, in the order in which
they are asked; the first that has an answer has the last word.
"""

# The order of the rules, and why.
#
# A pipeline of tasks with bounded buffers between them is as fast as its slowest part, and everybody else waits for
# that part: those before it for an output buffer (back-pressured), those after it for input (idle). So the place comes
# first and the limit second. `why_place` goes through the moments of the past, 100 ms each, and in each from the sinks
# back: the place is the most downstream vertex that is not held back itself while somebody who writes to it is. If that
# vertex works, its work is the limit. If it does not, everybody waits and nobody works: then the way between the two is
# the limit. Moments vote, since two operators that take turns at being slow look, on average, like two that are
# half busy and nobody's problem. If nobody is held back, the place is a vertex that is busy all the time, which is then
# the slowest although buffers still hide it, or a source that cannot read faster; or there is none.
#
# 1. over, young: figures of a job that is over are zeros, and those of the first second are of its start.
#
# Then, for a vertex that works:
#
# 2. hot_key, skew: first of all, does all of it work? If one task is busy and the others have room, more CPU, fewer
#    calls or a faster sink would help one task of many; evening out helps at once. A key is better news than a bare
#    imbalance, since it has a name, so it is asked for first. A task that is busier with no more records than the
#    others is neither: its records or its machine are slower, and the rules below say so of that subtask.
# 3. sink: the last operator of a chain writes to something outside, which is where the user has to look; whether it
#    waits or computes is evidence, not cause. Only samples tell the operators of a chain apart.
# 4. waiting: neither on a CPU nor in line for one, while busy: user code sleeps, in a call to something outside.
#    Threads of one process share an interpreter, though, and a thread that wants its lock does not run either: so what
#    others of that process can explain is taken off first.
# 5. cpu: what is left is work.
#
# For an exchange whose consumer is idle while its producer waits:
#
# 6. crowded: if both ends are in one process that uses a whole CPU, they take turns at the interpreter and look idle to
#    each other. No buffer and no network would help. This is asked first because it is what a laptop shows most often.
# 7. network: the socket takes nothing, or what it took is not sent: bytes wait for the way, not for permission.
# 8. buffers: bytes wait for permission: all credit is under way, and comes back only after a round trip.
#
# And if nobody is held back:
#
# 9. source: it has nothing to give, and all the others wait for it.
# 10. room: somebody has something to do, and nobody is at a limit.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.observe.diagnosis import Cause, Diagnosis
from headgate.observe.why_case import Case
from headgate.observe.why_exchange import buffers, crowded, network
from headgate.observe.why_facts import Facts, share_of
from headgate.observe.why_text import named, percent, render, try_spreading, try_waiting_less, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.observe.pressure import Pressure
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobView

__all__ = ["RULES", "diagnose", "render"]

_YOUNG_S: Final = 1.0
"""Workers report every second: before the first report there is nothing to go by."""

_SHARE: Final = 1.3
"""A task gets more than its share of the records if it gets this many times as much as the mean. The rest of what
makes it busier is in what its records cost, or in its machine, and spreading them would not help."""

_KEY: Final = 0.1
"""A key below this share of all records is not called hot: it alone cannot be what one of a few tasks drowns in."""

_EXPLAINS: Final = 0.5
"""A key explains a task's load if it has this much of what the task gets beyond a fair share."""

_QUIET: Final = 0.5
"""A source that waits for this share of the time gives less than it could, if all the others wait as much: a job
without back pressure in which somebody is busier than that is not limited by its source alone."""


def diagnose(view: JobView, timelines: Sequence[Timeline], pressure: Pressure | None) -> Diagnosis:
    """What holds a job back, and why.

    Args:
        view: The job now, with its subtasks.
        timelines: The last half minute or so, one for each vertex with its subtasks. Without, the last report counts.
        pressure: Sampled stacks. Without, the operators of a chain cannot be told apart, and no function is named.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> diagnose(JobView(at_ms=5, graph=GraphView(vertices=(), edges=()), progress=progress), (), None).summary
    'the job is over: it is finished'
    """
    case = Case(Facts(view, timelines, pressure))
    answers = (rule(case) for rule in RULES)
    found = next(answer for answer in answers if answer is not None)  # the last rule always has one
    return replace(found, at_ms=view.at_ms)


# 1. Is there anything to say?


def over(case: Case) -> Diagnosis | None:
    """The job is over."""
    progress = case.facts.view.progress
    if not progress.status.over:
        return None
    ran = f"it ran for {progress.uptime_s:.0f} s" if progress.uptime_s >= 1 else "it ran for less than a second"
    return Diagnosis(cause=Cause.NONE, summary=f"the job is over: it is {progress.status}", evidence=(ran,))


def young(case: Case) -> Diagnosis | None:
    """It has not run long enough to tell."""
    facts, uptime_s = case.facts, case.facts.view.progress.uptime_s
    known = any(task.busy + task.idle + task.held > 0 for vertex in facts.order for task in vertex.tasks)
    if known and uptime_s >= _YOUNG_S:
        return None
    why = f"it has run for {max(0.0, uptime_s):.1f} s" if facts.order else "none of its tasks runs"
    return Diagnosis(
        cause=Cause.NONE,
        summary="it is too early to tell what the job is limited by",
        evidence=(why,),
        advice="ask again in a few seconds",
    )


# 2. A vertex works, but not all of it.


def hot_key(case: Case) -> Diagnosis | None:
    """One task has more than its share of the records, and one key is why."""
    load = _load(case)
    if load is None or case.vertex is None:
        return None
    mean = 1 / len(case.vertex.tasks)
    inputs = {one.id for one in case.facts.inputs(case.vertex.id)}
    keys = [key for one in case.facts.producers(case.vertex.id) for key in one.hot_keys if key.exchange in inputs]
    hottest = max(keys, key=lambda one: one.share, default=None)
    if hottest is None or hottest.share < max(_KEY, _EXPLAINS * (load - mean)):
        return None
    share = share_of(hottest.share)
    found = case.found(
        Cause.HOT_KEY,
        f"{percent(share)} of the records that {case.operator} gets have the key {hottest.key}, and one subtask has to"
        " take them all",
        f"spread the key {hottest.key}: add up before key_by; or give each record a salt of 0 to 7 in a map, key by"
        " (key, salt), and put the parts together in a second step keyed by the key alone",
        [f"that subtask gets {percent(load)} of the records; an even share is {percent(mean)}", case.samples_text()],
    )
    return replace(found, key=hottest.key, share=share, exchange=hottest.exchange)


def skew(case: Case) -> Diagnosis | None:
    """One task has more than its share of the records, and no single key is why."""
    load = _load(case)
    if load is None or case.vertex is None:
        return None
    mean, edges = 1 / len(case.vertex.tasks), case.facts.inputs(case.vertex.id)
    found = case.found(
        Cause.SKEW,
        f"one subtask of {case.operator} gets {percent(load)} of the records, and the others have room",
        try_spreading(edges[0].ship if len(edges) == 1 else ""),
        [
            f"an even share of the records is {percent(mean)}",
            "no single key has a great share of them" if any("hash" in one.ship for one in edges) else None,
            case.samples_text(),
        ],
    )
    return replace(found, exchange=edges[0].id if len(edges) == 1 else None)


def _load(case: Case) -> float | None:
    """The share of the records that the task gets which stands apart, if that is more than its own."""
    vertex = case.vertex
    if vertex is None or vertex.source or case.apart is None or len(vertex.tasks) == 1:
        return None
    # A task that has been at one batch for seconds has taken nothing lately, so what it ever took counts as well.
    lately = case.apart.records / (sum(one.records for one in vertex.tasks) or 1.0)
    ever = case.apart.now.records_in / (sum(one.now.records_in for one in vertex.tasks) or 1)
    load = share_of(max(lately, ever))
    return load if load >= _SHARE / len(vertex.tasks) else None


# 3. to 5. It works.


def sink(case: Case) -> Diagnosis | None:
    """The last operator, which writes to something outside."""
    vertex = case.vertex
    if vertex is None or not case.writes:
        return None
    if case.waits:
        how, advice = "waits for what it writes to", try_waiting_less(vertex, case.operator, writes=True)
    else:
        how = "has as much to do as it can"
        advice = case.less_work()
    return case.found(
        Cause.SINK,
        f"the sink {case.operator} {how}{case.in_function}, {case.so}",
        advice,
        [case.spent_text(), case.samples_text(), case.lock_text()],
    )


def waiting(case: Case) -> Diagnosis | None:
    """User code waits for something outside."""
    if case.vertex is None or not case.waits:
        return None
    return case.found(
        Cause.WAITING,
        f"{case.operator} waits{case.in_function} most of its time, {case.so}",
        try_waiting_less(case.vertex, case.operator, reads=case.reads),
        [case.spent_text(), case.samples_text()],
    )


def cpu(case: Case) -> Diagnosis | None:
    """What is left is work."""
    if case.vertex is None:
        return None
    return case.found(
        Cause.CPU,
        f"{case.operator} has as much to do as it can{case.in_function}, {case.so}",
        case.less_work(),
        [case.spent_text(), case.samples_text(), case.lock_text()],
    )


# 6. to 8. are about exchanges: see `why_exchange`.

# 9. and 10. Nobody is held back.


def source(case: Case) -> Diagnosis | None:
    """The sources have nothing to give, and everybody waits for them."""
    sources = [one for one in case.facts.order if one.source]
    others = [one for one in case.facts.order if not one.source]
    busiest = max((task.busy for one in case.facts.order for task in one.tasks), default=0.0)
    if not sources or busiest > _QUIET or any(one.idle < _QUIET for one in sources):
        return None
    quietest = max(sources, key=lambda one: one.idle)
    least = percent(min((one.idle for one in others), default=0.0))
    waits = f"{named(others)} after it {verb('waits', others)} for input {least} of the time"
    return Diagnosis(
        cause=Cause.SOURCE,
        vertex=quietest.id,
        operator=quietest.source_name,
        subtask=quietest.tasks[0].subtask if len(quietest.tasks) == 1 else None,
        summary=f"{quietest.source_name} gives no more than this, and the rest of the pipeline waits for it",
        evidence=(
            f"{quietest.source_name} itself waits {percent(quietest.idle)} of the time for something to read",
            *([waits] if others else []),
            "nobody is held back",
        ),
        advice=f"nothing in the pipeline: it takes all that comes. If more should come, look at what"
        f" {quietest.source_name} reads from",
    )


def room(case: Case) -> Diagnosis:
    """Nobody is at a limit."""
    busiest = max(case.facts.order, key=lambda one: one.hottest.busy)
    return Diagnosis(
        cause=Cause.NONE,
        summary="nothing holds the job back: it keeps up with its sources, and every task has room",
        evidence=(
            "nobody is held back",
            f"the busiest is {busiest.view.name}: {percent(busiest.hottest.busy)} of the time",
        ),
    )


RULES: Final[tuple[Callable[[Case], Diagnosis | None], ...]] = (
    over,
    young,
    hot_key,
    skew,
    sink,
    waiting,
    cpu,
    crowded,
    network,
    buffers,
    source,
    room,
)
"""All rules, in the order in which they are asked."""
