"""The operator and the user's function in which busy tasks were sampled most often.

Used by the rules; pure. Samples are those of the last round of sampling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.observe.why.facts import TaskFacts

__all__ = ["HotSpot", "find_hot_spot"]

_OWN_SUFFIX: Final = "(headgate)"  # the sampler ends the names of headgate's own functions with it


@dataclass(frozen=True, slots=True)
class HotSpot:
    """The operator with the most samples, and the function in it."""

    operator: str  # '': no operator's code
    function: str | None  # the user's, with its most frequent line; None: there is no such function, or it has no name
    count: int  # samples in that function, or in the operator if there is no function
    taken: int  # samples of all work
    own: int = 0  # of the operator's samples, those in headgate's own code: reading, serializing, writing records

    @property
    def moves_records(self) -> bool:
        """Return True if most of the operator's work is in headgate's own code."""
        return self.own > self.count if self.function else 2 * self.own > self.count


def find_hot_spot(tasks: Iterable[TaskFacts]) -> HotSpot | None:
    """Return the hot spot of these tasks, or None without samples of work."""
    operators: Counter[str] = Counter()
    lines_of: dict[str, Counter[str]] = defaultdict(Counter)  # by operator
    for task in tasks:
        for stack in () if task.samples is None else task.samples.stacks:
            working = stack.count - stack.idle - stack.back_pressured
            if working > 0:
                operators[stack.operator] += working
                lines_of[stack.operator][_relevant_line(stack.frames)] += working
    if not operators:
        return None
    operator, count = operators.most_common(1)[0]
    lines = lines_of[operator]
    own = lines.pop(_OWN_SUFFIX, 0)
    functions: Counter[str] = Counter()
    for line, seen in lines.items():
        functions[_without_line_number(line)] += seen
    if not functions:
        return HotSpot(operator, None, count, operators.total(), own)
    function, count = functions.most_common(1)[0]
    if own > count:
        return HotSpot(operator, None, own + lines.total(), operators.total(), own)
    line = max((one for one in lines if _without_line_number(one) == function), key=lines.__getitem__)
    return HotSpot(operator, line or None, count, operators.total(), own)


def _relevant_line(frames: Sequence[str]) -> str:
    """Return the innermost frame in the file of the function that the operator called; '' if that has no name.

    Frames further inside are mostly those of a library, which the user cannot change.
    """
    users = [one for one in frames if one.endswith(")") and not one.endswith(_OWN_SUFFIX)]
    if not users:
        return _OWN_SUFFIX if frames and frames[-1].endswith(_OWN_SUFFIX) else ""
    file = _file(users[0])
    return next(one for one in reversed(users) if _file(one) == file)


def _file(frame: str) -> str:
    return frame.rpartition(" (")[2].rpartition(":")[0]


def _without_line_number(frame: str) -> str:
    return frame.rpartition(":")[0]
