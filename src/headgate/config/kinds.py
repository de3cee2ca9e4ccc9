"""The kinds a setting can be of: how each is read, checked against its limits, and shown.

Used only by the table. A kind takes a value either as text (environment, Spark conf, command line, TOML
strings) or already typed (TOML numbers, code). Invariants: `read(read(x)) == read(x)`, and
`read(show(v)) == v`. A kind does not know the key it serves: whoever calls it adds key and source.
"""

import re
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Generic, TypeVar

from headgate.config.units import BufferTimeout, Duration, FlushMode, format_size, format_time, parse_size
from headgate.errors import ConfigError

__all__ = ["Address", "Choice", "Count", "Flag", "FlushTime", "Fraction", "Kind", "Path", "Size", "Time", "Word"]

_T_co = TypeVar("_T_co", covariant=True)

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Kind(ABC, Generic[_T_co]):
    """What the table knows about the values of one setting; the classes below are the kinds there are.

    >>> Count(1, 10).allowed
    'a whole number from 1 to 10'
    """

    __slots__ = ("allowed",)

    unit: str | None = None
    """What `plain` counts, where it is a number of something."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    @abstractmethod
    def read(self, raw: object) -> _T_co:
        """The typed value of `raw`, within limits; `ConfigError` saying why not."""

    def show(self, value: object) -> str:
        """A text for people, which `read` takes back."""
        return str(self.read(value))

    def plain(self, value: object) -> int | float | str:
        """The value for programs, as JSON has it."""
        return self.show(value)


class Size(Kind[int]):
    """A number of bytes: text with a unit, or a whole number.

    >>> kind = Size(16, 1024)
    >>> kind.read("1 KiB"), kind.show(512), kind.allowed
    (1024, '512 B', 'a size from 16 B to 1 KiB')
    """

    __slots__ = ("_at_least", "_at_most")
    unit = "bytes"

    def __init__(self, at_least: int, at_most: int) -> None:
        super().__init__(f"a size from {format_size(at_least)} to {format_size(at_most)}")
        self._at_least, self._at_most = at_least, at_most

    def read(self, raw: object) -> int:  # noqa: D102
        if isinstance(raw, str):
            value = parse_size(raw)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        else:
            raise ConfigError("not a size such as '32 KiB'")
        _check(value, self._at_least, self._at_most)
        return value

    def show(self, value: object) -> str:  # noqa: D102
        return format_size(self.read(value))

    def plain(self, value: object) -> int:  # noqa: D102
        return self.read(value)


class Time(Kind[Duration]):
    """A length of time: text with a unit, or a `Duration`. A bare number is refused: its unit is a guess.

    >>> kind = Time(1_000_000, 10_000_000_000)
    >>> kind.read("30 ms"), kind.allowed
    (Duration(ns=30000000), 'a time from 1 ms to 10 s')
    """

    __slots__ = ("_at_least_ns", "_at_most_ns")
    unit = "nanoseconds"

    def __init__(self, at_least_ns: int, at_most_ns: int) -> None:
        super().__init__(f"a time from {format_time(at_least_ns)} to {format_time(at_most_ns)}")
        self._at_least_ns, self._at_most_ns = at_least_ns, at_most_ns

    def read(self, raw: object) -> Duration:  # noqa: D102
        if isinstance(raw, Duration):
            value = raw
        elif isinstance(raw, str) or _is_number(raw):
            value = Duration.parse(str(raw))
        else:
            raise ConfigError("not a time such as '100 ms'")
        _check(value.ns, self._at_least_ns, self._at_most_ns)
        return value

    def plain(self, value: object) -> int:  # noqa: D102
        return self.read(value).ns


class FlushTime(Kind[BufferTimeout]):
    """`auto`, a time, 0 or -1: see `BufferTimeout`.

    >>> FlushTime(10_000_000_000).read(-1).mode
    <FlushMode.NEVER: 'never'>
    """

    __slots__ = ("_at_most_ns",)

    def __init__(self, at_most_ns: int) -> None:
        super().__init__(f"'auto', a time up to {format_time(at_most_ns)}, 0 (every record) or -1 (only when full)")
        self._at_most_ns = at_most_ns

    def read(self, raw: object) -> BufferTimeout:  # noqa: D102
        if isinstance(raw, BufferTimeout):
            value = raw
        elif isinstance(raw, str) or _is_number(raw):
            value = BufferTimeout.parse(str(raw))
        else:
            raise ConfigError("not a buffer timeout")
        if value.mode is FlushMode.INTERVAL:
            _check(value.interval_ns, 1, self._at_most_ns)
        return value


class Count(Kind[int]):
    """A whole number.

    >>> Count(1, 10).read("2")
    2
    """

    __slots__ = ("_at_least", "_at_most")

    def __init__(self, at_least: int, at_most: int) -> None:
        super().__init__(f"a whole number from {at_least} to {at_most}")
        self._at_least, self._at_most = at_least, at_most

    def read(self, raw: object) -> int:  # noqa: D102
        if isinstance(raw, str) and _WHOLE.fullmatch(text := raw.strip(" \t")):
            value = int(text)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            value = raw
        else:
            raise ConfigError("not a whole number")
        _check(value, self._at_least, self._at_most)
        return value

    def plain(self, value: object) -> int:  # noqa: D102
        return self.read(value)


class Fraction(Kind[float]):
    """A share between 0 and 1. Text and numbers that are not finite are refused.

    >>> Fraction().read("0.25")
    0.25
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("a number from 0 to 1")

    def read(self, raw: object) -> float:  # noqa: D102
        text = str(raw).strip(" \t") if isinstance(raw, str) or _is_number(raw) else ""
        if not _DECIMAL.fullmatch(text):
            raise ConfigError("not a number from 0 to 1")
        value = float(text)
        _check(value, 0, 1)
        return value

    def plain(self, value: object) -> float:  # noqa: D102
        return self.read(value)


