"""Two streams for one operator: connected streams, and joins in windows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.core import checked, operator_name
from headgate.api.hints import result_hint
from headgate.api.keyed import KeyedStream
from headgate.task.co_functions import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction
from headgate.task.windows import WindowAssigner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.api.stream import DataStream
    from headgate.graph.stream_graph import Edge
    from headgate.task.operator import Operator

__all__ = ["ConnectedStreams", "JoinedStreams"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class _MapEach(CoMapFunction[Any, Any, Any]):
    """A plain function for each of two streams."""

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self._first = first
        self._second = second

    def map1(self, value: Any) -> Any:
        """Of the first stream."""
        return self._first(value)

    def map2(self, value: Any) -> Any:
        """Of the second."""
        return self._second(value)


class _FlatMapEach(CoFlatMapFunction[Any, Any, Any]):
    """A plain function for each of two streams."""

    def __init__(self, first: Callable[[Any], Iterable[Any]], second: Callable[[Any], Iterable[Any]]) -> None:
        self._first = first
        self._second = second

    def flat_map1(self, value: Any) -> Iterable[Any]:
        """Of the first stream."""
        return self._first(value)

    def flat_map2(self, value: Any) -> Iterable[Any]:
        """Of the second."""
        return self._second(value)


class ConnectedStreams(Generic[A, B]):
    """Two streams that one operator reads: after `connect`.

    >>> import headgate as hg
    >>> class Tag(hg.CoMapFunction):
    ...     def map1(self, value):
    ...         return "number", value
    ...     def map2(self, value):
    ...         return "word", value
    >>> env = hg.environment(local=True, parallelism=2)
    >>> sorted(env.from_collection([1, 2]).connect(env.from_collection(["a"])).map(Tag()).execute_and_collect())
    [('number', 1), ('number', 2), ('word', 'a')]
    """

    def __init__(self, first: DataStream[A], second: DataStream[B]) -> None:
        self._first = first
        self._second = second

    def key_by(self, key1: Callable[[A], Any], key2: Callable[[B], Any]) -> ConnectedStreams[A, B]:
        """Bring records of both with equal keys to the same subtask.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([1, 2]).connect(env.from_collection(["1"])).key_by(str, lambda text: text)
        >>> sorted(both.map(str, str).execute_and_collect())
        ['1', '1', '2']
        """
        return ConnectedStreams(self._first.key_by(key1), self._second.key_by(key2))

    def map(
        self,
        function: CoMapFunction[A, B, R] | Callable[[A], R],
        second: Callable[[B], R] | None = None,
        output_type: object = None,
    ) -> DataStream[R]:
        """One record for each record: a `CoMapFunction`, or a plain function for each stream.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([1, 2]).connect(env.from_collection(["abc"]))
        >>> sorted(both.map(abs, len).execute_and_collect())
        [1, 2, 3]
        """
        from headgate.task.process import CoMap  # noqa: PLC0415 - only where it is used

        self._rows("co_map")
        if second is None:
            both = _instance("co_map", function, CoMapFunction)
            hint = result_hint(both, "map1", "map2", given=output_type)
        else:
            hint = _common(result_hint(function), result_hint(second), output_type)
            both = _MapEach(checked("co_map", function), checked("co_map", second))
        return self._then("co_map", function, partial(CoMap, both), hint)

    def flat_map(
        self,
        function: CoFlatMapFunction[A, B, R] | Callable[[A], Iterable[R]],
        second: Callable[[B], Iterable[R]] | None = None,
        output_type: object = None,
    ) -> DataStream[R]:
        """Any number of records for each record: a `CoFlatMapFunction`, or a plain function for each stream.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([2, 3]).connect(env.from_collection(["ab"]))
        >>> sorted(both.flat_map(lambda n: ["x"] * n, list).execute_and_collect())
        ['a', 'b', 'x', 'x', 'x', 'x', 'x']
        """
        from headgate.task.process import CoFlatMap  # noqa: PLC0415 - only where it is used

        self._rows("co_flat_map")
        if second is None:
            both = _instance("co_flat_map", function, CoFlatMapFunction)
            hint = result_hint(both, "flat_map1", "flat_map2", element=True, given=output_type)
        else:
            hint = _common(result_hint(function, element=True), result_hint(second, element=True), output_type)
            both = _FlatMapEach(checked("co_flat_map", function), checked("co_flat_map", second))
        return self._then("co_flat_map", function, partial(CoFlatMap, both), hint)

    def process(
        self,
        function: CoProcessFunction[A, B, R] | KeyedCoProcessFunction[Any, A, B, R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Any number of records for each record, with context; of keyed streams with state and timers that both share.

        >>> import headgate as hg
        >>> class Enrich(hg.KeyedCoProcessFunction):
        ...     def open(self, context):
        ...         self.name = context.get_state("name")
        ...         self.waiting = context.get_list_state("waiting")
        ...     def process_element1(self, order, ctx):
        ...         self.waiting.add(order[1])
        ...         yield from self.give_out()
        ...     def process_element2(self, customer, ctx):
        ...         self.name.update(customer[1])
        ...         yield from self.give_out()
        ...     def give_out(self):
        ...         if self.name.value() is not None:
        ...             for order in list(self.waiting.get()):
        ...                 yield self.name.value(), order
        ...             self.waiting.clear()
        >>> env = hg.environment(local=True, parallelism=2)
        >>> orders = env.from_collection([(1, "tea"), (2, "milk")]).key_by(lambda order: order[0])
        >>> customers = env.from_collection([(1, "ann"), (2, "bob")]).key_by(lambda customer: customer[0])
        >>> sorted(orders.connect(customers).process(Enrich()).execute_and_collect())
        [('ann', 'tea'), ('bob', 'milk')]
        """
        from headgate.task.process import CoProcess, KeyedCoProcess  # noqa: PLC0415 - only where it is used

        self._rows("co_process")
        hint = result_hint(function, "process_element1", "process_element2", element=True, given=output_type)
        if isinstance(function, KeyedCoProcessFunction):
            first, second = self._first, self._second
            if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
                raise TypeError("co_process: a KeyedCoProcessFunction needs keys: use key_by on both streams before")
            keys = first._by_key("co_process"), second._by_key("co_process")
            return self._then("co_process", function, partial(KeyedCoProcess, *keys, function), hint)
        checked("co_process", function, "process_element1", "process_element2")
        return self._then("co_process", function, partial(CoProcess, function), hint)

    co_map, co_flat_map, co_process = map, flat_map, process  # noqa: A003 - the methods above

    def _rows(self, what: str) -> None:
        self._first._rows(what)
        self._second._rows(what)

    def _then(self, what: str, function: object, make: Callable[[], Operator], hint: object) -> DataStream[Any]:
        return _two_inputs(self._first, self._second, operator_name(what, function), make, hint)


