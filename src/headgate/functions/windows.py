"""Windows, the assigners that put records into them, and the functions of a whole window.

Plain data, made in the driver and read by `task.windows.operator`. Names and meaning are Flink's: a time window
includes its start and excludes its end, and its results have the event time `end - 1`. Times are integers of
milliseconds; times before 1970 are negative.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from headgate.functions.basic import Function
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS, Time, to_ms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from typing import Self

    from headgate.functions.basic import OutputTag

__all__ = [
    "AlignedWindows",
    "CountSlidingWindows",
    "CountTumblingWindows",
    "CountWindow",
    "EventTimeSessionWindows",
    "GlobalWindow",
    "GlobalWindows",
    "ProcessAllWindowFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "SessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Time",
    "TimeWindow",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "Window",
    "WindowAssigner",
    "to_ms",
]

K = TypeVar("K")
A = TypeVar("A")
R = TypeVar("R")


class Window(ABC):
    """A group of values with equal keys."""

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """Return the last time in the window, which is the event time of its results."""


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow(Window):
    """The times from `start` to before `end`.

    >>> window = TimeWindow(0, 1000)
    >>> window.max_timestamp(), window.size
    (999, 1000)
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """Return the last millisecond in the window."""
        return self.end - 1

    @property
    def size(self) -> int:
        """The length in milliseconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CountWindow(Window):
    """A fixed number of values of a key; `id` numbers the windows of the key from 0."""

    id: int

    def max_timestamp(self) -> int:
        """Return the last possible time: the window has no end in time."""
        return MAX_WATERMARK_MS


@dataclass(frozen=True, slots=True)
class GlobalWindow(Window):
    """All values of a key."""

    def max_timestamp(self) -> int:
        """Return the last possible time: the window ends with the stream."""
        return MAX_WATERMARK_MS


class WindowAssigner:
    """Assigns values to windows; one of the classes of this module."""

    event_time: ClassVar[bool] = False


@dataclass(frozen=True)
class AlignedWindows(WindowAssigner):
    """Windows that are the same for every key: one starts at the offset, and one after each slide.

    >>> windows = SlidingEventTimeWindows.of(10, 4)
    >>> windows.starts_of(0), windows.window(-8)
    ([-8, -4, 0], TimeWindow(start=-8, end=2))
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        if self.size_ms <= 0 or self.slide_ms <= 0:
            raise ValueError(f"a window's size and slide are above 0, not {self.size_ms} and {self.slide_ms} ms")
        if abs(self.offset_ms) >= self.slide_ms:
            raise ValueError(f"the offset, {self.offset_ms} ms, is not less than the slide, {self.slide_ms} ms")

    def starts_of(self, time_ms: int) -> list[int]:
        """Return the starts of all windows that contain a time, the oldest first."""
        newest = time_ms - (time_ms - self.offset_ms) % self.slide_ms
        return list(range(newest, time_ms - self.size_ms, -self.slide_ms))[::-1]

    def window(self, start_ms: int) -> Window:
        """Return the window with this start."""
        return TimeWindow(start_ms, start_ms + self.size_ms)


class _Tumbling(AlignedWindows):
    @classmethod
    def of(cls, size: int | timedelta, offset: int | timedelta = 0) -> Self:
        """Return consecutive windows of a size; `offset` shifts their starts, for example to a time zone."""
        return cls(to_ms(size), to_ms(size), to_ms(offset))


class _Sliding(AlignedWindows):
    @classmethod
    def of(cls, size: int | timedelta, slide: int | timedelta, offset: int | timedelta = 0) -> Self:
        """Return windows of a size, one starting after each slide; with a slide below the size they overlap."""
        return cls(to_ms(size), to_ms(slide), to_ms(offset))


class TumblingEventTimeWindows(_Tumbling):
    """Consecutive windows of one size, by event time.

    >>> TumblingEventTimeWindows.of(Time.hours(1), offset=Time.minutes(15)).starts_of(0)
    [-2700000]
    """

    event_time = True


class TumblingProcessingTimeWindows(_Tumbling):
    """Consecutive windows of one size, by the clock when a value is processed.

    >>> TumblingProcessingTimeWindows.of(Time.seconds(1)).size_ms
    1000
    """


class SlidingEventTimeWindows(_Sliding):
    """Overlapping windows of one size, by event time.

    >>> SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5)).starts_of(12_000)
    [5000, 10000]
    """

    event_time = True


