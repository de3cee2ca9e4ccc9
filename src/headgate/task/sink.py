"""Where a pipeline's records go: what a user's sink has to say. Everything is called on the task's thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from headgate.task.operator import Place

__all__ = ["Sink"]

T = TypeVar("T")


class Sink(ABC, Generic[T]):
    """A sink of records.

    >>> class Shout(Sink[str]):
    ...     def write(self, values):
    ...         for value in values:
    ...             print(value.upper())
    >>> Shout().write(["to", "be"])
    TO
    BE
    """

    in_driver = False
    """Whether it writes where the job was started: the one subtask of such a sink runs there."""

    def open(self, place: Place) -> None:
        """Prepare, in the subtask that is going to write; `place` says which it is."""

    @abstractmethod
    def write(self, values: list[T]) -> None:
        """Take a batch."""

    def flush(self) -> None:
        """Nothing more is at hand: let others see what was written, if that does not cost much."""

    def finish(self) -> None:
        """Everything was written: complete it. Not called after a failure."""

    def close(self) -> None:
        """Let go of everything. Called once after `open`, also after a failure."""
