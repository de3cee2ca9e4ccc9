"""WindowedStream and AllWindowedStream: functions over the records of windows, by key and of all records."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.user_functions import checked, operator_name, result_hint
from headgate.functions.windows import CountSlidingWindows, CountTumblingWindows, WindowAssigner, to_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Self

    from headgate.api.keyed import KeyedStream
    from headgate.api.stream import DataStream
    from headgate.functions.basic import AggregateFunction, OutputTag, ReduceFunction
    from headgate.functions.windows import ProcessAllWindowFunction, ProcessWindowFunction

__all__ = ["AllWindowedStream", "WindowedStream", "count_windows"]

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


def count_windows(size: int, slide: int | None = None) -> WindowAssigner:
    """Return windows of `size` records; one starts every `slide` records, or when the one before it is full.

    >>> count_windows(10), count_windows(10, 5)
    (CountTumblingWindows(size=10), CountSlidingWindows(size=10, slide=5))
    """
    return CountTumblingWindows.of(size) if slide is None else CountSlidingWindows.of(size, slide)


class _Windowed(Generic[T]):
    """The base of windowed streams."""

    def __init__(self, stream: DataStream[T], key: Callable[[Any], Any] | None, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            raise TypeError(f"window wants an assigner, such as TumblingEventTimeWindows.of(size), not {assigner!r}")
        self._stream = stream
        self._key = key
        self._assigner = assigner
        self._lateness_ms = 0
        self._late: OutputTag[Any] | None = None

    def allowed_lateness(self, time: int | timedelta) -> Self:
        """Keep windows open for this long after the watermark; a record that arrives then fires its window again.

        Args:
            time: Milliseconds, a `Time` or a timedelta.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> windows = env.from_collection(range(4)).key_by(lambda n: n % 2).count_window(2)
        >>> sorted(windows.allowed_lateness(hg.Time.seconds(1)).reduce(max).execute_and_collect())
        [2, 3]
        """
        self._lateness_ms = to_ms(time)
        return self

    def side_output_late_data(self, tag: OutputTag[T]) -> Self:
        """Emit records that are too late to a side output, instead of counting them in `late_records_dropped`.

        A record that is late for only some of its windows is emitted once, and is added to the other windows.

        >>> import headgate as hg
        >>> late = hg.OutputTag("late", int)
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
        >>> env = hg.environment(local=True, parallelism=1)
        >>> timed = env.from_collection([1, 25, 2]).assign_timestamps_and_watermarks(strategy).key_by(lambda n: 0)
        >>> windows = timed.window(hg.TumblingEventTimeWindows.of(10)).side_output_late_data(late)
        >>> windows.reduce(max).get_side_output(late)
        <DataStream of window reduce(max)>
        """
        self._late = tag
        return self

    def _result(
        self, how: str, function: Any, hint: object, window_function: Any = None, *, method: str = "process"
    ) -> DataStream[Any]:
        from headgate.task.windows.operator import WindowOperator  # noqa: PLC0415 - imported when used

        if window_function is not None:
            checked(f"{how}, its second function,", window_function, method)
        make = partial(
            WindowOperator,
            self._key,
            self._assigner,
            function,
            how,
            allowed_lateness_ms=self._lateness_ms,
            late_tag=None if self._late is None else self._late.name,
            window_function=window_function,
        )
        name = operator_name(f"window {how}", function)
        result = self._stream._then(name, make, hint=hint, only_one=self._key is None)
        if self._late is not None:
            late_hint = self._late.hint if self._late.hint is not None else self._stream.hint
            result._operator_node("window").side_hints[self._late.name] = late_hint
        return result

    def _reduced(self, function: Any, window_function: Any, output_type: object) -> DataStream[Any]:
        checked("reduce", function, "reduce")
        hint = output_type if output_type is not None or window_function is not None else self._stream.hint
        if window_function is not None:
            hint = result_hint(window_function, "process", element=True, given=output_type)
        return self._result("reduce", function, hint, window_function)

    def _aggregate(self, function: Any, window_function: Any, output_type: object) -> DataStream[Any]:
        from headgate.functions.basic import AggregateFunction  # noqa: PLC0415

        if not isinstance(function, AggregateFunction):
            raise TypeError(f"aggregate wants an AggregateFunction, not {function!r}")
        if window_function is None:
            hint = result_hint(function, "get_result", given=output_type)
        else:
            hint = result_hint(window_function, "process", element=True, given=output_type)
        return self._result("aggregate", function, hint, window_function)

    def _applied(self, how: str, function: Any, output_type: object) -> DataStream[Any]:
        checked(how, function, how)
        return self._result(how, function, result_hint(function, how, element=True, given=output_type))


class WindowedStream(_Windowed[T], Generic[K, T]):
    """The records of each key, grouped by windows: returned by `KeyedStream.window`.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> windows = env.from_collection(range(8)).key_by(lambda n: n % 2).count_window(2)
    >>> sorted(windows.apply(lambda key, window, values: [(key, sum(values))]).execute_and_collect())
    [(0, 2), (0, 10), (1, 4), (1, 12)]
    """

    def __init__(self, stream: KeyedStream[K, T], assigner: WindowAssigner) -> None:
        super().__init__(stream, stream._key, assigner)

    def reduce(
        self,
        function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessWindowFunction[K, T, Any] | Callable[[K, Any, list[T]], Iterable[Any]] | None = None,
        output_type: object = None,
    ) -> DataStream[Any]:
        """Return the merged records of each window; only the merged record is kept in memory.

        Args:
            function: Merges two records.
            window_function: Receives the result, in a list, with key and window, as in `process` or `apply`.
            output_type: The type of the results, if there are no type hints.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> windows = env.from_collection(range(6)).key_by(lambda n: n % 2).count_window(3)
        >>> sorted(windows.reduce(max).execute_and_collect())
        [4, 5]
        """
        return self._reduced(function, window_function, output_type)

    def aggregate(
        self,
        function: AggregateFunction[T, Any, R],
        window_function: ProcessWindowFunction[K, R, Any] | Callable[[K, Any, list[R]], Iterable[Any]] | None = None,
        output_type: object = None,
    ) -> DataStream[Any]:
        """Return the result of each window's accumulator; only the accumulator is kept in memory.

        >>> import headgate as hg
        >>> class Mean(hg.AggregateFunction):
        ...     def create_accumulator(self):
        ...         return (0, 0)
        ...     def add(self, value, accumulator):
        ...         return (accumulator[0] + value, accumulator[1] + 1)
        ...     def get_result(self, accumulator) -> float:
        ...         return accumulator[0] / accumulator[1]
        >>> env = hg.environment(local=True, parallelism=2)
        >>> windows = env.from_collection(range(6)).key_by(lambda n: n % 2).count_window(3)
        >>> sorted(windows.aggregate(Mean()).execute_and_collect())
        [2.0, 3.0]
        """
        return self._aggregate(function, window_function, output_type)

    def apply(self, function: Callable[[K, Any, list[T]], Iterable[R]], output_type: object = None) -> DataStream[R]:
        """Return any number of results of each window: a function of key, window and the list of its records.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> windows = env.from_collection(range(4)).key_by(lambda n: n % 2).count_window(2)
        >>> sorted(windows.apply(lambda key, window, values: values).execute_and_collect())
        [0, 1, 2, 3]
        """
        return self._applied("apply", function, output_type)

    def process(self, function: ProcessWindowFunction[K, T, R], output_type: object = None) -> DataStream[R]:
        """Return any number of results of each window, by a function with context: see `ProcessWindowFunction`.

        >>> import headgate as hg
        >>> class Size(hg.ProcessWindowFunction):
        ...     def process(self, key, context, elements):
        ...         yield key, len(elements)
        >>> env = hg.environment(local=True, parallelism=2)
        >>> windows = env.from_collection(range(6)).key_by(lambda n: n % 2).count_window(3)
        >>> sorted(windows.process(Size()).execute_and_collect())
        [(0, 3), (1, 3)]
        """
        return self._applied("process", function, output_type)


class AllWindowedStream(_Windowed[T]):
    """All records, grouped by windows, in one subtask: returned by `DataStream.window_all`.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> windows = env.from_collection(range(8)).count_window_all(4)
    >>> sum(windows.apply(lambda window, values: [sum(values)]).execute_and_collect())
    28
    """

    def __init__(self, stream: DataStream[T], assigner: WindowAssigner) -> None:
        super().__init__(stream, None, assigner)

    def reduce(
        self,
        function: Callable[[T, T], T] | ReduceFunction[T],
        window_function: ProcessAllWindowFunction[T, Any] | Callable[[Any, list[T]], Iterable[Any]] | None = None,
        output_type: object = None,
    ) -> DataStream[Any]:
        """Return the merged records of each window: see `WindowedStream.reduce`."""
        return self._reduced(function, window_function, output_type)

    def aggregate(
        self,
        function: AggregateFunction[T, Any, R],
        window_function: ProcessAllWindowFunction[R, Any] | Callable[[Any, list[R]], Iterable[Any]] | None = None,
        output_type: object = None,
    ) -> DataStream[Any]:
        """Return the result of each window's accumulator: see `WindowedStream.aggregate`."""
        return self._aggregate(function, window_function, output_type)

    def apply(self, function: Callable[[Any, list[T]], Iterable[R]], output_type: object = None) -> DataStream[R]:
        """Return any number of results of each window: a function of the window and the list of its records."""
        return self._applied("apply", function, output_type)

    def process(self, function: ProcessAllWindowFunction[T, R], output_type: object = None) -> DataStream[R]:
        """Return any number of results of each window, by a function with context: see `ProcessAllWindowFunction`."""
        return self._applied("process", function, output_type)
