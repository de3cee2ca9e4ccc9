"""Flame graphs of a vertex, from sampled stacks: below each operator are the user's functions.

Pure; any thread.

Invariant: a value is the sum of its children's values and of the samples whose stack ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.observe.pressure import Stack, VertexPressure

__all__ = ["Flame", "Flames", "flames_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flame:
    """A function, an operator, or the root, and the number of samples in it and in the functions it called."""

    name: str
    value: int
    children: tuple[Flame, ...] = ()  # the greatest value first


@dataclass(frozen=True, slots=True, kw_only=True)
class Flames:
    """The flame graphs of a vertex, by state of the sampled thread. The children of a root are operators."""

    vertex: int
    busy: Flame
    idle: Flame  # blocked for input
    back_pressured: Flame  # blocked for an output buffer


def flames_of(vertex: VertexPressure, *, subtask: int | None = None) -> Flames:
    """Return the flame graphs of a vertex, of all its tasks or of one.

    >>> from headgate.observe.pressure import PressureLevel, Stack, SubtaskPressure, VertexPressure
    >>> seen = Stack(operator="map(slow)", frames=("slow (job.py:7)", "parse (job.py:3)"), count=90, idle=10)
    >>> task = SubtaskPressure(subtask=0, taken=90, ratio=0.0, idle=0.1, level=PressureLevel.OK, stacks=(seen,))
    >>> graph = flames_of(VertexPressure(vertex=0, ratio=0.0, level=PressureLevel.OK, subtasks=(task,))).busy
    >>> graph.value, graph.children[0].name, graph.children[0].children[0].name
    (80, 'map(slow)', 'slow (job.py:7)')
    """
    stacks = [stack for task in vertex.subtasks if subtask is None or task.subtask == subtask for stack in task.stacks]
    return Flames(
        vertex=vertex.vertex,
        busy=_flame("busy", stacks, lambda one: one.count - one.idle - one.back_pressured),
        idle=_flame("idle", stacks, lambda one: one.idle),
        back_pressured=_flame("back-pressured", stacks, lambda one: one.back_pressured),
    )


class _Node:
    """A `Flame` that is being built."""

    __slots__ = ("children", "value")

    def __init__(self) -> None:
        self.value = 0
        self.children: dict[str, _Node] = {}

    def frozen(self, name: str) -> Flame:
        children = sorted(self.children.items(), key=lambda item: (-item[1].value, item[0]))
        return Flame(name=name, value=self.value, children=tuple(node.frozen(below) for below, node in children))


def _flame(name: str, stacks: list[Stack], count: Callable[[Stack], int]) -> Flame:
    root = _Node()
    for stack in stacks:
        times = count(stack)
        if times <= 0:
            continue
        node = root
        node.value += times
        for step in (stack.operator or "no operator", *stack.frames):
            node = node.children.setdefault(step, _Node())
            node.value += times
    return root.frozen(name)
