"""Source: the interface of a pipeline's start.

A source has splits; one subtask reads each split, from an offset on. The driver calls `splits`, the task's thread
calls `read`. An offset is the number of records of a split that were yielded, so that reading can resume there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.functions.place import Place
    from headgate.record.element import Event

__all__ = ["Source", "Wait"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Yielded by a source that has no record now: the task resumes `read` after so many seconds."""

    seconds: float


class Source(ABC, Generic[T]):
    """A source of records.

    >>> class Countdown(Source[int]):
    ...     def __init__(self, start):
    ...         self.start = start
    ...     def splits(self, parallelism):
    ...         return [range(self.start - i, 0, -parallelism) for i in range(parallelism)]
    ...     def read(self, split, offset, place):
    ...         for begin in range(offset, len(split), 100):
    ...             yield list(split[begin : begin + 100])
    >>> source = Countdown(5)
    >>> [batch for split in source.splits(2) for batch in source.read(split, 0, None)]
    [[5, 3, 1], [4, 2]]
    """

    bounded: bool | None = True
    """True if the source ends by itself; None: unknown, and the mode AUTO does not choose BATCH for it."""

    fed: bool = False
    """True if the host streams the records to the workers, which can read them only once in an attempt."""

    fresh: bool = False
    """True if the source never changes a batch or a record after yielding it, and yields no mutable object twice.
    False: the task checks every record, and copies the mutable ones."""

    hint: object = None
    """The type of the records, or None; it selects their serializer."""

    default_parallelism: int | None = None
    """The number of subtasks unless `set_parallelism` sets it; None: the job's parallelism. With 1, one subtask reads
    the splits one after the other, so the records keep their order."""

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[Any]:
        """Return the parts that different subtasks can read: subtask `i % parallelism` reads split `i`."""

    @abstractmethod
    def read(self, split: Any, offset: int, place: Place) -> Iterator[list[T] | Wait | Event]:
        """Yield the records of a split from `offset` on, in batches.

        A source that has no record for more than about 50 ms yields `Wait` instead of blocking: the task then flushes
        the records yielded before, runs timers, and notices that the job was cancelled. A `UserEvent` that the source
        yields is emitted in order with the records. `place.on_task_event` registers a handler for the task events that
        readers send.
        """
