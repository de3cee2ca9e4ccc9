"""Latency markers: when a source sends one, and how long those took that came to a task.

A source's loop sends `Markers`, on its thread. They travel in order with the records and wait where those wait, but
pass operators by: what is held in a window or by a coroutine does not hold them. The loop of a task that reads one puts
it into its `Latencies`, also on its own thread; `statistics` is for any.

Invariants: memory is bounded however many come; a marker that was sent after it came, by a clock that is ahead of this
one, took no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from headgate.record.element import LatencyMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Latencies", "LatencyStatistics", "Markers"]

_KEPT: Final = 2048  # markers, the newest
_SECOND_NS: Final = 1_000_000_000
_MINUTE_NS: Final = 60 * _SECOND_NS
_PASSED_ON: Final = 200  # markers a second: each costs about as much as a small batch
_LEAST_NS: Final = 1_000_000  # between two markers, or a source that waits would do nothing else
_NEVER_NS: Final = 2**63


class Markers:
    """The markers of one subtask of a source.

    >>> markers = Markers(print, 10**9, vertex=7, subtask=0, now_ns=lambda: 5, wall_ns=lambda: 1_700_000_000 * 10**9)
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
        self.at_ns = 0 if interval_ns else _NEVER_NS  # the first at once: a short job has one, too
        """When the next is due, on the clock `now_ns`."""
        self._mark = mark
        self._interval_ns = max(interval_ns, _LEAST_NS)
        self._from = (vertex, subtask)
        self._now_ns = now_ns
        self._wall_ns = wall_ns

    def send(self) -> None:
        """Send one; its time counts from now, also while there is no buffer for it."""
        self.at_ns = self._now_ns() + self._interval_ns
        self._mark(LatencyMarker(self._wall_ns(), *self._from))

    def send_if_due(self) -> bool:
        """Send one if it is time; whether it was."""
        due = self._now_ns() >= self.at_ns
        if due:
            self.send()
        return due


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """How long the markers of one source took, of the last minute.

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
        """Of so many microseconds each; there is at least one."""
        ordered = sorted(took_us)

        def percentile(q: int) -> int:
            """The least that so many in a hundred do not exceed."""
            return ordered[ceil(q * len(ordered) / 100) - 1]

        return cls(source, len(ordered), percentile(50), percentile(99), ordered[-1])


class Latencies:
    """The markers that came to one task.

    >>> from headgate.record.element import LatencyMarker
    >>> latencies = Latencies(wall_ns=lambda: 5_000_000)
    >>> latencies.arrived(LatencyMarker(marked_ns=3_000_000, operator=7, subtask=0))
    True
    >>> latencies.statistics()
    [LatencyStatistics(source=7, count=1, p50_us=2000, p99_us=2000, max_us=2000)]
    """

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._ring: list[tuple[int, int, int]] = []  # when it came, from which source, how long it took
        self._oldest = 0  # of a full ring
        self._second = 0  # the one that `_passed_on` is about
        self._passed_on = 0

    def arrived(self, marker: LatencyMarker) -> bool:
        """A marker has come; whether to pass it on.

        Not if there are very many: where streams part and join again a task gets each marker several times, and those
        behind it several times as many.
        """
        now_ns = self._wall_ns()
        came = (now_ns, marker.operator, max(0, now_ns - marker.marked_ns))
        if len(self._ring) < _KEPT:
            self._ring.append(came)
        else:
            self._ring[self._oldest] = came
            self._oldest = (self._oldest + 1) % _KEPT
        if (second := now_ns // _SECOND_NS) != self._second:
            self._second, self._passed_on = second, 0
        self._passed_on += 1
        return self._passed_on <= _PASSED_ON

    def statistics(self) -> list[LatencyStatistics]:
        """What came within the last minute, by source; of very many the newest."""
        now_ns, by_source = self._wall_ns(), dict[int, list[int]]()
        for at_ns, source, took_ns in self._ring[:]:
            if abs(now_ns - at_ns) <= _MINUTE_NS:  # or the clock was put back since
                by_source.setdefault(source, []).append(took_ns // 1000)
        return [LatencyStatistics.of(source, took_us) for source, took_us in sorted(by_source.items())]
