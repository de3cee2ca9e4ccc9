"""Sizes and times as text with units, and the types `Duration` and `BufferTimeout`.

Called by the setting kinds, and by code that prints a size or a time. Invariant: `parse_*` returns exactly the number
from which `format_*` made the text. Nothing is rounded: a fraction of a byte or of a nanosecond is refused.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Self

from headgate.errors import ConfigError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "NS_PER_HOUR",
    "NS_PER_MINUTE",
    "NS_PER_MS",
    "NS_PER_SECOND",
    "BufferTimeout",
    "Duration",
    "FlushMode",
    "format_size",
    "format_time",
    "parse_size",
    "parse_time",
]

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000 * NS_PER_MS
NS_PER_MINUTE = 60 * NS_PER_SECOND
NS_PER_HOUR = 60 * NS_PER_MINUTE

# Formatting takes the first unit that divides the number, so the order within each table matters.
_SIZE_UNITS = {
    "TiB": 1024 * GIB,
    "GiB": GIB,
    "MiB": MIB,
    "KiB": KIB,
    "TB": 1000**4,
    "GB": 1000**3,
    "MB": 1000**2,
    "KB": 1000,
    "B": 1,
}
_TIME_UNITS = {
    "h": NS_PER_HOUR,
    "min": NS_PER_MINUTE,
    "m": NS_PER_MINUTE,
    "s": NS_PER_SECOND,
    "ms": NS_PER_MS,
    "us": 1_000,
    "ns": 1,
}
_SIZE_NAMES = "B, KiB, MiB, GiB, TiB (1024-based) or KB, MB, GB, TB (1000-based)"
_TIME_NAMES = "ns, us, ms, s, m (or min), h"

# The number of digits is limited, so that a hostile or mistyped number is refused quickly.
_QUANTITY = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?[ \t]*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """Return the bytes of a text such as `32 KiB`, `1.5GB` or `4096` (bytes).

    >>> parse_size("32 KiB"), parse_size("64KB"), parse_size("512")
    (32768, 64000, 512)
    >>> parse_size("1g")
    Traceback (most recent call last):
    headgate.errors.ConfigError: unknown size unit 'g': write GiB (1024-based) or GB (1000-based)
    """
    number, decimals, unit = _split(text, "a size such as '32 KiB'")
    if unit in _SIZE_UNITS:
        return _scale(number, decimals, _SIZE_UNITS[unit], "bytes")
    if not unit:
        return _scale(number, decimals, 1, "bytes")
    if unit.lower() in {"k", "m", "g", "t"}:
        raise ConfigError(
            f"unknown size unit {unit!r}: write {unit.upper()}iB (1024-based) or {unit.upper()}B (1000-based)"
        )
    raise _unknown_unit(unit, _SIZE_UNITS, "size", _SIZE_NAMES)


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text for a number of bytes, 1024-based if possible.

    >>> format_size(32768), format_size(1_500_000), format_size(17)
    ('32 KiB', '1500 KB', '17 B')
    """
    return _format(size_bytes, _SIZE_UNITS, "B")


def parse_time(text: str) -> int:
    """Return the nanoseconds of a text such as `100ms`, `1.5 s`, `1m` or `1h`; only 0 needs no unit.

    >>> parse_time("100ms"), parse_time("1.5 s"), parse_time("0")
    (100000000, 1500000000, 0)
    >>> parse_time("30")
    Traceback (most recent call last):
    headgate.errors.ConfigError: a time needs its unit: write '30 ms' or '30 s' (units: ns, us, ms, ...)
    """
    number, decimals, unit = _split(text, "a time such as '100 ms'")
    if unit in _TIME_UNITS:
        return _scale(number, decimals, _TIME_UNITS[unit], "nanoseconds")
    if unit:
        raise _unknown_unit(unit, _TIME_UNITS, "time", _TIME_NAMES)
    if number == 0 and not decimals.strip("0"):
        return 0
    bare = f"{number}.{decimals}" if decimals else str(number)
    raise ConfigError(f"a time needs its unit: write '{bare} ms' or '{bare} s' (units: {_TIME_NAMES})")


