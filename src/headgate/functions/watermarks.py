"""Watermark strategies: the event time of a record, and the progress of event time.

Plain data, made in the driver. `task.operators.timestamps` runs a strategy in each subtask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.functions.times import to_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

__all__ = ["TimestampAssigner", "WatermarkGenerator", "WatermarkStrategy"]

T = TypeVar("T")


class TimestampAssigner(ABC, Generic[T]):
    """Returns the event time of a value; a plain function can be used instead.

    >>> class Clicked(TimestampAssigner):
    ...     def extract_timestamp(self, value, record_timestamp):
    ...         return value["clicked_at"]
    """

    @abstractmethod
    def extract_timestamp(self, value: T, record_timestamp: int | None) -> int | datetime:
        """Return milliseconds since 1970, or a datetime; `record_timestamp` is the value's present time, or None."""


class WatermarkGenerator(ABC, Generic[T]):
    """Computes watermarks from values; each subtask has its own generator.

    >>> class AtMarkers(WatermarkGenerator):
    ...     def on_event(self, value, timestamp):
    ...         return timestamp if value == "end of minute" else None
    >>> strategy = WatermarkStrategy.for_generator(AtMarkers)
    """

    @abstractmethod
    def on_event(self, value: T, timestamp: int) -> int | datetime | None:
        """Return the watermark to emit after this value, or None; one that is not above the last is ignored.

        Called for every value, in order, with its timestamp in milliseconds. The watermark, in milliseconds since 1970
        or a datetime, states that later values have event times above it.
        """


@dataclass(frozen=True)
class WatermarkStrategy(Generic[T]):
    """The origin of timestamps, and a bound on their disorder.

    >>> from datetime import timedelta
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5))
    >>> strategy = strategy.with_timestamp_assigner(lambda click: click["at"]).with_idleness(timedelta(minutes=1))
    >>> strategy.bound_ms, strategy.idleness_ms
    (5000, 60000)
    """

    bound_ms: int | None  # None: no watermarks, or those of the generator
    assigner: Callable[..., Any] | TimestampAssigner[T] | None = None  # None: values have timestamps already
    idleness_ms: int | None = None
    follow_clock: bool = True  # only while the stream is idle
    generator: Callable[[], WatermarkGenerator[T]] | None = None

    def __post_init__(self) -> None:
        if self.bound_ms is not None and self.bound_ms < 0:
            raise ValueError(f"records are out of order by 0 ms or more, not by {self.bound_ms}")
        if self.idleness_ms is not None and self.idleness_ms <= 0:
            raise ValueError(f"a stream is idle after more than 0 ms, not after {self.idleness_ms}")

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy[Any]:
        """Return a strategy for timestamps that never decrease within a subtask."""
        return cls(0)

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: int | timedelta) -> WatermarkStrategy[Any]:
        """Return a strategy for timestamps that are at most `bound` below the greatest one before them."""
        return cls(to_ms(bound))

    @classmethod
    def for_generator(cls, make: Callable[[], WatermarkGenerator[Any]]) -> WatermarkStrategy[Any]:
        """Return a strategy with the watermarks of a `WatermarkGenerator`; `make` is its class, or a factory.

        Raises:
            TypeError: `make` is not callable, for example a generator object: subtasks cannot share one.
        """
        if not callable(make):
            raise TypeError(
                f"for_generator wants a WatermarkGenerator class, or a function that makes one, not {make!r}:"
                " each subtask makes its own"
            )
        return cls(None, generator=make)

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[Any]:
        """Return a strategy with timestamps only: event-time windows fire when the input has ended.

        Without `with_timestamp_assigner`, records keep their timestamps, if they have any.
        """
        return cls(None)

    def with_timestamp_assigner(self, assigner: Callable[..., Any] | TimestampAssigner[T]) -> WatermarkStrategy[T]:
        """Return the strategy with times from `f(value)`, `f(value, record_timestamp)` or a `TimestampAssigner`."""
        if not callable(assigner) and not isinstance(assigner, TimestampAssigner):
            raise TypeError(f"a timestamp assigner is a function or a TimestampAssigner, not {assigner!r}")
        return replace(self, assigner=assigner)

    def with_idleness(self, after: int | timedelta, *, follow_clock: bool = True) -> WatermarkStrategy[T]:
        """Return this strategy with idleness: a subtask without records for this long does not hold the watermark back.

        While all subtasks are idle, event time advances with the clock, so that the window of the last record fires.
        Records of a source that was disconnected meanwhile may then be late. With `follow_clock=False` event time does
        not advance, as in Flink: the window stays open until the next record.

        >>> strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(5000)
        >>> strategy.idleness_ms, strategy.follow_clock
        (5000, True)
        """
        return replace(self, idleness_ms=to_ms(after), follow_clock=follow_clock)
