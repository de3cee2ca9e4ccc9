"""The history of a job's tasks: a ring of their intervals, `metrics.history` long, one slot per interval and task.

Filled by the tracker on the coordinator's network thread; any thread reads it as a `Timeline` of equal steps. Imports
numpy, so it is imported when a job starts and not before.

A slot holds each figure plus one, and 0 for an unknown figure: memory that was never written then costs nothing. Steps
begin at whole multiples of their length since the epoch, so that a step is the same in every timeline.

Invariants: at most `max_bytes` are used; an interval has its slot by its time, also if it is late, out of order or
repeated; intervals older than the ring are dropped; the times of a worker whose clock differs much from the driver's
are corrected by the difference.
"""

from __future__ import annotations

import logging
import threading
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec import structs

from headgate.control.reports import SubtaskInterval
from headgate.observe.downsampling import COUNT_FIELDS, SHARE_FIELDS, task_lines, vertex_line
from headgate.observe.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from headgate.control.reports import SubtaskReport
    from headgate.observe.timeline import TaskLine

__all__ = ["MAX_HISTORY_BYTES", "History"]

MAX_HISTORY_BYTES: Final = 256 * 1024 * 1024
"""The memory of one job's history; if that is too little, the history is shorter."""

_FIELDS: Final = SubtaskInterval.__struct_fields__
_SHARES: Final = tuple(map(_FIELDS.index, SHARE_FIELDS))
_COUNTS: Final = tuple(map(_FIELDS.index, COUNT_FIELDS))
_SLOT_BYTES: Final = 2 * len(_SHARES) + 4 * len(_COUNTS)
_MAXIMA: Final = np.array([1000 if name in SHARE_FIELDS else 2**32 - 2 for name in _FIELDS], np.float64)
_CLOCK_TOLERANCE_MS: Final = 10_000  # of a worker's clock, and of the delay of its reports
_REPORT_TOLERANCE_MS: Final = 3_000  # a worker that is further behind the others is not waited for
_FILE_BYTES: Final = 2_000_000  # of the whole history as JSON
_FEWEST_STEPS: Final = 60  # of the whole history: with fewer, subtasks are left out

_log = logging.getLogger(__name__)


