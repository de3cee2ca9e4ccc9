"""The past of a job's tasks: a ring of their states, `metrics.history` long, one place per moment and task.

Filled by the tracker with what workers report, on the coordinator's network thread; read by whoever draws it, on any
thread, as a `Timeline` of equal steps. Imports numpy, so it is imported when a job begins and not before.

A place holds each figure plus one, 0 where nothing is known: memory that was never written to then costs nothing. Steps
begin at whole multiples of their length since the epoch, so that they stay what they are from one look to the next.

Invariants: at most `max_bytes` are used; what comes late, out of order or again has its place by its time; what is
older than the ring is dropped; a worker whose clock differs much from the driver's is put right by the difference.
"""

from __future__ import annotations

import logging
import threading
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec import structs

from headgate.observe.steps import lines_of, together
from headgate.observe.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from headgate.observe.timeline import TaskLine
    from headgate.worker.messages import State, SubtaskReport

__all__ = ["MAX_HISTORY_BYTES", "History"]

MAX_HISTORY_BYTES: Final = 256 * 1024 * 1024
"""Most memory that the past of one job takes; where that is not enough, it is shorter."""

_SHARES: Final = (0, 1, 2, 7, 8)  # of a State: what is in thousandths,
_COUNTS: Final = (3, 4, 5, 6)  # and what is counted
_PLACE_BYTES: Final = 2 * len(_SHARES) + 4 * len(_COUNTS)
_MOST: Final = np.array([1000, 1000, 1000, 2**32 - 2, 2**32 - 2, 2**32 - 2, 2**32 - 2, 1000, 1000], np.float64)
_CLOCKS_MS: Final = 10_000  # that a worker's clock may differ, or its report be late
_AWAITED_MS: Final = 3_000  # how far behind the others a worker may be and be waited for
_FILE_BYTES: Final = 2_000_000  # of the whole past as JSON
_FEWEST: Final = 60  # steps of that: rather no subtasks than fewer

_log = logging.getLogger(__name__)


