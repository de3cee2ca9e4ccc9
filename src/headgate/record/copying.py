"""Copies of values, so that an operator and the user's function upstream of it share no mutable object (K1).

Used on the task's thread: by operators for the results of user functions, by a link for its branches, and by the source
loop. Almost all values are atomic, or tuples of atomic values. These need no copy; the test for it runs for every
record, so it is a set lookup of the type.
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
    from collections.abc import Callable, Iterable

    Values = list[Any]

__all__ = ["ATOMIC", "copied", "copied_batch", "owned"]

ATOMIC: frozenset[type] = frozenset(
    {
        str, int, float, bool, bytes, complex, type(None), type(...), type(NotImplemented), range, decimal.Decimal,
        dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone,
    }
)  # fmt: skip
"""The types whose values cannot change and hold nothing that can."""


def copied(value: Any) -> Any:
    """Return a value that shares no mutable object with `value`: itself if it is immutable, otherwise a copy.

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
    return _copier_of(kind)(value)  # type: ignore[arg-type]  # a class is hashable


def copied_batch(values: Values) -> Values:
    """Return a batch that shares no mutable value with `values`: the same list if all values are immutable.

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


def owned(results: Iterable[Any]) -> Values:
    """Return results as a list, each copied unless it cannot change.

    Draws one result, copies it, and only then draws the next: an iterator that runs a user's function cannot change
    a result that was drawn before.

    >>> def totals():
    ...     total = {"n": 0}
    ...     for _ in range(3):
    ...         total["n"] += 1
    ...         yield total
    >>> owned(totals())
    [{'n': 1}, {'n': 2}, {'n': 3}]
    """
    atomic = ATOMIC
    # The condition repeats `copied` for the commonest types: a call for each result would cost more than the test.
    return [
        one
        if type(one) in atomic
        or (type(one) is tuple and len(one) == 2 and type(one[0]) in atomic and type(one[1]) in atomic)
        else copied(one)
        for one in results
    ]


@lru_cache(maxsize=1024)
def _copier_of(kind: type) -> Callable[[Any], Any]:
    """Return the function that copies values of a user's class."""
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
    # Compared by name, so that nothing is imported: Arrow data is immutable, and so are numpy's scalars.
    if kind.__module__.partition(".")[0] == "pyarrow":
        return True
    bases = {f"{base.__module__}.{base.__name__}" for base in kind.__mro__}
    return "uuid.UUID" in bases or ("numpy.generic" in bases and "numpy.void" not in bases)


def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a class with immutable attributes; None: its attributes can be assigned."""
    struct = getattr(kind, "__struct_config__", None)
    if struct is not None:
        return tuple(kind.__struct_fields__) if struct.frozen else None  # type: ignore[attr-defined]
    params = getattr(kind, "__dataclass_params__", None)
    # Only the class's own parameters count: a class derived without the decorator may have more attributes.
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
