"""The rules of `why`, the reason for their order, and `diagnose`, which applies them.

Called by `Job.why` on any thread. Pure: the same figures have the same answer, and every view has one.
"""

# A pipeline of tasks with bounded buffers between them is as fast as its slowest part. Tasks before that part are
# blocked for output buffers (back-pressured), tasks after it are blocked for input (idle). So the first question is
# where the bottleneck is, and the second is what limits it.
#
# Where: `bottleneck` examines each step of the past (100 ms), from the sinks to the sources. The bottleneck of a step
# is the most downstream vertex that is not back-pressured while one of its producers is. If that vertex works, its work
# is the limit. If it is idle, both sides are blocked and no task works: then the exchange between the two is the limit.
# Each step has one vote, because two operators that alternate at being slow are half busy on average, and look
# harmless. If no task is back-pressured, the bottleneck is a vertex that is busy all the time (buffers still hide it),
# or a source that cannot read faster; or there is none.
#
# What: the rules are applied in the order of `RULES`, and the first answer counts.
#
# 1. job_over, too_early: the figures of a finished job are zeros, and those of the first second are about its start.
#
# A vertex that works:
#
# 2. hot_key, skew: do all of its tasks work? If one task is busy and the others are not, more CPU, fewer calls or a
#    faster sink would speed up one task of many; even records speed up the vertex. A key is more specific than an
#    imbalance, so it has the first place. A task that is busier without more records has slower records or a slower
#    machine: the rules below name its subtask.
# 3. sink: the last operator of a chain writes to a system outside the job, and the remedy is there. Waiting or
#    computing is evidence here, not the cause. Only samples distinguish the operators of a chain.
# 4. waiting: a busy task that is neither on a CPU nor in the run queue sleeps in user code, in a call to a system
#    outside. But the threads of a process share an interpreter, and a thread that is blocked for its lock does not run
#    either: the time that other threads of the process explain is subtracted first.
# 5. cpu: the rest is work.
#
# An exchange whose consumer is idle while its producer is blocked:
#
# 6. full_process: if both ends are in one process that uses a whole CPU, they alternate at the interpreter, and each
#    appears idle to the other. Neither buffers nor network would change it. First, because it is frequent on a laptop.
# 7. network: the socket accepts no bytes, or the kernel does not send them: bytes wait for the network, not for credit.
# 8. buffers: bytes wait for credit: all credit is in use, and returns after a round trip.
#
# No task is back-pressured:
#
# 9. source: the source has nothing to read, and all other tasks wait for it.
# 10. no_limit: some task has work, and none is at a limit.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.observe.why.advice import advise_shorter_waits, advise_spreading
from headgate.observe.why.diagnosis import Cause, Diagnosis
from headgate.observe.why.evidence import Evidence
from headgate.observe.why.exchange_rules import buffers, full_process, network
from headgate.observe.why.facts import JobFacts, clip_share
from headgate.observe.why.text import inflect, names_text, percent
from headgate.observe.why.thresholds import HOT_KEY_EXPLAINS, HOT_KEY_SHARE, IDLE_SOURCE, SKEWED, YOUNG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.observe.pressure import Pressure
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobView

__all__ = ["RULES", "diagnose"]


def diagnose(view: JobView, timelines: Sequence[Timeline], pressure: Pressure | None) -> Diagnosis:
    """Return what limits a job, and why.

    Args:
        view: The job now, with its subtasks.
        timelines: The last seconds, one timeline for each vertex, with its subtasks. Without, the last report counts.
        pressure: Sampled stacks. Without, the operators of a chain cannot be distinguished, and no function is named.

    >>> from headgate.observe import GraphView, JobStatus, JobView, Progress
    >>> progress = Progress(job="1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> diagnose(JobView(at_ms=5, graph=GraphView(vertices=(), edges=()), progress=progress), (), None).summary
    'the job is over: it is finished'
    """
    evidence = Evidence(JobFacts(view, timelines, pressure))
    answers = (rule(evidence) for rule in RULES)
    found = next(answer for answer in answers if answer is not None)  # the last rule always has one
    return replace(found, at_ms=view.at_ms)


