"""Hashes of keys that are the same in every process, on every machine and in every Python run.

The hash selector calls `stable_hash` (or, in a loop over keys of one type, what `hasher_of` returns) on a
task thread; `key_columns` computes the same numbers for whole Arrow columns. Pure functions, no numpy.

Invariants: equal keys (`==`) have equal hashes; a key without a stable hash is refused, never guessed; the
numbers decide which subtask owns which saved state, so they are a format: changing one breaks old state.
"""

import dataclasses
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from numbers import Complex, Integral, Rational, Real
from operator import attrgetter
from struct import Struct
from typing import Final, NoReturn, TypeVar
from uuid import UUID
from zlib import crc32

from headgate.errors import ConfigError, UnstableKey

__all__ = [
    "MAX_KEY_GROUPS",
    "channel_of_group",
    "group_channels",
    "hasher_of",
    "key_group",
    "stable_hash",
]

K = TypeVar("K")

MAX_KEY_GROUPS: Final = 32_768
"""The most key groups a job may have: the upper limit of `execution.max_parallelism`."""

# Shared with key_columns. Unequal things may share a hash; these only must never change.
NONE_HASH: Final = 0x6E6F6E65
NAN_HASH: Final = 0x006E616E
SPREAD: Final = 0x9E37_79B1  # a prime near 2**32 / golden ratio

_MASK32: Final = 0xFFFF_FFFF
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - naive times count as UTC
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()

_pack_int64: Final = Struct("<q").pack
_pack_uint32: Final = Struct("<I").pack
_equality_of: Final = attrgetter("__eq__")

# hash() of a number is documented, not salted and equal across numeric types, but it depends on this.
assert sys.hash_info.modulus == 2**61 - 1, "headgate needs a 64-bit Python"


def spread(number: int) -> int:
    """Spread a signed 64-bit number over 32 bits so that every bit counts in the low ones.

    Ids with a stride, and floats, differ in few and often only high bits, and groups are taken modulo a
    power of two. The CRC brings every bit down, but it is linear: regular numbers would meet in some
    groups and miss others. The product breaks that; its middle bits depend on all of the CRC.

    >>> [spread(number) % 128 for number in (0, 2**20, 2**40, 2**60)]
    [68, 50, 72, 60]
    """
    return crc32(_pack_int64(number)) * SPREAD >> 16 & _MASK32


# -- One function per type that has a stable hash ------------------------------------------------------


def _hash_str(key: str) -> int:
    try:
        return crc32(str.encode(key))
    except UnicodeEncodeError:  # lone surrogates, as os.fsdecode makes them
        return crc32(str.encode(key, "utf-8", "surrogatepass"))


def _hash_bytes(key: bytes) -> int:
    return crc32(key)


def _hash_number(key: float | Fraction) -> int:
    return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32  # `spread`, without the call


def _hash_float(key: float) -> int:
    if key != key:  # noqa: PLR0124 - NaN: its built-in hash is its address
        return NAN_HASH
    return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32


def _hash_decimal(key: Decimal) -> int:
    if key.is_nan():
        if key.is_snan():
            raise UnstableKey("a signalling NaN cannot be a key: it cannot even be compared")
        return NAN_HASH
    return spread(Decimal.__hash__(key))


def _hash_none(_: None) -> int:
    return NONE_HASH


def _hash_tuple(key: tuple[object, ...]) -> int:
    chained = 0
    try:
        for part in key:
            chained = crc32(_pack_uint32(_HASHERS[type(part)](part)), chained)
    except UnstableKey:
        _refuse_part(key)
    # A CRC over CRCs is still linear: without the product all of (x, (x,)) would be one hash.
    return chained * SPREAD >> 16 & _MASK32


def _refuse_part(key: tuple[object, ...]) -> NoReturn:
    for position, part in enumerate(key):
        try:
            stable_hash(part)
        except UnstableKey as refusal:
            raise UnstableKey(f"at position {position} of a tuple: {refusal}") from None
    raise AssertionError("a part was refused once and not again")


