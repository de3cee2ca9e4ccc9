"""WindowResults: the results of windows, collected while user code runs, emitted after it.

Each result is copied before the next call of the user's function, unless its type is immutable or `object_reuse` is on:
the function may return the same object again, a window may stay open for late records, a value may be in several
windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headgate.functions.basic import OutputTag
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.functions.windows import ProcessAllWindowFunction, ProcessWindowFunction
from headgate.record.copying import copied, owned
from headgate.task.operators.calls import mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.functions.state import KeyedState
    from headgate.functions.windows import Window
    from headgate.task.operator import Output
    from headgate.task.operators.calls import Gather
    from headgate.task.place import OperatorPlace

__all__ = ["FunctionResults", "PlainResults", "WindowContext", "WindowResults", "copier"]


def copier(place: OperatorPlace) -> Callable[[Any], Any] | None:
    """Return the function that copies a result; None with `object_reuse`, which needs no copies."""
    return None if place.object_reuse else copied


class WindowResults(ABC):
    """The results of windows that are not emitted yet.

    >>> results = PlainResults(own=None)
    >>> results.fire("key", window=None, kept=7, time_ms=999, shared=False); results.values, results.times
    ([7], [999])
    """

    def __init__(self, own: Callable[[Any], Any] | None) -> None:
        self.values: list[Any] = []
        self.times: list[int | None] = []
        self.sides: dict[str, tuple[list[Any], list[int | None]]] = {}
        self.own = own

    @abstractmethod
    def fire(self, key: Any, window: Window, kept: Any, time_ms: int | None, *, shared: bool) -> None:
        """Add the result of one key; `shared`: the window or its values are still in use."""

    def fire_all(self, contents: dict[Any, Any], window: Window, time_ms: int, *, shared: bool) -> None:
        """Add the results of all keys of a window."""
        for key, kept in contents.items():
            self.fire(key, window, kept, time_ms, shared=shared)

    def emit(self, out: Output) -> None:
        """Emit all results and clear the buffer."""
        if self.values:
            values, times = self.values, self.times
            self.values, self.times = [], []
            out.emit(values, _times(times))
        if self.sides:
            sides, self.sides = self.sides, {}
            for tag, (values, times) in sides.items():
                out.emit_to(tag, values, _times(times))

    def _add(self, results: Iterable[Any], time_ms: int | None) -> None:
        """Add the results of one window; `(tag, value)` is for a side output."""
        own = self.own or _itself
        for one in results:
            if _is_tagged(one):
                values, times = self.sides.setdefault(one[0].name, ([], []))
                values.append(own(one[1]))
                times.append(time_ms)
            else:
                self.values.append(own(one))
                self.times.append(time_ms)


def _itself(result: Any) -> Any:
    return result


def _is_tagged(one: Any) -> bool:
    return type(one) is tuple and len(one) == 2 and type(one[0]) is OutputTag


def _times(times: list[int | None]) -> list[int] | None:
    """Return the times of results; either all results have a time, or none."""
    return None if times[0] is None else times  # type: ignore[return-value]


class PlainResults(WindowResults):
    """Results of reduce and aggregate without a window function: the contents, or `result_of` the contents.

    >>> results = PlainResults(own=None, result_of=len)
    >>> results.fire_all({"a": [1, 2], "b": [3]}, window=None, time_ms=999, shared=False); results.values
    [2, 1]
    """

    def __init__(self, own: Callable[[Any], Any] | None, result_of: Callable[[Any], Any] | None = None) -> None:
        super().__init__(own)
        self._result_of = result_of

    def fire(self, key: Any, window: Window, kept: Any, time_ms: int | None, *, shared: bool) -> None:  # noqa: ARG002
        """See `WindowResults`."""
        result = kept if self._result_of is None else self._result_of(kept)
        self.values.append(result if self.own is None else self.own(result))
        self.times.append(time_ms)

    def fire_all(self, contents: dict[Any, Any], window: Window, time_ms: int, *, shared: bool) -> None:  # noqa: ARG002
        """See `WindowResults`."""
        gather: Gather = list if self.own is None else owned
        kept = contents.values()
        self.values += gather(kept) if self._result_of is None else mapped(self._result_of, list(kept), gather)
        self.times.extend(repeat(time_ms, len(contents)))


class WindowContext(ProcessWindowFunction.Context, ProcessAllWindowFunction.Context):
    """The context of window functions; an operator has one, and sets it to each window."""

    def __init__(self, place: OperatorPlace) -> None:
        self._wall_ms = place.wall_ms
        self.current: Any = None  # the window
        self.watermark_ms = MIN_WATERMARK_MS

    def window(self) -> Any:
        """See `ProcessWindowFunction.Context`."""
        return self.current

    def current_watermark(self) -> int:
        """See `ProcessWindowFunction.Context`."""
        return min(self.watermark_ms, MAX_WATERMARK_MS)

    def current_processing_time(self) -> int:
        """See `ProcessWindowFunction.Context`."""
        return self._wall_ms()


class FunctionResults(WindowResults):
    """Results of a window function.

    `call` takes (key, window or context, values), or without keys (window or context, values). After a reduce or
    aggregate, the values are its one result.

    >>> def span(key, window, values): return [(key, window, len(values))]
    >>> results = FunctionResults(None, span, keyed=True, context=None, result_of=None)
    >>> results.fire("a", "a window", [1, 2], 999, shared=False); results.values
    [('a', 'a window', 2)]
    """

    def __init__(
        self,
        own: Callable[[Any], Any] | None,
        call: Callable[..., Any],
        *,
        keyed: bool,
        context: WindowContext | None,
        result_of: Callable[[Any], Any] | None,
        state: KeyedState | None = None,
    ) -> None:
        super().__init__(own)
        self._call = call
        self._keyed = keyed
        self._context = context
        self._result_of = result_of
        self._state = state

    def fire(self, key: Any, window: Window, kept: Any, time_ms: int | None, *, shared: bool) -> None:
        """See `WindowResults`."""
        where: Any = window
        if self._context is not None:
            self._context.current = window
            where = self._context
        if self._result_of is None:
            elements = list(kept) if shared else kept
        else:
            result = self._result_of(kept)
            elements = [self.own(result) if shared and self.own is not None else result]
        if self._state is not None:
            self._state.key = key
        found = self._call(key, where, elements) if self._keyed else self._call(where, elements)
        if found is not None:
            self._add(found, time_ms)
