"""Values by key and window, and a function over each: the operators behind `window` and `window_all`.

Event-time windows fire when the watermark has come to their last millisecond. With allowed lateness a window stays for
that much longer, and each late record fires it again; records later than that go to the late side output, or are
dropped and counted. Processing-time windows fire by the task's timers. When a bounded input ends, windows of both kinds
fire, also those of processing time, whose results would be lost otherwise; count windows that are not full are dropped.

`WindowedOperator` is what windows and joins of windows share: time, timers, late records, the order of what is emitted.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import TYPE_CHECKING, Any

from headgate.errors import UserCodeError
from headgate.task.basic import method_of
from headgate.task.functions import AggregateFunction, Function, OutputTag, RuntimeContext
from headgate.task.key_by_key import MARK, SECOND, Marks, stretches
from headgate.task.operator import MAX_WATERMARK_MS, Operator, Times, Values
from headgate.task.state import KeyedState
from headgate.task.timers import MIN_WATERMARK_MS
from headgate.task.times import to_ms
from headgate.task.window_contents import Aggregated, Contents, Gathered, Reduced
from headgate.task.window_counts import CountSlidingStore, CountTumblingStore
from headgate.task.window_results import FunctionResults, PlainResults, Results, WindowContext, copier
from headgate.task.window_sessions import SessionStore
from headgate.task.window_stores import AlignedStore, WindowStore
from headgate.task.windows import (
    AlignedWindows,
    CountSlidingWindows,
    CountTumblingWindows,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    SessionWindows,
    WindowAssigner,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from headgate.task.key_by_key import Entries

__all__ = ["WindowOperator", "WindowedOperator"]


class WindowedOperator(Operator):
    """An operator with windows of time.

    >>> issubclass(WindowOperator, WindowedOperator)
    True
    """

    def __init__(self, assigner: WindowAssigner, *, allowed_lateness_ms: int = 0, late_tag: str | None = None) -> None:
        if allowed_lateness_ms < 0:
            raise ValueError(f"allowed lateness is not below 0: {allowed_lateness_ms} ms")
        self._assigner = assigner
        self._lateness = allowed_lateness_ms if assigner.event_time else 0
        self._late_tag = late_tag
        self._functions: list[Any] = []  # the user's, with or without a life cycle

    @abstractmethod
    def prepare(self) -> tuple[Contents, Results]:
        """What windows keep, and what comes out of them; called once all functions are open."""

    def open(self) -> None:
        """Open the functions, and have no window."""
        with self.user_code():
            for function in self._functions:
                if isinstance(function, Function):
                    function.open(RuntimeContext(self.place, self.state_of(function)))
        self._contents, self._results = self.prepare()
        self._windows = self.store(self._contents, self._results)
        self._event_time = self._assigner.event_time

    def state_of(self, function: Function) -> KeyedState | None:  # noqa: ARG002 - most have none
        """The state that a function may ask for."""
        return None

    def store(self, contents: Contents, results: Results) -> WindowStore:
        """Where windows such as the assigner's are kept."""
        if isinstance(self._assigner, AlignedWindows):
            return AlignedStore(self._assigner, contents, results, self._lateness)
        if isinstance(self._assigner, SessionWindows):
            return SessionStore(self._assigner.gap_ms, contents, results, self._lateness)
        raise TypeError(f"{type(self).__name__} has no windows such as {self._assigner!r}")

    def process(self, values: Values, times: Times) -> None:
        """Add a batch to its windows."""
        if not values:
            return
        if not self._windows.by_time:
            pass
        elif not self._event_time:
            # A machine's clock may go back, windows do not; those that are due are left to `on_timers`.
            now = max(self.place.wall_ms(), int(self._windows.time_ms) + 1)
            times = [now] * len(values)
        elif times is None:
            times = self._without_times(len(values))
        with self.user_code():
            late, late_times = self._windows.add(values, times)
        self._results.give_out(self.out)
        if not late:
            return
        if self._late_tag is not None:
            self.out.emit_to(self._late_tag, late, late_times)
        else:
            counters = self.place.counters
            counters["late_records_dropped"] = counters.get("late_records_dropped", 0) + len(late)

    def _without_times(self, n: int) -> list[int]:
        if isinstance(self._assigner, GlobalWindows):
            return [0] * n
        raise UserCodeError(
            "event-time windows need records with timestamps, and these have none:"
            " call assign_timestamps_and_watermarks before the window, or use processing-time windows",
            operator=self.place.operator,
            subtask=self.place.subtask,
        )

    def watermark(self, timestamp_ms: int) -> None:
        """Fire event-time windows, then hand it on; the last watermark fires everything."""
        last = timestamp_ms >= MAX_WATERMARK_MS
        self.on_watermark(timestamp_ms)
        if self._event_time or last:
            self._advance(inf if last else timestamp_ms)
        self.out.emit_watermark(timestamp_ms)

    def on_watermark(self, timestamp_ms: int) -> None:
        """For functions that want to know it."""

    def next_timer_ms(self) -> int | None:
        """When the next processing-time window ends."""
        due = self._windows.next_ms
        return None if self._event_time or due == inf else int(due) + 1

    def on_timers(self, now_ms: int) -> None:
        """Fire processing-time windows."""
        if not self._event_time and now_ms > self._windows.time_ms:
            self._advance(now_ms - 1)

    def finish(self) -> None:
        """Fire what the last watermark has not, if none came."""
        self._advance(inf)

    def _advance(self, time_ms: float) -> None:
        if time_ms >= self._windows.next_ms:
            with self.user_code():
                self._windows.advance(time_ms)
            self._results.give_out(self.out)
        elif time_ms > self._windows.time_ms:
            self._windows.time_ms = time_ms

    # One key after the other: see `KeyByKey`.

    @property
    def marks(self) -> Marks:
        """Windows of event time mind late records."""
        return Marks.LATE if self._assigner.event_time else Marks.NONE

    several = True  # it asks for the key of each

    def begin_key(self, key: Any) -> None:  # noqa: ARG002 - see `several`
        """See `KeyByKey`."""
        self._windows = self.store(self._contents, self._results)
        self.on_watermark(MIN_WATERMARK_MS)

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """See `KeyByKey`; a watermark that makes no record late may be left out."""
        for tag, alike in stretches(entries, -1):
            if tag >> MARK:
                watermark_ms = watermarks[(tag >> MARK) - 1]
                self.on_watermark(watermark_ms)
                self._advance(watermark_ms)
            process = self.process_second if tag & SECOND else self.process
            process(alike.values, alike.given_times())

    def end_key(self, watermarks: Sequence[int]) -> None:  # noqa: ARG002 - the last fires everything
        """See `KeyByKey`."""
        self.on_watermark(MAX_WATERMARK_MS)
        self._advance(inf)

    def close(self) -> None:
        """Close the functions: all, even if one fails."""
        failure: Exception | None = None
        for function in self._functions:
            try:
                if isinstance(function, Function):
                    function.close()
            except Exception as error:  # noqa: BLE001 - raised below
                failure = failure or error
        if failure is not None:
            with self.user_code():
                raise failure


