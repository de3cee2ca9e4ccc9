"""Operators after `key_by`: running aggregates, and functions with state and timers. Called on the task's thread.

A running aggregate emits one value for each input value, with its time: the aggregate of the key so far. It is the
inner loop of many pipelines, so it is one loop over the batch with a dict.

Invariants: all values of a key are processed by the same subtask. A mutable aggregate is copied before it is emitted
(unless `execution.object_reuse` is on), because a function may change its accumulator in place.
"""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any, Literal

from headgate.functions.basic import method_of
from headgate.functions.state import KeyedState
from headgate.record.copying import ATOMIC, copied
from headgate.task.operator import Operator
from headgate.task.operators.basic import FunctionOperator
from headgate.task.operators.context import KeyedProcessOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.task.operator import Times, Values

__all__ = ["How", "KeyedAggregateField", "KeyedCount", "KeyedProcess", "KeyedReduce", "aggregate_field"]

How = Literal["sum", "min", "max", "min_by", "max_by"]
"""The aggregates of a field."""

_MISSING: Any = object()
_NUMBERS = frozenset({int, float})


class KeyedReduce(FunctionOperator):
    """Merges the values of each key by a function, and emits the result so far.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(KeyedReduce(lambda pair: pair[0], lambda a, b: (a[0], a[1] + b[1]))) as harness:
    ...     harness.process([("to", 1), ("be", 1), ("to", 1)])
    >>> harness.values
    [('to', 1), ('be', 1), ('to', 2)]
    """

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key = key
        self._kept: dict[Hashable, Any] = {}
        self._state = KeyedState()

    def keyed_state(self) -> KeyedState:
        """Return the state that the function may use."""
        return self._state

    def in_batch(self) -> Operator:
        """Return the operator that emits only the last result of each key."""
        from headgate.task.batch.fold import LastReduce  # noqa: PLC0415 - only BATCH needs it

        return LastReduce(self._key, self.function)

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._reduce = method_of(self.function, "reduce")
        if self._state.settle():
            self._reduce = self._state.keyed(self._reduce, self._key)

    def process(self, values: Values, times: Times) -> None:
        """Merge each value into the result of its key, and emit that."""
        kept, reduce, missing, atomic = self._kept, self._reduce, _MISSING, ATOMIC
        reduced: Values = []
        get, append = kept.get, reduced.append
        if self.place.object_reuse:
            with self.user_code():
                for key, value in zip(map(self._key, values), values, strict=True):
                    before = get(key, missing)
                    kept[key] = now = value if before is missing else reduce(before, value)
                    append(now)
        else:
            with self.user_code():
                for key, value in zip(map(self._key, values), values, strict=True):
                    before = get(key, missing)
                    kept[key] = now = value if before is missing else reduce(before, value)
                    kind = type(now)
                    # The condition repeats `copied` for the most frequent types: a call per value costs a third more.
                    if kind in atomic or (
                        kind is tuple and len(now) == 2 and type(now[0]) in atomic and type(now[1]) in atomic
                    ):
                        append(now)
                    else:
                        append(copied(now))
        self.out.emit(reduced, times)


class KeyedCount(Operator):
    """Emits the number of values of each key so far: `(key, n)`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(KeyedCount(str.lower)) as harness:
    ...     harness.process(["To", "be", "to"])
    >>> harness.values
    [('to', 1), ('be', 1), ('to', 2)]
    """

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        self._key = key
        self._counts: dict[Hashable, int] = {}

    def in_batch(self) -> Operator:
        """Return the operator that emits only the last count of each key."""
        from headgate.task.batch.fold import LastCount  # noqa: PLC0415 - only BATCH needs it

        return LastCount(self._key)

    def process(self, values: Values, times: Times) -> None:
        """Emit the count of each value's key."""
        counts = self._counts
        counted: Values = []
        get, append = counts.get, counted.append
        with self.user_code():
            for key in self.call_each(self._key, values):
                counts[key] = n = get(key, 0) + 1
                append((key, n))
        self.out.emit(counted, times)


class KeyedAggregateField(KeyedReduce):
    """The sum, minimum or maximum of a field over the values of each key so far: see `aggregate_field`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(KeyedAggregateField(lambda row: row["name"], "paid", "sum")) as harness:
    ...     harness.process([{"name": "Ann", "paid": 3}, {"name": "Ann", "paid": 4}])
    >>> harness.values
    [{'name': 'Ann', 'paid': 3}, {'name': 'Ann', 'paid': 7}]
    """

    def __init__(self, key: Callable[[Any], Hashable], field: int | str | None, how: How) -> None:
        super().__init__(key, aggregate_field(field, how))


