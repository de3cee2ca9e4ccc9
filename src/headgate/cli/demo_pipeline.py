"""The second pipeline of `headgate demo`: water gauges at a fixed rate, and each one's windows of a second.

A module of its own, because workers import it: they have no use for a command line.
"""

import math
from typing import NamedTuple

import headgate as hg

__all__ = ["PER_SECOND", "Levels", "Reading", "Second", "reading", "second", "windows"]

PER_SECOND = 20_000
"""Readings of all gauges together."""

_GAUGES = ("Alder", "Birch", "Cedar", "Maple")


class Reading(NamedTuple):
    """What a water gauge says."""

    gauge: str
    at: int  # milliseconds since the begin
    millimetres: int


class Second(NamedTuple):
    """A gauge's window of a second."""

    gauge: str
    start: int
    readings: int
    mean: float
    highest: int


class Levels(hg.AggregateFunction[Reading, tuple[int, int, int], tuple[int, float, int]]):
    """Number, sum and maximum."""

    def create_accumulator(self) -> tuple[int, int, int]:
        """Nothing yet."""
        return 0, 0, 0

    def add(self, value: Reading, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        """One reading more."""
        count, total, highest = accumulator
        return count + 1, total + value.millimetres, max(highest, value.millimetres)

    def get_result(self, accumulator: tuple[int, int, int]) -> tuple[int, float, int]:
        """With the mean in place of the sum."""
        count, total, highest = accumulator
        return count, total / count, highest


def reading(n: int) -> Reading:
    """The n-th reading of all: the gauges take turns, and their levels rise and fall.

    >>> reading(20_001)
    Reading(gauge='Birch', at=1000, millimetres=...)
    """
    number = n % len(_GAUGES)
    at = n * 1000 // PER_SECOND
    level = 1500 + 400 * math.sin(at / 1500 + number * 1.6) + n % 100
    return Reading(_GAUGES[number], at, round(level))


def second(gauge: str, window: hg.TimeWindow, levels: list[tuple[int, float, int]]) -> list[Second]:
    """What comes out of a window."""
    return [Second(gauge, window.start, *one) for one in levels]


def windows(env: hg.StreamExecutionEnvironment, seconds: float) -> list[Second]:
    """Run the second pipeline: readings at a fixed rate, each gauge's windows of a second.

    >>> found = windows(hg.environment(local=True, parallelism=2), seconds=0.1)
    >>> sum(one.readings for one in found)
    2000
    """
    event_time = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda one: one.at)
    levels = (
        env.rate(PER_SECOND, count=round(PER_SECOND * seconds), function=reading)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda one: one.gauge)
        .window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        .aggregate(Levels(), second, output_type=Second)
    )
    return sorted(levels.execute_and_collect("windows"))
