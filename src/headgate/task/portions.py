"""How much of a batch a task takes at once: all of it, unless its functions are slow.

A batch is as many records as fill a buffer, whatever their functions do with them. Where that takes long, the first
result would wait for the last, and so would timers and the end of a cancelled job: then the batch is handed to the
chain in portions. Used by the input loop, on the task's thread.

Invariants: the records of a batch stay in their order; where a portion is quick, batches are handed on whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headgate.meters import TaskTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.record.element import Batch

    Handler = Callable[[list[Any], list[int] | None], object]

__all__ = ["Portions"]

_LONG_NS: Final = 20_000_000  # a portion that takes longer is followed by smaller ones,
_GOOD_NS: Final = 10_000_000  # which should take about this long
_SHORT_NS: Final = 5_000_000  # after one that takes less the next may be twice as large
_WHOLE: Final = 2**30  # more records than any batch has


class Portions:
    """Hands on batches, in portions that take some milliseconds.

    >>> from headgate.meters import TaskTimer
    >>> from headgate.record.element import Batch
    >>> clock = iter(range(0, 10**12, 40_000_000))  # whatever it does takes 40 ms
    >>> portions = Portions(lambda: next(clock), TaskTimer(lambda: 0))
    >>> for _ in range(2):
    ...     portions.hand(Batch([1, 2, 3, 4, 5, 6, 7, 8]), lambda values, times: print(values), lambda: None)
    [1, 2, 3, 4, 5, 6, 7, 8]
    [1, 2]
    [3]
    [4]
    [5]
    [6]
    [7]
    [8]
    """

    __slots__ = ("_most", "_now_ns", "_timer")

    def __init__(self, now_ns: Callable[[], int], timer: TaskTimer) -> None:
        self._now_ns = now_ns
        self._timer = timer
        self._most = _WHOLE

    @classmethod
    def whole(cls) -> Portions:
        """Whatever it takes, batches are handed on whole.

        >>> from headgate.record.element import Batch
        >>> Portions.whole().hand(Batch([1, 2]), lambda values, times: print(values), lambda: None)
        [1, 2]
        """
        return cls(lambda: 0, TaskTimer(lambda: 0))

    def hand(self, batch: Batch[Any], handle: Handler, between: Callable[[], object]) -> None:
        """Hand on a batch; `between` is called between two portions."""
        values, times = batch.values, batch.timestamps_ms
        if len(values) <= self._most:
            self._timed(values, times, handle)
            return
        start = 0
        while True:
            stop = start + self._most
            self._timed(values[start:stop], None if times is None else times[start:stop], handle)
            start = stop
            if start >= len(values):
                return
            between()

    def _timed(self, values: list[Any], times: list[int] | None, handle: Handler) -> None:
        timer, began_ns, waited_ns = self._timer, self._now_ns(), self._timer.back_pressured_ns
        count = len(values)
        handle(values, times)
        took_ns = self._now_ns() - began_ns
        if took_ns > _LONG_NS:
            took_ns -= timer.back_pressured_ns - waited_ns  # smaller portions would not help against that
            if took_ns > _LONG_NS:
                self._most = max(1, count * _GOOD_NS // took_ns)
        elif self._most < _WHOLE and took_ns < _SHORT_NS and count == self._most:
            self._most *= 2
