"""When who is throttled: the phases of an experiment, by seconds since its start.

Plain data that goes to the workers with the plan; sources, consumers and the driver ask it the same questions. A run
begins with a lead, in which nobody is throttled and full speed is measured. Phases of one length follow.

Invariant: every moment from 0 to the end is in the lead or in exactly one phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FOLLOW", "Phase", "Schedule", "neighbour_phases"]

_SLICE_S: Final = 0.5
_FEWEST_SLICES: Final = 4
_TAIL_S: Final = 0.3
_EDGE_S: Final = 1e-9  # what a rounding error may be


@dataclass(frozen=True, slots=True)
class Phase:
    """What producer and consumer may do for a while, as shares of full speed.

    >>> Phase("consumer slowed", producer=1.0, consumer=0.3).expected
    0.3
    """

    name: str
    producer: float = 1.0  # 1: as fast as it can
    consumer: float = 1.0
    neighbour: bool = False  # whether a slow one is beside them

    @property
    def expected(self) -> float:
        """The speed that both should have."""
        return min(self.producer, self.consumer)


FOLLOW: Final = (
    Phase("producer 60 %", producer=0.6),
    Phase("consumer 30 %", consumer=0.3),
    Phase("released"),
    Phase("again 30 %", consumer=0.3),
    Phase("again released"),
)
"""The phases of `follow` (B3)."""


def neighbour_phases(rounds: int) -> tuple[Phase, ...]:
    """The phases of `neighbour` (B4): alone and beside a slow one in turns, for machines are not steady.

    >>> [phase.neighbour for phase in neighbour_phases(2)]
    [False, True, False, True, False]
    """
    assert rounds > 0, "there is a slow one at some time"
    alone, beside = Phase("alone"), Phase("beside a slow one", neighbour=True)
    return (alone, *(beside, alone) * rounds)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A lead, then phases of one length; then, if it goes on, the last two in turns until somebody ends it.

    >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
    >>> schedule.number_at(1.9), schedule.number_at(2.0), schedule.at(2.0).name, schedule.end_s
    (None, 0, 'producer 60 %', 52.0)
    """

    phases: tuple[Phase, ...]
    phase_s: float
    lead_s: float
    goes_on: bool = False

    def __post_init__(self) -> None:
        assert self.phases, "there is something to do"
        assert self.phase_s > 0, "phases take time"
        assert self.lead_s > 0, "there is time to measure full speed"

    @property
    def slice_s(self) -> float:
        """The lead is cut into stretches of this length, to measure full speed by."""
        return min(_SLICE_S, self.lead_s / _FEWEST_SLICES)

    @property
    def end_s(self) -> float:
        """When the last phase ends."""
        return self.lead_s + len(self.phases) * self.phase_s

    def number_at(self, second: float) -> int | None:
        """Which phase that moment is in; None: the lead. After the end, those that it goes on with, or the last."""
        if second < self.lead_s - _EDGE_S:
            return None
        number = int((second - self.lead_s + _EDGE_S) / self.phase_s)
        last = len(self.phases) - 1
        if number <= last:
            return number
        return last - (number - last) % 2 if self.goes_on and last else last

    def at(self, second: float) -> Phase:
        """What holds at that moment: in the lead, nobody is throttled."""
        number = self.number_at(second)
        return Phase("full speed") if number is None else self.phases[number]

    def bounds(self, number: int) -> tuple[float, float]:
        """When a phase begins and ends.

        >>> Schedule(FOLLOW, phase_s=10.0, lead_s=2.0).bounds(1)
        (12.0, 22.0)
        """
        assert 0 <= number < len(self.phases), "there is such a phase"
        begin_s = self.lead_s + number * self.phase_s
        return begin_s, begin_s + self.phase_s

    def until_neighbour_s(self, second: float) -> float | None:
        """How long it is until a phase with a neighbour: 0 in one; None: there is no further one.

        >>> schedule = Schedule(neighbour_phases(1), phase_s=5.0, lead_s=2.0)
        >>> schedule.until_neighbour_s(1.0), schedule.until_neighbour_s(8.0), schedule.until_neighbour_s(13.0)
        (6.0, 0.0, None)
        """
        for number, phase in enumerate(self.phases):
            begin_s, end_s = self.bounds(number)
            if phase.neighbour and second < end_s - _EDGE_S:
                return max(0.0, begin_s - second)
        return None

    def is_over(self, second: float) -> bool:
        """Whether sources end: a moment after the last phase, which their end is no part of; never, where it goes on.

        >>> schedule = Schedule(FOLLOW, phase_s=10.0, lead_s=2.0)
        >>> schedule.is_over(52.0), schedule.is_over(52.5)
        (False, True)
        """
        return not self.goes_on and second >= self.end_s + _TAIL_S
