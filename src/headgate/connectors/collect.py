"""Sinks that collect values in memory: `CollectSink` in the driver, `MemorySink` for tests.

Called on the task's thread.

A plan, and each sink in it, is copied for each subtask and pickled for other processes. An object that all copies of a
sink share, such as the list it collects in, is wrapped in a `ProcessLocal`: in the process that created it, every copy
refers to the same object; in other processes, to none.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from headgate.errors import ConfigError
from headgate.functions.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BatchReceiver", "CollectSink", "MemorySink", "ProcessLocal"]

T = TypeVar("T")


class ProcessLocal(Generic[T]):
    """A reference that stays in this process: its copies and pickles refer to the same object here, elsewhere to None.

    >>> import copy
    >>> results = ProcessLocal([])
    >>> copy.deepcopy(results).value is results.value
    True
    """

    def __init__(self, value: T | None) -> None:
        self.value = value
        self._name = secrets.token_hex(16)
        _LOCAL[self._name] = self

    def __reduce__(self) -> tuple[Callable[[str], ProcessLocal[Any]], tuple[str]]:
        return _find, (self._name,)


_LOCAL: WeakValueDictionary[str, ProcessLocal[Any]] = WeakValueDictionary()


def _find(name: str) -> ProcessLocal[Any]:
    found = _LOCAL.get(name)
    return ProcessLocal(None) if found is None else found


class BatchReceiver(Protocol):
    """The receiver of a `CollectSink`'s batches; to block in it holds the pipeline back."""

    def put_batch(self, values: list[Any], /) -> object:
        """Receive a batch, which then belongs to the receiver."""
        ...


class CollectSink(Sink[Any]):
    """Passes all values to an object in the driver, batch by batch.

    >>> class Results(list):
    ...     put_batch = list.extend
    >>> results = Results()
    >>> sink = CollectSink(results)
    >>> sink.write([1, 2]); sink.write([3]); results
    [1, 2, 3]
    """

    in_driver = True

    def __init__(self, receiver: BatchReceiver) -> None:
        self._receiver = ProcessLocal(receiver)

    def write(self, values: list[Any]) -> None:
        """Pass a batch to the receiver."""
        if self._receiver.value is None:
            raise ConfigError("a CollectSink works only in the process that it was made in: run it in the driver")
        self._receiver.value.put_batch(values)


class MemorySink(Sink[T]):
    """Collects the values of all subtasks in the memory of this process: for tests, on the local host.

    >>> sink = MemorySink()
    >>> sink.write([1, 2]); sink.write([3]); sink.finish()
    >>> sink.values, sink.finished
    ([1, 2, 3], 1)
    """

    def __init__(self) -> None:
        self._shared: ProcessLocal[_Collected] = ProcessLocal(_Collected())

    @property
    def values(self) -> list[T]:
        """The values so far: in order within each subtask, in any order between subtasks."""
        collected = self._collected()
        with collected.lock:
            return list(collected.values)

    @property
    def finished(self) -> int:
        """The number of subtasks that have finished."""
        return self._collected().finished

    def write(self, values: list[T]) -> None:
        """Add a batch."""
        collected = self._collected()
        with collected.lock:
            collected.values.extend(values)

    def finish(self) -> None:
        """Count the subtask as finished."""
        collected = self._collected()
        with collected.lock:
            collected.finished += 1

    def _collected(self) -> _Collected:
        if self._shared.value is None:
            raise ConfigError("a MemorySink works only in the process that it was made in: use the local host")
        return self._shared.value


class _Collected:
    """The values that the copies of a memory sink share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[Any] = []
        self.finished = 0
