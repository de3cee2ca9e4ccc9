"""Latency markers: a source sends them, and every task measures the time that they took to reach it.

`MarkerSender` belongs to a source's loop, and is called on its thread. Markers stay in order with the records and wait
in the same queues, but bypass operators: time in a window or in a coroutine is not included. The loop of a task that
reads one adds it to its `Latencies`, on its thread; any thread may call `statistics`.

Invariants: memory is bounded. A marker from a clock that is ahead of this one took 0 ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from headgate.record.element import LatencyMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Latencies", "LatencyStatistics", "MarkerSender"]

_KEPT: Final = 2048  # the newest markers
_SECOND_NS: Final = 1_000_000_000
_MINUTE_NS: Final = 60 * _SECOND_NS
_MAX_FORWARDED: Final = 200  # markers per second: each costs about as much as a small batch
_MIN_INTERVAL_NS: Final = 1_000_000  # a shorter one would keep an idle source busy
_NEVER_NS: Final = 2**63


class MarkerSender:
    """Sends the markers of one subtask of a source.

    >>> clocks = {"now_ns": lambda: 5, "wall_ns": lambda: 1_700_000_000 * 10**9}
    >>> markers = MarkerSender(print, 10**9, vertex=7, subtask=0, **clocks)
    >>> markers.send(); markers.at_ns
    LatencyMarker(marked_ns=1700000000000000000, operator=7, subtask=0)
    1000000005
    """

    def __init__(
        self,
        mark: Callable[[LatencyMarker], object],
        interval_ns: int,
        vertex: int,
        subtask: int,
        *,
        now_ns: Callable[[], int],
        wall_ns: Callable[[], int],
    ) -> None:
        self.at_ns = 0 if interval_ns else _NEVER_NS  # the first marker is due at once, so that short jobs have one
        """The time of the next marker, on the clock `now_ns`."""
        self._mark = mark
        self._interval_ns = max(interval_ns, _MIN_INTERVAL_NS)
        self._sender = (vertex, subtask)
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def send(self) -> None:
        """Send a marker; its time includes the wait for a buffer."""
        self.at_ns = self._now_ns() + self._interval_ns
        self._mark(LatencyMarker(self._wall_ns(), *self._sender))

    def send_if_due(self) -> bool:
        """Send a marker if it is due. Return True if it was."""
        due = self._now_ns() >= self.at_ns
        if due:
            self.send()
        return due


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """The latencies of the markers of one source in the last minute.

    >>> LatencyStatistics.of(3, [900, 1500, 700, 800])
    LatencyStatistics(source=3, count=4, p50_us=800, p99_us=1500, max_us=1500)
    """

    source: int  # vertex
    count: int
    p50_us: int
    p99_us: int
    max_us: int

    @classmethod
    def of(cls, source: int, took_us: Sequence[int]) -> LatencyStatistics:
        """Return the statistics of a non-empty sequence of microseconds."""
        ordered = sorted(took_us)

        def percentile(q: int) -> int:
            return ordered[ceil(q * len(ordered) / 100) - 1]

        return cls(source, len(ordered), percentile(50), percentile(99), ordered[-1])


class Latencies:
    """The latencies of the markers that one task has received.

    >>> from headgate.record.element import LatencyMarker
    >>> latencies = Latencies(wall_ns=lambda: 5_000_000)
    >>> latencies.add(LatencyMarker(marked_ns=3_000_000, operator=7, subtask=0))
    True
    >>> latencies.statistics()
    [LatencyStatistics(source=7, count=1, p50_us=2000, p99_us=2000, max_us=2000)]
    """

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._ring: list[tuple[int, int, int]] = []  # arrival time, source, latency
        self._oldest = 0  # index, once the ring is full
        self._second = 0  # of the count in `_forwarded`
        self._forwarded = 0

    def add(self, marker: LatencyMarker) -> bool:
        """Store the latency of a marker. Return True if the task should forward it.

        False above 200 markers per second: where streams split and join again, a task receives each marker several
        times, and the number multiplies at every join.
        """
        now_ns = self._wall_ns()
        entry = (now_ns, marker.operator, max(0, now_ns - marker.marked_ns))
        if len(self._ring) < _KEPT:
            self._ring.append(entry)
        else:
            self._ring[self._oldest] = entry
            self._oldest = (self._oldest + 1) % _KEPT
        if (second := now_ns // _SECOND_NS) != self._second:
            self._second, self._forwarded = second, 0
        self._forwarded += 1
        return self._forwarded <= _MAX_FORWARDED

    def statistics(self) -> list[LatencyStatistics]:
        """Return the statistics of the last minute by source; of more than 2,048 markers, the newest."""
        now_ns, by_source = self._wall_ns(), dict[int, list[int]]()
        for at_ns, source, took_ns in self._ring[:]:
            if abs(now_ns - at_ns) <= _MINUTE_NS:  # abs: the clock may have been set back
                by_source.setdefault(source, []).append(took_ns // 1000)
        return [LatencyStatistics.of(source, took_us) for source, took_us in sorted(by_source.items())]
