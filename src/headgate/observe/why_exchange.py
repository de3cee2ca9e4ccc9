"""The rules of `why` about an exchange: its producer waits for an output buffer while its consumer waits for input.

Asked by `why`, in its order. Nobody works then, so what is between the two is the limit: one interpreter for both, the
network, or too few buffers for the round trip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from headgate.observe.diagnosis import Cause, Diagnosis
from headgate.observe.why_spent import FULL
from headgate.observe.why_text import bytes_text, percent, try_less_work

if TYPE_CHECKING:
    from headgate.observe.graph import EdgeView
    from headgate.observe.why_case import Case
    from headgate.observe.why_facts import Facts, Task

__all__ = ["buffers", "crowded", "network"]

_BLOCKED: Final = 0.3
"""A connection whose socket takes nothing for this share of the time is full: a socket that keeps up takes all that it
is offered at once, and is blocked for moments only."""

_SHORT_MS: Final = 1.0
"""A shorter round trip is not worth a word: that is what machines side by side have."""

_MOST_FASTER: Final = 16
"""However long a producer waits, no more than so many times the buffers are advised: it has other limits, too."""


def crowded(case: Case) -> Diagnosis | None:
    """Both ends share a process that has no CPU left: they take turns at its interpreter.

    >>> from headgate.observe.why import RULES
    >>> crowded in RULES
    True
    """
    edge, facts = case.edge, case.facts
    if edge is None:
        return None
    ends = [*facts.vertices[edge.producer].tasks, *facts.vertices[edge.consumer].tasks]
    full = [process for process in {task.process for task in ends} if (facts.demand(process) or 0.0) >= FULL]
    if not full:
        return None
    process = max(full, key=lambda one: facts.demand(one) or 0.0)
    inside = [one for one in facts.order if any(task.process == process for task in one.tasks)]
    busiest = max(inside, key=lambda one: sum(_work(task) for task in one.tasks if task.process == process))
    used = facts.process_cpu(process) or 0.0
    name = busiest.view.operators[0] if len(busiest.view.operators) == 1 else busiest.view.name
    return Diagnosis(
        cause=Cause.CPU,
        vertex=busiest.id,
        operator=name,
        subtask=busiest.tasks[0].subtask if len(busiest.tasks) == 1 else None,
        exchange=edge.id,
        summary=f"{len(facts.tasks_in(process))} tasks share one process that has no CPU left: they take turns, and"
        f" {name} has most of them",
        evidence=(
            *_waiting_ends(facts, edge),
            f"their process uses {used:.1f} CPUs: Python runs one thread of a process at a time",
        ),
        advice=try_less_work(busiest, name, None, crowded=True),
    )


def network(case: Case) -> Diagnosis | None:
    """Bytes wait for the network: the socket takes nothing, or what it took is not sent.

    >>> from headgate.observe.why import RULES
    >>> network in RULES
    True
    """
    edge, facts = case.edge, case.facts
    if edge is None:
        return None
    segment = facts.number("memory.segment_size")
    full = [
        (number, one)
        for number, one in facts.connections(edge)
        if one.blocked >= _BLOCKED or (one.unsent_bytes or 0) >= segment
    ]
    if not full:
        return None
    number, worst = max(full, key=lambda pair: (pair[1].blocked, pair[1].unsent_bytes or 0))
    way = f"the connection from worker {number} to worker {worst.peer}"
    evidence = [f"{way} carries {bytes_text(_number(worst.bytes_out_per_s))}/s"]
    if worst.blocked >= _BLOCKED:
        evidence.append(f"its socket takes nothing {percent(min(1.0, worst.blocked))} of the time")
    if worst.unsent_bytes or worst.waiting_bytes > 0:
        here, there = bytes_text(max(0, worst.waiting_bytes)), bytes_text(max(0, worst.unsent_bytes or 0))
        evidence.append(f"{here} wait to be written to it, and {there} that it has taken to be sent")
    advice = (
        "send less: filter, project or add up before the exchange, or use Arrow batches, which are smaller than"
        " pickled records; or spread both vertices over more machines, so that more connections share the load"
    )
    if 0 < (size := facts.number("network.send_buffer")) < 2 * segment:
        advice = f"leave network.send_buffer to the kernel (0): {size} B are less than two buffers; or {advice}"
    return _found(case, Cause.NETWORK, f"{way} takes no more, and both ends of it wait", evidence, advice)


def buffers(case: Case) -> Diagnosis | None:
    """Bytes wait for permission: all buffers are under way, and there are too few of them for the round trip.

    >>> from headgate.observe.why import RULES
    >>> buffers in RULES
    True
    """
    edge, facts = case.edge, case.facts
    if edge is None:
        return None
    producer, consumer = facts.vertices[edge.producer], facts.vertices[edge.consumer]
    # As many times as the producer could write more if it never waited.
    faster = max(2, min(_MOST_FASTER, round(1 / max(1 - producer.held, 1e-3))))
    own = {task.now.worker for task in producer.tasks}
    poor = [one for one in facts.workers if one.number in own and one.segments_total > 0 >= one.segments_free]
    if poor:
        summary = f"worker {poor[0].number} has no network buffer left, and {producer.view.name} waits for one"
        evidence = [f"all of its {poor[0].segments_total} buffers are taken"]
        advice = f"give it more memory for buffers: memory.network.min = {2 * facts.number('memory.network.min')} B"
    elif _remote(facts, edge):
        summary = (
            f"there are too few buffers between {producer.view.name} and {consumer.view.name} for the time that a"
            " buffer takes there and its credit back"
        )
        evidence = _credit_evidence(facts, edge)
        more = faster * facts.number("network.buffers_per_channel")
        advice = f"let more be under way: network.buffers_per_channel = {more}; or larger buffers: memory.segment_size"
    else:
        now = facts.number("network.max_buffers_per_channel")
        summary = f"there are too few buffers between {producer.view.name} and {consumer.view.name}: both wait in turn"
        size = bytes_text(facts.number("memory.segment_size"))
        evidence = [f"a reader has at most {now} buffers of {size} before it"]
        advice = f"let more be there: network.max_buffers_per_channel = {faster * now}; or larger: memory.segment_size"
    return _found(case, Cause.BUFFERS, summary, evidence, advice)


def _credit_evidence(facts: Facts, edge: EdgeView) -> list[str]:
    """What there is to be under way, and the round trip that follows from it and the rate (Little's law)."""
    found = []
    channels = [one for one in facts.channels(edge) if not one.local]
    segment, own = facts.number("memory.segment_size"), facts.number("network.buffers_per_channel")
    shared = facts.number("network.floating_buffers_per_gate")
    found.append(f"buffers of a channel: {own} of {bytes_text(segment)}; and {shared} that a reader's channels share")
    if backlog := sum(max(0, one.backlog) for one in channels):
        found.append(f"{backlog} buffers wait at the producers, and none of those that came waits to be read")
    readers = facts.vertices[edge.consumer].tasks
    rate = sum(_number(task.now.bytes_in_per_s) for task in readers)
    if channels and rate > 0 and len(facts.inputs(edge.consumer)) == 1:
        under_way = segment * (own * len(channels) + shared * len(readers))
        found.append(
            f"{bytes_text(rate)}/s come through, so that {bytes_text(under_way)} under way take up to"
            f" {1000 * under_way / rate:.0f} ms there and back"
        )
    measured = [one.round_trip_ms for _, one in facts.connections(edge) if one.round_trip_ms is not None]
    if max(map(_number, measured), default=0.0) >= _SHORT_MS:
        found.append(f"the system measures a round trip of {max(map(_number, measured)):.1f} ms between the machines")
    return found


def _remote(facts: Facts, edge: EdgeView) -> bool:
    """Whether records of an exchange go from one worker to another."""
    channels = facts.channels(edge)
    if channels:
        return any(not one.local for one in channels)
    readers = {task.now.worker for task in facts.vertices[edge.consumer].tasks}
    return any(task.now.worker not in readers for task in facts.vertices[edge.producer].tasks)


def _waiting_ends(facts: Facts, edge: EdgeView) -> tuple[str, str]:
    producer, consumer = facts.vertices[edge.producer], facts.vertices[edge.consumer]
    return (
        f"{producer.view.name} waits for an output buffer {percent(producer.held)} of the time",
        f"{consumer.view.name}, which reads from it, waits for input {percent(consumer.idle)} of the time",
    )


def _work(task: Task) -> float:
    """CPU time of a task, or its busy time where that is not known."""
    return task.busy if task.now.cpu is None else _number(task.now.cpu)


def _number(value: float) -> float:
    return max(0.0, value) if math.isfinite(value) else 0.0


def _found(case: Case, cause: Cause, summary: str, evidence: list[str], advice: str) -> Diagnosis:
    """An answer about an exchange: the place is who writes to it."""
    edge = case.edge
    assert edge is not None, "the place is an exchange"
    producer = case.facts.vertices[edge.producer]
    return Diagnosis(
        cause=cause,
        vertex=producer.id,
        operator=producer.view.operators[-1] if producer.view.operators else producer.view.name,
        subtask=producer.tasks[0].subtask if len(producer.tasks) == 1 else None,
        exchange=edge.id,
        summary=summary,
        evidence=(*_waiting_ends(case.facts, edge), *evidence),
        advice=advice,
    )
