"""A stretch of a job's past, as columns: what the ring of states looks like to whoever draws it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TaskLine", "Timeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """One task's past, or that of a vertex's tasks together: a figure per step; -1 where nothing is known.

    >>> TaskLine(vertex=0, subtask=1, busy=(900,), idle=(0,), back_pressured=(100,)).busy
    (900,)
    """

    vertex: int
    subtask: int  # -1: all of the vertex: means of shares and pools, sums of the others
    busy: tuple[int, ...] = ()  # thousandths of the step
    idle: tuple[int, ...] = ()
    back_pressured: tuple[int, ...] = ()
    records_in: tuple[int, ...] = ()  # in the step
    records_out: tuple[int, ...] = ()
    in_queued: tuple[int, ...] = ()  # the most in the step
    backlog: tuple[int, ...] = ()
    in_pool: tuple[int, ...] = ()  # thousandths, the most in the step
    out_pool: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A stretch of time in equal steps. Step i began at `start_ms + i * step_ms`, by the workers' clocks.

    >>> Timeline(start_ms=1000, step_ms=100, steps=0, tasks=()).step_ms
    100
    """

    start_ms: int
    step_ms: int
    steps: int
    tasks: tuple[TaskLine, ...]
