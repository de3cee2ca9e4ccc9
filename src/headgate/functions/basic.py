"""Function classes with a life cycle, and the context that they run in.

A plain callable is enough for most operators. A class derived from `Function` also has `open` and `close`, and a
`RuntimeContext`. Every subtask has its own copy of a function object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    from headgate.functions.place import Place
    from headgate.functions.state import KeyedState, ListState, MapState, ReducingState, ValueState
    from headgate.record.element import UserEvent

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "MapFunction",
    "OutputSelector",
    "OutputTag",
    "ReduceFunction",
    "RuntimeContext",
    "method_of",
]

_MAX_COUNTERS = 1000
_MAX_COUNTER_NAME = 200

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
ACC = TypeVar("ACC")


@dataclass(frozen=True)
class OutputTag(Generic[T]):
    """The name of a side output, and the type of its records: see `ProcessFunction`."""

    name: str
    hint: object = None


class RuntimeContext:
    """The subtask that a function runs in: its index, a logger, counters, task events and the state of keys.

    >>> import headgate as hg
    >>> class Which(hg.MapFunction):
    ...     def open(self, context):
    ...         self.context = context
    ...     def map(self, value):
    ...         self.context.count("mapped")
    ...         return self.context.subtask_index, self.context.parallelism, value
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection(["to", "be"]).map(Which()).execute_and_collect())
    [(0, 1, 'to'), (0, 1, 'be')]
    """

    def __init__(self, place: Place, state: KeyedState | None = None) -> None:
        self._place = place
        self._state = state

    @property
    def subtask_index(self) -> int:
        """The index of this subtask among the parallel ones, counted from 0."""
        return self._place.subtask

    @property
    def parallelism(self) -> int:
        """The number of parallel subtasks."""
        return self._place.parallelism

    @property
    def max_parallelism(self) -> int:
        """The number of key groups: the greatest parallelism that keyed state can be distributed to."""
        return self._place.max_parallelism

    @property
    def task_name(self) -> str:
        """The name of the operator."""
        return self._place.operator

    @property
    def logger(self) -> logging.Logger:
        """The logger for messages of the function."""
        return self._place.logger

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to a counter of the function, which the job's status shows.

        Raises:
            ValueError: The task has 1,000 counters already, or the name is longer than 200 characters or not printable.
            OverflowError: The total does not fit into 64 bits.
        """
        counters = self._place.counters
        if name not in counters:
            if len(counters) >= _MAX_COUNTERS:
                raise ValueError(f"more than {_MAX_COUNTERS} counters: give them names that do not depend on the data")
            if len(name) > _MAX_COUNTER_NAME or not name.isprintable():
                raise ValueError(f"the name of a counter is printable and has at most {_MAX_COUNTER_NAME} characters")
        total = counters.get(name, 0) + index(n)
        if abs(total) >= 2**63:
            raise OverflowError(f"counter {name}: {total} is too large")
        counters[name] = total

    def send_task_event(self, name: str, payload: bytes = b"") -> None:
        """Send an event upstream, to every task that this one reads from: see `on_task_event`.

        A producer that has ended does not receive the event; in BATCH, every producer upstream of a blocking exchange
        has ended.

        Raises:
            ValueError: The event has more than 4,096 bytes, or a name that headgate reserves.
        """
        self._place.send_task_event(name, payload)

    def on_task_event(self, name: str, handler: Callable[[UserEvent], object]) -> None:
        """Call `handler` with each event of that name which a downstream task sends.

        The task's thread calls it between two batches. The task queues 1,000 events; a further one drops the oldest
        and increases the counter `task_events_dropped`.
        """
        self._place.on_task_event(name, handler)

    def get_state(self, name: str, default: Any = None) -> ValueState[Any]:
        """Return a state with one value per key; for operators right after `key_by`, called in `open`."""
        return self._keyed().value(name, default)

    def get_list_state(self, name: str) -> ListState[Any]:
        """Return a state with one list per key; for operators right after `key_by`, called in `open`."""
        return self._keyed().list(name)

    def get_map_state(self, name: str) -> MapState[Any, Any]:
        """Return a state with one map per key; for operators right after `key_by`, called in `open`."""
        return self._keyed().map(name)

    def get_reducing_state(self, name: str, function: Any) -> ReducingState[Any]:
        """Return a state with one value per key, into which `function` merges each added value; called in `open`."""
        return self._keyed().reducing(name, function)

    def _keyed(self) -> KeyedState:
        if self._state is None:
            raise TypeError(
                f"state belongs to keys, and {self._place.operator} has none: map, flat_map, filter, reduce and process"
                " have state right after key_by, of connected streams after key_by of both; so have process and apply"
                " of a keyed window, also after its reduce or aggregate"
            )
        return self._state