class History:
    """The intervals of all tasks.

    Args:
        tasks: The number of tasks of each vertex.
        interval_ms: The length of an interval.
        keep_ms: The length of the history.
        now_ms: The driver's clock.
        max_bytes: The memory that it may use.

    >>> from headgate.control.reports import SubtaskInterval, SubtaskReport
    >>> intervals = [SubtaskInterval(900, 100, 0, 5, 5, 0, 0), SubtaskInterval(700, 300, 0, 3, 3, 1, 0)]
    >>> report = SubtaskReport(vertex=0, subtask=0, intervals=intervals, intervals_end_ms=1200)
    >>> history = History({0: 1}, interval_ms=100, keep_ms=60_000, now_ms=lambda: 1250)
    >>> history.put(0, 1250, [report])
    >>> found = history.timeline(seconds=10, points=100)
    >>> found.start_ms, found.step_ms, found.tasks[0].busy, found.tasks[0].records_in
    (1000, 100, (900, 700), (5, 3))
    """

    def __init__(
        self,
        tasks: Mapping[int, int],
        *,
        interval_ms: int,
        keep_ms: int,
        now_ms: Callable[[], int],
        max_bytes: int = MAX_HISTORY_BYTES,
    ) -> None:
        rows = max(1, sum(tasks.values()))
        wanted = max(1, -(-keep_ms // interval_ms))
        size = max(1, min(wanted, max_bytes // (rows * _SLOT_BYTES)))
        if size < wanted:
            kept = f"{size * interval_ms / 1000:g} s of history are kept, not {wanted * interval_ms / 1000:g} s"
            _log.warning("%d tasks: %s (metrics.history, metrics.interval)", rows, kept)
        self._rows: dict[int, range] = {}  # by vertex
        first = 0
        for vertex, count in tasks.items():
            self._rows[vertex] = range(first, first + count)
            first += count
        self._interval_ms = interval_ms
        self._size = size  # slots of each task: interval i is in slot i % size
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._shares = np.zeros((rows, size, len(_SHARES)), np.uint16)
        self._counts = np.zeros((rows, size, len(_COUNTS)), np.uint32)
        self._first = self._newest = -1  # known intervals, by their number since the epoch; -1: none
        self._reported: dict[int, int] = {}  # by worker: the interval of its last report
        self._clock_shift: dict[int, int] = {}  # by worker: how far its clock is ahead, in intervals; 0 if not much

    # Writing.

    def put(self, worker: int, at_ms: int, reports: Iterable[SubtaskReport]) -> None:
        """Store the intervals of a worker's report, which was made at `at_ms` by its clock."""
        interval_ms = self._interval_ms
        now = at_ms // interval_ms
        found: list[SubtaskInterval] = []
        rows, ends, counts = [], [], []
        for one in reports:
            end = (one.intervals_end_ms or at_ms) // interval_ms
            if one.intervals and 0 < end <= now + 1:  # the last interval of a task that ends may not be over
                found += one.intervals
                rows.append(self._rows[one.vertex][one.subtask])
                ends.append(end)
                counts.append(len(one.intervals))
        with self._lock:
            shift = self._clock_shift_of(worker, at_ms)
            self._reported[worker] = now - shift
            if found:
                self._put_locked(found, np.array(rows), np.array(ends) - shift, np.array(counts))

    def _clock_shift_of(self, worker: int, at_ms: int) -> int:
        ahead_ms = at_ms - self._now_ms()
        shift = self._clock_shift.get(worker, 0)
        if abs(ahead_ms - shift * self._interval_ms) > _CLOCK_TOLERANCE_MS:
            shift = 0 if abs(ahead_ms) <= _CLOCK_TOLERANCE_MS else ahead_ms // self._interval_ms
            self._clock_shift[worker] = shift
        return shift

    def _put_locked(
        self, found: list[SubtaskInterval], rows: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        before = np.cumsum(counts) - counts
        numbers = np.arange(len(found)) + np.repeat(ends - counts - before, counts)
        newest = int(numbers.max())
        if newest > self._newest:
            self._clear_slots_locked(newest)
        kept = (numbers > self._newest - self._size) & (numbers >= 0)
        if not kept.any():
            return
        flat = chain.from_iterable(map(structs.astuple, found))
        # As floats: an int of any size fits.
        values = np.fromiter(flat, np.float64, len(_FIELDS) * len(found)).reshape(-1, len(_FIELDS))
        values = np.clip(values, 0, _MAXIMA)[kept] + 1
        numbers, rows = numbers[kept], np.repeat(rows, counts)[kept]
        self._shares[rows, numbers % self._size] = values[:, _SHARES]
        self._counts[rows, numbers % self._size] = values[:, _COUNTS]
        first = int(numbers.min())
        self._first = first if self._first < 0 else min(self._first, first)

    def _clear_slots_locked(self, newest: int) -> None:
        """Clear the slots of the intervals up to `newest`, and make that the newest."""
        begin = max(self._newest + 1, newest - self._size + 1)
        if self._first >= 0 and newest - self._size >= self._first:  # else they were never used
            slots = np.arange(max(begin, self._first + self._size), newest + 1) % self._size
            self._shares[:, slots] = 0
            self._counts[:, slots] = 0
        self._newest = newest

    # Reading.

    def timeline(self, *, seconds: float, points: int, vertex: int | None = None, over: bool = False) -> Timeline:
        """Return the last seconds in at most `points` steps: of all vertices, or of one vertex and its tasks.

        A step that has not ended is left out, unless it is the only one, or all tasks are `over`.

        Raises:
            ValueError: `seconds` or `points` is not positive, or there is no such vertex.
        """
        if not seconds > 0 or points < 1:
            raise ValueError(f"{seconds} seconds in {points} points: both must be positive")
        if vertex is not None and vertex not in self._rows:
            raise ValueError(f"there is no vertex {vertex}")
        intervals = max(1, min(self._size, int(min(seconds * 1000 / self._interval_ms, self._size))))
        per_step = -(-intervals // points)
        with self._lock:
            end, oldest = self._newest + 1 if over else self._complete_until(), self._oldest()
            complete = over or oldest == self._first
        if oldest >= end:
            return self._empty(per_step)
        # A step that has partly left the ring is left out: it would be different in each timeline.
        lowest = oldest // per_step if complete else -(-oldest // per_step)
        last = -(-end // per_step) if over else end // per_step
        first = max(last - -(-intervals // per_step), lowest)
        if last <= first:
            last = -(-end // per_step)
            first = last - 1
        chosen = list(self._rows) if vertex is None else [vertex]
        return self._timeline(first, last, per_step, chosen, subtasks=vertex is not None)

    def full(self, max_bytes: int = _FILE_BYTES) -> Timeline:
        """Return the whole history, in steps so long that its JSON fits into `max_bytes`.

        If the steps would be too few, subtasks are left out.
        """
        with self._lock:
            oldest, end = self._oldest(), self._newest + 1
        if oldest >= end:
            return self._empty(1)
        tasks = sum(map(len, self._rows.values()))
        subtasks = self._most_steps(len(self._rows) + tasks, max_bytes) >= _FEWEST_STEPS
        lines = len(self._rows) + (tasks if subtasks else 0)
        per_step = -(-(end - oldest) // max(1, self._most_steps(lines, max_bytes)))
        while True:
            first, last = oldest // per_step, -(-end // per_step)
            found = self._timeline(first, last, per_step, list(self._rows), subtasks=subtasks)
            if last - first <= 1 or len(msgspec.json.encode(found)) <= max_bytes:
                return found
            per_step *= 2

    @staticmethod
    def _most_steps(lines: int, max_bytes: int) -> int:
        return (max_bytes // lines - 130) // 30  # an estimate: the names of a line, and ten figures per step

    def _oldest(self) -> int:
        return max(self._first, self._newest - self._size + 1) if self._first >= 0 else 0

    def _complete_until(self) -> int:
        """Return the first interval that not all workers have reported: their reports arrive at different times."""
        if not self._reported or self._first < 0:
            return 0
        awaited = max(self._reported.values()) - _REPORT_TOLERANCE_MS // self._interval_ms
        return min(self._newest + 1, *[one for one in self._reported.values() if one >= awaited])

    def _empty(self, per_step: int) -> Timeline:
        return Timeline(start_ms=0, step_ms=per_step * self._interval_ms, steps=0, tasks=())

    def _timeline(self, first: int, last: int, per_step: int, vertices: Iterable[int], *, subtasks: bool) -> Timeline:
        """Return the steps from `first` to before `last`."""
        tasks: list[TaskLine] = []
        for vertex in vertices:
            rows = self._rows[vertex]
            with self._lock:
                shares = self._copy_locked(self._shares, rows, first * per_step, last * per_step)
                counts = self._copy_locked(self._counts, rows, first * per_step, last * per_step)
            tasks.append(vertex_line(vertex, shares, counts, per_step))
            if subtasks:
                tasks += task_lines(vertex, shares, counts, per_step)
        step_ms = per_step * self._interval_ms
        return Timeline(start_ms=first * step_ms, step_ms=step_ms, steps=last - first, tasks=tuple(tasks))

    def _copy_locked(
        self, ring: NDArray[np.uint16 | np.uint32], rows: range, begin: int, end: int
    ) -> NDArray[np.uint16 | np.uint32]:
        """Return a copy of the intervals from `begin` to before `end`; 0 for those that are not in the ring."""
        found = np.zeros((len(rows), end - begin, ring.shape[2]), ring.dtype)
        low, high, size = max(begin, self._newest - self._size + 1, 0), min(end, self._newest + 1), self._size
        while low < high:
            slot = low % size
            count = min(high - low, size - slot)  # up to the end of the array
            found[:, low - begin : low - begin + count] = ring[rows.start : rows.stop, slot : slot + count]
            low += count
        return found