def _hash_date(key: date) -> int:
    return spread(key.toordinal() - _EPOCH_DAY)


def _hash_datetime(key: datetime) -> int:
    if key.fold:  # two times of one zone that differ only in fold are equal, so it must not count
        key = key.replace(fold=0)
    epoch = _EPOCH if key.utcoffset() is None else _EPOCH_UTC
    return spread(_microseconds(datetime.__sub__(key, epoch)))


def _hash_time(key: time) -> int:
    at = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    offset = key.utcoffset()  # never that of a zone with folds: those have none without a date
    return spread(at if offset is None else at - _microseconds(offset))


def _hash_timedelta(key: timedelta) -> int:
    # The longest timedeltas are over 64 bits: wrap as an int64 would.
    return spread((_microseconds(key) + 2**63) % 2**64 - 2**63)


def _microseconds(span: timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _hash_uuid(key: UUID) -> int:
    return crc32(key.bytes)


# -- Subclasses, which may bring a __hash__ or conversions of their own, and other kinds of numbers -----------


def _hash_int_subclass(key: int) -> int:
    return spread(int.__hash__(key))


def _hash_float_subclass(key: float) -> int:
    return _hash_float(float.__float__(key))


def _hash_integral(key: Integral) -> int:
    return _hash_number(int(key))


def _hash_rational(key: Rational) -> int:
    return _hash_number(Fraction(int(key.numerator), int(key.denominator)))


def _hash_real(key: Real) -> int:
    value = float(key)
    if value == key or value != value:  # noqa: PLR0124
        return _hash_float(value)
    raise UnstableKey(f"{_name(type(key))} is wider than a float and has no stable hash: use a Decimal")


def _hash_truth(key: object) -> int:
    return _hash_number(bool(key))


_SUBCLASSES: Final[tuple[tuple[type, Callable[..., int]], ...]] = (
    (str, _hash_str),
    (bytes, _hash_bytes),
    (int, _hash_int_subclass),
    (float, _hash_float_subclass),
    (Decimal, _hash_decimal),
    (tuple, _hash_tuple),
    (datetime, _hash_datetime),  # before date, of which it is one
    (date, _hash_date),
    (time, _hash_time),
    (timedelta, _hash_timedelta),
    (UUID, _hash_uuid),
)
_NUMBERS: Final[tuple[tuple[type, Callable[..., int]], ...]] = (
    (Integral, _hash_integral),
    (Rational, _hash_rational),
    (Real, _hash_real),
)
_ADVICE: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((list, dict), "can change while it is a key: use a tuple"),
    ((set, frozenset), "has no order: use a sorted tuple"),
    ((bytearray, memoryview), "can change while it is a key: use bytes"),
    ((Enum,), "hashes differently in every process: use its .name or .value"),
    ((Complex,), "is not supported as a key: use a tuple of its real and imaginary part"),
)


def _resolve(kind: type) -> Callable[..., int]:
    """The hasher of a type that is not in the table: a subclass, another kind of number, or an error."""
    foreign = kind.__module__ == "numpy"  # numpy scalars compare by their own code, but like Python's
    for base, hasher in _SUBCLASSES:
        if issubclass(kind, base):
            if not foreign and _equality_of(kind) is not _equality_of(base):
                raise UnstableKey(
                    f"{_name(kind)} compares by rules of its own, which a stable hash cannot follow: "
                    f"use a plain {base.__name__}"
                )
            return hasher
    for base, hasher in _NUMBERS:
        if issubclass(kind, base):
            return hasher
    if foreign and kind.__name__ in {"bool", "bool_"}:
        return _hash_truth
    for bases, advice in _ADVICE:
        if issubclass(kind, bases):
            raise UnstableKey(f"{_name(kind)} {advice}")
    if dataclasses.is_dataclass(kind):
        raise UnstableKey(f"{_name(kind)} has no hash that all processes agree on: use a tuple of its fields")
    raise UnstableKey(
        f"{_name(kind)} has no hash that all processes agree on: its own may depend on the process; "
        "use a string, a number, or a tuple of them that identifies it"
    )


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Hashers(dict[type, Callable[..., int]]):
    """Type -> hasher, by exact type; learns subclasses as it meets them."""

    __slots__ = ()

    _MOST = 4096  # a program that makes types without end must not fill the memory

    def __missing__(self, kind: type) -> Callable[..., int]:
        hasher = _resolve(kind)
        if len(self) < self._MOST:
            self[kind] = hasher
        return hasher


