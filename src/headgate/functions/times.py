"""Lengths of time (whole milliseconds, a `Time`, or a `timedelta`), and the limits of event time."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["MAX_WATERMARK_MS", "MIN_WATERMARK_MS", "Time", "to_ms"]

MIN_WATERMARK_MS = -(2**63)
"""The watermark before the first one."""

MAX_WATERMARK_MS = 2**63 - 1
"""The watermark at the end of a bounded input: no event time is later."""

_MS = timedelta(milliseconds=1)


class Time(int):
    """A length of time: an int of milliseconds, with constructors for the other units.

    >>> Time.seconds(5), Time.minutes(1) + Time.milliseconds(1), Time.days(1).to_milliseconds()
    (Time.milliseconds(5000), 60001, 86400000)
    """

    __slots__ = ()

    @classmethod
    def milliseconds(cls, n: int) -> Time:
        """Return a length of `n` milliseconds."""
        return cls(to_ms(n))

    @classmethod
    def seconds(cls, n: float) -> Time:
        """Return a length of `n` seconds."""
        return cls(to_ms(timedelta(seconds=n)))

    @classmethod
    def minutes(cls, n: float) -> Time:
        """Return a length of `n` minutes."""
        return cls(to_ms(timedelta(minutes=n)))

    @classmethod
    def hours(cls, n: float) -> Time:
        """Return a length of `n` hours."""
        return cls(to_ms(timedelta(hours=n)))

    @classmethod
    def days(cls, n: float) -> Time:
        """Return a length of `n` days of 24 hours."""
        return cls(to_ms(timedelta(days=n)))

    def to_milliseconds(self) -> int:
        """Return the length as a plain int."""
        return int(self)

    def __repr__(self) -> str:
        return f"Time.milliseconds({int(self)})"


def to_ms(length: int | timedelta) -> int:
    """Return a length of time in milliseconds.

    >>> to_ms(Time.seconds(2)), to_ms(timedelta(seconds=2)), to_ms(2000)
    (2000, 2000, 2000)
    >>> to_ms(0.5)
    Traceback (most recent call last):
    TypeError: a length of time is whole milliseconds, a Time or a timedelta, not 0.5
    """
    if isinstance(length, timedelta):
        ms, rest = divmod(length, _MS)
        if not rest:
            return ms
    elif hasattr(length, "__index__") and not isinstance(length, bool):
        return int(length)
    raise TypeError(f"a length of time is whole milliseconds, a Time or a timedelta, not {length!r}")
