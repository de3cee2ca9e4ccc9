"""Operator: the unit of a chain.

A subtask has one chain of operators, and its task's thread calls all of them. A chain processes small batches: a list
of values and, if the values have event times, a list of as many timestamps. An operator calls the user's functions for
a whole batch, collects their results, and emits them by one call (T1): so an error inside user code always belongs to
that operator.

Invariants: `open` is the first call and `close` the last, also after a failure. Values are passed to one input at a
time. A list that was emitted, and every value in it, belongs to the output: the emitting operator and its user's
function never change it. Results that user functions could change later are copied first (`task.operators.calls`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from headgate.errors import Cancelled, UserCodeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from headgate.record.element import Event
    from headgate.task.place import OperatorPlace

__all__ = ["Operator", "Output", "Times", "Values"]

Values = list[Any]
"""The values of a batch."""

Times = list[int] | None
"""The event times of a batch in milliseconds, one for each value; None: the values have none."""


class Output(Protocol):
    """The receiver of an operator's results: the next operators of the chain, and exchanges."""

    def emit(self, values: Values, times: Times = None) -> None:
        """Emit a batch, which then belongs to the output. An empty batch has no effect."""
        ...

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """Emit a batch to a side output."""
        ...

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Emit a watermark: no value with an event time up to this one follows."""
        ...

    def emit_status(self, *, active: bool) -> None:
        """Emit the stream's status: an idle stream does not hold the watermark back."""
        ...

    def emit_event(self, event: Event) -> None:
        """Emit an event to every output, after everything that was emitted before it."""
        ...


class Operator(ABC):
    """One operator of one subtask. `out` and `place` are set before `open`.

    >>> class Upper(Operator):
    ...     def process(self, values, times):
    ...         with self.user_code():
    ...             upper = [value.upper() for value in values]
    ...         self.out.emit(upper, times)
    >>> Upper().next_timer_ms() is None
    True
    """

    out: Output
    place: OperatorPlace

    def in_batch(self) -> Operator:
        """Return the operator that replaces this one in BATCH mode, with the same final results. Called once, first."""
        return self

    def open(self) -> None:
        """Prepare for the first value."""

    @abstractmethod
    def process(self, values: Values, times: Times) -> None:
        """Process a batch of the (first) input; the operator may keep or change the lists."""

    def process_second(self, values: Values, times: Times) -> None:
        """Process a batch of the second input, in an operator with two inputs."""
        raise NotImplementedError(f"{type(self).__name__} has one input")

    def watermark(self, timestamp_ms: int) -> None:
        """Process a watermark: the least of all inputs has increased."""
        self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """Process a status: all inputs are idle, or one is active again."""
        self.out.emit_status(active=active)

    def event(self, event: Event) -> None:
        """Forward an event that arrived with the data (K4): a checkpoint barrier, the end of a superstep, a user's.

        An operator with pending results emits those of all earlier values first.
        """
        self.out.emit_event(event)

    def next_timer_ms(self) -> int | None:
        """Return the processing time (`place.wall_ms()`) of the next `on_timers` call; None: no call is needed."""
        return None

    def on_timers(self, now_ms: int) -> None:
        """Run the timers that are due: processing time has reached `next_timer_ms`."""

    def on_wake(self) -> None:
        """Continue work that was waiting for another thread, which has called `place.wake`."""

    def flush(self) -> None:
        """Emit results that wait for more input: the task has none at hand."""

    def end_input(self, index: int) -> None:
        """Process the end of one of the inputs (0 or 1)."""

    def finish(self) -> None:
        """Emit the remaining results: all inputs have ended, after the last watermark."""

    def cancel(self) -> None:
        """Make blocked calls raise Cancelled. Called from any thread, possibly more than once."""

    def close(self) -> None:
        """Release all resources. Called once after `open`, also after a failure."""

    @staticmethod
    def call_each(function: Callable[..., Any], *lists: list[Any]) -> list[Any]:
        """Return the results of a user's function for each element; to be called inside `user_code`.

        `map` treats a StopIteration of the function as the end of the list, which would lose the rest of a batch.
        """
        results = list(map(function, *lists))
        if len(results) != len(lists[0]):
            raise RuntimeError("the function raised StopIteration: `next` without a default, perhaps")
        return results

    def user_code(self) -> AbstractContextManager[None]:
        """Return a context manager that turns an error into a UserCodeError of this operator and subtask."""
        return _UserCodeBlock(self)

    def user_code_error(self, error: BaseException) -> UserCodeError:
        """Return a UserCodeError of this operator and subtask."""
        return UserCodeError.of(error, operator=self.place.operator, subtask=self.place.subtask)


class _UserCodeBlock:
    """See `Operator.user_code`. A class, because a generator costs a third of a small batch's time."""

    __slots__ = ("_operator",)

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Cancelled | UserCodeError):
            raise self._operator.user_code_error(error) from error  # also SystemExit: it ends the job, not the thread
