"""The stable hash of a key: the same in every process, on every machine and in every run of Python.

Facts. A keyed exchange must send all records of a key to one subtask, and saved state must be found again by its key
after a restart, by another process, at another parallelism. `hash()` of a str or bytes is salted per process, and the
default `hash()` of an object is its address.

Problem. The hash must not depend on the process; equal keys (`1 == 1.0 == True == Decimal(1)`) must have equal hashes,
since Python's dicts treat them as one key; and it runs once per record, in Python, so it must be one or two C calls.

Solution. Bytes (a str is its UTF-8) are hashed by `zlib.crc32`. Numbers are first reduced by `hash()`, which the
language defines for all numeric types alike and does not salt, then mixed by `spread`. Dates and times are numbers of
days or microseconds; a tuple is a CRC over the hashes of its parts. A type without such a rule is refused, never
guessed. So is NaN: it is not equal to itself, so every look-up in keyed state would miss it.

A key group is hash modulo `execution.max_parallelism`; a subtask owns a range of key groups (`channel_of_group`).

The hash selector calls `stable_hash`, or `hasher_of` for a loop over keys of one type, on the producer's task thread;
`key_columns` computes the same numbers for Arrow columns. Pure functions, no numpy. Invariant: the numbers are a
format, since they decide which subtask restores which state. Changing one breaks saved state.
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
"""The largest number of key groups of a job: the upper limit of `execution.max_parallelism`."""

# Shared with key_columns. Unequal values may have the same hash, but these constants must never change.
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

# hash() of a number is documented, unsalted and equal across numeric types, but it depends on this modulus.
assert sys.hash_info.modulus == 2**61 - 1, "headgate needs a 64-bit Python"


def spread(number: int) -> int:
    """Return a hash in [0, 2**32) of a signed 64-bit number, of which every bit changes the low bits.

    Ids with a stride, and floats, differ in few and often only high bits, and key groups are taken modulo a power of
    two. The CRC makes low bits depend on all bits, but it is linear: regular numbers would fill some groups and leave
    others empty. The multiplication is not linear; the middle bits of the product depend on all bits of the CRC.

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
    return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32  # `spread`, inlined


def _refuse_nan() -> NoReturn:
    raise UnstableKey(
        "NaN cannot be a key: it is not equal to itself, so its records would not be one key; let the key function"
        " return None or a string for it, or filter such records out before key_by"
    )


def _hash_float(key: float) -> int:
    if key != key:  # noqa: PLR0124 - NaN
        _refuse_nan()
    return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32


def _hash_decimal(key: Decimal) -> int:
    if key.is_nan():
        _refuse_nan()
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
    # A CRC over CRCs is still linear: without the multiplication all (x, (x,)) would have the same hash.
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
    if key.fold:  # two times of one zone that differ only in fold are equal, so fold must not change the hash
        key = key.replace(fold=0)
    epoch = _EPOCH if key.utcoffset() is None else _EPOCH_UTC
    return spread(_microseconds(datetime.__sub__(key, epoch)))


def _hash_time(key: time) -> int:
    at = ((key.hour * 60 + key.minute) * 60 + key.second) * 1_000_000 + key.microsecond
    offset = key.utcoffset()  # a zone with folds has no offset without a date, so fold needs no care here
    return spread(at if offset is None else at - _microseconds(offset))


def _hash_timedelta(key: timedelta) -> int:
    # The longest timedeltas are over 64 bits: they wrap as an int64 does.
    return spread((_microseconds(key) + 2**63) % 2**64 - 2**63)


def _microseconds(span: timedelta) -> int:
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _hash_uuid(key: UUID) -> int:
    return crc32(key.bytes)


# -- Subclasses, which may define __hash__ or conversions, and other numeric types -----------------------------


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
    (datetime, _hash_datetime),  # before date, its base class
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
    """Return the hasher of a type that is not in the table: a subclass or another numeric type; or raise."""
    foreign = kind.__module__ == "numpy"  # numpy scalars define __eq__ themselves, with the same result as Python's
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
    """Type -> hasher, by exact type; subclasses are added when they first occur."""

    __slots__ = ()

    _MOST = 4096  # bounds the memory of a program that keeps creating types

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
    """Return the hash of a key in [0, 2**32): the same everywhere, and equal for equal keys.

    Keys may be None, str, bytes, numbers, dates and times (naive ones count as UTC), UUIDs, tuples of all
    these, and their subclasses and numpy counterparts that compare like them. NaN is refused, also inside a tuple.

    >>> stable_hash("user-1"), stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    (2116437524, True)
    >>> stable_hash(("user-1", 7)) == stable_hash((7, "user-1"))
    False
    >>> stable_hash(("user-1", [7]))
    Traceback (most recent call last):
    headgate.errors.UnstableKey: at position 1 of a tuple: list can change while it is a key: use a tuple

    Raises:
        UnstableKey: The type of the key, or of a part of it, has no stable hash; or the key is or contains NaN.
    """
    kind = type(key)
    # The two most common types, inlined: the call costs as much as the hash.
    if kind is str:
        try:
            return crc32(key.encode())  # type: ignore[attr-defined]
        except UnicodeEncodeError:
            return _hash_str(key)  # type: ignore[arg-type]
    if kind is int:
        return crc32(_pack_int64(hash(key))) * SPREAD >> 16 & _MASK32
    return _HASHERS[kind](key)


def hasher_of(kind: type[K]) -> Callable[[K], int]:
    """Return the function that `stable_hash` uses for keys of exactly this type, for a loop over such keys.

    The function does not check the type of its argument.

    >>> hash_str = hasher_of(str)
    >>> hash_str("user-1") == stable_hash("user-1")
    True

    Raises:
        UnstableKey: Keys of this type have no stable hash.
    """
    return _HASHERS[kind]


def key_group(key: object, max_parallelism: int) -> int:
    """Return the key group of a key, which stays the same as long as its state exists.

    >>> key_group("user-1", 128)
    20
    """
    return stable_hash(key) % max_parallelism


def channel_of_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the channel, that is the subtask, that owns a key group.

    Every subtask owns a range of neighbouring groups, so a change of parallelism moves ranges of state.

    >>> [channel_of_group(group, 8, 3) for group in range(8)]
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return group * parallelism // max_parallelism


def group_channels(max_parallelism: int, parallelism: int) -> list[int]:
    """Return the channel of every key group, as a table.

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
