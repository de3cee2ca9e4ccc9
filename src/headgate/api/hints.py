"""What the type hints of a user's function say about the stream it makes.

Asked once per operator, in the driver. A hint that cannot be resolved, or leaves something open, says nothing: the
stream's records are then pickled.
"""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from typing import Any, TypeVar, Union, get_args, get_origin

from headgate.task.functions import Function, OutputTag

__all__ = ["result_hint"]

_ITERABLES = (
    collections.abc.AsyncIterable,
    collections.abc.AsyncIterator,
    collections.abc.Collection,
    collections.abc.Generator,
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Sequence,
    collections.abc.Set,
    frozenset,
    list,
    set,
)


def result_hint(function: object, *methods: str, element: bool = False, given: object = None) -> object:
    """The declared type of what a function gives out, or None.

    Args:
        function: A callable, a class, or a `Function` whose `methods` are asked; they must agree.
        methods: Their names.
        element: Whether it gives out an iterable of records rather than one record.
        given: What the user has said in so many words; it wins.

    >>> def parse(line: str) -> tuple[str, int]: ...
    >>> def words(line: str) -> list[str]: ...
    >>> result_hint(parse, "map"), result_hint(words, "flat_map", element=True), result_hint(len, "map")
    (tuple[str, int], <class 'str'>, None)
    """
    if given is not None:
        return given
    if isinstance(function, type):
        return None if element or function is type or issubclass(function, Function) else function
    asked = [getattr(type(function), name, None) for name in methods] if isinstance(function, Function) else [function]
    hints = [_element(hint) if element else _known(hint) for hint in map(_returned, asked)]
    return hints[0] if all(hint == hints[0] for hint in hints) else None


def _returned(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its hints are wanted, not its call
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 - a hint may name anything, and evaluating it may raise anything
        return None


def _known(hint: object) -> object:
    """The hint, unless it leaves something open."""
    return None if hint in (None, Any, type(None), object) or _open(hint) else hint


def _open(hint: object) -> bool:
    return isinstance(hint, TypeVar) or any(map(_open, get_args(hint)))


def _element(hint: object) -> object:
    """What an iterable of this type is made of; side outputs, which are tuples of a tag and a value, do not count."""
    kinds = _without(hint, lambda one: one is type(None))
    if len(kinds) != 1:
        return None
    origin, arguments = get_origin(kinds[0]), get_args(kinds[0])
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _known(arguments[0])
    if origin not in _ITERABLES or not arguments:
        return None
    main = _without(arguments[0], _is_side_output)
    return _known(Union[tuple(main)]) if main else None  # noqa: UP007 - made of what is left


def _without(hint: object, unwanted: Any) -> list[Any]:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [one for one in kinds if not unwanted(one)]


def _is_side_output(hint: object) -> bool:
    arguments = get_args(hint)
    return get_origin(hint) is tuple and bool(arguments) and (get_origin(arguments[0]) or arguments[0]) is OutputTag