class History:
    """The states of all tasks: `tasks` says how many each vertex has.

    >>> from headgate.worker.messages import State, SubtaskReport
    >>> states = [State(900, 100, 0, 5, 5, 0, 0), State(700, 300, 0, 3, 3, 1, 0)]
    >>> one = SubtaskReport(0, 0, 8, 8, 0, 0, 0, 0, 1, 1, 1, states=states, states_at_ms=1200)
    >>> history = History({0: 1}, length_ms=100, keep_ms=60_000, now_ms=lambda: 1250)
    >>> history.put(0, 1250, [one])
    >>> found = history.timeline(seconds=10, points=100)
    >>> found.start_ms, found.step_ms, found.tasks[0].busy, found.tasks[0].records_in
    (1000, 100, (900, 700), (5, 3))
    """

    def __init__(
        self,
        tasks: Mapping[int, int],
        *,
        length_ms: int,
        keep_ms: int,
        now_ms: Callable[[], int],
        max_bytes: int = MAX_HISTORY_BYTES,
    ) -> None:
        rows = max(1, sum(tasks.values()))
        wanted = max(1, -(-keep_ms // length_ms))
        size = max(1, min(wanted, max_bytes // (rows * _PLACE_BYTES)))
        if size < wanted:
            kept = f"{size * length_ms / 1000:g} s of the past are kept, not {wanted * length_ms / 1000:g} s"
            _log.warning("%d tasks: %s (metrics.history, metrics.interval)", rows, kept)
        self._rows: dict[int, range] = {}  # of each vertex
        first = 0
        for vertex, count in tasks.items():
            self._rows[vertex] = range(first, first + count)
            first += count
        self._length_ms = length_ms
        self._size = size  # places of each task: moment m is at m % size
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._shares = np.zeros((rows, size, len(_SHARES)), np.uint16)
        self._counts = np.zeros((rows, size, len(_COUNTS)), np.uint32)
        self._first = self._newest = -1  # moments that anything is known of; -1: none
        self._reported: dict[int, int] = {}  # by worker: the moment that its last report was made in
        self._shift: dict[int, int] = {}  # by worker: how far its clock is ahead, in moments; 0 unless it is much

    # Filling it.

    def put(self, worker: int, at_ms: int, reports: Iterable[SubtaskReport]) -> None:
        """Take the states of a worker's report, which was made at `at_ms` by its clock."""
        length_ms = self._length_ms
        now = at_ms // length_ms
        found: list[State] = []
        rows, ends, counts = [], [], []
        for one in reports:
            end = (one.states_at_ms or at_ms) // length_ms
            if one.states and 0 < end <= now + 1:  # who is over has told of a moment that was not
                found += one.states
                rows.append(self._rows[one.vertex][one.subtask])
                ends.append(end)
                counts.append(len(one.states))
        with self._lock:
            shift = self._shift_of(worker, at_ms)
            self._reported[worker] = now - shift
            if found:
                self._put(found, np.array(rows), np.array(ends) - shift, np.array(counts))

    def _shift_of(self, worker: int, at_ms: int) -> int:
        ahead_ms = at_ms - self._now_ms()
        shift = self._shift.get(worker, 0)
        if abs(ahead_ms - shift * self._length_ms) > _CLOCKS_MS:
            shift = 0 if abs(ahead_ms) <= _CLOCKS_MS else ahead_ms // self._length_ms
            self._shift[worker] = shift
        return shift

    def _put(
        self, found: list[State], rows: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        before = np.cumsum(counts) - counts
        moments = np.arange(len(found)) + np.repeat(ends - counts - before, counts)
        newest = int(moments.max())
        if newest > self._newest:
            self._make_room(newest)
        kept = (moments > self._newest - self._size) & (moments >= 0)
        if not kept.any():
            return
        flat = chain.from_iterable(map(structs.astuple, found))
        values = np.fromiter(flat, np.float64, len(_MOST) * len(found)).reshape(-1, len(_MOST))  # ints of any size fit
        values = np.clip(values, 0, _MOST)[kept] + 1
        moments, rows = moments[kept], np.repeat(rows, counts)[kept]
        self._shares[rows, moments % self._size] = values[:, _SHARES]
        self._counts[rows, moments % self._size] = values[:, _COUNTS]
        first = int(moments.min())
        self._first = first if self._first < 0 else min(self._first, first)

    def _make_room(self, newest: int) -> None:
        """Forget what is where the moments up to `newest` will be."""
        begin = max(self._newest + 1, newest - self._size + 1)
        if self._first >= 0 and newest - self._size >= self._first:  # else nothing is there yet
            places = np.arange(max(begin, self._first + self._size), newest + 1) % self._size
            self._shares[:, places] = 0
            self._counts[:, places] = 0
        self._newest = newest

    # Reading it.

    def timeline(self, *, seconds: float, points: int, vertex: int | None = None, over: bool = False) -> Timeline:
        """The last stretch in at most so many steps: all vertices, or one of them and its tasks.

        A step that is not over is left out, unless there is no other, or the tasks are `over` and it will stay so.

        Raises:
            ValueError: no time, no steps, or no such vertex.
        """
        if not seconds > 0 or points < 1:
            raise ValueError(f"{seconds} seconds in {points} points: there must be some of both")
        if vertex is not None and vertex not in self._rows:
            raise ValueError(f"there is no vertex {vertex}")
        moments = max(1, min(self._size, int(min(seconds * 1000 / self._length_ms, self._size))))
        per_step = -(-moments // points)
        with self._lock:
            end, oldest = self._newest + 1 if over else self._settled(), self._oldest()
            whole = over or oldest == self._first
        if oldest >= end:
            return self._nothing(per_step)
        # What has left the ring in part would look different at each look.
        lowest = oldest // per_step if whole else -(-oldest // per_step)
        last = -(-end // per_step) if over else end // per_step
        first = max(last - -(-moments // per_step), lowest)
        if last <= first:
            last = -(-end // per_step)
            first = last - 1
        chosen = list(self._rows) if vertex is None else [vertex]
        return self._made(first, last, per_step, chosen, subtasks=vertex is not None)

    def full(self, max_bytes: int = _FILE_BYTES) -> Timeline:
        """All of it, in steps so long that it fits into so many bytes of JSON; if it must be, without subtasks."""
        with self._lock:
            oldest, end = self._oldest(), self._newest + 1
        if oldest >= end:
            return self._nothing(1)
        subtasks = self._most_steps(len(self._rows) + sum(map(len, self._rows.values())), max_bytes) >= _FEWEST
        lines = len(self._rows) + (sum(map(len, self._rows.values())) if subtasks else 0)
        per_step = -(-(end - oldest) // max(1, self._most_steps(lines, max_bytes)))
        while True:
            first, last = oldest // per_step, -(-end // per_step)
            found = self._made(first, last, per_step, list(self._rows), subtasks=subtasks)
            if last - first <= 1 or len(msgspec.json.encode(found)) <= max_bytes:
                return found
            per_step *= 2

    @staticmethod
    def _most_steps(lines: int, max_bytes: int) -> int:
        return (max_bytes // lines - 130) // 30  # by and large: its names, and nine figures for each step

    def _oldest(self) -> int:
        return max(self._first, self._newest - self._size + 1) if self._first >= 0 else 0

    def _settled(self) -> int:
        """The first moment of which not all has been told: reports of different workers come at different times."""
        if not self._reported or self._first < 0:
            return 0
        awaited = max(self._reported.values()) - _AWAITED_MS // self._length_ms
        return min(self._newest + 1, *[one for one in self._reported.values() if one >= awaited])

    def _nothing(self, per_step: int) -> Timeline:
        return Timeline(start_ms=0, step_ms=per_step * self._length_ms, steps=0, tasks=())

    def _made(self, first: int, last: int, per_step: int, vertices: Iterable[int], *, subtasks: bool) -> Timeline:
        """The steps from `first` up to `last`."""
        tasks: list[TaskLine] = []
        for vertex in vertices:
            rows = self._rows[vertex]
            with self._lock:
                shares = self._span(self._shares, rows, first * per_step, last * per_step)
                counts = self._span(self._counts, rows, first * per_step, last * per_step)
            tasks.append(together(vertex, shares, counts, per_step))
            if subtasks:
                tasks += lines_of(vertex, shares, counts, per_step)
        step_ms = per_step * self._length_ms
        return Timeline(start_ms=first * step_ms, step_ms=step_ms, steps=last - first, tasks=tuple(tasks))

    def _span(
        self, ring: NDArray[np.uint16 | np.uint32], rows: range, begin: int, end: int
    ) -> NDArray[np.uint16 | np.uint32]:
        """A copy of some moments; 0 where they are not in the ring."""
        found = np.zeros((len(rows), end - begin, ring.shape[2]), ring.dtype)
        low, high, size = max(begin, self._newest - self._size + 1, 0), min(end, self._newest + 1), self._size
        while low < high:
            count = min(high - low, size - low % size)  # up to where the ring is closed
            place = low % size
            found[:, low - begin : low - begin + count] = ring[rows.start : rows.stop, place : place + count]
            low += count
        return found
