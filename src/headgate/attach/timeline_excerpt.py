"""The last seconds of a timeline in fewer, longer steps: for a file, what `observe.history` does for a running job.

Used by `kept_jobs` on any thread; pure. Invariant: unknown figures (-1) count in no mean, sum or maximum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.observe.timeline import TaskLine, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["excerpt"]

_Figures = tuple[int, ...]


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


# By figure: how the values of several steps are combined, and how those of several tasks are.
_FIGURES: Final[dict[str, tuple[Callable[[Sequence[int]], int], Callable[[Sequence[int]], int]]]] = {
    "busy": (_mean, _mean),
    "idle": (_mean, _mean),
    "back_pressured": (_mean, _mean),
    "records_in": (sum, sum),
    "records_out": (sum, sum),
    "in_queued": (max, sum),
    "backlog": (max, sum),
    "in_pool": (max, _mean),
    "out_pool": (max, _mean),
    "waiting": (_mean, _mean),
}


def excerpt(past: Timeline, *, seconds: float, points: int, vertex: int | None = None) -> Timeline:
    """Return the last seconds in at most `points` steps: of all vertices, or of one vertex and its tasks.

    >>> lines = (TaskLine(vertex=0, subtask=0, busy=(0, 100, 300, -1)), TaskLine(vertex=0, subtask=1, busy=(8,) * 4))
    >>> past = Timeline(start_ms=1000, step_ms=100, steps=4, tasks=lines)
    >>> short = excerpt(past, seconds=0.3, points=2, vertex=0)
    >>> short.start_ms, short.step_ms, short.steps
    (1200, 200, 1)
    >>> [(one.subtask, one.busy) for one in short.tasks]
    [(-1, (154,)), (0, (300,)), (1, (8,))]
    """
    wanted = max(1, min(past.steps, round(seconds * 1000 / past.step_ms))) if past.steps else 0
    group = max(1, -(-wanted // max(1, points)))
    steps = wanted // group
    begin = past.steps - steps * group
    vertices = sorted({one.vertex for one in past.tasks if vertex in {None, one.vertex}})
    lines: list[TaskLine] = []
    for number in vertices:
        tasks = [_cut(one, begin, group) for one in past.tasks if one.vertex == number]
        whole = next((one for one in tasks if one.subtask < 0), None)
        parts = sorted((one for one in tasks if one.subtask >= 0), key=lambda one: one.subtask)
        lines.append(whole or _combine_tasks(number, parts))
        if vertex is not None:
            lines += parts
    return Timeline(
        start_ms=past.start_ms + begin * past.step_ms,
        step_ms=past.step_ms * group,
        steps=steps,
        tasks=tuple(lines),
    )


def _cut(line: TaskLine, begin: int, group: int) -> TaskLine:
    """Return the steps from `begin` on, `group` of them combined to one."""
    figures: dict[str, _Figures] = {}
    for name, (over_steps, _) in _FIGURES.items():
        values: _Figures = getattr(line, name)[begin:]
        if group > 1:
            values = tuple(_combine_known(over_steps, values[i : i + group]) for i in range(0, len(values), group))
        figures[name] = values
    return TaskLine(vertex=line.vertex, subtask=line.subtask, **figures)


def _combine_tasks(vertex: int, parts: Sequence[TaskLine]) -> TaskLine:
    """Return one line for all tasks of a vertex."""
    figures: dict[str, _Figures] = {}
    for name, (_, over_tasks) in _FIGURES.items():
        columns = [values for one in parts if (values := getattr(one, name))]
        figures[name] = tuple(_combine_known(over_tasks, step) for step in zip(*columns, strict=False))
    return TaskLine(vertex=vertex, subtask=-1, **figures)


def _combine_known(combine: Callable[[Sequence[int]], int], values: Sequence[int]) -> int:
    known = [one for one in values if one >= 0]
    return combine(known) if known else -1