class Function:
    """The life cycle that all function classes share: `open`, then calls, then `close`."""

    def open(self, context: RuntimeContext) -> None:
        """Prepare the function; called once, in the subtask that runs it, before the first record."""

    def close(self) -> None:
        """Release everything that `open` acquired; called once, also after a failure."""


def method_of(function: Any, name: str) -> Callable[..., Any]:
    """Return the method called `name` if `function` is a `Function`, else `function` itself, which is callable.

    >>> class Double(MapFunction):
    ...     def map(self, value):
    ...         return 2 * value
    >>> method_of(Double(), "map")(21), method_of(str.upper, "map")("to")
    (42, 'TO')
    """
    found: Callable[..., Any] = getattr(function, name) if isinstance(function, Function) else function
    return found


class MapFunction(Function, ABC, Generic[A, R]):
    """One value out for each value in.

    >>> import headgate as hg
    >>> class Upper(hg.MapFunction):
    ...     def map(self, value):
    ...         return value.upper()
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection(["to", "be"]).map(Upper()).execute_and_collect())
    ['TO', 'BE']
    """

    @abstractmethod
    def map(self, value: A) -> R:
        """Return the record that replaces `value`."""


class FlatMapFunction(Function, ABC, Generic[A, R]):
    """Any number of values out for each value in.

    >>> import headgate as hg
    >>> class Words(hg.FlatMapFunction):
    ...     def flat_map(self, value):
    ...         yield from value.split()
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection(["to be"]).flat_map(Words()).execute_and_collect())
    ['to', 'be']
    """

    @abstractmethod
    def flat_map(self, value: A) -> Iterable[R]:
        """Return or yield the records that replace `value`."""


class FilterFunction(Function, ABC, Generic[A]):
    """Keeps some values.

    >>> import headgate as hg
    >>> class Even(hg.FilterFunction):
    ...     def filter(self, value):
    ...         return value % 2 == 0
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection([1, 2, 3, 4]).filter(Even()).execute_and_collect())
    [2, 4]
    """

    @abstractmethod
    def filter(self, value: A) -> bool:
        """Return True to keep `value`."""


class OutputSelector(Function, ABC, Generic[A]):
    """Gives each record names, which `DataStream.split` and `SplitStream.select` route by.

    >>> import headgate as hg
    >>> class BySize(hg.OutputSelector):
    ...     def select(self, value):
    ...         return ["small"] if value < 100 else ["large", "shown"]
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection([1, 700]).split(BySize()).select("shown").execute_and_collect())
    [700]
    """

    @abstractmethod
    def select(self, value: A) -> Iterable[str]:
        """Return the names of a record: every selection of one of these names receives it."""


class ReduceFunction(Function, ABC, Generic[A]):
    """Merges two values into one.

    >>> import headgate as hg
    >>> class Larger(hg.ReduceFunction):
    ...     def reduce(self, value1, value2):
    ...         return max(value1, value2)
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection([3, 1, 4]).key_by(lambda n: 0).reduce(Larger()).execute_and_collect())
    [3, 3, 4]
    """

    @abstractmethod
    def reduce(self, value1: A, value2: A) -> A:
        """Return `value1` and `value2` merged; `value1` is the result so far."""


class AggregateFunction(Function, ABC, Generic[A, ACC, R]):
    """Adds values to an accumulator, and computes a result from the accumulator.

    >>> class Mean(AggregateFunction):
    ...     def create_accumulator(self):
    ...         return (0, 0)
    ...     def add(self, value, accumulator):
    ...         return (accumulator[0] + value, accumulator[1] + 1)
    ...     def get_result(self, accumulator):
    ...         return accumulator[0] / accumulator[1]
    >>> mean = Mean()
    >>> mean.get_result(mean.add(4, mean.add(2, mean.create_accumulator())))
    3.0
    """

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return an accumulator without values."""

    @abstractmethod
    def add(self, value: A, accumulator: ACC) -> ACC:
        """Return the accumulator with `value` added; it may be the same object."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> R:
        """Return the result of the values added so far."""

    def merge(self, a: ACC, b: ACC) -> ACC:
        """Return two accumulators merged into one; session windows call it."""
        raise NotImplementedError(f"{type(self).__name__} has no merge, which windows that merge need")
