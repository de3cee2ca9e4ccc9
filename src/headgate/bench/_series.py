"""What the times of single buffers say: rates over time, when one rate follows another, how much was in flight.

Used by the wire suite, in its own process, on the stamps that both ends took: nanoseconds of one clock, ascending, one
for each buffer of the same size. Times are in seconds from the experiment's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["BIN_S", "Stamps", "follows_after_s", "highest_in_flight", "in_flight", "rate_between", "rates"]

BIN_S: Final = 0.01
"""How long a bin of `follows_after_s` is."""

_WINDOW: Final = 5  # bins whose mean is looked at
_TOLERANCE: Final = 0.25


class Stamps:
    """When each buffer passed one end of a channel.

    >>> from array import array
    >>> len(Stamps(array("q", [5_000_000_000, 6_000_000_000]), start_ns=4_000_000_000))
    2
    """

    __slots__ = ("seconds",)

    def __init__(self, stamps_ns: array[int], start_ns: int) -> None:
        self.seconds: NDArray[np.float64] = (np.asarray(stamps_ns, dtype=np.int64) - start_ns) / 1e9

    def __len__(self) -> int:
        return len(self.seconds)

    def count_before(self, second: float) -> int:
        """How many passed before a time."""
        return int(np.searchsorted(self.seconds, second))


def rate_between(stamps: Stamps, start_s: float, end_s: float) -> float:
    """Buffers a second in that time.

    >>> from array import array
    >>> rate_between(Stamps(array("q", range(0, 1_000_000_000, 10_000_000)), start_ns=0), 0.5, 1.0)
    100.0
    """
    assert start_s < end_s, "a rate is over some time"
    return (stamps.count_before(end_s) - stamps.count_before(start_s)) / (end_s - start_s)


def rates(stamps: Stamps, end_s: float, bin_s: float = BIN_S) -> tuple[list[float], list[float]]:
    """The middles of all whole bins from 0 until a time, and the buffers a second in each."""
    edges = np.arange(0, int(end_s / bin_s + 1e-6) + 1) * bin_s
    counts, _ = np.histogram(stamps.seconds, edges)
    return (edges[:-1] + bin_s / 2).tolist(), (counts / bin_s).tolist()


def follows_after_s(stamps: Stamps, target: float, start_s: float, end_s: float) -> float:
    """How long after `start_s` the rate of these stamps is that of another end, which has changed to `target` then.

    The rule: rates are counted in bins of 10 ms from `start_s` on, and the rate follows from the first bin on that,
    together with the four after it, has a mean within 25 % of the target or on its far side: the change may overshoot.
    Which side that is is told by the rate of the 100 ms before. If there is no such bin, all of the time counts.

    >>> from array import array
    >>> slow_from_70_ms = [*range(0, 1_070_000_000, 1_000_000), *range(1_070_000_000, 2_000_000_000, 10_000_000)]
    >>> follows_after_s(Stamps(array("q", slow_from_70_ms), start_ns=0), target=100.0, start_s=1.0, end_s=2.0)
    0.07
    """
    before = rate_between(stamps, start_s - 10 * BIN_S, start_s)
    bins = int((end_s - start_s) / BIN_S + 1e-6)
    counts, _ = np.histogram(stamps.seconds, start_s + np.arange(bins + 1) * BIN_S)
    for first in range(bins - _WINDOW + 1):
        mean = float(counts[first : first + _WINDOW].mean()) / BIN_S
        if (mean <= target * (1 + _TOLERANCE)) if before > target else (mean >= target * (1 - _TOLERANCE)):
            return round(first * BIN_S, 9)
    return end_s - start_s


def in_flight(produced: Stamps, consumed: Stamps, times_s: Sequence[float]) -> list[int]:
    """Buffers that were produced and not consumed at each of these times."""
    out = np.searchsorted(produced.seconds, times_s, side="right")
    back = np.searchsorted(consumed.seconds, times_s, side="right")
    return [int(number) for number in out - back]


def highest_in_flight(produced: Stamps, consumed: Stamps) -> int:
    """The most buffers that were in flight at any time: right after one of them was produced.

    >>> from array import array
    >>> highest_in_flight(Stamps(array("q", [1, 2, 3, 4]), start_ns=0), Stamps(array("q", [2, 3, 9, 9]), start_ns=0))
    2
    """
    out = np.arange(1, len(produced) + 1)
    back = np.searchsorted(consumed.seconds, produced.seconds, side="right")
    return int((out - back).max(initial=0))
