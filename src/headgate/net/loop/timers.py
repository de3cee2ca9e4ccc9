"""A heap of callbacks by time, for every event loop and for virtual time.

Used by one thread at a time. It has no clock: the caller passes the time.

Invariants: callbacks are taken by time, equal times in the order of adding; a cancelled one never runs; at most half of
the heap, or 64 entries, are cancelled.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONGEST_WAIT_NS", "ScheduledCall", "Timers"]

LONGEST_WAIT_NS: Final = 3600 * 1_000_000_000
"""The longest time that a loop blocks, also if no timer is due before: epoll counts milliseconds in an int."""

_FEW: Final = 64  # cancelled entries that are not worth rebuilding the heap


class ScheduledCall:
    """One callback that waits for its time.

    >>> timers = Timers()
    >>> once = timers.add(5, lambda: print("five"))
    >>> once.run(); once.run()
    five
    """

    __slots__ = ("_function", "_timers")

    def __init__(self, function: Callable[[], object], timers: Timers) -> None:
        self._function: Callable[[], object] | None = function
        self._timers = timers

    @property
    def waiting(self) -> bool:
        """True until it has run or is cancelled."""
        return self._function is not None

    def cancel(self) -> None:
        """Cancel the call. May be repeated, also after it has run."""
        if self._function is not None:
            self._function = None
            self._timers.note_cancelled()

    def run(self) -> None:
        """Call the callback, unless it has run or is cancelled."""
        if (function := self._function) is not None:
            self._function = None
            function()


class Timers:
    """Callbacks and the times at which to call them.

    >>> timers = Timers()
    >>> late, early = timers.add(20, lambda: print("late")), timers.add(10, lambda: print("early"))
    >>> timers.next_ns()
    10
    >>> for call in timers.take_due(20):
    ...     call.run()
    early
    late
    """

    __slots__ = ("_added", "_cancelled", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ScheduledCall]] = []
        self._added = 0  # orders equal times, so that calls themselves are never compared
        self._cancelled = 0  # an upper bound of those in the heap: a call may be cancelled after it was taken

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when_ns: int, function: Callable[[], object]) -> ScheduledCall:
        """Store a callback until its time."""
        call = ScheduledCall(function, self)
        self._added += 1
        heapq.heappush(self._heap, (when_ns, self._added, call))
        return call

    def next_ns(self) -> int | None:
        """Return the time of the next callback; None if there is none."""
        heap = self._heap
        while heap and not heap[0][2].waiting:
            heapq.heappop(heap)
            self._cancelled = max(0, self._cancelled - 1)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[ScheduledCall]:
        """Remove and return all calls that are due, in order. Calls that they add are left for the next time."""
        due: list[ScheduledCall] = []
        while (at := self.next_ns()) is not None and at <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def note_cancelled(self) -> None:
        """Count a cancelled call; only `ScheduledCall` calls it."""
        self._cancelled += 1
        # Idle timeouts are cancelled long before their time: without this the heap would grow until then.
        if self._cancelled > _FEW and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapq.heapify(self._heap)
            self._cancelled = 0
