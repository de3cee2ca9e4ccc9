"""Timers of keys, in event time and in processing time. Used on the task's thread only.

Many keys register the same times, above all the ends of windows: so the heap contains each time once, with its keys in
the order of registration. A deleted timer leaves its time in the heap. When such times are more than half of the heap,
they are removed, so that timers which are deleted and registered again do not fill the memory.

Invariants: a key has one timer for a time, however often it registers it; `_keys` has exactly the times of the heap;
`_empty` is the number of times without a key.
"""

from __future__ import annotations

import heapq
import operator
from typing import TYPE_CHECKING

from headgate.functions.process import TimerService
from headgate.functions.times import MAX_WATERMARK_MS, MIN_WATERMARK_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.functions.state import KeyedState

__all__ = ["KeyedTimers", "NoTimers", "TimerQueue"]

_SWEEP_FROM = 64  # fewer times without a key are not worth a sweep


class TimerQueue:
    """Times and their keys: the earliest time first, the keys of a time in the order of registration.

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
        """Add a timer of a key, unless it exists."""
        keys = self._keys.get(time_ms)
        if keys is None:
            self._keys[time_ms] = {key: None}  # before the heap changes: hashing the key may raise, see `KeyedState`
            heapq.heappush(self._heap, time_ms)
        elif key in keys:
            return
        else:
            self._empty -= not keys
            keys[key] = None
        self._length += 1

    def discard(self, time_ms: int, key: Hashable) -> None:
        """Remove a timer of a key, if it exists."""
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
        """Return the earliest time with a key, or None."""
        heap = self._heap
        while heap:
            if self._keys[heap[0]]:
                return heap[0]
            del self._keys[heapq.heappop(heap)]
            self._empty -= 1
        return None

    def pop(self, until_ms: int) -> tuple[int, list[Hashable]] | None:
        """Remove and return the earliest time that is not after `until_ms`, with its keys, or None."""
        time_ms = self.next_ms()
        if time_ms is None or time_ms > until_ms:
            return None
        heapq.heappop(self._heap)
        keys = list(self._keys.pop(time_ms))
        self._length -= len(keys)
        return time_ms, keys

    def clear(self) -> None:
        """Remove all timers."""
        self._heap.clear()
        self._keys.clear()
        self._empty = self._length = 0

    def _sweep(self) -> None:
        self._keys = {time_ms: keys for time_ms, keys in self._keys.items() if keys}
        self._heap = list(self._keys)
        heapq.heapify(self._heap)
        self._empty = 0


class KeyedTimers(TimerService):
    """The timer service of a function after `key_by`: timers of the current key of `state`.

    >>> from headgate.functions.state import KeyedState
    >>> state = KeyedState(); timers = KeyedTimers(state, wall_ms=lambda: 7)
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
        """See `TimerService`; a timer at a time that the watermark has passed fires with the next watermark."""
        self.event.add(_checked(timestamp_ms), self._state.key)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`; a timer at a time that has passed fires after the present call of the function."""
        self.processing.add(_checked(timestamp_ms), self._state.key)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`."""
        self.event.discard(timestamp_ms, self._state.key)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        """See `TimerService`."""
        self.processing.discard(timestamp_ms, self._state.key)


class NoTimers(TimerService):
    """The timer service of a function without timers: the current times, and an error that names the reason.

    >>> NoTimers(lambda: 7, "timers belong to keys: use key_by").register_event_time_timer(10)
    Traceback (most recent call last):
    TypeError: timers belong to keys: use key_by
    """

    def __init__(self, wall_ms: Callable[[], int], reason: str) -> None:
        self.watermark_ms = MIN_WATERMARK_MS
        self._wall_ms = wall_ms
        self._reason = reason

    def current_processing_time(self) -> int:
        """See `TimerService`."""
        return self._wall_ms()

    def current_watermark(self) -> int:
        """See `TimerService`."""
        return self.watermark_ms

    def register_event_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Raise TypeError."""
        raise TypeError(self._reason)

    def register_processing_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Raise TypeError."""
        raise TypeError(self._reason)

    def delete_event_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Raise TypeError."""
        raise TypeError(self._reason)

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:  # noqa: ARG002 - there are none
        """Raise TypeError."""
        raise TypeError(self._reason)


def _checked(timestamp_ms: int) -> int:
    """Return the time of a timer; raise for a float, or None from a value without event time.

    A time beyond 64 bits is after the last watermark: its timer would never fire, not even at the end of the input.
    """
    try:
        time_ms = operator.index(timestamp_ms)
    except TypeError:
        raise TypeError(f"a timer wants a time in whole milliseconds, not {timestamp_ms!r}") from None
    if MIN_WATERMARK_MS <= time_ms <= MAX_WATERMARK_MS:
        return time_ms
    raise ValueError(f"a timer at {time_ms} ms is refused: a time has 64 bits, from -2**63 to 2**63 - 1")