_HASHERS: Final = _Hashers(
    {
        str: _hash_str,
        int: _hash_number,
        bool: _hash_number,
        Fraction: _hash_number,
        float: _hash_float,
        Decimal: _hash_decimal,
        bytes: _hash_bytes,
        type(None): _hash_none,
        tuple: _hash_tuple,
        date: _hash_date,
        datetime: _hash_datetime,
        time: _hash_time,
        timedelta: _hash_timedelta,
        UUID: _hash_uuid,
    }
)


def stable_hash(key: object) -> int:
    """The hash of a key, in [0, 2**32): the same everywhere, and the same for keys that are equal.

    Keys may be None, str, bytes, numbers, dates and times (naive ones count as UTC), UUIDs, tuples of all
    these, and their subclasses and numpy counterparts that compare like them. NaN has one hash.

    >>> stable_hash("user-1"), stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    (2116437524, True)
    >>> stable_hash(("user-1", 7)) == stable_hash((7, "user-1"))
    False
    >>> stable_hash(("user-1", [7]))
    Traceback (most recent call last):
    headgate.errors.UnstableKey: at position 1 of a tuple: list can change while it is a key: use a tuple

    Raises:
        UnstableKey: The type of the key, or of a part of it, has no such hash.
    """
    kind = type(key)
    # The two commonest types, without the call: it costs as much as the hash.
    if kind is str:
        try:
            return crc32(key.encode())  # type: ignore[attr-defined]
        except UnicodeEncodeError:
            return _hash_str(key)  # type: ignore[arg-type]
    if kind is int:
        return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32
    return _HASHERS[kind](key)


def hasher_of(kind: type[K]) -> Callable[[K], int]:
    """The function that `stable_hash` uses for keys of exactly this type, to be called in a loop.

    It must be given keys of that very type: it does not look again.

    >>> hash_str = hasher_of(str)
    >>> hash_str("user-1") == stable_hash("user-1")
    True

    Raises:
        UnstableKey: Keys of this type have no stable hash.
    """
    return _HASHERS[kind]


def key_group(key: object, max_parallelism: int) -> int:
    """The key group a key belongs to, for as long as its state lives.

    >>> key_group("user-1", 128)
    20
    """
    return stable_hash(key) % max_parallelism


def channel_of_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """The channel, that is the subtask, which owns a key group.

    Every subtask owns one run of neighbouring groups, so a change of parallelism moves runs of state.

    >>> [channel_of_group(group, 8, 3) for group in range(8)]
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return group * parallelism // max_parallelism


def group_channels(max_parallelism: int, parallelism: int) -> list[int]:
    """The channel of every key group, as a table.

    >>> group_channels(8, 3)
    [0, 0, 0, 1, 1, 1, 2, 2]

    Raises:
        ConfigError: There are more subtasks than key groups, none, or too many groups.
    """
    if not 1 <= max_parallelism <= MAX_KEY_GROUPS:
        raise ConfigError(f"execution.max_parallelism is {max_parallelism}: it must be between 1 and {MAX_KEY_GROUPS}")
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigError(
            f"a parallelism of {parallelism} does not fit {max_parallelism} key groups: it must be between 1 "
            f"and execution.max_parallelism; lower it or raise that"
        )
    return [channel_of_group(group, max_parallelism, parallelism) for group in range(max_parallelism)]
