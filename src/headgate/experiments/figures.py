"""What a job's own meters say: speeds over time, of stretches of it, and when one speed follows another.

Called in the driver, on a `Timeline`: steps of 100 ms, each with the records that a task took or gave out. Seconds are
counted from the run's start. A step about which nothing is known is left out of everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.observe.timeline import TaskLine, Timeline

__all__ = ["STEP_MS", "Speeds", "follows_after_s", "percentile", "speeds_of"]

STEP_MS: Final = 100
"""The length of a step: what `metrics.interval` is set to."""

_WINDOW: Final = 5  # steps whose mean is looked at: two workers do not count at exactly the same moments
_TOLERANCE: Final = 0.1
_ENOUGH: Final = 0.9
_NEGLIGIBLE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Speeds:
    """Records a second in each step, from `start_s` on; None: not known.

    >>> speeds = Speeds(0.0, 0.1, (10.0, 20.0, None, 30.0))
    >>> speeds.mean(0.0, 0.4), speeds.mean(0.05, 0.25), speeds.mean(9.0, 10.0)
    (20.0, 20.0, None)
    """

    start_s: float
    step_s: float
    per_s: tuple[float | None, ...]

    def steps(self, begin_s: float, end_s: float) -> list[int]:
        """The steps that are wholly within a stretch."""
        first, step_s = self.start_s, self.step_s
        return [
            number
            for number in range(len(self.per_s))
            if begin_s - _NEGLIGIBLE <= first + number * step_s and first + (number + 1) * step_s <= end_s + _NEGLIGIBLE
        ]

    def mean(self, begin_s: float, end_s: float) -> float | None:
        """The mean of a stretch; None: nothing is known of it."""
        return _mean([self.per_s[number] for number in self.steps(begin_s, end_s)])

    def middles_s(self) -> list[float]:
        """The middle of each step."""
        return [self.start_s + (number + 0.5) * self.step_s for number in range(len(self.per_s))]


def speeds_of(timeline: Timeline, vertex: int, column: str, start_ms: float) -> Speeds:
    """A vertex's speed: `column` is 'records_in' or 'records_out', `start_ms` the run's start.

    >>> from headgate.observe.timeline import TaskLine, Timeline
    >>> line = TaskLine(vertex=0, subtask=-1, records_out=(5, -1, 7))
    >>> speeds_of(Timeline(start_ms=1000, step_ms=100, steps=3, tasks=(line,)), 0, "records_out", start_ms=900)
    Speeds(start_s=0.1, step_s=0.1, per_s=(50.0, None, 70.0))
    """
    step_s = timeline.step_ms / 1000
    line = line_of(timeline, vertex)
    counts: tuple[int, ...] = () if line is None else getattr(line, column)
    per_s = tuple(None if count < 0 else count / step_s for count in counts)
    return Speeds((timeline.start_ms - start_ms) / 1000, step_s, per_s)


def line_of(timeline: Timeline, vertex: int) -> TaskLine | None:
    """The line of a vertex as a whole, or of its only task."""
    lines = [one for one in timeline.tasks if one.vertex == vertex]
    return min(lines, key=lambda one: one.subtask) if lines else None


def follows_after_s(leader: Speeds, follower: Speeds, begin_s: float, end_s: float) -> float | None:
    """How long after `begin_s` the follower had the leader's speed, and kept it until `end_s`; None: it never did.

    The rule: means over half a second are looked at, from each step on; the first step whose mean is within 10 % of the
    leader's, as are nine of ten from there on (on a busy machine meters are sometimes read late, and a moment's records
    count for the next). What is said is when that step ended, so never less than a step.

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


def percentile(values: Sequence[float], q: float) -> float | None:
    """The value below which a share of them is; None: there are none.

    >>> percentile([3.0, 1.0, 2.0], 0.5), percentile([1.0, 2.0], 1.0), percentile([], 0.5)
    (2.0, 2.0, None)
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) <= _TOLERANCE * other + _NEGLIGIBLE


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