class KeyedProcess(KeyedProcessOperator):
    """Calls a function with state and timers of each key: a `KeyedProcessFunction`, or `f(value, context)`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> def at_odd_times(value, ctx):
    ...     if ctx.timestamp() % 2:
    ...         yield ctx.get_current_key(), value
    >>> with OperatorHarness(KeyedProcess(len, at_odd_times)) as harness:
    ...     harness.process(["to", "not"], [10, 11])
    >>> harness.timed
    [((3, 'not'), 11)]
    """

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key = key

    def in_batch(self) -> Operator:
        """Return the operator that processes one key after the other."""
        from headgate.task.batch.keyed import Grouped  # noqa: PLC0415 - only BATCH needs it

        return Grouped(self, self._key)

    def open(self) -> None:
        """See `KeyedProcessOperator`."""
        super().open()
        self.calls = (method_of(self.function, "process_element"),)

    def process(self, values: Values, times: Times) -> None:
        """Call the function for each value, with its key set."""
        self.run_keyed(self.calls[0], self._key, values, times)


def aggregate_field(field: int | str | None, how: How) -> Callable[[Any, Any], Any]:
    """Return a function that reduces two values by one of their fields.

    A field is an index, an attribute or the key of a dict. None is the first field of a tuple or list, and the whole of
    any other value, such as a number. With `sum`, `min` and `max` the function returns the first value with that field
    replaced; with `min_by` and `max_by` the value with the least or greatest field, the first of several.

    Raises (the returned function):
        TypeError: No field is named, and the values do not support the operation.

    >>> a, b = ("Ann", 3), ("Bob", 4)
    >>> aggregate_field(1, "sum")(a, b), aggregate_field(1, "max")(a, b), aggregate_field(1, "max_by")(a, b)
    (('Ann', 7), ('Ann', 4), ('Bob', 4))
    """
    if how not in _COMPARISONS and how != "sum":
        raise ValueError(f"no aggregate {how!r}: there are sum, min, max, min_by and max_by")
    if field is None:
        return _first_or_whole(how)
    get = operator.itemgetter(field) if isinstance(field, int) else _FieldGetter(field)
    if how == "sum":
        return _sum_at(field) if isinstance(field, int) else lambda a, b: _replaced(a, field, get(a) + get(b))
    better, _ = _COMPARISONS[how]
    if how.endswith("_by"):
        return lambda a, b: b if better(get(b), get(a)) else a
    return lambda a, b: _replaced(a, field, get(b)) if better(get(b), get(a)) else a


_COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], Any]]] = {
    "min": (operator.lt, min),
    "min_by": (operator.lt, min),
    "max": (operator.gt, max),
    "max_by": (operator.gt, max),
}


def _first_or_whole(how: How) -> Callable[[Any, Any], Any]:
    """Return the function that reduces two values if no field is named."""
    whole = operator.add if how == "sum" else _COMPARISONS[how][1]
    at_first = aggregate_field(0, how)

    def reduced(a: Any, b: Any) -> Any:
        if type(a) in _NUMBERS:  # the most frequent types, so the first test
            return whole(a, b)
        if isinstance(a, (tuple, list)):  # `tuple | list` would create a union for each record
            return at_first(a, b)
        try:
            return whole(a, b)
        except TypeError as error:
            raise TypeError(
                f"{how}() has no field to look at in a {type(a).__name__} ({error}): name the field: {how}('price')"
            ) from error

    return reduced


def _sum_at(index: int) -> Callable[[Any, Any], Any]:
    after = index + 1 or None  # -1 is the last

    def add(a: Any, b: Any) -> Any:
        total = a[index] + b[index]
        return (*a[:index], total, *a[after:]) if type(a) is tuple else _replaced(a, index, total)

    return add


class _FieldGetter:
    """Returns a field of a value by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, value: Any) -> Any:
        return value[self._name] if isinstance(value, dict) else getattr(value, self._name)


def _replaced(value: Any, field: int | str, new: Any) -> Any:
    """Return a copy of a value with one field replaced."""
    if isinstance(field, int):
        if type(value) is tuple:
            return (*value[:field], new, *value[field + 1 or len(value) :])
        items = list(value)
        items[field] = new
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {**value, field: new}
    if hasattr(value, "_replace"):
        return value._replace(**{field: new})
    return _with_attribute(value, field, new)


def _with_attribute(value: Any, name: str, new: Any) -> Any:
    fresh = copy.copy(value)
    config = getattr(value, "__struct_config__", None) or getattr(value, "__dataclass_params__", None)
    if config is not None and config.frozen:
        if hasattr(value, "__struct_config__"):
            import msgspec  # noqa: PLC0415 - imported already, by the value's module

            return msgspec.structs.replace(value, **{name: new})
        object.__setattr__(fresh, name, new)
    else:
        setattr(fresh, name, new)
    return fresh
