"""Does a value come back as it was sent? Pure questions that serializers ask, none of them per record.

`change` compares a value with what the decoder made of it, strictly by type; serializers call it on samples.
`closed_to` and `doubt` look at a declared type once, when a serializer is chosen. Error texts built from
here name types, never values: a record may hold what nobody should read in a log.
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
    """What error texts call the type of a value.

    >>> type_name(1), type_name(dt.date(2024, 2, 29))
    ('int', 'datetime.date')
    """
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def change(sent: object, got: object) -> str | None:
    """How `got` differs from `sent`, or None when a user could not tell them apart.

    One difference is let pass: an int where a float was declared arrives as the equal float, as Python's
    own type rules allow.

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
    """The difference between two values of one type whose parts are the same."""
    if isinstance(sent, dt.datetime | dt.time) and isinstance(got, dt.datetime | dt.time):
        # Equal moments may still show different clock faces.
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
    """The first difference between the parts of two containers of one type."""
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
    """Why typed msgpack cannot carry values of a declared type at all, or None when it can.

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
            # Raw and memoryview would point into a buffer that is about to be used again.
            return f"{type(part).__name__.removesuffix('Type')} values would refer to the received buffer"
    return None


def doubt(hint: object) -> str | None:
    """Why values of a type that msgpack can carry may come back different, or None when none can.

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
    """Every type inside a type; the description of a recursive class has cycles."""
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
