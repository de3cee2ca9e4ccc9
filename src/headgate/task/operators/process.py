"""Operators of process functions, and of two connected streams. Called on the task's thread.

One operator processes both inputs of connected streams, a batch of one input at a time. The order of the batches of
different inputs is not defined.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from headgate.functions.basic import Function, method_of
from headgate.task.operators.basic import FunctionOperator
from headgate.task.operators.calls import gather_for, gather_items_for, mapped
from headgate.task.operators.context import KeyedProcessOperator, ProcessOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.task.operator import Operator, Times, Values
    from headgate.task.operators.calls import Gather

__all__ = ["CoFlatMap", "CoMap", "CoProcess", "KeyedCoProcess", "Process"]


class Process(ProcessOperator):
    """Calls a function with each value and its context: a `ProcessFunction`, or `f(value, context)`.

    >>> from headgate.functions.basic import OutputTag
    >>> from headgate.testing.harness import OperatorHarness
    >>> long = OutputTag("long")
    >>> def sort(word, ctx):
    ...     yield word if len(word) < 4 else (long, word)
    >>> with OperatorHarness(Process(sort)) as harness:
    ...     harness.process(["to", "question"])
    >>> harness.values, harness.sides
    (['to'], {'long': ['question']})
    """

    def open(self) -> None:
        """See `ProcessOperator`."""
        super().open()
        self._call = method_of(self.function, "process_element")

    def process(self, values: Values, times: Times) -> None:
        """Call the function for each value."""
        self.run(self._call, values, times)


class CoMap(FunctionOperator):
    """One value out for each value in, by a function for each input: a `CoMapFunction`, or a pair of callables.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(CoMap((str.upper, len))) as harness:
    ...     harness.process(["to"]); harness.process_second(["be"])
    >>> harness.values
    ['TO', 2]
    """

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        reuse = self.place.object_reuse
        calls = _both_of(self.function, "map1", "map2")
        self._first, self._second = ((call, gather_for(call, object_reuse=reuse)) for call in calls)

    def process(self, values: Values, times: Times) -> None:
        """Call the first function for each value."""
        self._run(*self._first, values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """Call the second function for each value."""
        self._run(*self._second, values, times)

    def _run(self, call: Callable[[Any], Any], gather: Gather, values: Values, times: Times) -> None:
        with self.user_code():
            results = mapped(call, values, gather)
        self.out.emit(results, times)


class CoFlatMap(FunctionOperator):
    """Any number of values out for each value in, by a function for each input; None means no value.

    A `CoFlatMapFunction`, or a pair of callables.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(CoFlatMap((str.split, lambda stop: None))) as harness:
    ...     harness.process(["to be"]); harness.process_second(["or"])
    >>> harness.values
    ['to', 'be']
    """

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        reuse = self.place.object_reuse
        calls = _both_of(self.function, "flat_map1", "flat_map2")
        self._first, self._second = ((call, gather_items_for(call, object_reuse=reuse)) for call in calls)

    def process(self, values: Values, times: Times) -> None:
        """Emit the items of the first function's results."""
        self._run(*self._first, values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """Emit the items of the second function's results."""
        self._run(*self._second, values, times)

    def _run(self, call: Callable[[Any], Any], gather: Gather, values: Values, times: Times) -> None:
        flat: Values = []
        flat_times: list[int] | None = None if times is None else []
        with self.user_code():
            for index, value in enumerate(values):
                found = call(value)
                if found is not None:
                    flat += gather(found)
                if flat_times is not None and times is not None:
                    flat_times.extend(repeat(times[index], len(flat) - len(flat_times)))
        self.out.emit(flat, flat_times)


class CoProcess(ProcessOperator):
    """Like `Process`, with a function for each input: a `CoProcessFunction`, or a pair of `f(value, context)`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(CoProcess((lambda value, ctx: [value], lambda value, ctx: [-value]))) as harness:
    ...     harness.process([1], [10]); harness.process_second([2], [20])
    >>> harness.timed
    [(1, 10), (-2, 20)]
    """

    def open(self) -> None:
        """See `ProcessOperator`."""
        super().open()
        self._first, self._second = _both_of(self.function, "process_element1", "process_element2")

    def process(self, values: Values, times: Times) -> None:
        """Call the first function for each value."""
        self.run(self._first, values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """Call the second function for each value."""
        self.run(self._second, values, times)


class KeyedCoProcess(KeyedProcessOperator):
    """Like `KeyedProcess`, with a key and a function for each input; both share state and timers.

    A `KeyedCoProcessFunction`, or a pair of `f(value, context)`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> both = lambda value, ctx: [(ctx.get_current_key(), value)]
    >>> with OperatorHarness(KeyedCoProcess(len, abs, (both, both))) as harness:
    ...     harness.process(["to"]); harness.process_second([-2])
    >>> harness.values
    [(2, 'to'), (2, -2)]
    """

    def __init__(self, key1: Callable[[Any], Hashable], key2: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key1 = key1
        self._key2 = key2

    def in_batch(self) -> Operator:
        """Return the operator that processes one key after the other."""
        from headgate.task.batch.keyed import Grouped  # noqa: PLC0415 - only BATCH needs it

        return Grouped(self, self._key1, self._key2)

    def open(self) -> None:
        """See `KeyedProcessOperator`."""
        super().open()
        self.calls = _both_of(self.function, "process_element1", "process_element2")

    def process(self, values: Values, times: Times) -> None:
        """Call the first function for each value, with its key set."""
        self.run_keyed(self.calls[0], self._key1, values, times)

    def process_second(self, values: Values, times: Times) -> None:
        """Call the second function for each value, with its key set."""
        self.run_keyed(self.calls[1], self._key2, values, times)


def _both_of(function: Any, first: str, second: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the functions of both inputs."""
    if isinstance(function, Function):
        return getattr(function, first), getattr(function, second)
    if not isinstance(function, tuple | list) or len(function) != 2:
        raise TypeError(
            f"a function of two inputs is an object with {first} and {second}, or a pair of callables, not {function!r}"
        )
    return function[0], function[1]
