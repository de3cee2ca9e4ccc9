"""Clocks, which are passed to the code that needs the time.

The core of the exchange never reads the system's clock itself. Workers pass in a `SystemClock`; tests and the simulator
pass in a `ManualClock` and advance it.
"""

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "wall_ms"]


class Clock(Protocol):
    """A monotonic clock in nanoseconds; only differences mean anything."""

    def now_ns(self) -> int:
        """Return nanoseconds since a fixed, unknown point in time."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that changes only when `advance_ms` is called.

    >>> clock = ManualClock()
    >>> clock.advance_ms(100)
    >>> clock.now_ns()
    100000000
    """

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the time to which it was last advanced."""
        return self._now_ns

    def advance_ms(self, milliseconds: float) -> None:
        """Advance by so many milliseconds."""
        assert milliseconds >= 0, "time does not run backwards"
        self._now_ns += int(milliseconds * 1_000_000)


def wall_ms() -> int:
    """Return the time of day: milliseconds since 1970, which a change of the system's clock can set back."""
    return time.time_ns() // 1_000_000
