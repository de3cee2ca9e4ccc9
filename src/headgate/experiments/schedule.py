"""The phases of an experiment, by seconds since its start.

A run starts with a lead, in which full speed is measured without any throttle. Phases of one length follow. The
schedule is plain data: it is sent to the workers with the plan, and sources, consumers and driver use the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FOLLOW", "Phase", "PhaseSchedule", "neighbour_phases"]

_SLICE_S: Final = 0.5
_FEWEST_SLICES: Final = 4
_TAIL_S: Final = 0.3
_EDGE_S: Final = 1e-9  # tolerated rounding error


@dataclass(frozen=True, slots=True)
class Phase:
    """The limits of producer and consumer, as shares of full speed; 1 is no limit."""

    name: str
    producer: float = 1.0
    consumer: float = 1.0
    neighbour: bool = False  # a slow consumer runs beside them

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
    """Return the phases of `neighbour` (B4): alone and beside a slow consumer in turn, as a machine's speed changes."""
    alone, beside = Phase("alone"), Phase("beside a slow one", neighbour=True)
    return (alone, *(beside, alone) * rounds)


@dataclass(frozen=True, slots=True)
class PhaseSchedule:
    """A lead, then phases of one length; with `goes_on`, then the last two in turn until the job is cancelled."""

    phases: tuple[Phase, ...]
    phase_s: float
    lead_s: float
    goes_on: bool = False

    def __post_init__(self) -> None:
        assert self.phases, "a schedule has phases"
        assert self.phase_s > 0, "a phase has a length"
        assert self.lead_s > 0, "full speed is measured in the lead"

    @property
    def slice_s(self) -> float:
        """The length of the parts of the lead by which full speed is measured."""
        return min(_SLICE_S, self.lead_s / _FEWEST_SLICES)

    @property
    def end_s(self) -> float:
        """The end of the last phase."""
        return self.lead_s + len(self.phases) * self.phase_s

    def number_at(self, second: float) -> int | None:
        """Return the phase at a time; None in the lead. After the end, the phase that goes on, or the last one."""
        if second < self.lead_s - _EDGE_S:
            return None
        number = int((second - self.lead_s + _EDGE_S) / self.phase_s)
        last = len(self.phases) - 1
        if number <= last:
            return number
        return last - (number - last) % 2 if self.goes_on and last else last

    def at(self, second: float) -> Phase:
        """Return the phase at a time; in the lead, one without limits."""
        number = self.number_at(second)
        return Phase("full speed") if number is None else self.phases[number]

    def bounds(self, number: int) -> tuple[float, float]:
        """Return the start and the end of a phase."""
        begin_s = self.lead_s + number * self.phase_s
        return begin_s, begin_s + self.phase_s

    def until_neighbour_s(self, second: float) -> float | None:
        """Return the seconds until the next phase with a neighbour: 0 in one, None without a next one."""
        for number, phase in enumerate(self.phases):
            begin_s, end_s = self.bounds(number)
            if phase.neighbour and second < end_s - _EDGE_S:
                return max(0.0, begin_s - second)
        return None

    def is_over(self, second: float) -> bool:
        """Return True once sources end: shortly after the last phase, so that their end is no part of it."""
        return not self.goes_on and second >= self.end_s + _TAIL_S
