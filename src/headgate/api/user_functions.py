"""Checks of a user's function when it is added: its kind, its name, and the type of its results.

Called once per operator, in the driver. A type hint that cannot be resolved, or that is generic, is ignored: the
stream's records are then pickled.
"""

from __future__ import annotations

import collections.abc
import functools
import types
import typing
from typing import Any, TypeVar, Union, get_args, get_origin

from headgate.functions.basic import Function, OutputTag
from headgate.functions.process import EventFunction

__all__ = ["checked", "operator_name", "result_hint"]

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


def checked(what: str, function: Any, *methods: str) -> Any:
    """Return a user's function if it is callable or a `Function` with these methods; raise TypeError if not.

    >>> checked("map", str.upper, "map") is str.upper
    True
    >>> checked("map", "upper", "map")
    Traceback (most recent call last):
    TypeError: map wants a callable, or a Function with map, not 'upper'
    """
    if isinstance(function, Function) and hasattr(function, "on_event") and not isinstance(function, EventFunction):
        name = type(function).__name__
        raise TypeError(f"{what}: {name}.on_event would not be called: events are received by process functions only")
    fits = all(hasattr(function, name) for name in methods) if isinstance(function, Function) else callable(function)
    if fits and not (isinstance(function, type) and issubclass(function, Function)):
        return function
    hint = ": make an instance of it" if isinstance(function, type) else ""
    raise TypeError(f"{what} wants a callable, or a Function with {' and '.join(methods)}, not {function!r}{hint}")


def operator_name(what: str, function: object) -> str:
    """Return the default name of an operator.

    >>> operator_name("flat_map", str.split), operator_name("map", lambda n: n)
    ('flat_map(split)', 'map')
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return what if name == "<lambda>" else f"{what}({name})"


def result_hint(function: object, *methods: str, element: bool = False, given: object = None) -> object:
    """Return the declared type of a function's results, or None.

    Args:
        function: A callable, a class, or a `Function`, whose `methods` must have the same type.
        methods: The names of the methods.
        element: True if the result is an iterable of records.
        given: The type that the user has passed explicitly; it takes precedence.

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
    """Return the hint, or None if it is generic or unspecific."""
    return None if hint in (None, Any, type(None), object) or _is_generic(hint) else hint


def _is_generic(hint: object) -> bool:
    return isinstance(hint, TypeVar) or any(map(_is_generic, get_args(hint)))


def _element(hint: object) -> object:
    """Return the element type of an iterable type, without side outputs, which are tuples of a tag and a value."""
    kinds = _without(hint, lambda one: one is type(None))
    if len(kinds) != 1:
        return None
    origin, arguments = get_origin(kinds[0]), get_args(kinds[0])
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _known(arguments[0])
    if origin not in _ITERABLES or not arguments:
        return None
    main = _without(arguments[0], _is_side_output)
    return _known(Union[tuple(main)]) if main else None  # noqa: UP007 - a computed union


def _without(hint: object, unwanted: Any) -> list[Any]:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [one for one in kinds if not unwanted(one)]


def _is_side_output(hint: object) -> bool:
    arguments = get_args(hint)
    return get_origin(hint) is tuple and bool(arguments) and (get_origin(arguments[0]) or arguments[0]) is OutputTag
