"""WindowOperator: a function over the values of each key and window, for `window` and `window_all`.

An event-time window fires when the watermark reaches its last millisecond. With allowed lateness the window stays open
for that much longer, and each late record fires it again. A record that is too late for one of its windows is emitted
once to the late side output, or counted, and is still added to its other windows. Processing-time windows fire by the
task's timers. At the end of a bounded input all time windows fire, also those of processing time, because their results
would be lost otherwise; count windows that are not full are dropped.

`WindowedOperator` is the base of windows and window joins: time, timers, late records and the order of emission.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf
from typing import TYPE_CHECKING, Any

from headgate.errors import UserCodeError
from headgate.functions.basic import AggregateFunction, Function, OutputTag, RuntimeContext, method_of
from headgate.functions.state import KeyedState
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS, to_ms
from headgate.functions.windows import (
    AlignedWindows,
    CountSlidingWindows,
    CountTumblingWindows,
    GlobalWindows,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    SessionWindows,
    WindowAssigner,
)
from headgate.task.batch.key_by_key import MARK, SECOND, Marks, stretches
from headgate.task.operator import Operator, Times, Values
from headgate.task.windows.contents import AggregatedContents, ListedContents, ReducedContents, WindowContents
from headgate.task.windows.results import FunctionResults, PlainResults, WindowContext, WindowResults, copier
from headgate.task.windows.stores import AlignedStore, CountSlidingStore, CountTumblingStore, SessionStore, WindowStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from headgate.task.batch.key_by_key import Entries

__all__ = ["WindowOperator", "WindowedOperator"]


class WindowedOperator(Operator):
    """The base of operators with windows."""

    def __init__(self, assigner: WindowAssigner, *, allowed_lateness_ms: int = 0, late_tag: str | None = None) -> None:
        if allowed_lateness_ms < 0:
            raise ValueError(f"allowed lateness is not below 0: {allowed_lateness_ms} ms")
        self._assigner = assigner
        self._lateness = allowed_lateness_ms if assigner.event_time else 0
        self._late_tag = late_tag
        self._functions: list[Any] = []  # the user's: callables or `Function`

    @abstractmethod
    def prepare(self) -> tuple[WindowContents, WindowResults]:
        """Return the contents and the results of windows; called after all functions are open."""

    def open(self) -> None:
        """Open the functions and create an empty store."""
        with self.user_code():
            for function in self._functions:
                if isinstance(function, Function):
                    function.open(RuntimeContext(self.place, self.state_of(function)))
        self._contents, self._results = self.prepare()
        self._windows = self.store(self._contents, self._results)
        self._event_time = self._assigner.event_time

    def state_of(self, function: Function) -> KeyedState | None:  # noqa: ARG002 - most have none
        """Return the state that a function may use, or None."""
        return None

    def store(self, contents: WindowContents, results: WindowResults) -> WindowStore:
        """Return a new store for the assigner's windows."""
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
            # The clock may be set back, but a window that has fired must not receive values. `on_timers` fires windows.
            now = max(self.place.wall_ms(), int(self._windows.time_ms) + 1)
            times = [now] * len(values)
        elif times is None:
            times = self._without_times(len(values))
        with self.user_code():
            late, late_times = self._windows.add(values, times)
        self._results.emit(self.out)
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
        """Fire event-time windows, then forward the watermark; the last watermark fires all windows."""
        last = timestamp_ms >= MAX_WATERMARK_MS
        self.on_watermark(timestamp_ms)
        if self._event_time or last:
            self._advance(inf if last else timestamp_ms)
        self.out.emit_watermark(timestamp_ms)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Set the watermark of the functions' context, if they have one."""

    def next_timer_ms(self) -> int | None:
        """Return the end of the next processing-time window, or None."""
        due = self._windows.next_ms
        return None if self._event_time or due == inf else int(due) + 1

    def on_timers(self, now_ms: int) -> None:
        """Fire processing-time windows."""
        if not self._event_time and now_ms > self._windows.time_ms:
            self._advance(now_ms - 1)

    def finish(self) -> None:
        """Fire all remaining windows, if no last watermark arrived."""
        self._advance(inf)

    def _advance(self, time_ms: float) -> None:
        if time_ms >= self._windows.next_ms:
            with self.user_code():
                self._windows.advance(time_ms)
            self._results.emit(self.out)
        elif time_ms > self._windows.time_ms:
            self._windows.time_ms = time_ms

    # The methods of `KeyByKey`.

    @property
    def marks(self) -> Marks:
        """Event-time windows need the watermarks that make records late."""
        return Marks.LATE if self._assigner.event_time else Marks.NONE

    several = True  # it computes the key of each value

    def begin_key(self, key: Any) -> None:  # noqa: ARG002 - see `several`
        """See `KeyByKey`."""
        self._windows = self.store(self._contents, self._results)
        self.on_watermark(MIN_WATERMARK_MS)

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """See `KeyByKey`; watermarks that make no record late may be missing."""
        for tag, alike in stretches(entries, -1):
            if tag >> MARK:
                watermark_ms = watermarks[(tag >> MARK) - 1]
                self.on_watermark(watermark_ms)
                self._advance(watermark_ms)
            process = self.process_second if tag & SECOND else self.process
            process(alike.values, alike.given_times())

    def end_key(self, watermarks: Sequence[int]) -> None:  # noqa: ARG002 - all windows fire
        """See `KeyByKey`."""
        self.on_watermark(MAX_WATERMARK_MS)
        self._advance(inf)

    def close(self) -> None:
        """Close all functions, then raise the first error."""
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
    """Calls a function for the values of each key and window.

    `how` is 'reduce', 'aggregate', 'apply' (`f(key, window, values)`, or a `Function` with a method `apply`) or
    'process'; without a key (`window_all`) functions take no key. `window_function` receives the result of a reduce or
    aggregate.

    >>> from headgate.functions.windows import TumblingEventTimeWindows
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
        """Return the operator that processes one key after the other; without keys, this one."""
        from headgate.task.batch.keyed import Grouped  # noqa: PLC0415 - only BATCH needs it

        return self if self._key is None else Grouped(self, self._key)

    def end_key(self, watermarks: Sequence[int]) -> None:
        """See `KeyByKey`."""
        super().end_key(watermarks)
        if self._state is not None:
            self._state.clear()

    def state_of(self, function: Function) -> KeyedState | None:
        """Return the state of each key, over all its windows, if the function is called with a key."""
        return self._state if function is self._last else None

    def prepare(self) -> tuple[WindowContents, WindowResults]:
        """See `WindowedOperator`."""
        own = copier(self.place)
        function = self._functions[0]
        contents: WindowContents
        result_of: Callable[[Any], Any] | None = None
        self._context = WindowContext(self.place)
        if self._how == "reduce":
            several = isinstance(self._assigner, CountSlidingWindows) or (
                isinstance(self._assigner, AlignedWindows) and self._assigner.slide_ms < self._assigner.size_ms
            )
            contents = ReducedContents(self._key, method_of(function, "reduce"), own if several else None)
        elif self._how == "aggregate":
            contents, result_of = AggregatedContents(self._key, function), function.get_result
        else:
            contents = ListedContents(self._key)
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

    def store(self, contents: WindowContents, results: WindowResults) -> WindowStore:
        """See `WindowedOperator`; also for count windows."""
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
