"""Where a pipeline's records come from: what a user's source has to say.

A source is cut into splits; each split is read by one subtask, from an offset on. `splits` is called in the driver, the
rest on the task's thread. An offset counts the records of a split that were given out, so that reading can begin again
where it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.task.operator import Place

__all__ = ["Source", "Wait"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """What a source yields when it has nothing for now: ask again after so many seconds.

    >>> Wait(0.05).seconds
    0.05
    """

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
    """Whether it ends by itself; None: it cannot say, and AUTO does not choose BATCH for it."""

    fed: bool = False
    """Whether its records come through the host's own stream, which can be read only once by each set of workers."""

    hint: object = None
    """The type of its records, if it is known: it decides how they are serialized."""

    @abstractmethod
    def splits(self, parallelism: int) -> Sequence[Any]:
        """What there is to read, in parts that different subtasks can read: split i goes to subtask i % parallelism."""

    @abstractmethod
    def read(self, split: Any, offset: int, place: Place) -> Iterator[list[T] | Wait]:
        """The records of a split from `offset` on, in batches.

        It may block for a moment; where it has nothing for longer it yields `Wait`, so that what it gave out before
        goes on at once, timers fire and a cancelled job ends.
        """