class Flag(Kind[bool]):
    """Yes or no: a bool, or `true`, `false`, `1`, `0` in any case.

    >>> Flag().read("True"), Flag().read("0"), Flag().show(True)
    (True, False, 'true')
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("true or false")

    def read(self, raw: object) -> bool:  # noqa: D102
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and (word := raw.strip(" \t").lower()) in _FLAGS:
            return _FLAGS[word]
        raise ConfigError("neither true nor false")

    def show(self, value: object) -> str:  # noqa: D102
        return "true" if self.read(value) else "false"

    def plain(self, value: object) -> bool:  # noqa: D102
        return self.read(value)


class Choice(Kind[StrEnum]):
    """One of a few names, as a member of an enum.

    >>> from headgate.config import FlowControl
    >>> Choice(FlowControl).read("tcp"), Choice(FlowControl).allowed
    (<FlowControl.TCP: 'tcp'>, "'credit' or 'tcp'")
    """

    __slots__ = ("_names",)

    def __init__(self, names: type[StrEnum]) -> None:
        super().__init__(" or ".join(repr(one.value) for one in names))
        self._names = names

    def read(self, raw: object) -> StrEnum:  # noqa: D102
        for one in self._names:
            if raw is one or (isinstance(raw, str) and raw.strip(" \t") == one.value):
                return one
        raise ConfigError("not one of the choices")


class Word(Kind[str]):
    """The name of something that only its user can look up, such as a driver.

    >>> Word("a name").read("asyncio")
    'asyncio'
    """

    __slots__ = ()

    def read(self, raw: object) -> str:  # noqa: D102
        if isinstance(raw, str) and _NAME.fullmatch(word := raw.strip(" \t")):
            return word
        raise ConfigError("not a lower-case name")


class Path(Kind[str]):
    """A path on the machine of the workers; not looked at here, since this may be another machine.

    >>> Path("a directory").read("/var/tmp")
    '/var/tmp'
    """

    __slots__ = ()

    def read(self, raw: object) -> str:  # noqa: D102
        if isinstance(raw, str) and "\0" not in raw:
            return raw
        raise ConfigError("not a path")


class Address(Kind[str]):
    """An IP address of this machine to listen on. Names are refused: what they mean may change.

    >>> Address().read("127.0.0.1")
    '127.0.0.1'
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("an IP address such as 127.0.0.1 or ::1")

    def read(self, raw: object) -> str:  # noqa: D102
        from ipaddress import ip_address  # noqa: PLC0415 - this module is in every start's way

        try:
            return str(ip_address(raw.strip(" \t"))) if isinstance(raw, str) else self._refuse()
        except ValueError:
            return self._refuse()

    @staticmethod
    def _refuse() -> str:
        raise ConfigError("not an IP address")


def _is_number(raw: object) -> bool:
    return isinstance(raw, int | float) and not isinstance(raw, bool)


def _check(value: float, at_least: float, at_most: float) -> None:
    if value < at_least:
        raise ConfigError("too small")
    if value > at_most:
        raise ConfigError("too large")
