"""The second pipeline of `headgate demo`: readings of water gauges at a fixed rate, in windows of a second.

It is a module of its own because workers import it, and need not import the command line.
"""

import math
from typing import NamedTuple

import headgate as hg

__all__ = ["PER_SECOND", "GaugeLevels", "Second", "WaterLevel", "reading", "second", "windows"]

PER_SECOND = 20_000
"""Readings of all gauges together."""

_GAUGES = ("Alder", "Birch", "Cedar", "Maple")


class WaterLevel(NamedTuple):
    """A reading of a water gauge."""

    gauge: str
    at: int  # milliseconds since the start
    millimetres: int


class Second(NamedTuple):
    """A gauge's window of a second."""

    gauge: str
    start: int
    readings: int
    mean: float
    highest: int


class GaugeLevels(hg.AggregateFunction[WaterLevel, tuple[int, int, int], tuple[int, float, int]]):
    """Aggregates the number, the sum and the maximum of readings."""

    def create_accumulator(self) -> tuple[int, int, int]:
        """Return an empty accumulator."""
        return 0, 0, 0

    def add(self, value: WaterLevel, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        """Add a reading."""
        count, total, highest = accumulator
        return count + 1, total + value.millimetres, max(highest, value.millimetres)

    def get_result(self, accumulator: tuple[int, int, int]) -> tuple[int, float, int]:
        """Return the number, the mean and the maximum."""
        count, total, highest = accumulator
        return count, total / count, highest


def reading(n: int) -> WaterLevel:
    """Return the n-th reading: the gauges alternate, and their levels rise and fall.

    >>> reading(20_001)
    WaterLevel(gauge='Birch', at=1000, millimetres=...)
    """
    number = n % len(_GAUGES)
    at = n * 1000 // PER_SECOND
    level = 1500 + 400 * math.sin(at / 1500 + number * 1.6) + n % 100
    return WaterLevel(_GAUGES[number], at, round(level))


def second(gauge: str, window: hg.TimeWindow, levels: list[tuple[int, float, int]]) -> list[Second]:
    """Return the result of a window."""
    return [Second(gauge, window.start, *one) for one in levels]


def windows(env: hg.StreamExecutionEnvironment, seconds: float) -> list[Second]:
    """Run the pipeline, and return the windows of all gauges.

    >>> found = windows(hg.environment(local=True, parallelism=2), seconds=0.1)
    >>> sum(one.readings for one in found)
    2000
    """
    event_time = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda one: one.at)
    levels = (
        env.rate(PER_SECOND, count=round(PER_SECOND * seconds), function=reading, parallel=True)
        .assign_timestamps_and_watermarks(event_time)
        .key_by(lambda one: one.gauge)
        .window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        .aggregate(GaugeLevels(), second, output_type=Second)
    )
    return sorted(levels.execute_and_collect("windows"))
