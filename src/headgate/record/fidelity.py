"""Checks whether a value would be decoded as it was sent. Pure functions, called by serializers, never per record.

`change` compares a value with its decoded form, strictly by type; serializers call it on samples. `closed_to` and
`doubt` examine a declared type once, when a serializer is chosen. The error texts name types and never values, since
values may be confidential and error texts are logged.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import get_args, get_origin

import msgspec
import msgspec.inspect as facts

__all__ = ["change", "closed_to", "doubt", "type_name"]


def type_name(value: object) -> str:
    """Return the name of a value's type for error texts.

    >>> type_name(1), type_name(dt.date(2024, 2, 29))
    ('int', 'datetime.date')
    """
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def change(sent: object, got: object) -> str | None:
    """Return a description of how `got` differs from `sent`, or None if user code could not tell them apart.

    One difference is allowed: where a float is declared, an int is decoded as the equal float, as Python's typing rules
    permit.

    >>> change([("a", 1)], [["a", 1]])
    'a tuple would come back as a list'
    >>> change((1, {"a": 2}), (1.0, {"a": 2})) is None
    True
    """
    if type(sent) is not type(got):
        if type(sent) is int and type(got) is float and sent == got:
            return None
        return f"a {type_name(sent)} would come back as a {type_name(got)}"
    return _inside(sent, got) or _apart(sent, got)


def _other(sent: object, what: str) -> str:
    return f"a {type_name(sent)} would come back with another {what}"


def _apart(sent: object, got: object) -> str | None:
    """Return the difference between two values of one type whose parts are the same."""
    if isinstance(sent, dt.datetime | dt.time) and isinstance(got, dt.datetime | dt.time):
        # Equal points in time may still differ in their time zone.
        same = sent == got and sent.utcoffset() == got.utcoffset() and sent.fold == got.fold
        return None if same else _other(sent, "time zone")
    if isinstance(sent, list | tuple | dict) or _has_fields(sent) or type(sent).__eq__ is object.__eq__:
        return None
    if isinstance(sent, set | frozenset) and isinstance(got, set | frozenset):
        same = len(sent) == len(got) and all(one in got or one != one for one in sent)  # noqa: PLR0124 - NaN
        return None if same else _other(sent, "content")
    return None if sent == got or (sent != sent and got != got) else _other(sent, "value")  # noqa: PLR0124 - NaN


def _has_fields(value: object) -> bool:
    return isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)


def _inside(sent: object, got: object) -> str | None:
    """Return the first difference between the parts of two containers of one type."""
    if isinstance(sent, list | tuple) and isinstance(got, list | tuple):
        if len(sent) != len(got):
            return _other(sent, "length")
        parts: Iterable[tuple[object, object]] = zip(sent, got, strict=True)
    elif isinstance(sent, dict) and isinstance(got, dict):
        if len(sent) != len(got):
            return _other(sent, "set of keys")
        parts = chain(zip(sent, got, strict=True), zip(sent.values(), got.values(), strict=True))
    elif isinstance(sent, msgspec.Struct):
        parts = ((getattr(sent, name), getattr(got, name)) for name in sent.__struct_fields__)
    elif dataclasses.is_dataclass(sent):
        parts = ((getattr(sent, one.name), getattr(got, one.name)) for one in dataclasses.fields(sent))
    else:
        return None
    return next((found for one, other in parts if (found := change(one, other)) is not None), None)


def closed_to(hint: object) -> str | None:
    """Return why typed msgpack cannot encode values of a declared type at all, or None if it can.

    >>> closed_to(tuple[str, int]) is None
    True
    >>> closed_to(tuple[str, complex])
    'complex has no msgpack form'
    """
    try:
        parts = list(_parts(facts.type_info(hint)))
        msgspec.msgpack.Decoder(list[hint])  # type: ignore[valid-type]
    except (TypeError, ValueError, NameError, AttributeError, RecursionError) as error:
        return str(error) or type(error).__name__
    for part in parts:
        if isinstance(part, facts.CustomType):
            return f"{part.cls.__qualname__} has no msgpack form"
        if isinstance(part, facts.RawType | facts.MemoryViewType | facts.ExtType):
            # Raw and memoryview would refer to a buffer that will be used again.
            return f"{type(part).__name__.removesuffix('Type')} values would refer to the received buffer"
    return None


def doubt(hint: object) -> str | None:
    """Return why values of a type that msgpack can encode may be decoded differently, or None if none can.

    >>> doubt(list[int]) is None
    True
    >>> doubt(list)
    'it leaves open what is inside'
    """
    if any(isinstance(part, facts.AnyType) for part in _parts(facts.type_info(hint))):
        return "it leaves open what is inside"
    if any(getattr(get_origin(one) or one, "__module__", "") == "collections.abc" for one in _aliases(hint)):
        return "it is abstract: a tuple and a list are both a Sequence"
    return None


def _aliases(hint: object) -> Iterator[object]:
    yield hint
    for argument in get_args(hint):
        yield from _aliases(argument)


def _parts(root: facts.Type) -> Iterator[facts.Type]:
    """Yield every type inside a type. The description of a recursive class has cycles."""
    seen: set[int] = set()
    ahead: list[object] = [root]
    while ahead:
        one = ahead.pop()
        if isinstance(one, tuple):
            ahead.extend(one)
        elif isinstance(one, facts.Type | facts.Field) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, facts.Type):
                yield one
            ahead.extend(getattr(one, name) for name in one.__struct_fields__ if name not in {"cls", "default"})
