"""The past of a job as columns of figures, one per step: what charts are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TaskLine", "Timeline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLine:
    """The past of one task, or of all tasks of a vertex: a figure per step; -1 for an unknown step."""

    vertex: int
    subtask: int  # -1: all tasks of the vertex: means of shares and pools, sums of the others
    busy: tuple[int, ...] = ()  # thousandths of the step
    idle: tuple[int, ...] = ()
    back_pressured: tuple[int, ...] = ()
    records_in: tuple[int, ...] = ()  # during the step
    records_out: tuple[int, ...] = ()
    in_queued: tuple[int, ...] = ()  # the greatest of the step
    backlog: tuple[int, ...] = ()
    in_pool: tuple[int, ...] = ()  # thousandths, the greatest of the step
    out_pool: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()  # thousandths of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A period of time in equal steps. Step i begins at `start_ms + i * step_ms`, by the workers' clocks."""

    start_ms: int
    step_ms: int
    steps: int
    tasks: tuple[TaskLine, ...]
