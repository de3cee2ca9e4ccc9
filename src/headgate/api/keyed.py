"""KeyedStream: a stream whose records with equal keys are in the same subtask; aggregates, state and windows by key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headgate.api.stream import DataStream
from headgate.api.user_functions import checked, operator_name, result_hint
from headgate.functions.basic import Function
from headgate.functions.process import KeyedProcessFunction
from headgate.graph.plan import ShipKind
from headgate.task.operators.basic import Filter, FlatMap, Map

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headgate.api.environment import StreamExecutionEnvironment
    from headgate.api.windowed import WindowedStream
    from headgate.functions.basic import ReduceFunction
    from headgate.graph.plan import Ship
    from headgate.graph.stream_graph import Edge
    from headgate.task.operator import Operator
    from headgate.task.operators.keyed import How

__all__ = ["KeyedStream"]

_METHODS = {ShipKind.GLOBAL: "global_", ShipKind.CUSTOM: "partition_custom"}  # methods not named as their kind

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


class KeyedStream(DataStream[T], Generic[K, T]):
    """A stream with keys: returned by `DataStream.key_by`.

    A running aggregate (`reduce`, `sum`, `min`, `max`, `min_by`, `max_by`, `count`) emits its result so far for every
    record in STREAMING mode, and in BATCH mode only the last result of each key, at the end of the input. Functions
    with state, windows and joins process one key after the other in BATCH.

    A function class of `map`, `flat_map`, `filter`, `reduce` or `process` has state of each key: it requests it from
    its `RuntimeContext` in `open`. The streams that these methods return are not keyed.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> sales = env.from_collection([("tea", 2), ("milk", 3), ("tea", 5)]).key_by(lambda sale: sale[0])
    >>> dict(sales.sum(1).execute_and_collect()) == {"tea": 7, "milk": 3}
    True
    """

    def __init__(
        self,
        env: StreamExecutionEnvironment,
        edges: Sequence[Edge],
        key: Callable[[T], K] | None,
        key_hint: object = None,
    ) -> None:
        super().__init__(env, edges)
        self._key = key  # None: by columns of an Arrow stream
        self._key_hint = key_hint

    def reduce(self, function: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]:
        """Return the merged records of each key so far, for every record; in BATCH mode once per key, at the end.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> pairs = env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda pair: pair[0])
        >>> list(pairs.reduce(lambda x, y: (x[0], x[1] + y[1])).execute_and_collect())
        [('a', 1), ('b', 2), ('a', 4)]
        >>> env = hg.environment(local=True, parallelism=1, runtime_mode="BATCH")
        >>> pairs = env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda pair: pair[0])
        >>> list(pairs.reduce(lambda x, y: (x[0], x[1] + y[1])).execute_and_collect())
        [('a', 4), ('b', 2)]
        """
        from headgate.task.operators.keyed import KeyedReduce  # noqa: PLC0415 - imported when used

        key = self._by_key("reduce")
        checked("reduce", function, "reduce")
        make = partial(KeyedReduce, key, function)
        return self._then(operator_name("reduce", function), make, hint=self.hint)

    def sum(self, field: int | str | None = None) -> DataStream[T]:
        """Return the first record of each key, with the sum of a field so far, for every record.

        In BATCH mode it is emitted once per key, at the end of the input.

        Args:
            field: The index in a tuple or list, the key in a dict, or the name in an object; None: the first field of a
                tuple or list, or the record itself if it is a number. A dict or an object needs the name.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([1, 2, 3]).key_by(lambda n: n % 2).sum().execute_and_collect())
        [1, 2, 4]
        >>> list(env.from_collection([(2, "tea"), (3, "tea")]).key_by(lambda sale: sale[1]).sum().execute_and_collect())
        [(2, 'tea'), (5, 'tea')]
        """
        return self._aggregated("sum", field)

    def min(self, field: int | str | None = None) -> DataStream[T]:
        """Return the first record of each key, with the minimum of a field so far: see `sum`, `min_by`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([3, 1, 2]).key_by(lambda n: "all").min().execute_and_collect())
        [3, 1, 1]
        """
        return self._aggregated("min", field)

    def max(self, field: int | str | None = None) -> DataStream[T]:
        """Return the first record of each key, with the maximum of a field so far: see `sum`, `max_by`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([1, 3, 2]).key_by(lambda n: "all").max().execute_and_collect())
        [1, 3, 3]
        """
        return self._aggregated("max", field)

    def min_by(self, field: int | str | None = None) -> DataStream[T]:
        """Return the record of each key with the minimum of a field so far, the first of several: see `sum`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> bids = env.from_collection([("pen", 3), ("ink", 1), ("pen", 2)]).key_by(lambda bid: bid[0])
        >>> list(bids.min_by(1).execute_and_collect())
        [('pen', 3), ('ink', 1), ('pen', 2)]
        """
        return self._aggregated("min_by", field)

    def max_by(self, field: int | str | None = None) -> DataStream[T]:
        """Return the record of each key with the maximum of a field so far, the first of several: see `sum`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> ages = env.from_collection([("ann", 30), ("bob", 40), ("cem", 20)]).key_by(lambda person: "all")
        >>> list(ages.max_by(1).execute_and_collect())
        [('ann', 30), ('bob', 40), ('bob', 40)]
        """
        return self._aggregated("max_by", field)

    def count(self) -> DataStream[tuple[K, int]]:
        """Return each key with the number of its records so far, for every record; in BATCH mode once, at the end.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> words = env.from_collection("to be or not to be".split()).key_by(lambda word: word)
        >>> dict(words.count().execute_and_collect()) == {"to": 2, "be": 2, "or": 1, "not": 1}
        True
        """
        from headgate.task.operators.keyed import KeyedCount  # noqa: PLC0415 - imported when used

        key = self._by_key("count")
        hint = None if self._key_hint is None else tuple[self._key_hint, int]  # type: ignore[name-defined]
        return self._then("count", partial(KeyedCount, key), hint=hint)

    def process(  # type: ignore[override]
        self, function: KeyedProcessFunction[K, T, R], output_type: object = None
    ) -> DataStream[R]:
        """Return any number of records for each record, with state and timers of its key: see `KeyedProcessFunction`.

        In BATCH mode the function processes one key after the other: its records in the order of arrival, its
        event-time timers between them as in STREAMING, then the remaining timers. Then the key's state is cleared.

        >>> import headgate as hg
        >>> class FirstOnly(hg.KeyedProcessFunction):
        ...     def open(self, context):
        ...         self.seen = context.get_state("seen", False)
        ...     def process_element(self, value, ctx):
        ...         if not self.seen.value():
        ...             self.seen.update(True)
        ...             yield value
        >>> env = hg.environment(local=True, parallelism=2)
        >>> words = env.from_collection("to be or not to be".split()).key_by(lambda word: word)
        >>> sorted(words.process(FirstOnly()).execute_and_collect())
        ['be', 'not', 'or', 'to']
        """
        from headgate.task.operators.keyed import KeyedProcess  # noqa: PLC0415 - imported when used

        key = self._by_key("process")
        if not isinstance(function, KeyedProcessFunction):
            raise TypeError(f"process of a keyed stream wants a KeyedProcessFunction, not {function!r}")
        hint = result_hint(function, "process_element", element=True, given=output_type)
        return self._then(operator_name("process", function), partial(KeyedProcess, key, function), hint=hint)

    def window(self, window_assigner: Any) -> WindowedStream[K, T]:
        """Return the records of each key, grouped by windows.

        >>> import headgate as hg
        >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
        >>> env = hg.environment(local=True, parallelism=2)
        >>> clicks = env.from_collection([("ann", 1000), ("bob", 1500), ("ann", 1900), ("ann", 2100)])
        >>> timed = clicks.assign_timestamps_and_watermarks(strategy).key_by(lambda pair: pair[0])
        >>> seconds = timed.window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
        >>> counted = seconds.apply(lambda key, window, values: [(key, window.start, len(values))])
        >>> sorted(counted.execute_and_collect())
        [('ann', 1000, 2), ('ann', 2000, 1), ('bob', 1000, 1)]
        """
        from headgate.api.windowed import WindowedStream  # noqa: PLC0415 - imports this module

        self._by_key("window")
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """Return the records of each key, grouped by windows of `size` records; one starts every `slide` records.

        As in PyFlink, window `i` contains the `size` records of its key from record `i * slide` on. Only full windows
        have results.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> pairs = env.from_collection(range(6)).key_by(lambda n: n % 2).count_window(2)
        >>> sorted(pairs.reduce(lambda a, b: a + b).execute_and_collect())
        [2, 4]
        >>> sliding = env.from_collection(range(4)).key_by(lambda n: 0).count_window(2, 1)
        >>> list(sliding.apply(lambda key, window, values: [values]).execute_and_collect())
        [[0, 1], [1, 2], [2, 3]]
        """
        from headgate.api.windowed import count_windows  # noqa: PLC0415 - imports this module

        return self.window(count_windows(size, slide))

    def _making(self, kind: type[Map | FlatMap | Filter], function: Any) -> Callable[[], Operator]:
        if self._key is None or not isinstance(function, Function):
            return super()._making(kind, function)  # without `open` it cannot request state
        from headgate.task.operators.stateful import KeyedFilter, KeyedFlatMap, KeyedMap  # noqa: PLC0415 - imported when used

        with_state: dict[type, Any] = {Map: KeyedMap, FlatMap: KeyedFlatMap, Filter: KeyedFilter}
        return partial(with_state[kind], self._key, function)

    def _shipped(self, ship: Ship) -> DataStream[T]:
        name = _METHODS.get(ship.kind, ship.kind.value)
        raise TypeError(
            f"{name} of a keyed stream is refused: it would undo key_by; leave one of them out, or use {name} after the"
            " next operator"
        )

    def _aggregated(self, how: How, field: int | str | None) -> DataStream[T]:
        from headgate.task.operators.keyed import KeyedAggregateField  # noqa: PLC0415 - imported when used

        key = self._by_key(how)
        name = how if field is None else f"{how}({field})"
        return self._then(name, partial(KeyedAggregateField, key, field, how), hint=self.hint)

    def _by_key(self, what: str) -> Callable[[Any], Hashable]:
        """Return the key function; raise if the stream is keyed by columns."""
        if self._key is None:
            raise TypeError(
                f"{what} is for rows, and this stream is keyed by columns of record batches: use map_batches, or"
                " from_arrow() and key_by with a function"
            )
        return cast("Callable[[Any], Hashable]", self._key)
