"""What an operator is: the unit that chains are made of.

A subtask has one chain of operators, all called on its task's thread. Data moves through a chain in small batches: a
list of values and, where they have event times, a list of as many timestamps. An operator calls the user's functions
for a whole batch, gathers what they give out, and then hands it on by one call (T1): so an error inside user code is
always that operator's own.

Invariants: `open` comes before anything else and `close` after everything else, also after a failure; values are given
to one input at a time; a list that was emitted belongs to whoever gets it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headgate.errors import Cancelled, UserCodeError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from headgate.task.spill import SpillSpace

__all__ = ["MAX_WATERMARK_MS", "Operator", "Output", "Place", "Times", "Values"]

Values = list[Any]
"""The values of a batch."""

Times = list[int] | None
"""Their event times in milliseconds, one for each; None: they have none."""

MAX_WATERMARK_MS = 2**63 - 1
"""The watermark at the end of a bounded input: no event time is later."""


class Output(Protocol):
    """Where an operator's results go: the next operators of the chain, and exchanges."""

    def emit(self, values: Values, times: Times = None) -> None:
        """Hand on a batch; it belongs to the output from now on. An empty one is nothing."""
        ...

    def emit_to(self, tag: str, values: Values, times: Times = None) -> None:
        """Hand on a batch as a side output."""
        ...

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Say that no event time up to this one will follow."""
        ...

    def emit_status(self, *, active: bool) -> None:
        """Say whether this stream takes part in the watermark from now on, or is idle."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator runs, and what it may use there.

    >>> import logging
    >>> Place("map", 1, 4, 128, lambda: 0, logging.getLogger("headgate.user")).subtask
    1
    """

    operator: str  # its name, as error texts show it
    subtask: int
    parallelism: int
    max_parallelism: int
    wall_ms: Callable[[], int]  # processing time
    logger: logging.Logger
    object_reuse: bool = False
    wake: Callable[[], object] = field(default=lambda: None)
    """Lets the task's loop come by, from any thread: it calls `Operator.on_wake`."""
    counters: dict[str, int] = field(default_factory=dict)
    """The user's own counters, by name, as the job's status shows them."""
    spill: SpillSpace | None = None
    """Where operators of a job in BATCH mode put what does not fit in memory; None: everything stays there."""


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
    place: Place
    keeps = False
    """Whether the user's code may change, later, what it has emitted: then others get copies, unless
    `execution.object_reuse` is on."""

    def in_batch(self) -> Operator:
        """What runs instead in BATCH mode, with the same final results; asked before anything else, once."""
        return self

    def open(self) -> None:
        """Prepare, before the first value."""

    @abstractmethod
    def process(self, values: Values, times: Times) -> None:
        """A batch of the (first) input; the operator may keep or change the lists."""

    def process_second(self, values: Values, times: Times) -> None:
        """A batch of the second input, of an operator that has two."""
        raise NotImplementedError(f"{type(self).__name__} has one input")

    def watermark(self, timestamp_ms: int) -> None:
        """The watermark of all inputs together has risen."""
        self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """All inputs are idle now, or one is active again."""
        self.out.emit_status(active=active)

    def next_timer_ms(self) -> int | None:
        """When `on_timers` wants to be called next, in processing time (`place.wall_ms()`); None: never."""
        return None

    def on_timers(self, now_ms: int) -> None:
        """Processing time has come to `next_timer_ms`, or later."""

    def on_wake(self) -> None:
        """Somebody has called `place.wake`."""

    def flush(self) -> None:
        """The task has no input at hand: give out what waits for more."""

    def end_input(self, index: int) -> None:
        """One of the inputs (0 or 1) has ended: nothing more comes from it."""

    def finish(self) -> None:
        """All inputs have ended, and the last watermark has come: give out what is left."""

    def cancel(self) -> None:
        """The job is cancelled: let a call that waits end with Cancelled. From any thread; may be repeated."""

    def close(self) -> None:
        """Let go of everything. Called once after `open`, also after a failure."""

    @staticmethod
    def answers(function: Callable[..., Any], *lists: list[Any]) -> list[Any]:
        """A user's function called for each; to be used inside `user_code`.

        `map` takes a StopIteration of the function for the end of the list, which would lose the rest of a batch.
        """
        given = list(map(function, *lists))
        if len(given) != len(lists[0]):
            raise RuntimeError("the function raised StopIteration: `next` without a default, perhaps")
        return given

    def user_code(self) -> AbstractContextManager[None]:
        """Whatever is raised inside becomes a UserCodeError that names this operator and subtask."""
        return _UserCode(self)

    def blamed(self, error: BaseException) -> UserCodeError:
        """An error as one that names this operator and subtask."""
        return UserCodeError.of(error, operator=self.place.operator, subtask=self.place.subtask)


class _UserCode:
    """See `Operator.user_code`; a class, for a generator would cost a third of a small batch's time."""

    __slots__ = ("_operator",)

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Cancelled | UserCodeError):
            raise self._operator.blamed(error) from error  # a user's sys.exit() ends the job, not just its thread