class SlidingProcessingTimeWindows(_Sliding):
    """Overlapping windows of one size, by the clock when a value is processed.

    >>> SlidingProcessingTimeWindows.of(Time.seconds(10), Time.seconds(5)).slide_ms
    5000
    """


class GlobalWindows(AlignedWindows):
    """One window for all values of a key; it fires when a bounded input has ended."""

    event_time = True

    @classmethod
    def create(cls) -> Self:
        """Return the assigner."""
        return cls(2**64, 2**64, MIN_WATERMARK_MS)  # contains all event times; its last time is the last watermark

    def window(self, start_ms: int) -> Window:  # noqa: ARG002 - there is only one
        """Return the only window."""
        return GlobalWindow()


@dataclass(frozen=True)
class SessionWindows(WindowAssigner):
    """Windows per key: two values are in one window if the gap between them is not longer than `gap_ms`."""

    gap_ms: int

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            raise ValueError(f"the gap between sessions is above 0, not {self.gap_ms} ms")

    @classmethod
    def with_gap(cls, gap: int | timedelta) -> Self:
        """Return sessions that end when a key has no value for longer than `gap`."""
        return cls(to_ms(gap))


class EventTimeSessionWindows(SessionWindows):
    """Sessions by event time.

    >>> EventTimeSessionWindows.with_gap(10)
    EventTimeSessionWindows(gap_ms=10)
    """

    event_time = True


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions by the clock when a value is processed."""


@dataclass(frozen=True)
class CountSlidingWindows(WindowAssigner):
    """Windows of `size` values of a key; one starts with every `slide`-th value, like PyFlink's `count_window`.

    Window `i` contains the values from `i * slide` to before `i * slide + size`, counted from 0, and fires with its
    last value. So every result has `size` values; a window that is not full when the input ends has no result. If
    `slide` is greater than `size`, the values between two windows are in none. (Flink's `countWindow` in Java differs:
    it fires after each `slide` values with at most `size` of them.)

    >>> CountSlidingWindows.of(10, 5)
    CountSlidingWindows(size=10, slide=5)
    """

    size: int
    slide: int

    def __post_init__(self) -> None:
        if self.size <= 0 or self.slide <= 0:
            raise ValueError(f"a count window's size and slide are above 0, not {self.size} and {self.slide}")

    @classmethod
    def of(cls, size: int, slide: int) -> Self:
        """Return windows of `size` values, one starting after each `slide` values."""
        return cls(size, slide)


@dataclass(frozen=True)
class CountTumblingWindows(WindowAssigner):
    """Consecutive windows of `size` values of a key; a window that is not full when the input ends has no result.

    >>> CountTumblingWindows.of(10)
    CountTumblingWindows(size=10)
    """

    size: int

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"a count window's size is above 0, not {self.size}")

    @classmethod
    def of(cls, size: int) -> Self:
        """Return windows of `size` values."""
        return cls(size)


class _Context(ABC):
    """The context of one window."""

    @abstractmethod
    def window(self) -> Any:
        """Return the window."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark; -2**63 before the first one."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of this machine's clock."""


class ProcessWindowFunction(Function, ABC, Generic[K, A, R]):
    """Receives all values of a key and window; as the second function of a reduce or aggregate, only their result.

    >>> class Busiest(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, context.window().start, len(elements)
    """

    class Context(_Context):
        """The context of one window."""

    @abstractmethod
    def process(self, key: K, context: Context, elements: list[A]) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a window; `yield tag, value` emits to a side output."""


class ProcessAllWindowFunction(Function, ABC, Generic[A, R]):
    """Like `ProcessWindowFunction`, for the windows of a stream without keys.

    >>> import headgate as hg
    >>> class Span(hg.ProcessAllWindowFunction):
    ...     def process(self, context, elements):
    ...         yield context.window().end, len(elements)
    >>> env = hg.environment(local=True, parallelism=1)
    >>> timed = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda ms: ms)
    >>> stream = env.from_collection([0, 400, 1200]).assign_timestamps_and_watermarks(timed)
    >>> seconds = stream.window_all(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
    >>> list(seconds.process(Span()).execute_and_collect())
    [(1000, 2), (2000, 1)]
    """

    class Context(_Context):
        """The context of one window."""

    @abstractmethod
    def process(self, context: Context, elements: list[A]) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a window: see `ProcessWindowFunction`."""
