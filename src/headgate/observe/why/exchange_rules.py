"""The rules of `why` about an exchange: its producer is blocked for an output buffer while its consumer is idle.

Applied by `rules` in its order. No task works, so the limit is between the two: one interpreter for both, the network,
or too few buffers for the round trip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headgate.observe.why.advice import advise_less_work
from headgate.observe.why.diagnosis import Cause, Diagnosis
from headgate.observe.why.text import bytes_text, percent
from headgate.observe.why.thresholds import BLOCKED_SOCKET, BUFFER_FACTOR_LIMIT, FULL_PROCESS, SHORT_ROUND_TRIP_MS

if TYPE_CHECKING:
    from headgate.observe.graph import EdgeView
    from headgate.observe.why.evidence import Evidence
    from headgate.observe.why.facts import JobFacts, TaskFacts

__all__ = ["buffers", "full_process", "network"]


def full_process(evidence: Evidence) -> Diagnosis | None:
    """Answer if an end of the exchange is in a process that has no CPU left: its tasks alternate at the interpreter."""
    edge, facts = evidence.edge, evidence.facts
    if edge is None:
        return None
    ends = [*facts.vertices[edge.producer].tasks, *facts.vertices[edge.consumer].tasks]
    full = [one for one in {task.process for task in ends} if (facts.cpu_demand(one) or 0.0) >= FULL_PROCESS]
    if not full:
        return None
    process = max(full, key=lambda one: facts.cpu_demand(one) or 0.0)
    inside = [one for one in facts.topological_order if any(task.process == process for task in one.tasks)]
    busiest = max(inside, key=lambda one: sum(_work(task) for task in one.tasks if task.process == process))
    used = facts.process_cpu(process) or 0.0
    name = busiest.view.operators[0] if len(busiest.view.operators) == 1 else busiest.view.name
    return Diagnosis(
        cause=Cause.CPU,
        vertex=busiest.id,
        operator=name,
        subtask=busiest.only_subtask,
        exchange=edge.id,
        summary=f"{len(facts.tasks_in(process))} tasks share one process that has no CPU left: they alternate, and"
        f" {name} uses most of it",
        evidence=(
            *_blocked_ends(facts, edge),
            f"their process uses {used:.1f} CPUs: Python runs one thread of a process at a time",
        ),
        advice=advise_less_work(busiest, name, None, process_full=True),
    )


def network(evidence: Evidence) -> Diagnosis | None:
    """Answer if bytes wait for the network: the socket accepts none, or the kernel does not send those it has."""
    edge, facts = evidence.edge, evidence.facts
    if edge is None:
        return None
    segment = facts.setting("memory.segment_size")
    full = [
        (number, one)
        for number, one in facts.connections(edge)
        if one.blocked >= BLOCKED_SOCKET or (one.unsent_bytes or 0) >= segment
    ]
    if not full:
        return None
    number, worst = max(full, key=lambda pair: (pair[1].blocked, pair[1].unsent_bytes or 0))
    connection = f"the connection from worker {number} to worker {worst.peer}"
    sentences = [f"{connection} carries {bytes_text(_finite(worst.bytes_out_per_s))}/s"]
    if worst.blocked >= BLOCKED_SOCKET:
        sentences.append(f"its socket accepts no bytes {percent(min(1.0, worst.blocked))} of the time")
    if worst.unsent_bytes or worst.waiting_bytes > 0:
        unwritten, unsent = bytes_text(max(0, worst.waiting_bytes)), bytes_text(max(0, worst.unsent_bytes or 0))
        sentences.append(f"{unwritten} are not written to the socket yet, and {unsent} not sent by the kernel")
    advice = (
        "send less: filter, project or aggregate before the exchange, or use Arrow batches, which are smaller than"
        " pickled records; or spread both vertices over more machines, so that more connections share the load"
    )
    if 0 < (size := facts.setting("network.send_buffer")) < 2 * segment:
        advice = f"leave network.send_buffer to the kernel (0): {size} B are less than two buffers; or {advice}"
    summary = f"{connection} accepts no more bytes, and both of its ends wait"
    return _diagnosis(evidence, Cause.NETWORK, summary, sentences, advice)


def buffers(evidence: Evidence) -> Diagnosis | None:
    """Answer for every other exchange: all of its buffers are in use, and too few for the round trip."""
    edge, facts = evidence.edge, evidence.facts
    if edge is None:
        return None
    producer, consumer = facts.vertices[edge.producer], facts.vertices[edge.consumer]
    # The producer could write this many times more if it were never blocked.
    factor = max(2, min(BUFFER_FACTOR_LIMIT, round(1 / max(1 - producer.back_pressured, 1e-3))))
    own = {task.progress.worker for task in producer.tasks}
    exhausted = [one for one in facts.workers if one.number in own and one.segments_total > 0 >= one.segments_free]
    between = f"too few buffers between {producer.view.name} and {consumer.view.name}"
    if exhausted:
        summary = f"worker {exhausted[0].number} has no network buffer left, and {producer.view.name} waits for one"
        sentences = [f"all of its {exhausted[0].segments_total} buffers are in use"]
        advice = f"give it more memory for buffers: memory.network.min = {2 * facts.setting('memory.network.min')} B"
    elif _is_remote(facts, edge):
        summary = f"there are {between} for the time from sending a buffer to receiving its credit again"
        sentences = _credit_sentences(facts, edge)
        more = factor * facts.setting("network.buffers_per_channel")
        advice = f"use more buffers: network.buffers_per_channel = {more}; or larger ones: memory.segment_size"
    else:
        limit = facts.setting("network.max_buffers_per_channel")
        summary = f"there are {between}: both wait alternately"
        size = bytes_text(facts.setting("memory.segment_size"))
        sentences = [f"a channel has at most {limit} buffers of {size}"]
        more = factor * limit
        advice = f"use more buffers: network.max_buffers_per_channel = {more}; or larger ones: memory.segment_size"
    return _diagnosis(evidence, Cause.BUFFERS, summary, sentences, advice)


def _credit_sentences(facts: JobFacts, edge: EdgeView) -> list[str]:
    """Return the buffers of the exchange, and the round trip that follows from them and the rate (Little's law)."""
    channels = [one for one in facts.channels(edge) if not one.local]
    segment, own = facts.setting("memory.segment_size"), facts.setting("network.buffers_per_channel")
    floating = facts.setting("network.floating_buffers_per_gate")
    found = [f"a channel has {own} exclusive buffers of {bytes_text(segment)}, and a gate {floating} floating ones"]
    if backlog := sum(max(0, one.backlog) for one in channels):
        found.append(f"{backlog} buffers wait at the producers, and no received buffer waits to be read")
    consumers = facts.vertices[edge.consumer].tasks
    rate = sum(_finite(task.progress.bytes_in_per_s) for task in consumers)
    if channels and rate > 0 and len(facts.inputs(edge.consumer)) == 1:
        in_flight = segment * (own * len(channels) + floating * len(consumers))
        found.append(
            f"at {bytes_text(rate)}/s, {bytes_text(in_flight)} in flight are a round trip of up to"
            f" {1000 * in_flight / rate:.0f} ms"
        )
    measured = [_finite(one.round_trip_ms) for _, one in facts.connections(edge) if one.round_trip_ms is not None]
    if max(measured, default=0.0) >= SHORT_ROUND_TRIP_MS:
        found.append(f"the system measures a round trip of {max(measured):.1f} ms between the machines")
    return found


def _is_remote(facts: JobFacts, edge: EdgeView) -> bool:
    """Return True if records of the exchange are sent from one worker to another."""
    channels = facts.channels(edge)
    if channels:
        return any(not one.local for one in channels)
    consumers = {task.progress.worker for task in facts.vertices[edge.consumer].tasks}
    return any(task.progress.worker not in consumers for task in facts.vertices[edge.producer].tasks)


def _blocked_ends(facts: JobFacts, edge: EdgeView) -> tuple[str, str]:
    producer, consumer = facts.vertices[edge.producer], facts.vertices[edge.consumer]
    return (
        f"{producer.view.name} waits for an output buffer {percent(producer.back_pressured)} of the time",
        f"{consumer.view.name}, which reads from it, waits for input {percent(consumer.idle)} of the time",
    )


def _work(task: TaskFacts) -> float:
    """Return the CPU time of a task, or its busy time if the system does not report it."""
    return task.busy if task.progress.cpu is None else _finite(task.progress.cpu)


def _finite(value: float) -> float:
    return max(0.0, value) if math.isfinite(value) else 0.0


def _diagnosis(evidence: Evidence, cause: Cause, summary: str, sentences: list[str], advice: str) -> Diagnosis:
    """Return a diagnosis of the exchange; its location is the producer."""
    edge = evidence.edge
    assert edge is not None, "the bottleneck is an exchange"
    producer = evidence.facts.vertices[edge.producer]
    return Diagnosis(
        cause=cause,
        vertex=producer.id,
        operator=producer.view.operators[-1] if producer.view.operators else producer.view.name,
        subtask=producer.only_subtask,
        exchange=edge.id,
        summary=summary,
        evidence=(*_blocked_ends(evidence.facts, edge), *sentences),
        advice=advice,
    )
