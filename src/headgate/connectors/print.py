"""PrintSink: print every value, in the driver."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from headgate.connectors.collect import ProcessLocal
from headgate.errors import ConfigError
from headgate.functions.sink import Sink

if TYPE_CHECKING:
    from headgate.functions.place import Place

__all__ = ["PrintSink"]


class PrintSink(Sink[Any]):
    """Prints each value, in the driver.

    With a limit, it only counts the values after the first `limit`, and prints their number at the end.

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
        self._stream = ProcessLocal(stream)
        self._begin = f"{prefix}> " if prefix else ""
        self._seen = 0

    def open(self, place: Place) -> None:
        """Set the start of each line: as in Flink, with the subtask's number from 1 if there are several."""
        parts = [self._prefix] if self._prefix else []
        if place.parallelism > 1:
            parts.append(str(place.subtask + 1))
        self._begin = f"{':'.join(parts)}> " if parts else ""
        self._seen = 0

    def write(self, values: list[Any]) -> None:
        """Print a batch by one call."""
        shown = values if self._limit is None else values[: max(0, self._limit - self._seen)]
        self._seen += len(values)
        if shown:
            begin = self._begin
            self._print("".join([f"{begin}{value}\n" for value in shown]))

    def flush(self) -> None:
        """Flush the stream."""
        self._out().flush()

    def finish(self) -> None:
        """Print the number of values above the limit."""
        if self._limit is not None and self._seen > self._limit:
            self._print(f"{self._begin}... and {self._seen - self._limit} more\n")
        self.flush()

    def _out(self) -> TextIO:
        return self._stream.value or sys.stdout  # looked up at each call: notebooks and tests replace it

    def _print(self, text: str) -> None:
        self._out().write(text)
