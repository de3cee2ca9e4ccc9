"""What users write: functions with a life cycle, and what they are told about where they run.

Plain callables do for most operators. A class derived from `Function` can also `open` and `close`, and use its
`RuntimeContext`. The names are PyFlink's where it has one. Every subtask has its own copy of a function object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from headgate.task.operator import Place
    from headgate.task.state import KeyedState, ListState, MapState, ReducingState, ValueState

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimerService",
]

_MAX_COUNTERS = 1000
_MAX_COUNTER_NAME = 200

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
K = TypeVar("K")
ACC = TypeVar("ACC")


@dataclass(frozen=True)
class OutputTag(Generic[T]):
    """The name of a side output, and the type of what goes there.

    >>> OutputTag("late", int).name
    'late'
    """

    name: str
    hint: object = None


class RuntimeContext:
    """Where a function runs.

    >>> import logging
    >>> from headgate.task.operator import Place
    >>> context = RuntimeContext(Place("map", 1, 4, 128, lambda: 0, logging.getLogger("headgate.user")))
    >>> context.subtask_index, context.parallelism, context.task_name
    (1, 4, 'map')
    >>> context.count("rejected"); context.count("rejected", 2)
    """

    def __init__(self, place: Place, state: KeyedState | None = None) -> None:
        self._place = place
        self._state = state

    @property
    def subtask_index(self) -> int:
        """Which of the parallel subtasks this is, counted from 0."""
        return self._place.subtask

    @property
    def parallelism(self) -> int:
        """How many there are."""
        return self._place.parallelism

    @property
    def max_parallelism(self) -> int:
        """How many key groups there are."""
        return self._place.max_parallelism

    @property
    def task_name(self) -> str:
        """The name of the operator."""
        return self._place.operator

    @property
    def logger(self) -> logging.Logger:
        """For the function's own messages."""
        return self._place.logger

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter of the function's own, which the job's status shows.

        There are a thousand at most for a task: what depends on the data is a record, not the name of a counter.
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

    def get_state(self, name: str, default: Any = None) -> ValueState[Any]:
        """One value per key; only after `key_by`."""
        return self._keyed().value(name, default)

    def get_list_state(self, name: str) -> ListState[Any]:
        """One list per key; only after `key_by`."""
        return self._keyed().list(name)

    def get_map_state(self, name: str) -> MapState[Any, Any]:
        """One map per key; only after `key_by`."""
        return self._keyed().map(name)

    def get_reducing_state(self, name: str, function: Any) -> ReducingState[Any]:
        """One value per key, to which others are added by a function; only after `key_by`."""
        return self._keyed().reducing(name, function)

    def _keyed(self) -> KeyedState:
        if self._state is None:
            raise TypeError("state belongs to keys: use key_by before the operator that wants it")
        return self._state


class Function:
    """What all function classes share.

    >>> class Greeter(Function):
    ...     def open(self, context):
    ...         self.greeting = "hello"
    >>> Greeter().close()
    """

    def open(self, context: RuntimeContext) -> None:
        """Prepare, in the subtask that is going to call the function."""

    def close(self) -> None:
        """Let go of everything; also called after a failure."""


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
        """What becomes of a value."""


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
        """What becomes of a value; may be a generator."""


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
        """Whether to keep a value."""


class ReduceFunction(Function, ABC, Generic[A]):
    """Two values become one.

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
        """Both values as one."""


class AggregateFunction(Function, ABC, Generic[A, ACC, R]):
    """Values are added to an accumulator, from which a result is taken.

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
        """An accumulator of nothing."""

    @abstractmethod
    def add(self, value: A, accumulator: ACC) -> ACC:
        """The accumulator with one value more."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> R:
        """The result so far."""

    def merge(self, a: ACC, b: ACC) -> ACC:
        """Both accumulators as one; session windows need it."""
        raise NotImplementedError(f"{type(self).__name__} has no merge, which windows that merge need")


class TimerService(ABC):
    """Time and timers, in milliseconds.

    >>> from headgate.task.timers import Timers
    >>> issubclass(Timers, TimerService)
    True
    """

    @abstractmethod
    def current_processing_time(self) -> int:
        """The time of this machine's clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark; a very small number before the first."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key when the watermark has come to a time; once per time."""

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key at a time of this machine's clock; once per time."""

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Take back a timer."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Take back a timer."""


class ProcessFunction(Function, ABC, Generic[A, R]):
    """Sees each value with its context: its time, side outputs by `yield tag, value`.

    >>> import headgate as hg
    >>> class Halves(hg.ProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         if value % 2:
    ...             yield hg.OutputTag("odd"), value
    ...         else:
    ...             yield value // 2
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection([4, 7, 6]).process(Halves()).execute_and_collect())
    [2, 3]
    """

    class Context(ABC):
        """What is known about the value at hand."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Its event time in milliseconds, if it has one."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and timers where the stream is keyed."""

    @abstractmethod
    def process_element(self, value: A, ctx: Context) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What becomes of a value: an iterable, usually by `yield`; `yield tag, value` goes to a side output."""


class KeyedProcessFunction(Function, ABC, Generic[K, A, R]):
    """As `ProcessFunction`, with state and timers of the value's key.

    >>> import headgate as hg
    >>> class Nth(hg.KeyedProcessFunction):
    ...     def open(self, context):
    ...         self.seen = context.get_state("seen", default=0)
    ...     def process_element(self, value, ctx):
    ...         self.seen.update(self.seen.value() + 1)
    ...         yield ctx.get_current_key(), self.seen.value()
    >>> env = hg.environment(local=True, parallelism=1)
    >>> list(env.from_collection(["a", "b", "a"]).key_by(lambda word: word).process(Nth()).execute_and_collect())
    [('a', 1), ('b', 1), ('a', 2)]
    """

    class Context(ProcessFunction.Context):
        """What is known about the value at hand."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Its key."""

    class OnTimerContext(Context):
        """What is known about the timer that has fired; its `timestamp` is the timer's."""

        @abstractmethod
        def time_domain(self) -> str:
            """'event' or 'processing'."""

    @abstractmethod
    def process_element(self, value: A, ctx: Context) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What becomes of a value: see `ProcessFunction`."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """What happens at a time that was registered."""
