"""The operators without state: map, flat_map, filter and sinks; `FunctionOperator`, their base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.functions.basic import Function, RuntimeContext, method_of
from headgate.task.operator import Operator, Times, Values
from headgate.task.operators.calls import filtered, flat_mapped, gather_for, gather_items_for, mapped

if TYPE_CHECKING:
    from headgate.functions.sink import Sink
    from headgate.functions.state import KeyedState

__all__ = ["Filter", "FlatMap", "FunctionOperator", "Map", "PassOn", "SinkOperator"]


class FunctionOperator(Operator):
    """The base of operators that call a user's function: opens and closes a `Function`."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self) -> None:
        """Open the function; operators with state override `keyed_state`."""
        if isinstance(self.function, Function):
            with self.user_code():
                self.function.open(RuntimeContext(self.place, self.keyed_state()))

    def keyed_state(self) -> KeyedState | None:
        """Return the state that the function may use, or None."""
        return None

    def close(self) -> None:
        """Close the function."""
        if isinstance(self.function, Function):
            with self.user_code():
                self.function.close()


class Map(FunctionOperator):
    """One value out for each value in.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(Map(str.upper)) as harness:
    ...     harness.process(["to", "be"])
    >>> harness.values
    ['TO', 'BE']
    """

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._call = method_of(self.function, "map")
        self._gather = gather_for(self._call, object_reuse=self.place.object_reuse)

    def process(self, values: Values, times: Times) -> None:
        """Emit the function's result for each value."""
        with self.user_code():
            results = mapped(self._call, values, self._gather)
        self.out.emit(results, times)


class FlatMap(FunctionOperator):
    """Any number of values out for each value in, each with the time of its input value.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(FlatMap(str.split)) as harness:
    ...     harness.process(["to be", "or not"], [1, 2])
    >>> harness.timed
    [('to', 1), ('be', 1), ('or', 2), ('not', 2)]
    """

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._call = method_of(self.function, "flat_map")
        self._gather = gather_items_for(self._call, object_reuse=self.place.object_reuse)

    def process(self, values: Values, times: Times) -> None:
        """Emit the items of the function's results."""
        with self.user_code():
            flat, flat_times = flat_mapped(self._call, values, times, self._gather)
        self.out.emit(flat, flat_times)


class Filter(FunctionOperator):
    """The values that a function accepts.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(Filter(str.isalpha)) as harness:
    ...     harness.process(["to", "2", "be"])
    >>> harness.values
    ['to', 'be']
    """

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._call = method_of(self.function, "filter")
        self._gather = gather_for(self._call, object_reuse=self.place.object_reuse)

    def process(self, values: Values, times: Times) -> None:
        """Emit the values for which the function returns a true value."""
        with self.user_code():
            kept, kept_times = filtered(self._call, values, times, self._gather)
        self.out.emit(kept, kept_times)


class PassOn(Operator):
    """Emits its input: the head of a chain that starts with a source or has several outputs."""

    def process(self, values: Values, times: Times) -> None:
        """Emit the batch."""
        self.out.emit(values, times)


class SinkOperator(Operator):
    """Writes its input to a sink.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.connectors.collect import MemorySink
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
        """Complete the sink's output."""
        with self.user_code():
            self._sink.finish()

    def close(self) -> None:
        """Close the sink."""
        with self.user_code():
            self._sink.close()
