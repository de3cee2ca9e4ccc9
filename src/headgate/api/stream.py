"""DataStream: what can be done with any stream. PyFlink's names where it has one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.api.batched import Batched
from headgate.api.core import checked, operator_name
from headgate.api.hints import result_hint
from headgate.graph.plan import Ship, ShipKind
from headgate.graph.stream_graph import Edge
from headgate.task.basic import Filter, FlatMap, Map

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from headgate.api.connected import ConnectedStreams, JoinedStreams
    from headgate.api.keyed import KeyedStream
    from headgate.api.windowed import AllWindowedStream
    from headgate.task.functions import FilterFunction, FlatMapFunction, MapFunction, OutputTag, ProcessFunction

__all__ = ["DataStream"]

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")
U = TypeVar("U")


class DataStream(Batched[T]):
    """A stream of records. Nothing runs before `execute` of its environment, or `execute_and_collect`.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> words = env.from_collection(["to be", "or not to be"]).flat_map(str.split)
    >>> counts = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)
    >>> sorted(dict(counts.execute_and_collect()).items())
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    """

    def map(self, function: Callable[[T], R] | MapFunction[T, R], output_type: object = None) -> DataStream[R]:
        """One record for each record.

        Args:
            function: A callable, or a `MapFunction`.
            output_type: The type of what it returns, if its type hints do not say so; decides about the serializer.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).map(lambda n: 2 * n).execute_and_collect())
        [2, 4, 6]
        """
        self._rows("map")
        checked("map", function, "map")
        hint = result_hint(function, "map", given=output_type)
        return self._then(operator_name("map", function), partial(Map, function), hint=hint)

    def flat_map(
        self, function: Callable[[T], Iterable[R]] | FlatMapFunction[T, R], output_type: object = None
    ) -> DataStream[R]:
        """Any number of records for each record: the function returns an iterable, or is a generator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection(["to be", "or not"]).flat_map(str.split).execute_and_collect())
        ['be', 'not', 'or', 'to']
        """
        self._rows("flat_map")
        checked("flat_map", function, "flat_map")
        hint = result_hint(function, "flat_map", element=True, given=output_type)
        return self._then(operator_name("flat_map", function), partial(FlatMap, function), hint=hint)

    def filter(self, function: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """The records for which the function is true.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection(range(6)).filter(lambda n: n % 2).execute_and_collect())
        [1, 3, 5]
        """
        self._rows("filter")
        checked("filter", function, "filter")
        return self._then(operator_name("filter", function), partial(Filter, function), hint=self.hint)

    def key_by(self, key: Callable[[T], K] | str | Sequence[str], key_type: object = None) -> KeyedStream[K, T]:
        """Bring records with equal keys to the same subtask.

        Args:
            key: A function of the record; of an Arrow stream the name of a column, or several.
            key_type: The type of the key, if the function's type hints do not say so.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> by_length = env.from_collection("to be or not".split()).key_by(len)
        >>> sorted(by_length.count().execute_and_collect())
        [(2, 1), (2, 2), (2, 3), (3, 1)]
        """
        from headgate.api.keyed import KeyedStream  # noqa: PLC0415 - it is made of this

        if self.is_arrow:
            columns = (key,) if isinstance(key, str) else key
            if callable(columns) or not columns or not all(isinstance(name, str) for name in columns):
                raise TypeError(f"key_by of an Arrow stream wants the names of columns, not {key!r}")
            ship = Ship(ShipKind.HASH_COLUMNS, columns=tuple(columns))
            return KeyedStream(self._env, [replace(edge, ship=ship) for edge in self._edges], None)
        if not callable(key):
            raise TypeError(
                f"key_by wants a function of the record, not {key!r}: names of columns are for Arrow streams (to_arrow)"
            )
        ship = Ship(ShipKind.HASH, key=key)
        keyed = [replace(edge, ship=ship) for edge in self._edges]
        return KeyedStream(self._env, keyed, key, result_hint(key, given=key_type))

    def process(self, function: ProcessFunction[T, R], output_type: object = None) -> DataStream[R]:
        """Any number of records for each record, with its time and side outputs at hand: see `ProcessFunction`.

        >>> import headgate as hg
        >>> odd = hg.OutputTag("odd", int)
        >>> class Split(hg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield (odd, value) if value % 2 else value
        >>> env = hg.environment(local=True, parallelism=2)
        >>> even = env.from_collection(range(6)).process(Split())
        >>> sorted(even.union(even.get_side_output(odd).map(lambda n: -n)).execute_and_collect())
        [-5, -3, -1, 0, 2, 4]
        """
        from headgate.task.process import Process  # noqa: PLC0415 - only where it is used

        self._rows("process")
        checked("process", function, "process_element")
        if hasattr(function, "on_timer"):
            raise TypeError("process: a KeyedProcessFunction needs keys: use key_by before it")
        hint = result_hint(function, "process_element", element=True, given=output_type)
        return self._then(operator_name("process", function), partial(Process, function), hint=hint)

    # Streams together, and apart.

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """The records of several streams in one.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 3]).union(env.from_collection([2])).execute_and_collect())
        [1, 2, 3]
        """
        edges = list(self._edges)
        for other in others:
            self._same_environment("union", other)
            if other.is_arrow != self.is_arrow:
                raise TypeError(
                    "union: one is an Arrow stream and the other has rows: use to_arrow() or from_arrow() first"
                )
            edges.extend(other._edges)
        return DataStream(self._env, edges)

    def connect(self, other: DataStream[U]) -> ConnectedStreams[T, U]:
        """Two streams, of different types perhaps, for one operator that reads both.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
        >>> sorted(both.co_map(str, str.upper).execute_and_collect())
        ['1', '2', 'A']
        """
        from headgate.api.connected import ConnectedStreams  # noqa: PLC0415 - it is made of this

        self._same_environment("connect", other)
        return ConnectedStreams(self, other)

    def join(self, other: DataStream[U]) -> JoinedStreams[T, U]:
        """Pairs of records of two streams with equal keys in the same window: see `JoinedStreams`.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        >>> env = hg.environment(local=True, parallelism=2)
        >>> timed = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(strategy)
        >>> keyed = timed.key_by(lambda pair: pair[0])
        >>> with_itself = keyed.join(keyed).window(hg.TumblingEventTimeWindows.of(10))
        >>> sorted(with_itself.apply(lambda one, other: one[0] + other[0]).execute_and_collect())
        ['aa', 'bb']
        """
        from headgate.api.connected import JoinedStreams  # noqa: PLC0415 - it is made of this

        self._same_environment("join", other)
        return JoinedStreams(self, other)

    def get_side_output(self, tag: OutputTag[R]) -> DataStream[R]:
        """What the operator of this stream gives out under a tag: by `yield tag, value`, or late data of a window.

        >>> import headgate as hg
        >>> short = hg.OutputTag("short", str)
        >>> class Split(hg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield (short, value) if len(value) < 3 else value
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection("or not".split()).process(Split()).get_side_output(short).execute_and_collect())
        ['or']
        """
        node = self._tuned("get_side_output")
        node.side_hints.setdefault(tag.name, tag.hint)
        return DataStream(self._env, [Edge(node, tag=tag.name)])

    # Time and windows.

    def assign_timestamps_and_watermarks(self, watermark_strategy: Any) -> DataStream[T]:
        """Give records their event times, and say how late they may be.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        >>> env = hg.environment(local=True, parallelism=1)
        >>> timed = env.from_collection([("a", 1000), ("b", 2500)]).assign_timestamps_and_watermarks(strategy)
        >>> seconds = timed.window_all(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        >>> sorted(seconds.apply(lambda window, pairs: [(window.start, len(pairs))]).execute_and_collect())
        [(1000, 1), (2000, 1)]
        """
        from headgate.task.watermarks import AssignTimestamps  # noqa: PLC0415 - only where it is used

        self._rows("assign_timestamps_and_watermarks")
        return self._then("timestamps", partial(AssignTimestamps, watermark_strategy), hint=self.hint)

    def window_all(self, window_assigner: Any) -> AllWindowedStream[T]:
        """Group all records by windows, in one subtask; `key_by` before `window` groups them by key, in parallel.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
        >>> env = hg.environment(local=True, parallelism=2)
        >>> timed = env.from_collection([1, 5, 12]).assign_timestamps_and_watermarks(strategy)
        >>> sorted(timed.window_all(hg.TumblingEventTimeWindows.of(10)).reduce(max).execute_and_collect())
        [5, 12]
        """
        from headgate.api.windowed import AllWindowedStream  # noqa: PLC0415 - it is made of this

        self._rows("window_all")
        return AllWindowedStream(self.global_(), window_assigner)

    def count_window_all(self, size: int, slide: int | None = None) -> AllWindowedStream[T]:
        """As `window_all`, with windows of so many records.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection(range(5)).count_window_all(2).reduce(max).execute_and_collect())
        [1, 3]
        """
        from headgate.api.windowed import count_windows  # noqa: PLC0415 - it is made of this

        return self.window_all(count_windows(size, slide))

    # Many calls at once.

    def map_async(
        self,
        function: Callable[[T], Awaitable[R]] | MapFunction[T, Awaitable[R]],
        capacity: int = 100,
        *,
        ordered: bool = True,
        timeout_s: float | None = None,
        output_type: object = None,
    ) -> DataStream[R]:
        """One record for each record by an async function, many at once.

        Args:
            function: An async function, called in an event loop of the subtask's own.
            capacity: How many calls may run at once in a subtask.
            ordered: Whether results keep the order of the records.
            timeout_s: How long a call may take; a longer one fails the job.
            output_type: The type of the results, if the function's type hints do not say so.

        >>> import asyncio
        >>> import headgate as hg
        >>> async def look_up(name):
        ...     await asyncio.sleep(0)
        ...     return len(name)
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection(["to", "be", "not"]).map_async(look_up).execute_and_collect())
        [2, 2, 3]
        """
        from headgate.task.async_map import MapAsync  # noqa: PLC0415 - only where it is used

        self._rows("map_async")
        checked("map_async", function, "map")
        make = partial(MapAsync, function, capacity, ordered, timeout_s)
        return self._then(
            operator_name("map_async", function), make, hint=result_hint(function, "map", given=output_type)
        )

    def _same_environment(self, what: str, other: object) -> None:
        if not isinstance(other, DataStream):
            raise TypeError(f"{what} wants a DataStream, not {other!r}")
        if other._env is not self._env:
            raise ValueError(f"{what}: both streams must be of the same environment")
