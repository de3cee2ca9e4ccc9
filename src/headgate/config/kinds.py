"""The kinds of settings: each parses a value, checks it against its limits, and formats it.

Used only by `table`. A kind accepts a value as text (environment, Spark conf, command line, TOML strings) or typed
(TOML numbers, code). Invariants: `read(read(x)) == read(x)`, and `read(show(v)) == v`. A kind does not know the key of
its setting: its caller adds key and source to error texts.
"""

import re
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Generic, TypeVar

from headgate.config.units import BufferTimeout, Duration, FlushMode, format_size, format_time, parse_size
from headgate.errors import ConfigError

__all__ = [
    "AddressKind",
    "ChoiceKind",
    "CountKind",
    "FlagKind",
    "FlushTimeKind",
    "FractionKind",
    "PathKind",
    "SettingKind",
    "SizeKind",
    "TimeKind",
    "WordKind",
]

_T_co = TypeVar("_T_co", covariant=True)

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class SettingKind(ABC, Generic[_T_co]):
    """The type and limits of one setting's values: the base class of those below.

    >>> CountKind(1, 10).allowed
    'a whole number from 1 to 10'
    """

    __slots__ = ("allowed",)

    unit: str | None = None
    """The unit of the number that `plain` returns, if it has one."""

    def __init__(self, allowed: str) -> None:
        self.allowed = allowed

    @abstractmethod
    def read(self, raw: object) -> _T_co:
        """Return the typed value of `raw`, or raise `ConfigError` if it is malformed or outside the limits."""

    def show(self, value: object) -> str:
        """Return a readable text, which `read` accepts."""
        return str(self.read(value))

    def plain(self, value: object) -> int | float | str:
        """Return the value for programs, as JSON."""
        return self.show(value)


class SizeKind(SettingKind[int]):
    """A number of bytes: text with a unit, or a whole number.

    >>> kind = SizeKind(16, 1024)
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


class TimeKind(SettingKind[Duration]):
    """A length of time: text with a unit, or a `Duration`. A bare number is refused, since its unit is unknown.

    >>> kind = TimeKind(1_000_000, 10_000_000_000)
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


class FlushTimeKind(SettingKind[BufferTimeout]):
    """`auto`, a time, 0 or -1: see `BufferTimeout`.

    >>> FlushTimeKind(10_000_000_000).read(-1).mode
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


class CountKind(SettingKind[int]):
    """A whole number.

    >>> CountKind(1, 10).read("2")
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


class FractionKind(SettingKind[float]):
    """A share between 0 and 1. Text and numbers that are not finite are refused.

    >>> FractionKind().read("0.25")
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


class FlagKind(SettingKind[bool]):
    """A bool, or `true`, `false`, `1`, `0` in upper or lower case.

    >>> FlagKind().read("True"), FlagKind().read("0"), FlagKind().show(True)
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


class ChoiceKind(SettingKind[StrEnum]):
    """A member of an enum, by its name.

    >>> from headgate.config import FlowControl
    >>> ChoiceKind(FlowControl).read("tcp"), ChoiceKind(FlowControl).allowed
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


class WordKind(SettingKind[str]):
    """A name that is checked where it is used, such as that of a transport.

    >>> WordKind("a name").read("asyncio")
    'asyncio'
    """

    __slots__ = ()

    def read(self, raw: object) -> str:  # noqa: D102
        if isinstance(raw, str) and _NAME.fullmatch(word := raw.strip(" \t")):
            return word
        raise ConfigError("not a lower-case name")


class PathKind(SettingKind[str]):
    """A path on the machine of the workers; not checked here, since this may be another machine.

    >>> PathKind("a directory").read("/var/tmp")
    '/var/tmp'
    """

    __slots__ = ()

    def read(self, raw: object) -> str:  # noqa: D102
        if isinstance(raw, str) and "\0" not in raw:
            return raw
        raise ConfigError("not a path")


class AddressKind(SettingKind[str]):
    """An IP address of this machine to listen on. Host names are refused: their address may change.

    >>> AddressKind().read("127.0.0.1")
    '127.0.0.1'
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("an IP address such as 127.0.0.1 or ::1")

    def read(self, raw: object) -> str:  # noqa: D102
        from ipaddress import ip_address  # noqa: PLC0415 - keeps the start of every process fast

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
