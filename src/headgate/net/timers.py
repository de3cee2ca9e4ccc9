"""What is to happen later: a heap of functions by time, shared by every loop and by virtual time.

Used on one thread, the network thread. It asks no clock: its owner says what time it is.

Invariants: functions come out by time, and in the order they were added where the times are equal; a cancelled one
never runs; cancelled ones are at most half of the heap, give or take a few.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ScheduledCall", "Timers"]

_FEW = 64  # so many cancelled timers are not worth a rebuilding of the heap


class ScheduledCall:
    """One function that waits for its time.

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
        """Whether it has neither run nor been cancelled."""
        return self._function is not None

    def cancel(self) -> None:
        """Let it not happen. May be repeated, also when it has happened."""
        if self._function is not None:
            self._function = None
            self._timers.note_cancelled()

    def run(self) -> None:
        """Call the function, unless it was called or cancelled."""
        if (function := self._function) is not None:
            self._function = None
            function()


class Timers:
    """Functions and when to call them.

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
        self._added = 0  # decides between equal times, so that calls themselves are never compared
        self._cancelled = 0  # an upper bound of those in the heap: one may be cancelled between its taking and its run

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when_ns: int, function: Callable[[], object]) -> ScheduledCall:
        """Keep a function until its time."""
        call = ScheduledCall(function, self)
        self._added += 1
        heapq.heappush(self._heap, (when_ns, self._added, call))
        return call

    def next_ns(self) -> int | None:
        """When the next function is due; None if there is none."""
        heap = self._heap
        while heap and not heap[0][2].waiting:
            heapq.heappop(heap)
            self._cancelled = max(0, self._cancelled - 1)
        return heap[0][0] if heap else None

    def take_due(self, now_ns: int) -> list[ScheduledCall]:
        """All that is due, in order, out of the heap; run them. What they add waits for the next time."""
        due: list[ScheduledCall] = []
        while (at := self.next_ns()) is not None and at <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def note_cancelled(self) -> None:
        """A call was cancelled: called by the call itself."""
        self._cancelled += 1
        # Idle timeouts are cancelled long before their time; without this they would pile up until then.
        if self._cancelled > _FEW and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].waiting]
            heapq.heapify(self._heap)
            self._cancelled = 0
