"""Operators after `key_by`: running aggregates, and functions with state and timers. Called on the task's thread.

The running aggregates give out one value for each that comes in, with its time: the aggregate of its key so far. They
are the inner loop of many pipelines, so they are one loop over the batch with a dict.

Invariants: all values of a key come to the same subtask; what is given out is not what is kept, where it can be changed
(unless `execution.object_reuse` is on), for a function may change its accumulator in place.
"""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any, Literal

from headgate.task.basic import FunctionOperator, method_of
from headgate.task.context import KeyedProcessOperator
from headgate.task.copying import ATOMIC, copied
from headgate.task.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.task.operator import Times, Values

__all__ = ["How", "KeyedAggregateField", "KeyedCount", "KeyedProcess", "KeyedReduce", "aggregate_field"]

How = Literal["sum", "min", "max", "min_by", "max_by"]
"""The aggregates of a field."""

_MISSING: Any = object()


class KeyedReduce(FunctionOperator):
    """The values of each key so far, made one by a function.

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

    def in_batch(self) -> Operator:
        """Only the last value of each key."""
        from headgate.task.batch_fold import LastReduce  # noqa: PLC0415 - STREAMING does without

        return LastReduce(self._key, self.function)

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._reduce = method_of(self.function, "reduce")

    def process(self, values: Values, times: Times) -> None:
        """Add each value to what is kept of its key."""
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
                    # `copied` says the same, but a call for each value would cost a third of this loop's time.
                    if kind in atomic or (
                        kind is tuple and len(now) == 2 and type(now[0]) in atomic and type(now[1]) in atomic
                    ):
                        append(now)
                    else:
                        append(copied(now))
        self.out.emit(reduced, times)


class KeyedCount(Operator):
    """How many values each key has had so far: `(key, n)`.

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
        """Only the last value of each key."""
        from headgate.task.batch_fold import LastCount  # noqa: PLC0415 - STREAMING does without

        return LastCount(self._key)

    def process(self, values: Values, times: Times) -> None:
        """Count each value."""
        counts = self._counts
        counted: Values = []
        get, append = counts.get, counted.append
        with self.user_code():
            for key in self.answers(self._key, values):
                counts[key] = n = get(key, 0) + 1
                append((key, n))
        self.out.emit(counted, times)


class KeyedAggregateField(KeyedReduce):
    """The sum, minimum or maximum of a field over the values of each key so far: see `aggregate_field`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(KeyedAggregateField(lambda row: row["who"], "paid", "sum")) as harness:
    ...     harness.process([{"who": "Ann", "paid": 3}, {"who": "Ann", "paid": 4}])
    >>> harness.values
    [{'who': 'Ann', 'paid': 3}, {'who': 'Ann', 'paid': 7}]
    """

    def __init__(self, key: Callable[[Any], Hashable], field: int | str | None, how: How) -> None:
        super().__init__(key, aggregate_field(field, how))


class KeyedProcess(KeyedProcessOperator):
    """A function with state and timers of each key: a `KeyedProcessFunction`, or `f(value, context)`.

    >>> from headgate.testing.harness import OperatorHarness
    >>> def second_of_each_time(value, ctx):
    ...     if ctx.timestamp() % 2:
    ...         yield ctx.get_current_key(), value
    >>> with OperatorHarness(KeyedProcess(len, second_of_each_time)) as harness:
    ...     harness.process(["to", "not"], [10, 11])
    >>> harness.timed
    [((3, 'not'), 11)]
    """

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key = key

    def in_batch(self) -> Operator:
        """One key after the other."""
        from headgate.task.batch_keyed import Grouped  # noqa: PLC0415 - STREAMING does without

        return Grouped(self, self._key)

    def open(self) -> None:
        """See `KeyedProcessOperator`."""
        super().open()
        self.calls = (method_of(self.function, "process_element"),)

    def process(self, values: Values, times: Times) -> None:
        """Call the function for each value, with its key at hand."""
        self.run_keyed(self.calls[0], self._key, values, times)


def aggregate_field(field: int | str | None, how: How) -> Callable[[Any, Any], Any]:
    """The function that reduces two values by one of their fields.

    A field is an index, an attribute or the key of a dict, or None for the value itself. `sum`, `min` and `max` give
    the first value with that field replaced; `min_by` and `max_by` the value that has it, the first of several.

    >>> a, b = ("Ann", 3), ("Bob", 4)
    >>> aggregate_field(1, "sum")(a, b), aggregate_field(1, "max")(a, b), aggregate_field(1, "max_by")(a, b)
    (('Ann', 7), ('Ann', 4), ('Bob', 4))
    """
    if how not in _CHOICES and how != "sum":
        raise ValueError(f"no aggregate {how!r}: there are sum, min, max, min_by and max_by")
    if field is None:
        return operator.add if how == "sum" else _CHOICES[how][1]
    get = operator.itemgetter(field) if isinstance(field, int) else _Named(field)
    if how == "sum":
        return _sum_at(field) if isinstance(field, int) else lambda a, b: _replaced(a, field, get(a) + get(b))
    better, _ = _CHOICES[how]
    if how.endswith("_by"):
        return lambda a, b: b if better(get(b), get(a)) else a
    return lambda a, b: _replaced(a, field, get(b)) if better(get(b), get(a)) else a


_CHOICES: dict[str, tuple[Callable[[Any, Any], bool], Callable[[Any, Any], Any]]] = {
    "min": (operator.lt, min),
    "min_by": (operator.lt, min),
    "max": (operator.gt, max),
    "max_by": (operator.gt, max),
}


def _sum_at(index: int) -> Callable[[Any, Any], Any]:
    after = index + 1 or None  # -1 is the last

    def add(a: Any, b: Any) -> Any:
        total = a[index] + b[index]
        return (*a[:index], total, *a[after:]) if type(a) is tuple else _replaced(a, index, total)

    return add


class _Named:
    """Gets a field by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, value: Any) -> Any:
        return value[self._name] if isinstance(value, dict) else getattr(value, self._name)


def _replaced(value: Any, field: int | str, new: Any) -> Any:
    """A value like another, but for one field."""
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
            import msgspec  # noqa: PLC0415 - the value's own library

            return msgspec.structs.replace(value, **{name: new})
        object.__setattr__(fresh, name, new)
    else:
        setattr(fresh, name, new)
    return fresh
