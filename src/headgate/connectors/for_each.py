"""ForEachSink: call a function for each value, in the subtasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.errors import ConfigError
from headgate.functions.basic import Function, RuntimeContext
from headgate.functions.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.functions.place import Place

__all__ = ["ForEachSink"]


class ForEachSink(Sink[Any]):
    """Calls a function for each value, in the subtasks; its result is ignored.

    A `Function` receives the values in `__call__`, or in `map`.

    >>> ForEachSink(print).write(["to", "be"])
    to
    be
    >>> class Greeter(Function):
    ...     def open(self, context):
    ...         self.greeting = "hello"
    ...     def __call__(self, value):
    ...         print(self.greeting, value)
    >>> import logging
    >>> from headgate.functions.place import Place
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
        """Call the function for each value."""
        call: Any = self._function if callable(self._function) else self._function.map
        for value in values:
            call(value)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self._function, Function):
            self._function.close()
