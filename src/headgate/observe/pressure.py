"""Back pressure by sampled stacks (B1): how often each task is blocked for an output buffer, and where else it is.

Made by `pressure_of` from the workers' answers to a request for samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headgate.control.reports import Stack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.control.reports import StackSamples, SubtaskSamples

__all__ = ["Pressure", "PressureLevel", "Stack", "SubtaskPressure", "VertexPressure", "level_of", "pressure_of"]

_OK: Final = 0.10
_LOW: Final = 0.5


class PressureLevel(StrEnum):
    """How much back pressure there is.

    >>> level_of(0.10), level_of(0.5), level_of(0.51)
    (<PressureLevel.OK: 'ok'>, <PressureLevel.LOW: 'low'>, <PressureLevel.HIGH: 'high'>)
    """

    OK = "ok"
    LOW = "low"
    HIGH = "high"


def level_of(ratio: float) -> PressureLevel:
    """Return the level for a share of samples in which a task was blocked for an output buffer."""
    if ratio <= _OK:
        return PressureLevel.OK
    return PressureLevel.LOW if ratio <= _LOW else PressureLevel.HIGH


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskPressure:
    """The samples of one task."""

    subtask: int
    taken: int  # samples
    ratio: float  # share of samples in which it was blocked for an output buffer
    idle: float  # likewise for input
    level: PressureLevel
    stacks: tuple[Stack, ...]  # the most frequent first


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexPressure:
    """The samples of a vertex's tasks. Ratio and level are the greatest of the tasks'."""

    vertex: int
    ratio: float
    level: PressureLevel
    subtasks: tuple[SubtaskPressure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """One round of sampling."""

    at_ms: int  # its end
    samples: int
    delay_ms: int
    vertices: tuple[VertexPressure, ...]


def pressure_of(answers: Iterable[StackSamples], *, at_ms: int, samples: int, delay_ms: int) -> Pressure:
    """Return the result of one round of sampling; tasks without samples are left out.

    >>> from headgate.control.reports import StackSamples, SubtaskSamples
    >>> blocked = SubtaskSamples(vertex=0, subtask=1, taken=100, idle=0, back_pressured=60, stacks=[])
    >>> pressure_of([StackSamples(1, [blocked])], at_ms=0, samples=100, delay_ms=50).vertices[0].level
    <PressureLevel.HIGH: 'high'>
    """
    found: dict[int, list[SubtaskPressure]] = {}
    for answer in answers:
        for one in answer.subtasks:
            if one.taken:
                found.setdefault(one.vertex, []).append(_subtask_pressure(one))
    vertices = []
    for vertex, subtasks in sorted(found.items()):
        ratio = max(one.ratio for one in subtasks)
        ranked = tuple(sorted(subtasks, key=lambda one: one.subtask))
        vertices.append(VertexPressure(vertex=vertex, ratio=ratio, level=level_of(ratio), subtasks=ranked))
    return Pressure(at_ms=at_ms, samples=samples, delay_ms=delay_ms, vertices=tuple(vertices))


def _subtask_pressure(samples: SubtaskSamples) -> SubtaskPressure:
    ratio = samples.back_pressured / samples.taken
    return SubtaskPressure(
        subtask=samples.subtask,
        taken=samples.taken,
        ratio=ratio,
        idle=samples.idle / samples.taken,
        level=level_of(ratio),
        stacks=tuple(sorted(samples.stacks, key=lambda one: -one.count)),
    )
