"""The interpreter's switch interval, which all workers of a process share.

It says how long a thread that needs the interpreter waits before it asks for it. CPython's default lets one busy task
keep the network waiting for milliseconds. A short one costs throughput, for tasks change places more often; but where
only little goes over the sockets, each of those few messages is wanted soon, and nothing is lost by it. So there are
two intervals: the one that is set, and a shorter one for a process whose workers all send and receive little, but
often. Where next to nothing goes over them, tasks may be busy with what they hand to each other inside of a worker.

Workers begin and end on any thread; what goes over their sockets is told by whoever drives their network.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pace", "Switching", "switching"]

_HASTY_S: Final = 40e-6  # not less: a thread that asks again and again on the processor of the one it asks stops it
_IN_A_ROW: Final = 64  # small reads and writes: so many, and it is not just a pause in a large stream
_PAUSE_NS: Final = 100_000_000  # between two that do not count as in a row: a heartbeat, a status


class Pace:
    """How much goes over one worker's sockets. Made by `Switching.begin`.

    >>> shared = Switching()
    >>> pace = shared.begin(0.0001)
    >>> for _ in range(100): pace.little()
    >>> f"{sys.getswitchinterval():.6f}"
    '0.000040'
    >>> pace.much(); f"{sys.getswitchinterval():.6f}"
    '0.000100'
    >>> pace.end()
    """

    __slots__ = ("_last_ns", "_left", "_now_ns", "_switching", "interval_s")

    def __init__(self, switching: Switching, interval_s: float, now_ns: Callable[[], int]) -> None:
        self.interval_s = interval_s
        self._switching = switching
        self._now_ns = now_ns
        self._last_ns = 0  # when something small went
        self._left = _IN_A_ROW  # until it counts as a trickle; 0: it does

    @property
    def trickles(self) -> bool:
        """Whether something small goes all the time, and nothing large."""
        return not self._left

    def little(self) -> None:
        """A small read or write."""
        before_ns, self._last_ns = self._last_ns, self._now_ns()
        if self._last_ns - before_ns > _PAUSE_NS:
            self.much()
        elif self._left:
            self._left -= 1
            if not self._left:
                self._switching.change()

    def much(self) -> None:
        """A large one, or a pause: what was counted in a row counts no more."""
        trickled, self._left = not self._left, _IN_A_ROW
        if trickled:
            self._switching.change()

    def end(self) -> None:
        """The worker is gone. May be repeated."""
        self._switching.end(self)


class Switching:
    """The interval of this process: the first worker's beginning notes it, the last one's end restores it.

    >>> shared, before_s = Switching(), sys.getswitchinterval()
    >>> one, other = shared.begin(0.001), shared.begin(0.002)
    >>> sys.getswitchinterval()
    0.002
    >>> other.end(); one.end(); sys.getswitchinterval() == before_s
    True
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._paces: list[Pace] = []
        self._before_s = 0.0

    def begin(self, interval_s: float) -> Pace:
        """A worker wants this interval."""
        with self._lock:
            if not self._paces:
                self._before_s = sys.getswitchinterval()
            pace = Pace(self, interval_s, self._now_ns)
            self._paces.append(pace)
            self._set_locked()
        return pace

    def end(self, pace: Pace) -> None:
        """It is gone."""
        with self._lock:
            if pace in self._paces:
                self._paces.remove(pace)
                self._set_locked()

    def change(self) -> None:
        """A worker's pace has changed."""
        with self._lock:
            self._set_locked()

    def _set_locked(self) -> None:
        paces = self._paces
        if not paces:
            interval_s = self._before_s
        elif all(pace.trickles for pace in paces):
            interval_s = min(_HASTY_S, paces[-1].interval_s)
        else:
            interval_s = paces[-1].interval_s
        sys.setswitchinterval(interval_s)


switching = Switching()
"""That of this process."""
