"""WindowStore: the open windows of one operator, by the kind of window.

The operator adds values with their times (`add`) and advances the time (`advance`); a store puts results into a
`WindowResults`. The operator decides if the time is event time or processing time. All calls run user code.

Invariants: a window has fired exactly if its last millisecond is not after `time_ms`, so that no flag is stored; it is
removed after `lateness_ms` more. `next_ms` is not after the next time at which a window fires or is removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import reduce
from heapq import heappop, heappush
from itertools import count, repeat
from math import gcd, inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.functions.windows import CountWindow, TimeWindow
from headgate.task.operator import Times, Values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.functions.windows import AlignedWindows, CountSlidingWindows
    from headgate.task.windows.contents import WindowContents
    from headgate.task.windows.results import WindowResults

__all__ = ["AlignedStore", "CountSlidingStore", "CountTumblingStore", "Late", "SessionStore", "WindowStore"]

Late = tuple[Values, list[int]]
"""Values that are too late for at least one of their windows, each once, and their times."""


class _PaneWindows(NamedTuple):
    """The starts of the windows that contain a pane."""

    open: Sequence[int]  # have not fired
    kept: Sequence[int]  # have fired, and are kept for late values
    missed: bool  # True if others are removed

    @property
    def none(self) -> bool:
        """True if no window ever contained the pane: it is between two windows."""
        return not (self.open or self.kept or self.missed)

    @property
    def may_be_late(self) -> bool:
        """True if a value of this pane may be late."""
        return bool(self.kept) or self.missed or self.none


class WindowStore(ABC):
    """The windows that are open, or kept for late records."""

    by_time: ClassVar[bool] = True  # False: the windows count, and values need no times
    time_ms: float = MIN_WATERMARK_MS  # the current time; infinity after the end of the input

    @property
    @abstractmethod
    def next_ms(self) -> float:
        """The time from which `advance` has an effect; infinity: never."""

    @abstractmethod
    def add(self, values: Values, times: Times) -> Late:
        """Add a non-empty batch. Return the values that are too late for one of their windows."""

    @abstractmethod
    def advance(self, time_ms: float) -> None:
        """Set the time: fire the windows that have ended, remove those whose lateness has passed."""


class AlignedStore(WindowStore):
    """Tumbling, sliding and global windows: a dict from key to contents for each window, by its start.

    >>> from headgate.task.windows.contents import ReducedContents
    >>> from headgate.task.windows.results import PlainResults
    >>> from headgate.functions.windows import TumblingEventTimeWindows
    >>> results = PlainResults(None)
    >>> contents = ReducedContents(None, lambda a, b: a + b)
    >>> store = AlignedStore(TumblingEventTimeWindows.of(10), contents, results, lateness_ms=0)
    >>> store.add([1, 2, 4], [3, 12, 9]), store.next_ms
    (([], []), 9)
    >>> store.advance(9); results.values, results.times, store.add([8], [1])
    ([5], [9], ([8], [1]))
    """

    def __init__(
        self, assigner: AlignedWindows, contents: WindowContents, results: WindowResults, lateness_ms: int
    ) -> None:
        self._window = assigner.window
        self._size = assigner.size_ms
        self._slide = assigner.slide_ms
        self._offset = assigner.offset_ms
        # A pane is the longest interval whose times are all in the same windows.
        self._pane_ms = assigner.size_ms if self._slide == self._size else gcd(self._size, self._slide)
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
        assert times is not None, "time windows need times"
        size, offset = self._pane_ms, self._offset
        pane = min(times)
        pane -= (pane - offset) % size
        if max(times) < pane + size:  # true for most batches, which then need no arithmetic per value
            found = self._windows_of(pane)
            for start in found.open:
                self._add_to(start, values)
            return self._add_late(values, times, {pane: found}) if found.may_be_late else ([], [])
        by_start: dict[int, Values] = {}
        by_pane: dict[int, list[Values]] = {}  # the lists of its open windows
        late_panes: dict[int, _PaneWindows] = {}
        for value, time in zip(values, times, strict=True):
            pane = time - (time - offset) % size
            lists = by_pane.get(pane)
            if lists is None:
                found = self._windows_of(pane)
                lists = by_pane[pane] = [by_start.setdefault(start, []) for start in found.open]
                if found.may_be_late:
                    late_panes[pane] = found
            for one in lists:
                one.append(value)
        for start, of_window in by_start.items():
            self._add_to(start, of_window)
        return self._add_late(values, times, late_panes) if late_panes else ([], [])

    def _windows_of(self, pane: int) -> _PaneWindows:
        """Return the windows that contain a pane, the oldest first."""
        newest = pane - (pane - self._offset) % self._slide
        starts = range(newest, pane - self._size, -self._slide)[::-1]
        fired = self.time_ms - self._size + 1  # windows that start here or before have fired
        if not starts or starts[0] > fired:
            return _PaneWindows(starts, (), missed=False)
        gone = fired - self._lateness
        kept = [start for start in starts if gone < start <= fired]
        return _PaneWindows([start for start in starts if start > fired], kept, missed=starts[0] <= gone)

    def _add_late(self, values: Values, times: list[int], late_panes: dict[int, _PaneWindows]) -> Late:
        """Add values to windows that have fired and are kept: each fires again. Return the values of removed windows.

        A value between two windows is late if its time is not after the current time.
        """
        late: Values = []
        late_times: list[int] = []
        for value, time in zip(values, times, strict=True):
            found = late_panes.get(time - (time - self._offset) % self._pane_ms)
            if found is None:
                continue
            for start in found.kept:
                self._fire_again(start, value)
            if found.missed or (found.none and time + self._lateness <= self.time_ms):
                late.append(value)
                late_times.append(time)
        return late, late_times

    def _add_to(self, start: int, values: Values) -> None:
        window = self._windows.get(start)
        if window is None:
            window = self._windows[start] = {}
            self._next_ms = min(self._next_ms, start + self._size - 1)
        self._contents.add_all(window, values)

    def _fire_again(self, start: int, value: Any) -> None:
        last = start + self._size - 1
        window = self._windows.get(start)
        if window is None:
            window = self._windows[start] = {}
            self._next_ms = min(self._next_ms, last + self._lateness)
        key = self._contents.add_one(window, value)
        self._results.fire(key, self._window(start), window[key], min(last, MAX_WATERMARK_MS), shared=True)

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


class _Session:
    """One session of one key."""

    __slots__ = ("due_ms", "end", "kept", "key", "start")

    def __init__(self, key: Any, start: int, end: int, kept: Any) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.kept = kept
        self.due_ms: float = inf  # the time of its heap entry; -inf: it is removed


class SessionStore(WindowStore):
    """Session windows: each key has its own sessions, which grow and merge.

    The heap has one valid entry for each session, at or before the time at which the session fires or is removed. A
    session that grows does not change its entry: when the entry is due, it is scheduled again. So most records need no
    heap operation.

    >>> from headgate.task.windows.contents import ListedContents
    >>> from headgate.task.windows.results import FunctionResults
    >>> results = FunctionResults(None, lambda window, values: [values], keyed=False, context=None, result_of=None)
    >>> store = SessionStore(10, ListedContents(None), results, lateness_ms=0)
    >>> store.add(["a", "b", "c"], [1, 30, 12])
    ([], [])
    >>> store.advance(30); results.values, results.times
    ([['a'], ['c']], [10, 21])
    """

    def __init__(self, gap_ms: int, contents: WindowContents, results: WindowResults, lateness_ms: int) -> None:
        self._gap = gap_ms
        self._contents = contents
        self._results = results
        self._lateness = lateness_ms
        self._sessions: dict[Any, list[_Session]] = {}  # by key; in the order of start, without overlap
        self._heap: list[tuple[float, int, _Session]] = []
        self._order = count()

    @property
    def next_ms(self) -> float:
        """See `WindowStore`."""
        return self._heap[0][0] if self._heap else inf

    def add(self, values: Values, times: Times) -> Late:
        """See `WindowStore`."""
        assert times is not None, "time windows need times"
        gap, now, more, find = self._gap, self.time_ms, self._contents.more, self._sessions.get
        late_values: Values = []
        late_times: list[int] = []
        for key, value, time in zip(self._contents.keys(values), values, times, strict=False):
            sessions = find(key)
            if sessions is not None:
                session = sessions[-1]
                if session.start <= time <= session.end and session.end - 1 > now:  # nearly always
                    session.kept = more(session.kept, value)
                    if time + gap > session.end:  # noqa: PLR1730 - max() is a call for each record
                        session.end = time + gap
                    continue
            if not self._add_one(key, value, time):
                late_values.append(value)
                late_times.append(time)
        return late_values, late_times

    def _add_one(self, key: Any, value: Any, time: int) -> bool:
        """Add a value to its session: a new one, or several merged. Return False if it is too late."""
        end = time + self._gap
        sessions = self._sessions.get(key, [])
        touching = [one for one in sessions if one.start <= end and one.end >= time]
        if touching:
            session = touching[0]
            for other in touching[1:]:
                session.kept = self._contents.merge(session.kept, other.kept)
                session.end = other.end
                other.due_ms = -inf
                sessions.remove(other)
            session.start = min(session.start, time)
            session.end = max(session.end, end)
            session.kept = self._contents.more(session.kept, value)
        elif end - 1 + self._lateness <= self.time_ms:
            return False
        else:
            session = _Session(key, time, end, self._contents.first(value))
            sessions.append(session)
            sessions.sort(key=lambda one: one.start)
            self._sessions[key] = sessions
        last = session.end - 1
        if last > self.time_ms:
            due: float = last
        else:  # late, but within the allowed lateness: fires at once
            due = last + self._lateness
            self._fire(session, shared=True)
        if due < session.due_ms:
            self._schedule(session, due)
        return True

    def advance(self, time_ms: float) -> None:
        """See `WindowStore`."""
        before, self.time_ms = self.time_ms, time_ms
        heap = self._heap
        while heap and heap[0][0] <= time_ms:
            due, _, session = heappop(heap)
            if session.due_ms != due:
                continue  # the session was merged, or has an earlier entry
            last = session.end - 1
            fires = last > before
            if due < (last if fires else last + self._lateness):
                self._schedule(session, last if fires else last + self._lateness)
                continue
            over = last + self._lateness <= time_ms
            if fires:
                self._fire(session, shared=not over)
            if over:
                self._remove(session)
            else:
                self._schedule(session, last + self._lateness)

    def _fire(self, session: _Session, *, shared: bool) -> None:
        window = TimeWindow(session.start, session.end)
        time = min(session.end - 1, MAX_WATERMARK_MS)
        self._results.fire(session.key, window, session.kept, time, shared=shared)

    def _schedule(self, session: _Session, due_ms: float) -> None:
        session.due_ms = due_ms
        heappush(self._heap, (due_ms, next(self._order), session))

    def _remove(self, session: _Session) -> None:
        session.due_ms = -inf
        sessions = self._sessions[session.key]
        sessions.remove(session)
        if not sessions:
            del self._sessions[session.key]


class _CountStore(WindowStore):
    """The base of count windows, which do not depend on time: no window fires late, and no record is late."""

    by_time = False

    @property
    def next_ms(self) -> float:
        """Infinity: time has no effect."""
        return inf

    def advance(self, time_ms: float) -> None:
        """See `WindowStore`."""
        self.time_ms = time_ms


class CountTumblingStore(_CountStore):
    """Tumbling count windows: one open window for each key. A result has the time of the value that completes it.

    >>> from headgate.task.windows.contents import ReducedContents
    >>> from headgate.task.windows.results import PlainResults
    >>> results = PlainResults(None)
    >>> store = CountTumblingStore(2, ReducedContents(None, lambda a, b: a + b), results, numbered=False)
    >>> store.add([1, 2, 3], [10, 20, 30])
    ([], [])
    >>> results.values, results.times
    ([3], [20])
    """

    def __init__(self, size: int, contents: WindowContents, results: WindowResults, *, numbered: bool) -> None:
        self._size = size
        self._contents = contents
        self._results = results
        self._ids: dict[Any, int] | None = {} if numbered else None  # only if a function receives the window
        self._open: dict[Any, list[Any]] = {}  # the number of values, and their contents

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
    """Sliding count windows: the last `size` values of each key. Window `i` starts with value `i * slide`.

    >>> from headgate.task.windows.contents import ListedContents
    >>> from headgate.task.windows.results import PlainResults
    >>> from headgate.functions.windows import CountSlidingWindows
    >>> results = PlainResults(None, list)
    >>> store = CountSlidingStore(CountSlidingWindows.of(3, 2), ListedContents(lambda n: 0), results)
    >>> _ = store.add([1, 2, 3, 4, 5, 6], None); results.values
    [[1, 2, 3], [3, 4, 5]]
    """

    def __init__(self, assigner: CountSlidingWindows, contents: WindowContents, results: WindowResults) -> None:
        self._size = assigner.size
        self._slide = assigner.slide
        self._contents = contents
        self._results = results
        self._last: dict[Any, tuple[deque[Any], list[int]]] = {}  # values; the next window's missing values and number

    def add(self, values: Values, times: Times) -> Late:
        """Add a batch; windows that it completes fire."""
        contents, found = self._contents, self._last
        for key, value, time in zip(contents.keys(values), values, times or repeat(None), strict=False):
            if key not in found:
                found[key] = deque(maxlen=self._size), [self._size, 0]
            last, missing = found[key]
            last.append(value)
            missing[0] -= 1
            if not missing[0]:
                several = iter(last)
                kept = reduce(contents.more, several, contents.first(next(several)))
                self._results.fire(key, CountWindow(missing[1]), kept, time, shared=True)
                missing[:] = self._slide, missing[1] + 1
        return [], []
