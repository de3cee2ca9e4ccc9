"""Speeds over time from a job's own meters, and when one speed follows another.

The source is a `Timeline`: steps of 100 ms with the records that a vertex took or emitted. Times are seconds from the
start of the run. Steps without a figure are left out of all results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.observe.timeline import Timeline

__all__ = ["STEP_MS", "Speeds", "follows_after_s", "speeds_of"]

STEP_MS: Final = 100
"""The length of a step: the experiments set `metrics.interval` to it."""

_WINDOW: Final = 5  # steps that are averaged: two workers do not count at exactly the same times
_TOLERANCE: Final = 0.1
_ENOUGH: Final = 0.9
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Speeds:
    """Records per second, or shares, in each step from `start_s` on; None is unknown."""

    start_s: float
    step_s: float
    per_s: tuple[float | None, ...]

    def steps(self, begin_s: float, end_s: float) -> list[int]:
        """Return the numbers of the steps wholly between two times."""
        first, step_s = self.start_s, self.step_s
        return [
            number
            for number in range(len(self.per_s))
            if begin_s - _NEGLIGIBLE <= first + number * step_s and first + (number + 1) * step_s <= end_s + _NEGLIGIBLE
        ]

    def mean(self, begin_s: float, end_s: float) -> float | None:
        """Return the mean between two times; None if no step there is known."""
        return _mean([self.per_s[number] for number in self.steps(begin_s, end_s)])

    def middles_s(self) -> list[float]:
        """Return the middle of each step."""
        return [self.start_s + (number + 0.5) * self.step_s for number in range(len(self.per_s))]


def speeds_of(timeline: Timeline, vertex: int, column: str, start_ms: float) -> Speeds:
    """Return a column of a vertex as a whole, or of its only task.

    'records_in' and 'records_out' are counts of a step and become records per second; all others are thousandths of
    the time and become shares.
    """
    step_s = timeline.step_ms / 1000
    lines = [one for one in timeline.tasks if one.vertex == vertex]
    values: tuple[int, ...] = getattr(min(lines, key=lambda one: one.subtask), column) if lines else ()
    unit = step_s if column.startswith("records") else 1000
    per_s = tuple(None if value < 0 else value / unit for value in values)
    return Speeds((timeline.start_ms - start_ms) / 1000, step_s, per_s)


def follows_after_s(leader: Speeds, follower: Speeds, begin_s: float, end_s: float) -> float | None:
    """Return the time from `begin_s` until the follower has the leader's speed; None: it does not follow.

    Compared are means over half a second. The first step counts from which on nine of ten means are within 10 %: one
    step may count records of the next. The result is the end of that step, so it is never less than a step.

    >>> leader = Speeds(0.0, 0.1, (100.0,) * 10)
    >>> follows_after_s(leader, Speeds(0.0, 0.1, (200.0, 200.0) + (100.0,) * 8), 0.0, 1.0)
    0.3
    """
    steps = leader.steps(begin_s, end_s)
    if not steps or len(follower.per_s) != len(leader.per_s):
        return None
    window = min(_WINDOW, len(steps))
    spans = [steps[at : at + window] for at in range(len(steps) - window + 1)]
    alike = [_alike(_mean([follower.per_s[n] for n in span]), _mean([leader.per_s[n] for n in span])) for span in spans]
    for at, fits in enumerate(alike):
        if fits and sum(alike[at:]) >= _ENOUGH * (len(alike) - at):
            return round(leader.start_s + (steps[at] + 1) * leader.step_s - begin_s, 6)
    return None


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) <= _TOLERANCE * other + _NEGLIGIBLE


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
