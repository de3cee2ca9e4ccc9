"""Event time: when a record happened, and how far event time has come.

`AssignTimestamps` gives every value a timestamp and says by watermarks that no earlier ones are to be expected. They
are made of the timestamps alone, once for each batch and only if they rise, so that a batch stays a batch downstream.
Those of strategies upstream are not handed on, except for the last, which ends a bounded input.
"""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.errors import UserCodeError
from headgate.task.operator import MAX_WATERMARK_MS, Operator, Times, Values
from headgate.task.timers import MIN_WATERMARK_MS
from headgate.task.times import to_ms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AssignTimestamps", "TimestampAssigner", "WatermarkStrategy"]

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_INT = frozenset({int})


class TimestampAssigner(ABC, Generic[T]):
    """Says when a value happened; a plain function does as well.

    >>> class Clicked(TimestampAssigner):
    ...     def extract_timestamp(self, value, record_timestamp):
    ...         return value["clicked_at"]
    """

    @abstractmethod
    def extract_timestamp(self, value: T, record_timestamp: int | None) -> int | datetime:
        """Milliseconds since 1970, or a datetime; `record_timestamp` is the one it has so far, if any."""


@dataclass(frozen=True)
class WatermarkStrategy(Generic[T]):
    """Where timestamps come from, and how much disorder there is among them.

    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5))
    >>> strategy = strategy.with_timestamp_assigner(lambda click: click["at"]).with_idleness(timedelta(minutes=1))
    >>> strategy.bound_ms, strategy.idleness_ms
    (5000, 60000)
    """

    bound_ms: int | None  # None: no watermarks
    assigner: Callable[..., Any] | TimestampAssigner[T] | None = None  # None: values have their timestamps already
    idleness_ms: int | None = None

    def __post_init__(self) -> None:
        if self.bound_ms is not None and self.bound_ms < 0:
            raise ValueError(f"records are out of order by 0 ms or more, not by {self.bound_ms}")
        if self.idleness_ms is not None and self.idleness_ms <= 0:
            raise ValueError(f"a stream is idle after more than 0 ms, not after {self.idleness_ms}")

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy[Any]:
        """Timestamps never fall, in each subtask."""
        return cls(0)

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: int | timedelta) -> WatermarkStrategy[Any]:
        """A timestamp is below those before it by at most so much."""
        return cls(to_ms(bound))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy[Any]:
        """Timestamps only: event-time windows then fire when the input has ended."""
        return cls(None)

    def with_timestamp_assigner(self, assigner: Callable[..., Any] | TimestampAssigner[T]) -> WatermarkStrategy[T]:
        """Take timestamps from `f(value)`, `f(value, record_timestamp)` or a `TimestampAssigner`."""
        if not callable(assigner) and not isinstance(assigner, TimestampAssigner):
            raise TypeError(f"a timestamp assigner is a function or a TimestampAssigner, not {assigner!r}")
        return replace(self, assigner=assigner)

    def with_idleness(self, after: int | timedelta) -> WatermarkStrategy[T]:
        """A subtask without records for so long does not hold back the watermark of the others."""
        return replace(self, idleness_ms=to_ms(after))


class AssignTimestamps(Operator):
    """Gives values their timestamps and makes watermarks.

    >>> from headgate.testing.harness import OperatorHarness
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamp_assigner(len)
    >>> with OperatorHarness(AssignTimestamps(strategy)) as harness:
    ...     harness.process(["x" * 30, "x" * 20])
    >>> [time for _, time in harness.timed], harness.watermarks
    ([30, 20], [19])
    """

    def __init__(self, strategy: WatermarkStrategy[Any]) -> None:
        self._bound_ms = strategy.bound_ms
        self._idleness_ms = strategy.idleness_ms
        assigner = strategy.assigner
        self._assign: Callable[..., Any] | None
        self._assign = assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner
        self._with_previous = self._assign is not None and _takes_two(self._assign)
        self._watermark_ms = MIN_WATERMARK_MS
        self._active = True
        self._seen_ms = 0  # when there was a record, in processing time

    def open(self) -> None:
        """Begin to wait for records."""
        self._seen_ms = self.place.wall_ms()

    def process(self, values: Values, times: Times) -> None:
        """Give out the values with their times, then the watermark if it has risen."""
        if not values:
            return
        given = self._times(values, times)
        if not self._active:
            self._active = True
            self.out.emit_status(active=True)
        highest = max(given)
        self.out.emit(values, given)
        if self._bound_ms is not None and highest - self._bound_ms - 1 > self._watermark_ms:
            self._watermark_ms = highest - self._bound_ms - 1
            self.out.emit_watermark(self._watermark_ms)
        if self._idleness_ms is not None:
            self._seen_ms = self.place.wall_ms()  # what was spent in back pressure is not idleness

    def _times(self, values: Values, times: Times) -> list[int]:
        if self._assign is None:
            if times is None:
                raise self._error("records have no timestamps yet: use with_timestamp_assigner")
            return times
        with self.user_code():
            if self._with_previous:
                given = self.answers(self._assign, values, [None] * len(values) if times is None else times)
            else:
                given = self.answers(self._assign, values)
        if not _INT.issuperset(map(type, given)):
            given = [time if type(time) is int else self._ms(time) for time in given]
        if not (min(given) >= MIN_WATERMARK_MS and max(given) <= MAX_WATERMARK_MS):
            raise self._error(f"timestamps from {min(given)} to {max(given)} do not fit in 64 bits of milliseconds")
        return given

    def _ms(self, time: object) -> int:
        """What an assigner has returned, in milliseconds."""
        if isinstance(time, datetime):
            aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
            return int((aware - _EPOCH) // _MS)
        if not isinstance(time, bool):
            try:
                return operator.index(time)  # type: ignore[arg-type]
            except TypeError:
                pass
        raise self._error(
            f"the timestamp assigner returned {time!r} ({type(time).__name__}):"
            " a timestamp is an int of milliseconds since 1970, or a datetime"
        )

    def _error(self, text: str) -> UserCodeError:
        return UserCodeError(text, operator=self.place.operator, subtask=self.place.subtask)

    def watermark(self, timestamp_ms: int) -> None:
        """Hand on only the last: all others are made here."""
        if timestamp_ms >= MAX_WATERMARK_MS:
            if not self._active:
                self._active = True
                self.out.emit_status(active=True)
            self._idleness_ms = None
            self.out.emit_watermark(MAX_WATERMARK_MS)

    def status(self, *, active: bool) -> None:
        """What is idle upstream is of no account: whether there are records decides."""

    def next_timer_ms(self) -> int | None:
        """When this subtask is idle, if no record comes."""
        return self._seen_ms + self._idleness_ms if self._active and self._idleness_ms is not None else None

    def on_timers(self, now_ms: int) -> None:
        """Be idle if no record has come for long enough."""
        due = self.next_timer_ms()
        if due is not None and now_ms >= due:
            self._active = False
            self.out.emit_status(active=False)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function must be called with two arguments; one that can be called with one is.

    >>> _takes_two(lambda value: 0), _takes_two(lambda value, previous: 0), _takes_two(lambda value, field=1: 0)
    (False, True, False)
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some that are written in C
        return False
    return sum(one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
               for one in parameters) == 2  # fmt: skip
