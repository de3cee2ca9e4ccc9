"""Windows: which there are, which of them a record belongs to, and what users write to see a whole one.

Plain data, made in the driver and read by `task.window_operator`. The names and the meaning are Flink's: a window of
time has a start that is in it and an end that is not, and its results have the event time `end - 1`. Times are integers
of milliseconds; those before 1970 are negative and work alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from headgate.task.functions import Function
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.timers import MIN_WATERMARK_MS
from headgate.task.times import Time, to_ms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta
    from typing import Self

    from headgate.task.functions import OutputTag

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
    """What values are grouped into, besides their key.

    >>> isinstance(TimeWindow(0, 10), Window)
    True
    """

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """The last time that is in it: the event time of its results."""


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow(Window):
    """From `start` to before `end`.

    >>> window = TimeWindow(0, 1000)
    >>> window.max_timestamp(), window.size
    (999, 1000)
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond in it."""
        return self.end - 1

    @property
    def size(self) -> int:
        """How long it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class CountWindow(Window):
    """So many values of a key; `id` counts the windows of the key from 0.

    >>> CountWindow(0).max_timestamp() == MAX_WATERMARK_MS
    True
    """

    id: int

    def max_timestamp(self) -> int:
        """It has no end in time."""
        return MAX_WATERMARK_MS


@dataclass(frozen=True, slots=True)
class GlobalWindow(Window):
    """All values of a key.

    >>> GlobalWindow() == GlobalWindow()
    True
    """

    def max_timestamp(self) -> int:
        """It ends with the stream."""
        return MAX_WATERMARK_MS


class WindowAssigner:
    """Says which windows a value belongs to: one of the classes of this module.

    >>> TumblingEventTimeWindows.of(Time.seconds(1)).event_time
    True
    """

    event_time: ClassVar[bool] = False


@dataclass(frozen=True)
class AlignedWindows(WindowAssigner):
    """Windows that are the same for every key: one begins at the offset, and one after each slide.

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
        """Where the windows begin that a time is in, the oldest first."""
        newest = time_ms - (time_ms - self.offset_ms) % self.slide_ms
        return list(range(newest, time_ms - self.size_ms, -self.slide_ms))[::-1]

    def window(self, start_ms: int) -> Window:
        """The window that begins there."""
        return TimeWindow(start_ms, start_ms + self.size_ms)


class _Tumbling(AlignedWindows):
    @classmethod
    def of(cls, size: int | timedelta, offset: int | timedelta = 0) -> Self:
        """Windows of a size, one after the other; the offset moves them from the epoch, as for time zones."""
        return cls(to_ms(size), to_ms(size), to_ms(offset))


class _Sliding(AlignedWindows):
    @classmethod
    def of(cls, size: int | timedelta, slide: int | timedelta, offset: int | timedelta = 0) -> Self:
        """Windows of a size, of which one begins after each slide: they overlap where that is the shorter."""
        return cls(to_ms(size), to_ms(slide), to_ms(offset))


class TumblingEventTimeWindows(_Tumbling):
    """Windows of one size, one after the other, by event time.

    >>> TumblingEventTimeWindows.of(Time.hours(1), offset=Time.minutes(15)).starts_of(0)
    [-2700000]
    """

    event_time = True


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of one size, one after the other, by the time at which values are seen.

    >>> TumblingProcessingTimeWindows.of(Time.seconds(1)).size_ms
    1000
    """


class SlidingEventTimeWindows(_Sliding):
    """Windows of one size that overlap, by event time.

    >>> SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5)).starts_of(12_000)
    [5000, 10000]
    """

    event_time = True


class SlidingProcessingTimeWindows(_Sliding):
    """Windows of one size that overlap, by the time at which values are seen.

    >>> SlidingProcessingTimeWindows.of(Time.seconds(10), Time.seconds(5)).slide_ms
    5000
    """


class GlobalWindows(AlignedWindows):
    """One window for all values of a key, whose results come when a bounded input has ended.

    >>> GlobalWindows.create().window(0)
    GlobalWindow()
    """

    event_time = True

    @classmethod
    def create(cls) -> Self:
        """The only one there is."""
        return cls(2**64, 2**64, MIN_WATERMARK_MS)  # all event times are in it, and its last is the last watermark

    def window(self, start_ms: int) -> Window:  # noqa: ARG002 - there is only one
        """The window."""
        return GlobalWindow()


@dataclass(frozen=True)
class SessionWindows(WindowAssigner):
    """Windows of a key's own: values belong together if there is no longer gap between them.

    >>> EventTimeSessionWindows.with_gap(Time.minutes(10)).gap_ms
    600000
    """

    gap_ms: int

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            raise ValueError(f"the gap between sessions is above 0, not {self.gap_ms} ms")

    @classmethod
    def with_gap(cls, gap: int | timedelta) -> Self:
        """Sessions that end when a key has been silent for longer than a gap."""
        return cls(to_ms(gap))


class EventTimeSessionWindows(SessionWindows):
    """Sessions by event time.

    >>> EventTimeSessionWindows.with_gap(10)
    EventTimeSessionWindows(gap_ms=10)
    """

    event_time = True


class ProcessingTimeSessionWindows(SessionWindows):
    """Sessions by the time at which values are seen.

    >>> ProcessingTimeSessionWindows.with_gap(10).event_time
    False
    """


@dataclass(frozen=True)
class CountSlidingWindows(WindowAssigner):
    """The last `size` values of a key, after each `slide` values, as Flink's `countWindow(size, slide)`.

    The first windows have fewer values than `size`; values after the last full slide are in no result.

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
        """Windows of so many values, one after each slide."""
        return cls(size, slide)


@dataclass(frozen=True)
class CountTumblingWindows(WindowAssigner):
    """Each `size` values of a key; a window that is not full when the input ends has no result.

    >>> CountTumblingWindows.of(10)
    CountTumblingWindows(size=10)
    """

    size: int

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise ValueError(f"a count window's size is above 0, not {self.size}")

    @classmethod
    def of(cls, size: int) -> Self:
        """Windows of so many values."""
        return cls(size)


class _Context(ABC):
    """What a function is told about the window at hand."""

    @abstractmethod
    def window(self) -> Any:
        """The window."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark; a very small number before the first."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The time of this machine's clock."""


class ProcessWindowFunction(Function, ABC, Generic[K, A, R]):
    """Sees all values of a key and window, or the one result if it comes after a reduce or aggregate.

    >>> class Busiest(ProcessWindowFunction):
    ...     def process(self, key, context, elements):
    ...         yield key, context.window().start, len(elements)
    """

    class Context(_Context):
        """What is known about the window."""

    @abstractmethod
    def process(self, key: K, context: Context, elements: list[A]) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """The results of a window: an iterable, usually by `yield`; `yield tag, value` goes to a side output."""


class ProcessAllWindowFunction(Function, ABC, Generic[A, R]):
    """As `ProcessWindowFunction`, for the windows of a stream without keys.

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
        """What is known about the window."""

    @abstractmethod
    def process(self, context: Context, elements: list[A]) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """The results of a window: see `ProcessWindowFunction`."""
