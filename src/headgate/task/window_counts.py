"""Count windows: so many values of a key, whenever they come.

A result has the time of the value that completes it. Unlike windows of time these need no watermark and keep nothing
for late records: there are none.
"""

from __future__ import annotations

from collections import deque
from functools import reduce
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any

from headgate.task.window_stores import WindowStore
from headgate.task.windows import CountWindow

if TYPE_CHECKING:
    from headgate.task.operator import Times, Values
    from headgate.task.window_contents import Contents
    from headgate.task.window_results import Results
    from headgate.task.window_stores import Late
    from headgate.task.windows import CountSlidingWindows

__all__ = ["CountSlidingStore", "CountTumblingStore"]


class _CountStore(WindowStore):
    """What all count windows share: time changes nothing."""

    by_time = False

    @property
    def next_ms(self) -> float:
        """Never."""
        return inf

    def advance(self, time_ms: float) -> None:
        """See `WindowStore`."""
        self.time_ms = time_ms


class CountTumblingStore(_CountStore):
    """One unfinished window for each key.

    >>> from headgate.task.window_contents import Reduced
    >>> from headgate.task.window_results import PlainResults
    >>> results = PlainResults(None)
    >>> store = CountTumblingStore(2, Reduced(None, lambda a, b: a + b), results, numbered=False)
    >>> store.add([1, 2, 3], [10, 20, 30])
    ([], [])
    >>> results.values, results.times
    ([3], [20])
    """

    def __init__(self, size: int, contents: Contents, results: Results, *, numbered: bool) -> None:
        self._size = size
        self._contents = contents
        self._results = results
        self._ids: dict[Any, int] | None = {} if numbered else None  # only where a function is told which it is
        self._open: dict[Any, list[Any]] = {}  # how many values, and what is kept of them

    def add(self, values: Values, times: Times) -> Late:
        """Add a batch; windows that it completes fire."""
        size, contents, found = self._size, self._contents, self._open
        first, more = contents.first, contents.more
        for key, value, time in zip(contents.keys(values), values, times or repeat(None), strict=False):
            window = found.get(key)
            if window is None:
                window = found[key] = [1, first(value)]
            else:
                window[0] += 1
                window[1] = more(window[1], value)
            if window[0] == size:
                del found[key]
                self._results.fire(key, CountWindow(self._number(key)), window[1], time, shared=False)
        return [], []

    def _number(self, key: Any) -> int:
        if self._ids is None:
            return 0
        number = self._ids.get(key, 0)
        self._ids[key] = number + 1
        return number


class CountSlidingStore(_CountStore):
    """The last values of each key.

    >>> from headgate.task.window_contents import Gathered
    >>> from headgate.task.window_results import PlainResults
    >>> from headgate.task.windows import CountSlidingWindows
    >>> results = PlainResults(None, list)
    >>> store = CountSlidingStore(CountSlidingWindows.of(3, 2), Gathered(lambda n: 0), results)
    >>> _ = store.add([1, 2, 3, 4], None); results.values
    [[1, 2], [2, 3, 4]]
    """

    def __init__(self, assigner: CountSlidingWindows, contents: Contents, results: Results) -> None:
        self._size = assigner.size
        self._slide = assigner.slide
        self._contents = contents
        self._results = results
        self._last: dict[Any, tuple[deque[Any], list[int]]] = {}  # values; how many since the last window, its number

    def add(self, values: Values, times: Times) -> Late:
        """Add a batch; windows that it completes fire."""
        contents, found = self._contents, self._last
        for key, value, time in zip(contents.keys(values), values, times or repeat(None), strict=False):
            if key not in found:
                found[key] = deque(maxlen=self._size), [0, 0]
            last, counts = found[key]
            last.append(value)
            counts[0] += 1
            if counts[0] == self._slide:
                several = iter(last)
                kept = reduce(contents.more, several, contents.first(next(several)))
                self._results.fire(key, CountWindow(counts[1]), kept, time, shared=True)
                counts[:] = 0, counts[1] + 1
        return [], []
