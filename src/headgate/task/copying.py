"""Copies of values, so that who emits a value and who gets it do not share what can be changed.

Used between operators of a chain and by operators that keep what they emit, on the task's thread. Almost all values are
atomic, or tuples of such: they are their own copies, and finding that out must cost next to nothing.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import enum
import itertools
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.task.operator import Values

__all__ = ["ATOMIC", "copied", "copied_batch"]

ATOMIC: frozenset[type] = frozenset(
    {
        str, int, float, bool, bytes, complex, type(None), type(...), type(NotImplemented), range, decimal.Decimal,
        dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
    }
)  # fmt: skip
"""The types whose values cannot change and hold nothing that can."""


def copied(value: Any) -> Any:
    """A value that nobody else can change: itself if it cannot be changed at all, otherwise a copy.

    >>> pair, counts = ("to", 2), {"to": 2}
    >>> copied(pair) is pair, copied(counts) is counts, copied(counts) == counts
    (True, False, True)
    >>> nested = ("to", [1, 2])
    >>> copied(nested)[1] is nested[1]
    False
    """
    kind = type(value)
    if kind in ATOMIC:
        return value
    if kind is tuple or kind is frozenset:
        return value if ATOMIC.issuperset(map(type, value)) else _deep(value)
    if kind is dict:
        flat = ATOMIC.issuperset(map(type, value.values())) and ATOMIC.issuperset(map(type, value))
        return value.copy() if flat else _deep(value)
    if kind is list or kind is set:
        return value.copy() if ATOMIC.issuperset(map(type, value)) else _deep(value)
    return _way_of(kind)(value)  # type: ignore[arg-type]  # a class is hashable


def copied_batch(values: Values) -> Values:
    """A batch of which nobody else can change anything; the same list where no value can be changed.

    >>> words = ["to", "be"]
    >>> copied_batch(words) is words, copied_batch([["to"], ["be"]])
    (True, [['to'], ['be']])
    """
    kinds = set(map(type, values))
    if kinds <= ATOMIC:
        return values
    if kinds == {tuple} and ATOMIC.issuperset(map(type, itertools.chain.from_iterable(values))):
        return values
    return list(map(copied, values))


@lru_cache(maxsize=1024)
def _way_of(kind: type) -> Callable[[Any], Any]:
    """How values of a class of somebody's own are copied."""
    if _is_immutable(kind):
        return _itself
    names = _frozen_fields(kind)
    if names is None:
        return _deep

    def frozen(value: Any) -> Any:
        for name in names:
            if type(getattr(value, name, None)) not in ATOMIC:
                return _deep(value)
        return value

    return frozen


def _is_immutable(kind: type) -> bool:
    if issubclass(kind, enum.Enum | type):
        return True
    # By name, for what is not imported cannot be meant: Arrow data never changes, and scalars of numpy do not.
    if kind.__module__.partition(".")[0] == "pyarrow":
        return True
    bases = {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
    return "uuid.UUID" in bases or ("numpy.generic" in bases and "numpy.void" not in bases)


def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a class whose instances cannot be assigned to; None: they can."""
    struct = getattr(kind, "__struct_config__", None)
    if struct is not None:
        return tuple(kind.__struct_fields__) if struct.frozen else None  # type: ignore[attr-defined]
    params = getattr(kind, "__dataclass_params__", None)
    # Only its own parameters speak for a class: one that is derived without the decorator may have more attributes.
    if params is not None:
        own = "__dataclass_params__" in vars(kind)
        return tuple(kind.__dataclass_fields__) if own and params.frozen else None  # type: ignore[attr-defined]
    if issubclass(kind, tuple) and kind.__base__ is tuple and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return None


def _itself(value: Any) -> Any:
    return value


def _deep(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"a value of type {type(value).__qualname__} cannot be copied ({type(error).__name__}: {error}), as it must"
            " be where operators share it: make it copyable, or set execution.object_reuse and never change a value"
        ) from error
