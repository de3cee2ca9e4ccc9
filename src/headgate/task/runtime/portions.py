"""Portions: a task processes a batch as a whole, or in parts if the user's functions are slow.

A batch has as many records as fill a buffer. If the functions need long for it, the first result waits for the last,
and so do timers and the end of a cancelled job: then the chain processes the batch in portions. Used by the loops, on
the task's thread.

Invariants: the records of a batch stay in order; fast batches are not divided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.meters import TaskTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.record.element import Batch

    Handler = Callable[[list[Any], list[int] | None], object]

__all__ = ["Portions"]

_LONG_NS: Final = 20_000_000  # after a portion that takes longer, the next ones are smaller
_GOOD_NS: Final = 10_000_000  # the intended time of a portion
_SHORT_NS: Final = 5_000_000  # after a portion that takes less, the next one is twice as large
_WHOLE: Final = 2**30  # more records than any batch has


class Portions:
    """Processes batches in portions of about 10 ms.

    >>> from headgate.meters import TaskTimer
    >>> from headgate.record.element import Batch
    >>> clock = iter(range(0, 10**12, 40_000_000))  # every portion takes 40 ms
    >>> portions = Portions(lambda: next(clock), TaskTimer(lambda: 0))
    >>> for _ in range(2):
    ...     portions.process(Batch([1, 2, 3, 4, 5, 6, 7, 8]), lambda values, times: print(values), lambda: None)
    [1, 2, 3, 4, 5, 6, 7, 8]
    [1, 2]
    [3]
    [4]
    [5]
    [6]
    [7]
    [8]
    """

    __slots__ = ("_limit", "_now_ns", "_timer")

    def __init__(self, now_ns: Callable[[], int], timer: TaskTimer) -> None:
        self._now_ns = now_ns
        self._timer = timer
        self._limit = _WHOLE  # records per portion

    @classmethod
    def whole(cls) -> Portions:
        """Return portions that never divide a batch."""
        return cls(lambda: 0, TaskTimer(lambda: 0))

    def process(self, batch: Batch[Any], handle: Handler, between: Callable[[], object]) -> None:
        """Call `handle` with each portion of a batch, and `between` between two portions."""
        values, times = batch.values, batch.timestamps_ms
        if len(values) <= self._limit:
            self._process_timed(values, times, handle)
            return
        start = 0
        while True:
            stop = start + self._limit
            self._process_timed(values[start:stop], None if times is None else times[start:stop], handle)
            start = stop
            if start >= len(values):
                return
            between()

    def _process_timed(self, values: list[Any], times: list[int] | None, handle: Handler) -> None:
        timer, began_ns, waited_ns = self._timer, self._now_ns(), self._timer.back_pressured_ns
        count = len(values)
        handle(values, times)
        took_ns = self._now_ns() - began_ns
        if took_ns > _LONG_NS:
            took_ns -= timer.back_pressured_ns - waited_ns  # smaller portions do not shorten back pressure
            if took_ns > _LONG_NS:
                self._limit = max(1, count * _GOOD_NS // took_ns)
        elif self._limit < _WHOLE and took_ns < _SHORT_NS and count == self._limit:
            self._limit *= 2
