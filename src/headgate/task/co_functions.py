"""Functions for two connected streams; see `functions` for what all function classes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.task.functions import Function, KeyedProcessFunction, OutputTag, ProcessFunction

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CoFlatMapFunction", "CoMapFunction", "CoProcessFunction", "KeyedCoProcessFunction"]

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
K = TypeVar("K")


class CoMapFunction(Function, ABC, Generic[A, B, R]):
    """A function for each of two connected streams.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.process import CoMap
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
        """What becomes of a value of the first."""

    @abstractmethod
    def map2(self, value: B) -> R:
        """What becomes of a value of the second."""


class CoFlatMapFunction(Function, ABC, Generic[A, B, R]):
    """A function for each of two connected streams.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.process import CoFlatMap
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
        """What becomes of a value of the first."""

    @abstractmethod
    def flat_map2(self, value: B) -> Iterable[R]:
        """What becomes of a value of the second."""


class CoProcessFunction(Function, ABC, Generic[A, B, R]):
    """As `ProcessFunction`, for each of two connected streams.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.process import CoProcess
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
        """What becomes of a value of the first."""

    @abstractmethod
    def process_element2(
        self, value: B, ctx: ProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What becomes of a value of the second."""


class KeyedCoProcessFunction(Function, ABC, Generic[K, A, B, R]):
    """As `KeyedProcessFunction`, for each of two streams that are keyed alike; they share state and timers.

    >>> from headgate.testing.harness import OperatorHarness
    >>> from headgate.task.process import KeyedCoProcess
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
        """What becomes of a value of the first."""

    @abstractmethod
    def process_element2(
        self, value: B, ctx: KeyedProcessFunction.Context
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What becomes of a value of the second."""

    def on_timer(
        self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext
    ) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What happens at a time that was registered."""