def _two_inputs(
    first: DataStream[Any], second: DataStream[Any], name: str, make: Callable[[], Operator], hint: object
) -> DataStream[Any]:
    edges: list[Edge] = [*first._edges, *(replace(edge, input=1) for edge in second._edges)]
    return first._then(name, make, hint=hint, edges=edges)


def _instance(what: str, function: object, kind: type[Any]) -> Any:
    if isinstance(function, kind):
        return function
    raise TypeError(f"{what} wants a {kind.__name__}, or a function for each stream, not {function!r} alone")


def _common(first: object, second: object, given: object) -> object:
    if given is not None:
        return given
    return first if first == second else None


class JoinedStreams(Generic[A, B]):
    """Two streams to be joined: after `join`. Keyed streams have their keys; others need `where` and `equal_to`.

    >>> import headgate as hg
    >>> strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
    >>> env = hg.environment(local=True, parallelism=2)
    >>> shown = env.from_collection([("ad1", 100), ("ad2", 200)]).assign_timestamps_and_watermarks(strategy)
    >>> clicked = env.from_collection([("ad1", 700), ("ad2", 1700)]).assign_timestamps_and_watermarks(strategy)
    >>> joined = shown.join(clicked).where(lambda pair: pair[0]).equal_to(lambda pair: pair[0])
    >>> seconds = joined.window(hg.TumblingEventTimeWindows.of(hg.Time.seconds(1)))
    >>> list(seconds.apply(lambda show, click: (show[0], click[1] - show[1])).execute_and_collect())
    [('ad1', 600)]
    """

    def __init__(self, first: DataStream[A], second: DataStream[B], assigner: WindowAssigner | None = None) -> None:
        self._first = first
        self._second = second
        self._assigner = assigner

    def where(self, key: Callable[[A], Any]) -> JoinedStreams[A, B]:
        """The key of the first stream's records."""
        return JoinedStreams(self._first.key_by(key), self._second, self._assigner)

    def equal_to(self, key: Callable[[B], Any]) -> JoinedStreams[A, B]:
        """The key of the second stream's records."""
        return JoinedStreams(self._first, self._second.key_by(key), self._assigner)

    def window(self, window_assigner: WindowAssigner) -> JoinedStreams[A, B]:
        """The windows in which records must be together."""
        if not isinstance(window_assigner, WindowAssigner):
            raise TypeError(
                f"window wants an assigner, such as TumblingEventTimeWindows.of(size), not {window_assigner!r}"
            )
        return JoinedStreams(self._first, self._second, window_assigner)

    def apply(self, function: Callable[[A, B], R], output_type: object = None) -> DataStream[R]:
        """One record for each pair with equal keys in the same window: see the class."""
        from headgate.task.window_join import WindowJoin  # noqa: PLC0415 - only where it is used

        checked("join", function, "join")
        keys = []
        for stream, method in ((self._first, "where"), (self._second, "equal_to")):
            if not isinstance(stream, KeyedStream):
                raise TypeError(f"join: {stream!r} has no key: use {method}(key), or key_by before join")
            keys.append(stream._by_key("join"))
        if self._assigner is None:
            raise TypeError("join needs a window: use window(assigner) before apply")
        make = partial(WindowJoin, keys[0], keys[1], self._assigner, function)
        hint = result_hint(function, "join", given=output_type)
        return _two_inputs(self._first, self._second, operator_name("join", function), make, hint)