def format_time(time_ns: int) -> str:
    """Return the shortest exact text for a number of nanoseconds.

    >>> format_time(100_000_000), format_time(90_000_000_000), format_time(60_000_000_000)
    ('100 ms', '90 s', '1 min')
    """
    return _format(time_ns, _TIME_UNITS, "s")


def _split(text: str, wanted: str) -> tuple[int, str, str]:
    """Return whole part, decimals and unit of a quantity."""
    match = _QUANTITY.fullmatch(text.strip(" \t"))
    if match is None:
        raise ConfigError(f"not {wanted}")
    whole, decimals, unit = match.groups()
    return int(whole), decimals or "", unit


def _scale(number: int, decimals: str, factor: int, base: str) -> int:
    """Return `number.decimals x factor`, computed in integers: a float would round large values silently."""
    part, rest = divmod(int(decimals or "0") * factor, int("1" + "0" * len(decimals)))
    if rest:
        raise ConfigError(f"not a whole number of {base}")
    return number * factor + part


def _unknown_unit(unit: str, units: dict[str, int], kind: str, names: str) -> ConfigError:
    proper = {name.lower(): name for name in units}.get(unit.lower())
    return ConfigError(f"unknown {kind} unit {unit!r}: write {proper or names}")


def _format(value: int, units: dict[str, int], zero_unit: str) -> str:
    assert value >= 0, "sizes and times are not negative"
    if value == 0:
        return f"0 {zero_unit}"
    unit = next(name for name, factor in units.items() if value % factor == 0)
    return f"{value // units[unit]} {unit}"


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time, which cannot be mistaken for a number in another unit.

    >>> wait = Duration.parse("1.5 s")
    >>> wait.ns, wait.seconds, str(wait)
    (1500000000, 1.5, '1500 ms')
    """

    ns: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the duration of a text such as `100 ms`."""
        return cls(parse_time(text))

    @property
    def ms(self) -> float:
        """The duration in milliseconds."""
        return self.ns / NS_PER_MS

    @property
    def seconds(self) -> float:
        """The duration in seconds, as the standard library's waiting functions expect it."""
        return self.ns / NS_PER_SECOND

    def __str__(self) -> str:
        return format_time(self.ns)


class FlushMode(Enum):
    """When a writer flushes a buffer that is not full.

    >>> BufferTimeout.parse("0").mode
    <FlushMode.ALWAYS: 'always'>
    """

    AUTO = "auto"  # when the task has no input to read, and at every interval
    INTERVAL = "interval"  # at every interval
    ALWAYS = "always"  # after every record
    NEVER = "never"  # only when full, before an event and at the end


_AUTO_INTERVAL_NS = 100 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class BufferTimeout:
    """The value of `execution.buffer_timeout`: the mode, and the interval of the flusher's timer.

    >>> BufferTimeout.parse("auto")
    BufferTimeout(mode=<FlushMode.AUTO: 'auto'>, interval_ns=100000000)
    >>> [str(BufferTimeout.parse(text)) for text in ("10ms", "0", "-1")]
    ['10 ms', '0', '-1']
    """

    mode: FlushMode
    interval_ns: int
    """Zero in the modes without a timer, ALWAYS and NEVER."""

    def __post_init__(self) -> None:
        timed = self.mode in (FlushMode.AUTO, FlushMode.INTERVAL)
        if self.interval_ns < 0 or timed != (self.interval_ns > 0):
            raise ConfigError(f"a buffer timeout in mode {self.mode.value} cannot have {self.interval_ns} ns")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the buffer timeout of a text: `auto`, a time, `0` or `-1`."""
        match text.strip(" \t"):
            case "auto":
                return cls(FlushMode.AUTO, _AUTO_INTERVAL_NS)
            case "-1":
                return cls(FlushMode.NEVER, 0)
            case other:
                interval_ns = parse_time(other)
                return cls(FlushMode.INTERVAL if interval_ns else FlushMode.ALWAYS, interval_ns)

    def __str__(self) -> str:
        match self.mode:
            case FlushMode.AUTO:
                return "auto"
            case FlushMode.NEVER:
                return "-1"
            case FlushMode.ALWAYS:
                return "0"
            case FlushMode.INTERVAL:
                return format_time(self.interval_ns)
