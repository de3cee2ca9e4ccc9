"""One thing to try for each cause. Settings and methods have the names that a user types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.observe.why.facts import VertexFacts

__all__ = ["advise_less_work", "advise_shorter_waits", "advise_spreading"]

_BY_PARTITIONING: Final = {
    "hash": "choose a key with more values, or with values that are equally frequent",
    "hash-columns": "choose columns with more values, or with values that are equally frequent",
    "custom": "let the function given to partition_custom spread records over all channels",
    "forward": "spread the records with rebalance() before it: with forward, a subtask reads from one producer only",
    "rescale": "use rebalance() instead of rescale(), so that every subtask reads from all producers",
    "global": "leave global_() out: it sends all records to one subtask",
}


def advise_less_work(
    vertex: VertexFacts,
    operator: str,
    function: str | None,
    *,
    moves_records: bool = False,
    process_full: bool = False,
    machine_full: bool = False,
) -> str:
    """Return what to try where an operator's CPU time is the limit.

    Args:
        vertex: The operator's vertex.
        operator: The operator.
        function: The user's function with the most samples.
        moves_records: The operator spends its time on reading and writing records, not in the user's functions.
        process_full: Other threads of its process have the interpreter.
        machine_full: Other threads have the machine's CPUs.
    """
    cheaper = f"make {function} cheaper" if function else f"let {operator} do less"
    if moves_records:
        cheaper = (
            "move fewer and larger records: filter or aggregate earlier, or use Arrow batches (to_arrow, map_batches)"
        )
    if vertex.view.in_driver:
        return f"{cheaper}, or write in the workers (sink_to, for_each) instead of in the driver"
    if machine_full:
        return f"free a CPU for it: its machine has more runnable threads than CPUs; or {cheaper}"
    parallelism = 2 * vertex.view.parallelism
    if process_full:
        return (
            f"use more processes, since Python runs one thread of a process at a time: a parallelism of {parallelism}"
            f" on Spark, where every worker has a process of its own, or slot_sharing_group('own') after {operator};"
            f" or {cheaper}"
        )
    return f"{cheaper}, or use more subtasks: set_parallelism({parallelism}) after {operator}"


def advise_shorter_waits(vertex: VertexFacts, operator: str, *, reads: bool = False, writes: bool = False) -> str:
    """Return what to try where an operator waits for a system outside the job."""
    more = f"set_parallelism({2 * vertex.view.parallelism}) after {operator}"
    if operator.startswith("map_async"):
        return f"let more calls wait at the same time: a greater capacity of {operator}"
    if reads:
        return f"request more at a time in read(), or use more subtasks: more splits, and {more}"
    if writes and vertex.view.in_driver:
        return "write in the workers (sink_to, for_each) instead of in the driver"
    if writes:
        return f"write a whole batch with one call (Sink.write has a list), or use more subtasks: {more}"
    return (
        "wait for many results at once: make the function a coroutine function and call it with"
        f" map_async(..., capacity=100); or request a batch of records with one call; or {more}"
    )


def advise_spreading(ship: str) -> str:
    """Return what to try where one task has more records than the others of its vertex."""
    return _BY_PARTITIONING.get(ship, "spread the records evenly, for example with rebalance()")
