"""Time, as something handed in.

The exchange never asks the operating system what time it is: it is given a `Clock`. Production hands in
`SystemClock`; tests and the simulator hand in `ManualClock` and decide themselves when time passes.
"""

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """A monotonic clock in nanoseconds; only differences mean anything."""

    def now_ns(self) -> int:
        """Nanoseconds since some fixed moment."""
        ...


class SystemClock:
    """The machine's monotonic clock.

    >>> clock = SystemClock()
    >>> clock.now_ns() <= clock.now_ns()
    True
    """

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that stands still until it is told to move.

    >>> clock = ManualClock()
    >>> clock.advance_ms(100)
    >>> clock.now_ns()
    100000000
    """

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The time it was last moved to."""
        return self._now_ns

    def advance_ms(self, milliseconds: float) -> None:
        """Let that much time pass."""
        assert milliseconds >= 0, "time does not run backwards"
        self._now_ns += int(milliseconds * 1_000_000)
