"""The windows of one operator, by what they have in common; here those that are the same for every key.

A store is given values with their times (`add`), told how far time has come (`advance`), and puts results into a
`Results`. Which time it is, event or processing, is the operator's affair. All calls run user code.

Invariants: a window has fired exactly if its last millisecond is not after `time_ms`, so nothing is noted about it; it
is removed once `lateness_ms` more has passed. `next_ms` is not after the next moment at which there is something to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import gcd, inf
from typing import TYPE_CHECKING, Any, ClassVar

from headgate.task.operator import MAX_WATERMARK_MS, Times, Values
from headgate.task.timers import MIN_WATERMARK_MS

if TYPE_CHECKING:
    from headgate.task.window_contents import Contents
    from headgate.task.window_results import Results
    from headgate.task.windows import AlignedWindows

__all__ = ["AlignedStore", "Late", "WindowStore"]

Late = tuple[Values, list[int]]
"""Values that come too late for any window, with their times."""


class WindowStore(ABC):
    """Windows that are open, or kept for late records.

    >>> issubclass(AlignedStore, WindowStore)
    True
    """

    by_time: ClassVar[bool] = True  # or they count, and do not mind if values have no time
    time_ms: float = MIN_WATERMARK_MS  # how far time has come: infinitely far in the end

    @property
    @abstractmethod
    def next_ms(self) -> float:
        """When there is something to do; infinity: never."""

    @abstractmethod
    def add(self, values: Values, times: Times) -> Late:
        """Add a batch, which is not empty; returns the values that come too late for any window, with their times."""

    @abstractmethod
    def advance(self, time_ms: float) -> None:
        """Time has come so far: windows that end fire, those of no more use are removed."""


class AlignedStore(WindowStore):
    """Tumbling, sliding and global windows: a dict of keys for each window, by where it begins.

    >>> from headgate.task.window_contents import Reduced
    >>> from headgate.task.window_results import PlainResults
    >>> from headgate.task.windows import TumblingEventTimeWindows
    >>> results = PlainResults(None)
    >>> contents = Reduced(None, lambda a, b: a + b)
    >>> store = AlignedStore(TumblingEventTimeWindows.of(10), contents, results, lateness_ms=0)
    >>> store.add([1, 2, 4], [3, 12, 9]), store.next_ms
    (([], []), 9)
    >>> store.advance(9); results.values, results.times, store.add([8], [1])
    ([5], [9], ([8], [1]))
    """

    def __init__(self, assigner: AlignedWindows, contents: Contents, results: Results, lateness_ms: int) -> None:
        self._window = assigner.window
        self._size = assigner.size_ms
        self._slide = assigner.slide_ms
        self._offset = assigner.offset_ms
        # Times in one pane are in the same windows.
        self._pane = assigner.size_ms if self._slide == self._size else gcd(self._size, self._slide)
        self._overlap = self._slide < self._size
        self._lateness = lateness_ms
        self._contents = contents
        self._results = results
        self._windows: dict[int, dict[Any, Any]] = {}
        self._next_ms: float = inf

    @property
    def next_ms(self) -> float:
        """See `WindowStore`."""
        return self._next_ms

    def add(self, values: Values, times: Times) -> Late:
        """See `WindowStore`."""
        assert times is not None, "the operator sees to it"
        size, offset = self._pane, self._offset
        pane = min(times)
        pane -= (pane - offset) % size
        if max(times) < pane + size:  # most batches: no more arithmetic
            starts = self._starts(pane)
            for start in starts:
                self._add_to(start, values)
            return ([], []) if starts else self._late(values, times, {pane})
        by_start: dict[int, Values] = {}
        by_pane: dict[int, list[Values]] = {}  # those of its windows
        for value, time in zip(values, times, strict=True):
            pane = time - (time - offset) % size
            lists = by_pane.get(pane)
            if lists is None:
                lists = by_pane[pane] = [by_start.setdefault(start, []) for start in self._starts(pane)]
            for one in lists:
                one.append(value)
        for start, of_window in by_start.items():
            self._add_to(start, of_window)
        without = {pane for pane, lists in by_pane.items() if not lists}
        return self._late(values, times, without) if without else ([], [])

    def _starts(self, pane: int) -> list[int]:
        """Where the windows begin that a pane is in, but for those that are no longer kept."""
        after = pane - self._size
        if (kept := self.time_ms - self._lateness - self._size + 1) > after:
            if kept == inf:
                return []
            after = int(kept)
        newest = pane - (pane - self._offset) % self._slide
        return list(range(newest, after, -self._slide))[::-1]

    def _late(self, values: Values, times: list[int], panes: set[int]) -> Late:
        """The values that belong nowhere because of their time, not because they are between windows."""
        late = [
            (value, time)
            for value, time in zip(values, times, strict=True)
            if time - (time - self._offset) % self._pane in panes and time + self._lateness <= self.time_ms
        ]
        return [value for value, _ in late], [time for _, time in late]

    def _add_to(self, start: int, values: Values) -> None:
        last = start + self._size - 1
        window = self._windows.get(start)
        if window is None:
            window = self._windows[start] = {}
            self._next_ms = min(self._next_ms, last if last > self.time_ms else last + self._lateness)
        if last > self.time_ms:
            self._contents.add_all(window, values)
            return
        of_window, time = self._window(start), min(last, MAX_WATERMARK_MS)
        for value in values:  # late, but the window is kept: each has a result at once
            key = self._contents.add_one(window, value)
            self._results.fire(key, of_window, window[key], time, shared=True)

    def advance(self, time_ms: float) -> None:
        """See `WindowStore`."""
        before, self.time_ms = self.time_ms, time_ms
        if time_ms < self._next_ms:
            return
        for start in sorted(self._windows):
            last = start + self._size - 1
            if last > time_ms:
                break
            over = last + self._lateness <= time_ms
            if last > before:
                self._results.fire_all(
                    self._windows[start],
                    self._window(start),
                    min(last, MAX_WATERMARK_MS),
                    shared=self._overlap or not over,
                )
            if over:
                del self._windows[start]
        lasts = (start + self._size - 1 for start in self._windows)
        self._next_ms = min((last if last > time_ms else last + self._lateness for last in lasts), default=inf)
