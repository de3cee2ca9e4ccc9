"""What comes out of windows: gathered while user code runs, handed on after it.

A result is a value of its own: where a window is kept for late records, or values are in several windows, it is copied,
unless the job promises by `object_reuse` that nobody changes what it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any

from headgate.task.copying import copied
from headgate.task.functions import OutputTag
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.timers import MIN_WATERMARK_MS
from headgate.task.windows import ProcessAllWindowFunction, ProcessWindowFunction

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.task.operator import Output, Place
    from headgate.task.state import KeyedState
    from headgate.task.windows import Window

__all__ = ["FunctionResults", "PlainResults", "Results", "WindowContext", "copier"]


def copier(place: Place) -> Callable[[Any], Any] | None:
    """What makes a value one's own; None: nothing has to, by `object_reuse`.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> copier(OperatorHarness(PassOn()).operator.place).__name__
    'copied'
    """
    return None if place.object_reuse else copied


class Results(ABC):
    """What windows have given out, and not handed on yet.

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
        """The result of one key; `shared` if what it is made of is still in use."""

    def fire_all(self, contents: dict[Any, Any], window: Window, time_ms: int, *, shared: bool) -> None:
        """The results of all keys of a window."""
        for key, kept in contents.items():
            self.fire(key, window, kept, time_ms, shared=shared)

    def give_out(self, out: Output) -> None:
        """Hand on everything."""
        if self.values:
            values, times = self.values, self.times
            self.values, self.times = [], []
            out.emit(values, _times(times))
        if self.sides:
            sides, self.sides = self.sides, {}
            for tag, (values, times) in sides.items():
                out.emit_to(tag, values, _times(times))

    def _add(self, results: list[Any], time_ms: int | None, *, shared: bool) -> None:
        """Take the results of one window, of which some may be for side outputs."""
        if shared and self.own is not None:
            own = self.own
            results = [
                (one[0], own(one[1])) if _is_tagged(one) else own(one)  # a tag is never changed
                for one in results
            ]
        for one in results:
            if _is_tagged(one):
                values, times = self.sides.setdefault(one[0].name, ([], []))
                values.append(one[1])
                times.append(time_ms)
            else:
                self.values.append(one)
                self.times.append(time_ms)


def _is_tagged(one: Any) -> bool:
    return type(one) is tuple and len(one) == 2 and type(one[0]) is OutputTag


def _times(times: list[int | None]) -> list[int] | None:
    """The times of results, of which either all have one or none."""
    return None if times[0] is None else times  # type: ignore[return-value]


class PlainResults(Results):
    """What is kept, or what a function makes of it, is the result: reduce and aggregate by themselves.

    >>> results = PlainResults(own=None, result_of=len)
    >>> results.fire_all({"a": [1, 2], "b": [3]}, window=None, time_ms=999, shared=False); results.values
    [2, 1]
    """

    def __init__(self, own: Callable[[Any], Any] | None, result_of: Callable[[Any], Any] | None = None) -> None:
        super().__init__(own)
        self._result_of = result_of

    def fire(self, key: Any, window: Window, kept: Any, time_ms: int | None, *, shared: bool) -> None:  # noqa: ARG002
        """See `Results`."""
        result = kept if self._result_of is None else self._result_of(kept)
        self.values.append(self.own(result) if shared and self.own is not None else result)
        self.times.append(time_ms)

    def fire_all(self, contents: dict[Any, Any], window: Window, time_ms: int, *, shared: bool) -> None:  # noqa: ARG002
        """See `Results`."""
        results = list(contents.values() if self._result_of is None else map(self._result_of, contents.values()))
        self.values.extend(map(self.own, results) if shared and self.own is not None else results)
        self.times.extend(repeat(time_ms, len(results)))


class WindowContext(ProcessWindowFunction.Context, ProcessAllWindowFunction.Context):
    """What a function is told; one for each operator, moved from window to window.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.testing.harness import OperatorHarness
    >>> WindowContext(OperatorHarness(PassOn(), now_ms=5).operator.place).current_processing_time()
    5
    """

    def __init__(self, place: Place) -> None:
        self._wall_ms = place.wall_ms
        self.at: Any = None
        self.watermark_ms = MIN_WATERMARK_MS

    def window(self) -> Any:
        """See `ProcessWindowFunction.Context`."""
        return self.at

    def current_watermark(self) -> int:
        """See `ProcessWindowFunction.Context`."""
        return min(self.watermark_ms, MAX_WATERMARK_MS)

    def current_processing_time(self) -> int:
        """See `ProcessWindowFunction.Context`."""
        return self._wall_ms()


class FunctionResults(Results):
    """A function is called with the key, the window and the values.

    `call` takes (key, window or context, values), without the key where there are none. After an incremental function
    the values are its one result.

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
        """See `Results`."""
        about: Any = window
        if self._context is not None:
            self._context.at = window
            about = self._context
        if self._result_of is None:
            elements = list(kept) if shared else kept
        else:
            result = self._result_of(kept)
            elements = [self.own(result) if shared and self.own is not None else result]
            shared = False
        if self._state is not None:
            self._state.key = key
        found = self._call(key, about, elements) if self._keyed else self._call(about, elements)
        if found is not None:
            self._add(list(found), time_ms, shared=shared)
