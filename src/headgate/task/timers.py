"""Timers of keys, in event time and in processing time. Used on the task's thread only.

Many keys ask for the same times, above all the ends of windows: so the heap holds each time once, with the keys that
want it in the order they asked. A timer that was taken back leaves its time in the heap; when such times are more than
half of it, they are swept out, so timers that are moved again and again take no more memory than those that wait.

Invariants: a key has one timer for a time, however often it asks; `_keys` has exactly the times of the heap; `_empty`
counts those that no key wants any more.
"""

from __future__ import annotations

import heapq
import operator
from typing import TYPE_CHECKING

from headgate.task.functions import TimerService

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.task.state import KeyedState

__all__ = ["MIN_WATERMARK_MS", "NoTimers", "TimerQueue", "Timers"]

MIN_WATERMARK_MS = -(2**63)
"""The watermark before the first one."""

_SWEEP_FROM = 64  # times that nobody wants are not worth a sweep below this


class TimerQueue:
    """Times, and the keys that want them: earliest first, within one time in the order they came.

    >>> queue = TimerQueue()
    >>> queue.add(20, "be"); queue.add(10, "to"); queue.add(20, "to"); queue.add(20, "be")
    >>> queue.discard(20, "to"); len(queue)
    2
    >>> queue.pop(15), queue.pop(15), queue.next_ms()
    ((10, ['to']), None, 20)
    """

    __slots__ = ("_empty", "_heap", "_keys", "_length")

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._keys: dict[int, dict[Hashable, None]] = {}
        self._empty = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, time_ms: int, key: Hashable) -> None:
        """Let a key have a timer; it may have it already."""
        keys = self._keys.get(time_ms)
        if keys is None:
            self._keys[time_ms] = {key: None}  # first, for this may raise: see `KeyedState`
            heapq.heappush(self._heap, time_ms)
        elif key in keys:
            return
        else:
            self._empty -= not keys
            keys[key] = None
        self._length += 1

    def discard(self, time_ms: int, key: Hashable) -> None:
        """Take a key's timer back, if it has it."""
        keys = self._keys.get(time_ms)
        if keys is None or key not in keys:
            return
        del keys[key]
        self._length -= 1
        if not keys:
            self._empty += 1
            if self._empty > _SWEEP_FROM and 2 * self._empty > len(self._heap):
                self._sweep()

    def next_ms(self) -> int | None:
        """The earliest time that a key wants; None: there is none."""
        heap = self._heap
        while heap:
            if self._keys[heap[0]]:
                return heap[0]
            del self._keys[heapq.heappop(heap)]
            self._empty -= 1
        return None

    def pop(self, until_ms: int) -> tuple[int, list[Hashable]] | None:
        """Take out the earliest time that is not after `until_ms`, with its keys; None: there is none."""
        time_ms = self.next_ms()
        if time_ms is None or time_ms > until_ms:
            return None
        heapq.heappop(self._heap)
        keys = list(self._keys.pop(time_ms))
        self._length -= len(keys)
        return time_ms, keys

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._keys.clear()
        self._empty = self._length = 0

    def _sweep(self) -> None:
        self._keys = {time_ms: keys for time_ms, keys in self._keys.items() if keys}
        self._heap = list(self._keys)
        heapq.heapify(self._heap)
        self._empty = 0


class Timers(TimerService):
    """What a function after `key_by` gets: timers of the key that `state` has at hand.

    >>> from headgate.task.state import KeyedState
    >>> state = KeyedState(); timers = Timers(state, wall_ms=lambda: 7)
    >>> state.key = "to"; timers.register_event_time_timer(10)
    >>> timers.event.pop(10), timers.current_processing_time()
    ((10, ['to']), 7)
    """

    def __init__(self, state: KeyedState, wall_ms: Callable[[], int]) -> None:
        self.event = TimerQueue()
        self.processing = TimerQueue()
        self.watermark_ms = MIN_WATERMARK_MS
        self._state = state
        self._wall_ms = wall_ms

    def current_processing_time(self) -> int:
        """See `TimerService`."""
        return self._wall_ms()

    def current_watermark(self) -> int:
        """See `TimerService`."""
        return self.watermark_ms

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`; a time that the watermark has passed comes with the next watermark."""
        self.event.add(_checked(timestamp_ms), self._state.key)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`; a time that has passed comes at once, but not before this call is over."""
        self.processing.add(_checked(timestamp_ms), self._state.key)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`."""
        self.event.discard(timestamp_ms, self._state.key)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`."""
        self.processing.discard(timestamp_ms, self._state.key)


class NoTimers(TimerService):
    """What a function gets that can have no timers: the times, and an error that says why.

    >>> NoTimers(lambda: 7, "timers belong to keys: use key_by").register_event_time_timer(10)
    Traceback (most recent call last):
    TypeError: timers belong to keys: use key_by
    """

    def __init__(self, wall_ms: Callable[[], int], why: str) -> None:
        self.watermark_ms = MIN_WATERMARK_MS
        self._wall_ms = wall_ms
        self._why = why

    def current_processing_time(self) -> int:
        """See `TimerService`."""
        return self._wall_ms()

    def current_watermark(self) -> int:
        """See `TimerService`."""
        return self.watermark_ms

    def register_event_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Refused."""
        raise TypeError(self._why)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Refused."""
        raise TypeError(self._why)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Refused."""
        raise TypeError(self._why)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Refused."""
        raise TypeError(self._why)


def _checked(timestamp_ms: int) -> int:
    """A time that can be one: a float, or None from a value without event time, would fail much later."""
    try:
        return operator.index(timestamp_ms)
    except TypeError:
        raise TypeError(f"a timer wants a time in whole milliseconds, not {timestamp_ms!r}") from None
