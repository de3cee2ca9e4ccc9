"""The operators that need no state: map, flat_map, filter, and the ends of a pipeline.

`FunctionOperator` is what all operators around a user's function share.
"""

from __future__ import annotations

from itertools import chain, compress, repeat
from typing import TYPE_CHECKING, Any

from headgate.task.copying import copied
from headgate.task.functions import Function, RuntimeContext
from headgate.task.operator import Operator, Times, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.task.sink import Sink
    from headgate.task.state import KeyedState

__all__ = ["Filter", "FlatMap", "FunctionOperator", "Map", "PassOn", "SinkOperator", "method_of"]


def method_of(function: Any, name: str) -> Callable[..., Any]:
    """A user's function as something to call: itself, or the method of that name if it is a `Function`.

    >>> from headgate.task.functions import MapFunction
    >>> class Double(MapFunction):
    ...     def map(self, value):
    ...         return 2 * value
    >>> method_of(Double(), "map")(21), method_of(str.upper, "map")("to")
    (42, 'TO')
    """
    found: Callable[..., Any] = getattr(function, name) if isinstance(function, Function) else function
    return found


class FunctionOperator(Operator):
    """An operator around one user's function, which it opens and closes if that has a life cycle.

    >>> issubclass(Map, FunctionOperator)
    True
    """

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self) -> None:
        """Open the function; operators with state override `keyed_state`."""
        if isinstance(self.function, Function):
            with self.user_code():
                self.function.open(RuntimeContext(self.place, self.keyed_state()))

    def keyed_state(self) -> KeyedState | None:
        """The state that the function may ask for."""
        return None

    def close(self) -> None:
        """Close the function."""
        if isinstance(self.function, Function):
            with self.user_code():
                self.function.close()


class _Emitting(FunctionOperator):
    """A function whose results go on as they are; copied where it could change them later (K1).

    Whether results can be changed at all is found out at the first of each batch: nearly always they cannot.
    """

    method: str

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._call = method_of(self.function, self.method)
        self._copies = False

    def _look_at(self, results: Values) -> None:
        self._copies = not self.place.object_reuse and copied(results[0]) is not results[0]

    def _called(self, values: Values) -> list[Any]:
        """The function's answers, one for each value."""
        return self.answers(self._call, values)


class Map(_Emitting):
    """One value out for each value in.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(Map(str.upper)) as harness:
    ...     harness.process(["to", "be"])
    >>> harness.values
    ['TO', 'BE']
    """

    method = "map"

    def process(self, values: Values, times: Times) -> None:
        """Call the function for each."""
        with self.user_code():
            mapped = self._called(values[:1])
            self._look_at(mapped)
            if self._copies:
                call = self._call
                mapped = [copied(mapped[0]), *[copied(call(value)) for value in values[1:]]]
            else:
                mapped += self._called(values[1:])
        self.out.emit(mapped, times)


class FlatMap(_Emitting):
    """Any number of values out for each value in; each has the time of the value it comes from.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(FlatMap(str.split)) as harness:
    ...     harness.process(["to be", "or not"], [1, 2])
    >>> harness.timed
    [('to', 1), ('be', 1), ('or', 2), ('not', 2)]
    """

    method = "flat_map"

    def process(self, values: Values, times: Times) -> None:
        """Call the function for each, and put the results together."""
        with self.user_code():
            if times is None and not self._copies:
                flat = list(chain.from_iterable(self._called(values)))
                flat_times = None
            else:
                flat, flat_times = self._one_by_one(values, repeat(0) if times is None else times)
            if flat:
                self._look_at(flat)
        self.out.emit(flat, None if times is None else flat_times)

    def _one_by_one(self, values: Values, times: Iterable[int]) -> tuple[Values, list[int]]:
        flat: Values = []
        flat_times: list[int] = []
        call, copies = self._call, self._copies
        for value, time in zip(values, times, strict=False):
            before, results = len(flat), call(value)
            flat.extend(map(copied, results) if copies else results)
            flat_times.extend(repeat(time, len(flat) - before))
        return flat, flat_times


class Filter(_Emitting):
    """Some of the values.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(Filter(str.isalpha)) as harness:
    ...     harness.process(["to", "2", "be"])
    >>> harness.values
    ['to', 'be']
    """

    method = "filter"

    def process(self, values: Values, times: Times) -> None:
        """Keep those for which the function says so."""
        with self.user_code():
            wanted = self._called(values)
        self.out.emit(list(compress(values, wanted)), None if times is None else list(compress(times, wanted)))


class PassOn(Operator):
    """Hands on what it gets: the head of a chain that begins with a source or with several outputs.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(PassOn()) as harness:
    ...     harness.process(["to"])
    >>> harness.values
    ['to']
    """

    def process(self, values: Values, times: Times) -> None:
        """Hand it on."""
        self.out.emit(values, times)


class SinkOperator(Operator):
    """The end of a pipeline.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.api.sinks import MemorySink
    >>> sink = MemorySink()
    >>> with OperatorHarness(SinkOperator(sink)) as harness:
    ...     harness.process(["to"])
    >>> list(sink.values)
    ['to']
    """

    def __init__(self, sink: Sink[Any]) -> None:
        self._sink = sink

    def open(self) -> None:
        """Open the sink."""
        with self.user_code():
            self._sink.open(self.place)

    def process(self, values: Values, times: Times) -> None:  # noqa: ARG002 - sinks see values
        """Write a batch."""
        with self.user_code():
            self._sink.write(values)

    def flush(self) -> None:
        """Flush the sink."""
        with self.user_code():
            self._sink.flush()

    def finish(self) -> None:
        """Complete what was written."""
        with self.user_code():
            self._sink.finish()

    def close(self) -> None:
        """Close the sink."""
        with self.user_code():
            self._sink.close()
