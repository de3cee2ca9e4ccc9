"""KeyedStream: streams whose equal keys meet in one subtask, and what can be kept for each key."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from headgate.api.core import checked, operator_name
from headgate.api.hints import result_hint
from headgate.api.stream import DataStream
from headgate.task.functions import KeyedProcessFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from headgate.api.environment import StreamExecutionEnvironment
    from headgate.api.windowed import WindowedStream
    from headgate.graph.stream_graph import Edge
    from headgate.task.functions import ReduceFunction
    from headgate.task.keyed import How

__all__ = ["KeyedStream"]

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


class KeyedStream(DataStream[T], Generic[K, T]):
    """A stream after `key_by`.

    Its running aggregates (`reduce`, `sum`, `min`, `max`, `min_by`, `max_by`, `count`) give out one record for every
    record in STREAMING mode, and in BATCH mode only the last one of each key, when all input is there. Functions,
    windows and joins see one key after the other in BATCH.

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
        """All records of a key so far as one, given out for every record; in BATCH mode once, when all are there.

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
        from headgate.task.keyed import KeyedReduce  # noqa: PLC0415 - only where it is used

        key = self._by_key("reduce")
        checked("reduce", function, "reduce")
        make = partial(KeyedReduce, key, function)
        return self._then(operator_name("reduce", function), make, hint=self.hint)

    def sum(self, field: int | str | None = None) -> DataStream[T]:
        """The sum of a field over the records of a key so far, in the first of them, given out for every record.

        In BATCH mode it is given out once for each key, when all its records are there.

        Args:
            field: Its index in a tuple or list, its key in a dict, its name in an object; None: the record itself.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([1, 2, 3]).key_by(lambda n: n % 2).sum().execute_and_collect())
        [1, 2, 4]
        """
        return self._aggregated("sum", field)

    def min(self, field: int | str | None = None) -> DataStream[T]:
        """The smallest value of a field so far, put into the first record of its key: see `sum`, `min_by`.

        In BATCH mode it is given out once for each key, when all its records are there.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([3, 1, 2]).key_by(lambda n: "all").min().execute_and_collect())
        [3, 1, 1]
        """
        return self._aggregated("min", field)

    def max(self, field: int | str | None = None) -> DataStream[T]:
        """The largest value of a field so far, put into the first record of its key: see `sum`, `max_by`.

        In BATCH mode it is given out once for each key, when all its records are there.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> list(env.from_collection([1, 3, 2]).key_by(lambda n: "all").max().execute_and_collect())
        [1, 3, 3]
        """
        return self._aggregated("max", field)

    def min_by(self, field: int | str | None = None) -> DataStream[T]:
        """The record with the smallest value of a field so far, the first of several.

        In BATCH mode it is given out once for each key, when all its records are there.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> bids = env.from_collection([("pen", 3), ("ink", 1), ("pen", 2)]).key_by(lambda bid: bid[0])
        >>> list(bids.min_by(1).execute_and_collect())
        [('pen', 3), ('ink', 1), ('pen', 2)]
        """
        return self._aggregated("min_by", field)

    def max_by(self, field: int | str | None = None) -> DataStream[T]:
        """The record with the largest value of a field so far, the first of several.

        In BATCH mode it is given out once for each key, when all its records are there.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> ages = env.from_collection([("ann", 30), ("bob", 40), ("cem", 20)]).key_by(lambda person: "all")
        >>> list(ages.max_by(1).execute_and_collect())
        [('ann', 30), ('bob', 40), ('bob', 40)]
        """
        return self._aggregated("max_by", field)

    def count(self) -> DataStream[tuple[K, int]]:
        """Each key with the number of its records so far, given out for every record; in BATCH mode once, at the end.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> words = env.from_collection("to be or not to be".split()).key_by(lambda word: word)
        >>> dict(words.count().execute_and_collect()) == {"to": 2, "be": 2, "or": 1, "not": 1}
        True
        """
        from headgate.task.keyed import KeyedCount  # noqa: PLC0415 - only where it is used

        key = self._by_key("count")
        hint = None if self._key_hint is None else tuple[self._key_hint, int]  # type: ignore[name-defined]
        return self._then("count", partial(KeyedCount, key), hint=hint)

    def process(  # type: ignore[override]
        self, function: KeyedProcessFunction[K, T, R], output_type: object = None
    ) -> DataStream[R]:
        """Any number of records for each record, with state and timers of its key: see `KeyedProcessFunction`.

        In BATCH mode the function sees one key after the other: its records in the order in which they came, its
        timers of event time where they would have fired, and then all that are left. State is forgotten with its key.

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
        from headgate.task.keyed import KeyedProcess  # noqa: PLC0415 - only where it is used

        key = self._by_key("process")
        if not isinstance(function, KeyedProcessFunction):
            raise TypeError(f"process of a keyed stream wants a KeyedProcessFunction, not {function!r}")
        hint = result_hint(function, "process_element", element=True, given=output_type)
        return self._then(operator_name("process", function), partial(KeyedProcess, key, function), hint=hint)

    def window(self, window_assigner: Any) -> WindowedStream[K, T]:
        """Group the records of each key by windows.

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
        from headgate.api.windowed import WindowedStream  # noqa: PLC0415 - it is made of this

        self._by_key("window")
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """Group the records of each key by so many, and begin a new group every `slide` records.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> pairs = env.from_collection(range(6)).key_by(lambda n: n % 2).count_window(2)
        >>> sorted(pairs.reduce(lambda a, b: a + b).execute_and_collect())
        [2, 4]
        """
        from headgate.api.windowed import count_windows  # noqa: PLC0415 - it is made of this

        return self.window(count_windows(size, slide))

    def _aggregated(self, how: How, field: int | str | None) -> DataStream[T]:
        from headgate.task.keyed import KeyedAggregateField  # noqa: PLC0415 - only where it is used

        key = self._by_key(how)
        name = how if field is None else f"{how}({field})"
        return self._then(name, partial(KeyedAggregateField, key, field, how), hint=self.hint)

    def _by_key(self, what: str) -> Callable[[Any], Hashable]:
        """The function that gives a row's key, for what needs one."""
        if self._key is None:
            raise TypeError(
                f"{what} is for rows, and this stream is keyed by columns of record batches: use map_batches, or"
                " from_arrow() and key_by with a function"
            )
        return cast("Callable[[Any], Hashable]", self._key)
