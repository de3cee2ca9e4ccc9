"""Session windows: each key has its own, and they grow and merge.

The heap has one valid entry for each session, which is not after the time at which it is due next. A session that grows
leaves its entry alone: when its time comes, the entry moves on. So most records cost no heap operation.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.window_stores import WindowStore
from headgate.task.windows import TimeWindow

if TYPE_CHECKING:
    from headgate.task.operator import Times, Values
    from headgate.task.window_contents import Contents
    from headgate.task.window_results import Results
    from headgate.task.window_stores import Late

__all__ = ["SessionStore"]


class _Session:
    """One session of one key."""

    __slots__ = ("due_ms", "end", "kept", "key", "start")

    def __init__(self, key: Any, start: int, end: int, kept: Any) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.kept = kept
        self.due_ms: float = inf  # the time of its entry; -inf: it is gone


class SessionStore(WindowStore):
    """The sessions of all keys.

    >>> from headgate.task.window_contents import Gathered
    >>> from headgate.task.window_results import FunctionResults
    >>> results = FunctionResults(None, lambda window, values: [values], keyed=False, context=None, result_of=None)
    >>> store = SessionStore(10, Gathered(None), results, lateness_ms=0)
    >>> store.add(["a", "b", "c"], [1, 30, 12])
    ([], [])
    >>> store.advance(30); results.values, results.times
    ([['a'], ['c']], [10, 21])
    """

    def __init__(self, gap_ms: int, contents: Contents, results: Results, lateness_ms: int) -> None:
        self._gap = gap_ms
        self._contents = contents
        self._results = results
        self._lateness = lateness_ms
        self._sessions: dict[Any, list[_Session]] = {}  # of a key, by start; they do not touch
        self._heap: list[tuple[float, int, _Session]] = []
        self._order = count()

    @property
    def next_ms(self) -> float:
        """See `WindowStore`."""
        return self._heap[0][0] if self._heap else inf

    def add(self, values: Values, times: Times) -> Late:
        """See `WindowStore`."""
        assert times is not None, "the operator sees to it"
        gap, now, more, find = self._gap, self.time_ms, self._contents.more, self._sessions.get
        late_values: Values = []
        late_times: list[int] = []
        for key, value, time in zip(self._contents.keys(values), values, times, strict=False):
            sessions = find(key)
            if sessions is not None:
                session = sessions[-1]
                if session.start <= time <= session.end and session.end - 1 > now:  # as it nearly always is
                    session.kept = more(session.kept, value)
                    if time + gap > session.end:  # noqa: PLR1730 - max() is a call for each record
                        session.end = time + gap
                    continue
            if not self._add_one(key, value, time):
                late_values.append(value)
                late_times.append(time)
        return late_values, late_times

    def _add_one(self, key: Any, value: Any, time: int) -> bool:
        """Add a value to its session, which it may begin, or make of several; False if it is too late for any."""
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
        else:  # late, but kept: a result at once
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
                continue  # it was merged, or is due earlier
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
