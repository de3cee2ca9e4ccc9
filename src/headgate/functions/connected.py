"""Functions of two connected streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.functions.basic import Function, OutputTag
from headgate.functions.process import EventFunction, KeyedProcessFunction, ProcessFunction

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
K = TypeVar("K")


class CoMapFunction(Function, ABC, Generic[A, B, R]):
    """One value out for each value in, with one method per connected stream.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.operators.process import CoMap
    >>> class Sides(CoMapFunction):
    ...     def map1(self, value):
    ...         return "left", value
    ...     def map2(self, value):
    ...         return "right", value
    >>> with OperatorHarness(CoMap(Sides())) as harness:
    ...     harness.process([1]); harness.process_second([2])
    >>> harness.values
    [('left', 1), ('right', 2)]
    """

    @abstractmethod
    def map1(self, value: A) -> R:
        """Return the record that replaces a value of the first stream."""

    @abstractmethod
    def map2(self, value: B) -> R:
        """Return the record that replaces a value of the second stream."""


class CoFlatMapFunction(Function, ABC, Generic[A, B, R]):
    """Any number of values out for each value in, with one method per connected stream.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.operators.process import CoFlatMap
    >>> class Both(CoFlatMapFunction):
    ...     def flat_map1(self, value):
    ...         return value.split()
    ...     def flat_map2(self, value):
    ...         return [str(value)]
    >>> with OperatorHarness(CoFlatMap(Both())) as harness:
    ...     harness.process(["to be"]); harness.process_second([2])
    >>> harness.values
    ['to', 'be', '2']
    """

    @abstractmethod
    def flat_map1(self, value: A) -> Iterable[R]:
        """Return or yield the records that replace a value of the first stream."""

    @abstractmethod
    def flat_map2(self, value: B) -> Iterable[R]:
        """Return or yield the records that replace a value of the second stream."""


class CoProcessFunction(EventFunction, ABC, Generic[A, B, R]):
    """Like `ProcessFunction`, with one method per connected stream.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.operators.process import CoProcess
    >>> class Both(CoProcessFunction):
    ...     def process_element1(self, value, ctx):
    ...         yield value, ctx.timestamp()
    ...     def process_element2(self, value, ctx):
    ...         return None
    >>> with OperatorHarness(CoProcess(Both())) as harness:
    ...     harness.process(["to"], [5]); harness.process_second(["be"])
    >>> harness.values
    [('to', 5)]
    """

    @abstractmethod
    def process_element1(
        self, value: A, ctx: ProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value of the first stream; `yield tag, value` emits to a side output."""

    @abstractmethod
    def process_element2(
        self, value: B, ctx: ProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value of the second stream; `yield tag, value` emits to a side output."""


class KeyedCoProcessFunction(EventFunction, ABC, Generic[K, A, B, R]):
    """Like `KeyedProcessFunction`, with one method per connected stream. The two streams share state and timers.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.operators.process import KeyedCoProcess
    >>> class Latest(KeyedCoProcessFunction):
    ...     def open(self, context):
    ...         self.price = context.get_state("price")
    ...     def process_element1(self, value, ctx):
    ...         yield value, self.price.value()
    ...     def process_element2(self, value, ctx):
    ...         self.price.update(value[1])
    >>> with OperatorHarness(KeyedCoProcess(lambda item: item, lambda price: price[0], Latest())) as harness:
    ...     harness.process_second([("pen", 3)]); harness.process(["pen", "ink"])
    >>> harness.values
    [('pen', 3), ('ink', None)]
    """

    @abstractmethod
    def process_element1(
        self, value: A, ctx: KeyedProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value of the first stream; `yield tag, value` emits to a side output."""

    @abstractmethod
    def process_element2(
        self, value: B, ctx: KeyedProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value of the second stream; `yield tag, value` emits to a side output."""

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a timer that has fired."""
