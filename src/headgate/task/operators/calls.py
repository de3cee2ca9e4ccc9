"""Calls of a user's function for each value of a batch. Used on the task's thread, inside `user_code`.

A function may return the same object in every call and change it between calls. Flink copies every record at every hop;
headgate copies a result only if a change is possible:

- A result of an immutable type (`copying.ATOMIC`, tuples of these) is not copied.
- A result of a function that cannot keep a reference between calls (`retains_nothing`) is not copied.
- With `execution.object_reuse` nothing is copied.

Results are taken one by one: each is copied before the next call of the function. The loop consists of C iterators and
one list comprehension (`copying.owned`), because a Python call per record would cost more than the copy saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, compress, repeat
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final

from headgate.record.copying import ATOMIC, copied_batch, owned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.task.operator import Times, Values

__all__ = ["Gather", "filtered", "flat_mapped", "gather_for", "gather_items_for", "mapped", "retains_nothing"]

_STOPPED: Final = "the function raised StopIteration: `next` without a default, perhaps"

_BUILTINS: Final = frozenset(
    {
        "abs", "bool", "bytes", "chr", "dict", "divmod", "float", "frozenset", "hash", "int", "isinstance", "len",
        "list", "max", "min", "ord", "range", "repr", "round", "set", "sorted", "str", "sum", "tuple",
    }
)  # fmt: skip
_ATTRIBUTES: Final = frozenset({"get", "items", "keys", "values"}).union(
    name for kind in ATOMIC for name in dir(kind) if not name.startswith("_")
)  # `split`, `lower`, `year` ...: the attributes of immutable types
_CO_GENERATOR: Final = 0x20 | 0x80 | 0x200  # generators, coroutines, asynchronous generators

Gather = Callable[[Iterable[Any]], list[Any]]
"""Returns an iterable's items as a list: `list`, or `owned` if they must be copied."""


def gather_for(function: Any, *, object_reuse: bool) -> Gather:
    """Return the `Gather` for the results of a user's function: `list` if no copies are needed, otherwise `owned`.

    >>> gather_for(str.upper, object_reuse=False) is list, gather_for(print, object_reuse=False) is owned
    (True, True)
    """
    return list if object_reuse or retains_nothing(function) else owned


def gather_items_for(function: Any, *, object_reuse: bool) -> Gather:
    """Return the `Gather` for the items of a user function's results, if one result has many.

    A function that retains nothing may still return one object twice in a list. No later call changes that object, so
    the items are checked and copied together, after all calls.

    >>> gather_items_for(str.split, object_reuse=False) is list, gather_items_for(list, object_reuse=False)([[1]])
    (True, [[1]])
    """
    if object_reuse or (isinstance(function, MethodDescriptorType) and function.__objclass__ in {str, bytes}):
        return list
    return _copied_after if retains_nothing(function) else owned


def _copied_after(items: Iterable[Any]) -> list[Any]:
    return copied_batch(list(items))


def mapped(function: Callable[[Any], Any], values: Sequence[Any], gather: Gather) -> Values:
    """Return the function's result for each value.

    Raises:
        RuntimeError: The function raised StopIteration, which `map` treats as the end of the batch.

    >>> mapped(str.upper, ["to", "be"], list)
    ['TO', 'BE']
    """
    results = gather(map(function, values))
    if len(results) != len(values):
        raise RuntimeError(_STOPPED)
    return results


def flat_mapped(function: Callable[[Any], Any], values: Values, times: Times, gather: Gather) -> tuple[Values, Times]:
    """Return all items of the function's results, each with the time of its input value.

    Raises:
        RuntimeError: The function raised StopIteration.

    >>> flat_mapped(str.split, ["to be", "or"], [1, 2], list)
    (['to', 'be', 'or'], [1, 1, 2])
    """
    if times is None:
        end = _End()
        flat = gather(chain.from_iterable(map(function, chain(values, end))))
        if not end.reached:
            raise RuntimeError(_STOPPED)
        return flat, None
    flat, drawn = [], 0
    flat_times: list[int] = []
    for items, time in zip(map(function, values), times, strict=False):
        drawn, before = drawn + 1, len(flat)
        flat += gather(items)
        flat_times.extend(repeat(time, len(flat) - before))
    if drawn != len(values):
        raise RuntimeError(_STOPPED)
    return flat, flat_times


def filtered(function: Callable[[Any], Any], values: Values, times: Times, gather: Gather) -> tuple[Values, Times]:
    """Return the values for which the function returns a true value, with their times.

    Raises:
        RuntimeError: The function raised StopIteration.

    >>> filtered(str.isalpha, ["to", "2"], [1, 2], list)
    (['to'], [1])
    """
    selectors: list[Any] = []
    call = function if times is None else _recording(function, selectors.append)
    end = _End()
    # `compress` takes a value first and then its selector: it reaches `end` only after the last call.
    kept = gather(compress(chain(values, end), map(call, values)))
    if not end.reached:
        raise RuntimeError(_STOPPED)
    return kept, None if times is None else list(compress(times, selectors))


def _recording(function: Callable[[Any], Any], record: Callable[[Any], object]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        result = function(value)
        record(result)
        return result

    return call


class _End:
    """An empty iterable after the last value of a batch: `reached` once an iterator has requested one value more."""

    __slots__ = ("reached",)

    def __init__(self) -> None:
        self.reached = False

    def __iter__(self) -> Iterator[Any]:
        self.reached = True
        return iter(())


def retains_nothing(function: Any) -> bool:
    """Return True if a function cannot keep a reference to a result until its next call.

    True for methods of `str`, `int` and other immutable types, for some built-in functions, and for a Python function
    without outer variables: no closure, no mutable default, no global except those built-in functions, and no attribute
    except those of immutable types and dicts (`line.split()`, `row.get("n")`). These attributes, and operators
    (`a + b`, `a[i]`), are assumed not to return an object of another record, also if the user's class defines them.
    False for every other callable.

    >>> counts = {}
    >>> retains_nothing(lambda word: (word, 1)), retains_nothing(str.split), retains_nothing(lambda word: counts)
    (True, True, False)
    """
    if isinstance(function, MethodDescriptorType):
        return function.__objclass__ in ATOMIC
    if isinstance(function, BuiltinFunctionType | type):
        return function.__module__ == "builtins" and function.__name__ in _BUILTINS
    if not isinstance(function, FunctionType) or function.__closure__ is not None or function.__kwdefaults__:
        return False
    if not ATOMIC.issuperset(map(type, function.__defaults__ or ())):
        return False
    return _uses_no_outer_names(function.__code__, function.__globals__)


def _uses_no_outer_names(code: CodeType, global_names: dict[str, Any]) -> bool:
    """Return True if a function's code uses only the built-in functions and attributes that `retains_nothing` lists."""
    names = code.co_names
    if code.co_flags & _CO_GENERATOR or not global_names.keys().isdisjoint(names):
        return False
    if any(name not in _BUILTINS and name not in _ATTRIBUTES for name in names):
        return False
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return all(_uses_no_outer_names(one, global_names) for one in inner)
