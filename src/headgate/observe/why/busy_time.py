"""Where the busy time of tasks is spent: on a CPU, in the run queue, behind other threads, or waiting.

Used by the rules; pure. CPU times are those of the last report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.observe.why.facts import clip_share
from headgate.observe.why.thresholds import FULL_PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.observe.why.facts import JobFacts, TaskFacts

__all__ = ["BusyTime", "divide_busy_time"]


@dataclass(frozen=True, slots=True)
class BusyTime:
    """The parts of the time that tasks spent inside operators, as shares that add up to 1."""

    cpu: float  # on a CPU
    run_queue: float  # runnable, without a CPU
    other_threads: float  # blocked for the interpreter's lock, which other threads of the process had
    waiting: float  # blocked in user code, or for coroutines


def divide_busy_time(facts: JobFacts, tasks: Iterable[TaskFacts]) -> BusyTime | None:
    """Return the parts of these tasks' busy time, or None if the system does not report CPU times."""
    total = cpu = run_queue = other_threads = waiting = 0.0
    for task in tasks:
        busy, coroutines = clip_share(task.progress.busy), clip_share(task.progress.waiting)
        if task.progress.cpu is None or busy + coroutines <= 0:
            continue
        on_cpu = min(busy, clip_share(task.progress.cpu))
        queued = min(busy - on_cpu, task.in_run_queue)
        rest = busy - on_cpu - queued
        # A runnable thread runs unless another thread has the interpreter, on a CPU or in the run queue.
        demand = facts.cpu_demand(task.process) or 0.0
        behind = min(rest, max(0.0, demand - on_cpu - queued)) if demand >= FULL_PROCESS else 0.0
        total += busy + coroutines
        cpu += on_cpu
        run_queue += queued
        other_threads += behind
        waiting += rest - behind + coroutines
    return BusyTime(cpu / total, run_queue / total, other_threads / total, waiting / total) if total > 0 else None