# 1. A job without figures.


def job_over(evidence: Evidence) -> Diagnosis | None:
    """Answer for a job that is over."""
    progress = evidence.facts.view.progress
    if not progress.status.over:
        return None
    ran = f"it ran for {progress.uptime_s:.0f} s" if progress.uptime_s >= 1 else "it ran for less than a second"
    return Diagnosis(cause=Cause.NONE, summary=f"the job is over: it is {progress.status}", evidence=(ran,))


def too_early(evidence: Evidence) -> Diagnosis | None:
    """Answer for a job that has no figures yet."""
    vertices, uptime_s = evidence.facts.vertices.values(), evidence.facts.view.progress.uptime_s
    reported = any(task.busy + task.idle + task.back_pressured > 0 for vertex in vertices for task in vertex.tasks)
    if reported and uptime_s >= YOUNG_S:
        return None
    return Diagnosis(
        cause=Cause.NONE,
        summary="it is too early to tell what limits the job",
        evidence=(f"it has run for {max(0.0, uptime_s):.1f} s" if vertices else "none of its tasks runs",),
        advice="ask again in a few seconds",
    )


# 2. One task of a vertex has more records than the others.


def hot_key(evidence: Evidence) -> Diagnosis | None:
    """Answer if one task has more than its share of the records, and one key explains it."""
    load, vertex = _excess_load(evidence), evidence.vertex
    if load is None or vertex is None:
        return None
    even = 1 / len(vertex.tasks)
    inputs = {one.id for one in evidence.facts.inputs(vertex.id)}
    keys = [key for one in evidence.facts.producers(vertex.id) for key in one.hot_keys if key.exchange in inputs]
    hottest = max(keys, key=lambda one: one.share, default=None)
    if hottest is None or hottest.share < max(HOT_KEY_SHARE, HOT_KEY_EXPLAINS * (load - even)):
        return None
    share = clip_share(hottest.share)
    found = evidence.diagnosis(
        Cause.HOT_KEY,
        f"{percent(share)} of the records of {evidence.operator} have the key {hottest.key}, and one subtask has to"
        " process all of them",
        f"spread the key {hottest.key}: aggregate before key_by; or add a salt of 0 to 7 to each record in a map, key"
        " by (key, salt), and combine the parts in a second step keyed by the key alone",
        [
            f"that subtask has {percent(load)} of the records; an even share is {percent(even)}",
            evidence.samples_text(),
        ],
    )
    return replace(found, key=hottest.key, share=share, exchange=hottest.exchange)


def skew(evidence: Evidence) -> Diagnosis | None:
    """Answer if one task has more than its share of the records, and no single key explains it."""
    load, vertex = _excess_load(evidence), evidence.vertex
    if load is None or vertex is None:
        return None
    edges = evidence.facts.inputs(vertex.id)
    found = evidence.diagnosis(
        Cause.SKEW,
        f"one subtask of {evidence.operator} has {percent(load)} of the records, and the others are not busy",
        advise_spreading(edges[0].ship if len(edges) == 1 else ""),
        [
            f"an even share of the records is {percent(1 / len(vertex.tasks))}",
            "no single key has a great share of them" if any("hash" in one.ship for one in edges) else None,
            evidence.samples_text(),
        ],
    )
    return replace(found, exchange=edges[0].id if len(edges) == 1 else None)


def _excess_load(evidence: Evidence) -> float | None:
    """Return the outlier's share of the records, if that is more than an even share."""
    vertex, outlier = evidence.vertex, evidence.outlier if evidence.vertex else None
    if vertex is None or vertex.source or outlier is None or len(vertex.tasks) == 1:
        return None
    # A task that has processed one batch for seconds has received no records in the window: its total counts as well.
    recent = outlier.records / (sum(one.records for one in vertex.tasks) or 1.0)
    total = outlier.progress.records_in / (sum(one.progress.records_in for one in vertex.tasks) or 1)
    load = clip_share(max(recent, total))
    return load if load >= SKEWED / len(vertex.tasks) else None


