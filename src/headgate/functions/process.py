"""Process functions: they receive values with their context, use timers, and emit and receive events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.functions.basic import Function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.functions.basic import OutputTag
    from headgate.record.element import UserEvent

__all__ = ["EventFunction", "KeyedProcessFunction", "ProcessFunction", "TimerService"]

A = TypeVar("A")
R = TypeVar("R")
K = TypeVar("K")


class TimerService(ABC):
    """The current time and timers, in milliseconds since 1970. A timer belongs to the key of the value at hand."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the time of this machine's clock."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark; -2**63 before the first one."""

    @abstractmethod
    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key when the watermark reaches a time; once per key and time.

        Raises:
            TypeError: The time is no whole number.
            ValueError: The time is 2**63 or later, or before -2**63.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """Call `on_timer` for the current key when this machine's clock reaches a time; once per key and time.

        Raises:
            TypeError: The time is no whole number.
            ValueError: The time is 2**63 or later, or before -2**63.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """Delete a timer of the current key, if there is one at that time."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """Delete a timer of the current key, if there is one at that time."""


class EventFunction(Function):
    """A function that receives the events which users' functions emit: the base class of all process functions."""

    def on_event(
        self, event: UserEvent, ctx: ProcessFunction.Context
    ) -> Iterable[Any | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of an event; the operator then forwards the event.

        The event arrives after all values that were emitted before it, once on each channel that it is sent over. The
        context has no timestamp and no key.
        """


class ProcessFunction(EventFunction, ABC, Generic[A, R]):
    """Receives each value with its context: its time, side outputs by `yield tag, value`, events.

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
        """The context of one value."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the value's event time in milliseconds, or None."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the current time, and timers if the stream is keyed."""

        @abstractmethod
        def emit_event(self, name: str, payload: bytes = b"") -> None:
            """Emit an event in order with the data, to every subtask that reads from this one: see `on_event`.

            The event is emitted after all values that the function yielded before the call. A function that is not a
            generator yields its values when it returns them.

            Raises:
                ValueError: The event has more than 4,096 bytes, or a name that headgate reserves.
            """

        @abstractmethod
        def send_task_event(self, name: str, payload: bytes = b"") -> None:
            """See `RuntimeContext.send_task_event`."""

    @abstractmethod
    def process_element(self, value: A, ctx: Context) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value; `yield tag, value` emits to a side output."""


class KeyedProcessFunction(EventFunction, ABC, Generic[K, A, R]):
    """Like `ProcessFunction`, with state and timers of the value's key.

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
        """The context of one value of a keyed stream."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the value's key."""

    class OnTimerContext(Context):
        """The context of a timer that has fired; `timestamp` returns the timer's time."""

        @abstractmethod
        def time_domain(self) -> str:
            """Return 'event' or 'processing'."""

    @abstractmethod
    def process_element(self, value: A, ctx: Context) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a value: see `ProcessFunction`."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[R | tuple[OutputTag[Any], Any]] | None:
        """Return or yield the results of a timer that has fired."""
