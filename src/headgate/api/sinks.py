"""Sinks that need nothing outside: print, collect, call a function, keep in memory. Files are in `sink_files`.

Called on the task's thread. Sinks with `in_driver` run in the driver, whatever host runs the job, in one subtask.

A plan is copied for each subtask, and goes to other processes whole. What a sink must not lose by that, such as the
list it collects in, is kept `Here`: a copy finds it again in the process where it was made, and nowhere else.
"""

from __future__ import annotations

import secrets
import sys
import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TextIO, TypeVar
from weakref import WeakValueDictionary

from headgate.errors import ConfigError
from headgate.task.functions import Function, RuntimeContext
from headgate.task.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.task.operator import Place

__all__ = ["CollectSink", "Collected", "ForEachSink", "Here", "MemorySink", "PrintSink"]

T = TypeVar("T")


class Here(Generic[T]):
    """What stays in this process: copies and pickles of this stand for the same thing here, and elsewhere for None.

    >>> import copy
    >>> results = Here([])
    >>> copy.deepcopy(results).thing is results.thing
    True
    """

    def __init__(self, thing: T | None) -> None:
        self.thing = thing
        self._name = secrets.token_hex(16)
        _HERE[self._name] = self

    def __reduce__(self) -> tuple[Callable[[str], Here[Any]], tuple[str]]:
        return _find, (self._name,)


_HERE: WeakValueDictionary[str, Here[Any]] = WeakValueDictionary()


def _find(name: str) -> Here[Any]:
    found = _HERE.get(name)
    return Here(None) if found is None else found


class PrintSink(Sink[Any]):
    """Prints each value, in the driver.

    With a limit, it only counts what comes after so many values, and says at the end how many there were.

    >>> sink = PrintSink("words", limit=2)
    >>> sink.write(["to", "be"]); sink.write(["or", "not"]); sink.finish()
    words> to
    words> be
    words> ... and 2 more
    """

    in_driver = True

    def __init__(self, prefix: str | None = None, limit: int | None = None, stream: TextIO | None = None) -> None:
        if limit is not None and limit < 0:
            raise ConfigError(f"limit is {limit}: it is how many values are printed, or None for all")
        self._prefix = prefix or ""
        self._limit = limit
        self._stream = Here(stream)
        self._begin = f"{prefix}> " if prefix else ""
        self._seen = 0

    def open(self, place: Place) -> None:
        """As Flink does, lines of several subtasks begin with their numbers, counted from 1."""
        parts = [self._prefix] if self._prefix else []
        if place.parallelism > 1:
            parts.append(str(place.subtask + 1))
        self._begin = f"{':'.join(parts)}> " if parts else ""
        self._seen = 0

    def write(self, values: list[Any]) -> None:
        """Print a batch, by one call."""
        shown = values if self._limit is None else values[: max(0, self._limit - self._seen)]
        self._seen += len(values)
        if shown:
            begin = self._begin
            self._print("".join([f"{begin}{value}\n" for value in shown]))

    def flush(self) -> None:
        """Let it be seen."""
        self._out().flush()

    def finish(self) -> None:
        """Say what was left out."""
        if self._limit is not None and self._seen > self._limit:
            self._print(f"{self._begin}... and {self._seen - self._limit} more\n")
        self.flush()

    def _out(self) -> TextIO:
        return self._stream.thing or sys.stdout  # looked up late: notebooks and tests replace it

    def _print(self, text: str) -> None:
        self._out().write(text)


class ForEachSink(Sink[Any]):
    """Calls a function for each value, in the subtasks, and forgets what it returns.

    A `Function` with `open` and `close` has a `__call__` for the values, or a `map`.

    >>> ForEachSink(print).write(["to", "be"])
    to
    be
    >>> class Greeter(Function):
    ...     def open(self, context):
    ...         self.greeting = "hello"
    ...     def __call__(self, value):
    ...         print(self.greeting, value)
    >>> import logging
    >>> from headgate.task.operator import Place
    >>> sink = ForEachSink(Greeter())
    >>> sink.open(Place("greet", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user")))
    >>> sink.write(["you"]); sink.close()
    hello you
    """

    def __init__(self, function: Callable[[Any], object] | Function) -> None:
        if not callable(function) and not hasattr(function, "map"):
            raise ConfigError(f"{type(function).__name__} cannot be called for a value: give it a __call__ method")
        self._function = function

    def open(self, place: Place) -> None:
        """Open the function."""
        if isinstance(self._function, Function):
            self._function.open(RuntimeContext(place))

    def write(self, values: list[Any]) -> None:
        """Call it."""
        call: Any = self._function if callable(self._function) else self._function.map
        for value in values:
            call(value)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self._function, Function):
            self._function.close()


class Collected(Protocol):
    """What a `CollectSink` gives its batches to; it may block to hold the pipeline back."""

    def put_batch(self, values: list[Any], /) -> object:
        """Take a batch, which is the callee's from now on."""
        ...


class CollectSink(Sink[Any]):
    """Gives all values to something in the driver, batch by batch.

    >>> class Results(list):
    ...     put_batch = list.extend
    >>> results = Results()
    >>> sink = CollectSink(results)
    >>> sink.write([1, 2]); sink.write([3]); results
    [1, 2, 3]
    """

    in_driver = True

    def __init__(self, collected: Collected) -> None:
        self._collected = Here(collected)

    def write(self, values: list[Any]) -> None:
        """Hand on a batch."""
        if self._collected.thing is None:
            raise ConfigError("a CollectSink works only in the process that it was made in: run it in the driver")
        self._collected.thing.put_batch(values)


class MemorySink(Sink[T]):
    """Keeps all values in memory, of all subtasks in this process: for tests, on the local host.

    >>> sink = MemorySink()
    >>> sink.write([1, 2]); sink.write([3]); sink.finish()
    >>> sink.values, sink.finished
    ([1, 2, 3], 1)
    """

    def __init__(self) -> None:
        self._kept: Here[_Kept] = Here(_Kept())

    @property
    def values(self) -> list[T]:
        """What has come so far; the order is that of each subtask, and any between them."""
        kept = self._here()
        with kept.lock:
            return list(kept.values)

    @property
    def finished(self) -> int:
        """How many subtasks have written everything."""
        return self._here().finished

    def write(self, values: list[T]) -> None:
        """Keep a batch."""
        kept = self._here()
        with kept.lock:
            kept.values.extend(values)

    def finish(self) -> None:
        """Count it."""
        kept = self._here()
        with kept.lock:
            kept.finished += 1

    def _here(self) -> _Kept:
        if self._kept.thing is None:
            raise ConfigError("a MemorySink works only in the process that it was made in: use the local host")
        return self._kept.thing


class _Kept:
    """What a memory sink's copies share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: list[Any] = []
        self.finished = 0
