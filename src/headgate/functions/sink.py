"""Sink: the interface of a pipeline's end. The task's thread calls all methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from headgate.functions.place import Place

__all__ = ["Sink"]

T = TypeVar("T")


class Sink(ABC, Generic[T]):
    """A sink of records. Every subtask has its own copy: `open`, any number of `write` and `flush`, `finish`, `close`.

    >>> import headgate as hg
    >>> class Shout(hg.Sink[str]):
    ...     in_driver = True
    ...     def write(self, values):
    ...         for value in values:
    ...             print(value.upper())
    >>> env = hg.environment(local=True, parallelism=1)
    >>> sink = env.from_collection(["to", "be"]).sink_to(Shout())
    >>> job = env.execute()
    TO
    BE
    """

    in_driver = False
    """True if the sink runs in the driver, which started the job; such a sink has one subtask."""

    def open(self, place: Place) -> None:
        """Prepare to write in the subtask that `place` describes."""

    @abstractmethod
    def write(self, values: list[T]) -> None:
        """Write a batch of records, in their order. To block here holds the producers back."""

    def flush(self) -> None:
        """Make the written records visible to readers, if that is cheap. Called when the task has no input at hand."""

    def finish(self) -> None:
        """Complete the output after the last record. Not called after a failure."""

    def close(self) -> None:
        """Release all resources. Called once after `open`, also after a failure."""