# 3. to 5. A vertex works.


def sink(evidence: Evidence) -> Diagnosis | None:
    """Answer if the tasks work in the last operator, which writes to a system outside the job."""
    vertex = evidence.vertex
    if vertex is None or not evidence.writes:
        return None
    if evidence.waits:
        how, advice = "waits for what it writes to", advise_shorter_waits(vertex, evidence.operator, writes=True)
    else:
        how, advice = "works as fast as it can", evidence.less_work()
    return evidence.diagnosis(
        Cause.SINK,
        f"the sink {evidence.operator} {how}{evidence.in_function}, {evidence.consequence}",
        advice,
        [evidence.busy_time_text(), evidence.samples_text(), evidence.process_text()],
    )


def waiting(evidence: Evidence) -> Diagnosis | None:
    """Answer if the user's code waits for a system outside the job."""
    if evidence.vertex is None or not evidence.waits:
        return None
    return evidence.diagnosis(
        Cause.WAITING,
        f"{evidence.operator} waits{evidence.in_function} most of its time, {evidence.consequence}",
        advise_shorter_waits(evidence.vertex, evidence.operator, reads=evidence.reads),
        [evidence.busy_time_text(), evidence.samples_text()],
    )


def cpu(evidence: Evidence) -> Diagnosis | None:
    """Answer for every other vertex that works."""
    if evidence.vertex is None:
        return None
    return evidence.diagnosis(
        Cause.CPU,
        f"{evidence.operator} works as fast as it can{evidence.in_function}, {evidence.consequence}",
        evidence.less_work(),
        [evidence.busy_time_text(), evidence.samples_text(), evidence.process_text()],
    )


# 6. to 8. are about exchanges: see `exchange_rules`.

# 9. and 10. No task is back-pressured.


def source(evidence: Evidence) -> Diagnosis | None:
    """Answer if the sources have nothing to read, and all other tasks wait for them."""
    vertices = evidence.facts.topological_order
    sources, others = [one for one in vertices if one.source], [one for one in vertices if not one.source]
    busiest = max((task.busy for one in vertices for task in one.tasks), default=0.0)
    if not sources or busiest > IDLE_SOURCE or any(one.idle < IDLE_SOURCE for one in sources):
        return None
    idlest = max(sources, key=lambda one: one.idle)
    name = idlest.source_operator
    least = percent(min((one.idle for one in others), default=0.0))
    after = f"{names_text(others)} after it {inflect('waits', others)} for input {least} of the time"
    return Diagnosis(
        cause=Cause.SOURCE,
        vertex=idlest.id,
        operator=name,
        subtask=idlest.only_subtask,
        summary=f"{name} has no more records to read, and the rest of the pipeline waits for it",
        evidence=(
            f"{name} itself waits {percent(idlest.idle)} of the time for something to read",
            *([after] if others else []),
            "no task is back-pressured",
        ),
        advice=f"nothing in the pipeline: it processes all records at once. For more records, check the system that"
        f" {name} reads from",
    )


def no_limit(evidence: Evidence) -> Diagnosis:
    """Answer for every other job."""
    busiest = max(evidence.facts.topological_order, key=lambda one: one.busiest_task.busy)
    return Diagnosis(
        cause=Cause.NONE,
        summary="the job has no bottleneck: it keeps up with its sources, and no task is busy all the time",
        evidence=(
            "no task is back-pressured",
            f"the busiest vertex is {busiest.view.name}: {percent(busiest.busiest_task.busy)} of the time",
        ),
    )


RULES: Final[tuple[Callable[[Evidence], Diagnosis | None], ...]] = (
    job_over,
    too_early,
    hot_key,
    skew,
    sink,
    waiting,
    cpu,
    full_process,
    network,
    buffers,
    source,
    no_limit,
)
"""All rules in their order: the first that returns a diagnosis answers."""