class WindowOperator(WindowedOperator):
    """A function over the values of each key and window.

    `how` is 'reduce', 'aggregate', 'apply' (`f(key, window, values)`, or a `Function` with a method `apply`) or
    'process'; without a key (`window_all`) functions get none. `window_function` comes after reduce and aggregate.

    >>> from headgate.task.windows import TumblingEventTimeWindows
    >>> from headgate.testing.harness import OperatorHarness
    >>> word, windows = (lambda pair: pair[0]), TumblingEventTimeWindows.of(1000)
    >>> count = WindowOperator(word, windows, lambda a, b: (a[0], a[1] + b[1]), "reduce")
    >>> with OperatorHarness(count) as harness:
    ...     harness.process([("to", 1), ("be", 1), ("to", 1), ("to", 1)], [1, 2, 900, 1001])
    ...     harness.watermark(999)
    >>> harness.timed
    [(('to', 2), 999), (('be', 1), 999)]
    """

    def __init__(  # noqa: PLR0917 - the stream API passes them on
        self,
        key: Callable[[Any], Any] | None,
        assigner: WindowAssigner,
        function: Any,
        how: str,
        allowed_lateness_ms: int | timedelta = 0,
        late_tag: str | OutputTag[Any] | None = None,
        window_function: Any = None,
    ) -> None:
        tag = late_tag.name if isinstance(late_tag, OutputTag) else late_tag
        super().__init__(assigner, allowed_lateness_ms=to_ms(allowed_lateness_ms), late_tag=tag)
        if how not in ("reduce", "aggregate", "apply", "process"):
            raise ValueError(f"a window's function is for reduce, aggregate, apply or process, not {how!r}")
        if how == "aggregate" and not isinstance(function, AggregateFunction):
            raise TypeError(f"aggregate needs an AggregateFunction, not {function!r}")
        if window_function is not None and how in ("apply", "process"):
            raise TypeError(f"{how} already sees the window: a window function comes after reduce or aggregate")
        wrong = ProcessWindowFunction if key is None else ProcessAllWindowFunction
        for one in (function, window_function):
            if isinstance(one, wrong):
                keys = "no keys" if key is None else "keys"
                raise TypeError(f"{type(one).__name__} is a {wrong.__name__}, but these windows have {keys}")
        self._key = key
        self._how = how
        self._last = window_function if how in ("reduce", "aggregate") else function
        self._functions = [function] if window_function is None else [function, window_function]
        self._state = None if key is None else KeyedState()

    def in_batch(self) -> Operator:
        """One key after the other; where there are no keys, as in STREAMING."""
        from headgate.task.batch_keyed import Grouped  # noqa: PLC0415 - STREAMING does without

        return self if self._key is None else Grouped(self, self._key)

    def end_key(self, watermarks: Sequence[int]) -> None:
        """See `KeyByKey`."""
        super().end_key(watermarks)
        if self._state is not None:
            self._state.forget()

    def state_of(self, function: Function) -> KeyedState | None:
        """The state of each key, over all its windows: for the function that is called with a key."""
        return self._state if function is self._last else None

    def prepare(self) -> tuple[Contents, Results]:
        """See `WindowedOperator`."""
        own = copier(self.place)
        function = self._functions[0]
        contents: Contents
        result_of: Callable[[Any], Any] | None = None
        self._context = WindowContext(self.place)
        if self._how == "reduce":
            several = isinstance(self._assigner, CountSlidingWindows) or (
                isinstance(self._assigner, AlignedWindows) and self._assigner.slide_ms < self._assigner.size_ms
            )
            contents = Reduced(self._key, method_of(function, "reduce"), own if several else None)
        elif self._how == "aggregate":
            contents, result_of = Aggregated(self._key, function), function.get_result
        else:
            contents = Gathered(self._key)
        if self._last is None:
            return contents, PlainResults(own, result_of)
        if self._how == "reduce":
            result_of = _itself
        process = self._how == "process" or isinstance(self._last, ProcessWindowFunction | ProcessAllWindowFunction)
        return contents, FunctionResults(
            own,
            method_of(self._last, "process" if process else "apply"),
            keyed=self._key is not None,
            context=self._context if process else None,
            result_of=result_of,
            state=self._state if isinstance(self._last, Function) else None,
        )

    def store(self, contents: Contents, results: Results) -> WindowStore:
        """See `WindowedOperator`: also of windows that count."""
        if isinstance(self._assigner, CountTumblingWindows):
            return CountTumblingStore(self._assigner.size, contents, results, numbered=self._last is not None)
        if isinstance(self._assigner, CountSlidingWindows):
            return CountSlidingStore(self._assigner, contents, results)
        return super().store(contents, results)

    def on_watermark(self, timestamp_ms: int) -> None:
        """See `WindowedOperator`."""
        self._context.watermark_ms = timestamp_ms


def _itself(value: Any) -> Any:
    return value
