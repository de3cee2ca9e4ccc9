"""What sampled stacks say (B1): how long each task waits for an output buffer, and where it spends the rest.

Made from the workers' answers by `pressure_of`; nothing here samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.worker.messages import Sampled, SubtaskSamples

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
    """The level of a ratio.

    >>> level_of(0.0)
    <PressureLevel.OK: 'ok'>
    """
    if ratio <= _OK:
        return PressureLevel.OK
    return PressureLevel.LOW if ratio <= _LOW else PressureLevel.HIGH


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack, and how often it was seen. Frames are the user's, outermost first: 'function (file:line)'.

    >>> Stack(operator="map(slow)", frames=("slow (job.py:7)",), count=90).count
    90
    """

    operator: str  # whose code it is in; '': of none
    frames: tuple[str, ...]
    count: int
    idle: int = 0  # of these, how often waiting for input
    back_pressured: int = 0  # likewise for an output buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskPressure:
    """One task.

    >>> SubtaskPressure(subtask=0, taken=100, ratio=0.3, idle=0.1, level=PressureLevel.LOW, stacks=()).ratio
    0.3
    """

    subtask: int
    taken: int  # samples
    ratio: float  # of samples in which it waited for an output buffer
    idle: float  # likewise for input
    level: PressureLevel
    stacks: tuple[Stack, ...]  # the most frequent first


@dataclass(frozen=True, slots=True, kw_only=True)
class VertexPressure:
    """All tasks of a vertex; the level is the worst of theirs.

    >>> VertexPressure(vertex=0, ratio=0.0, level=PressureLevel.OK, subtasks=()).level
    <PressureLevel.OK: 'ok'>
    """

    vertex: int
    ratio: float  # the greatest
    level: PressureLevel
    subtasks: tuple[SubtaskPressure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """One round of sampling.

    >>> Pressure(at_ms=0, samples=100, delay_ms=50, vertices=()).samples
    100
    """

    at_ms: int  # when it ended
    samples: int
    delay_ms: int
    vertices: tuple[VertexPressure, ...]


def pressure_of(answers: Iterable[Sampled], *, at_ms: int, samples: int, delay_ms: int) -> Pressure:
    """What workers have answered in one round, put together; tasks of which nothing was seen are left out.

    >>> from headgate.worker.messages import Sampled, SubtaskSamples
    >>> held_back = SubtaskSamples(vertex=0, subtask=1, taken=100, idle=0, back_pressured=60, stacks=[])
    >>> pressure_of([Sampled(1, [held_back])], at_ms=0, samples=100, delay_ms=50).vertices[0].level
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
    stacks = [
        Stack(
            operator=one.operator,
            frames=tuple(one.frames),
            count=one.count,
            idle=one.idle,
            back_pressured=one.back_pressured,
        )
        for one in samples.stacks
    ]
    return SubtaskPressure(
        subtask=samples.subtask,
        taken=samples.taken,
        ratio=ratio,
        idle=samples.idle / samples.taken,
        level=level_of(ratio),
        stacks=tuple(sorted(stacks, key=lambda one: -one.count)),
    )
