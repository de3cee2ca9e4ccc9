"""ConnectedStreams: two streams for one operator."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.keyed import KeyedStream
from headgate.api.user_functions import checked, operator_name, result_hint
from headgate.functions.connected import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.api.stream import DataStream
    from headgate.graph.stream_graph import Edge
    from headgate.task.operator import Operator

__all__ = ["ConnectedStreams", "with_two_inputs"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


class _MapEach(CoMapFunction[Any, Any, Any]):
    """A `CoMapFunction` of two plain functions."""

    def __init__(self, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> None:
        self._first = first
        self._second = second

    def map1(self, value: Any) -> Any:
        """See `CoMapFunction`."""
        return self._first(value)

    def map2(self, value: Any) -> Any:
        """See `CoMapFunction`."""
        return self._second(value)


class _FlatMapEach(CoFlatMapFunction[Any, Any, Any]):
    """A `CoFlatMapFunction` of two plain functions."""

    def __init__(self, first: Callable[[Any], Iterable[Any]], second: Callable[[Any], Iterable[Any]]) -> None:
        self._first = first
        self._second = second

    def flat_map1(self, value: Any) -> Iterable[Any]:
        """See `CoFlatMapFunction`."""
        return self._first(value)

    def flat_map2(self, value: Any) -> Iterable[Any]:
        """See `CoFlatMapFunction`."""
        return self._second(value)


class ConnectedStreams(Generic[A, B]):
    """Two streams for one operator: returned by `DataStream.connect`.

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
        """Return the connected streams, with records of equal keys of both in the same subtask.

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
        """Return one record for each record, by a `CoMapFunction` or a plain function for each stream.

        If both streams are keyed, a `CoMapFunction` has state of each key, which both share: see `RuntimeContext`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([1, 2]).connect(env.from_collection(["abc"]))
        >>> sorted(both.map(abs, len).execute_and_collect())
        [1, 2, 3]
        """
        from headgate.task.operators.process import CoMap  # noqa: PLC0415 - imported when used
        from headgate.task.operators.stateful import KeyedCoMap  # noqa: PLC0415

        self._rows("co_map")
        if second is None:
            both = _instance("co_map", function, CoMapFunction)
            hint = result_hint(both, "map1", "map2", given=output_type)
        else:
            hint = _common(result_hint(function), result_hint(second), output_type)
            both = _MapEach(checked("co_map", function), checked("co_map", second))
        return self._then("co_map", function, self._making(CoMap, KeyedCoMap, both), hint)

    def flat_map(
        self,
        function: CoFlatMapFunction[A, B, R] | Callable[[A], Iterable[R]],
        second: Callable[[B], Iterable[R]] | None = None,
        output_type: object = None,
    ) -> DataStream[R]:
        """Return any number of records for each record, by a `CoFlatMapFunction` or a plain function for each stream.

        If both streams are keyed, a `CoFlatMapFunction` has state of each key, as in `map`.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> both = env.from_collection([2, 3]).connect(env.from_collection(["ab"]))
        >>> sorted(both.flat_map(lambda n: ["x"] * n, list).execute_and_collect())
        ['a', 'b', 'x', 'x', 'x', 'x', 'x']
        """
        from headgate.task.operators.process import CoFlatMap  # noqa: PLC0415 - imported when used
        from headgate.task.operators.stateful import KeyedCoFlatMap  # noqa: PLC0415

        self._rows("co_flat_map")
        if second is None:
            both = _instance("co_flat_map", function, CoFlatMapFunction)
            hint = result_hint(both, "flat_map1", "flat_map2", element=True, given=output_type)
        else:
            hint = _common(result_hint(function, element=True), result_hint(second, element=True), output_type)
            both = _FlatMapEach(checked("co_flat_map", function), checked("co_flat_map", second))
        return self._then("co_flat_map", function, self._making(CoFlatMap, KeyedCoFlatMap, both), hint)

    def process(
        self,
        function: CoProcessFunction[A, B, R] | KeyedCoProcessFunction[Any, A, B, R],
        output_type: object = None,
    ) -> DataStream[R]:
        """Return any number of records for each record, by a function with context; keyed streams share its state.

        >>> import headgate as hg
        >>> class Enrich(hg.KeyedCoProcessFunction):
        ...     def open(self, context):
        ...         self.name = context.get_state("name")
        ...         self.waiting = context.get_list_state("waiting")
        ...     def process_element1(self, order, ctx):
        ...         self.waiting.add(order[1])
        ...         yield from self.matches()
        ...     def process_element2(self, customer, ctx):
        ...         self.name.update(customer[1])
        ...         yield from self.matches()
        ...     def matches(self):
        ...         if self.name.value() is not None:
        ...             for order in self.waiting.get():
        ...                 yield self.name.value(), order
        ...             self.waiting.clear()
        >>> env = hg.environment(local=True, parallelism=2)
        >>> orders = env.from_collection([(1, "tea"), (2, "milk")]).key_by(lambda order: order[0])
        >>> customers = env.from_collection([(1, "ann"), (2, "bob")]).key_by(lambda customer: customer[0])
        >>> sorted(orders.connect(customers).process(Enrich()).execute_and_collect())
        [('ann', 'tea'), ('bob', 'milk')]
        """
        from headgate.task.operators.process import CoProcess, KeyedCoProcess  # noqa: PLC0415 - imported when used

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

    def _making(
        self, kind: Callable[..., Operator], keyed: Callable[..., Operator], function: Any
    ) -> Callable[[], Operator]:
        """Return the factory of an operator; if both streams are keyed, of one with state."""
        first, second = self._first, self._second
        if isinstance(first, KeyedStream) and isinstance(second, KeyedStream):
            return partial(keyed, first._by_key("connect"), second._by_key("connect"), function)
        return partial(kind, function)

    def _then(self, what: str, function: object, make: Callable[[], Operator], hint: object) -> DataStream[Any]:
        return with_two_inputs(self._first, self._second, operator_name(what, function), make, hint)


def with_two_inputs(
    first: DataStream[Any], second: DataStream[Any], name: str, make: Callable[[], Operator], hint: object
) -> DataStream[Any]:
    """Add an operator that reads both streams, and return the stream of its results."""
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
