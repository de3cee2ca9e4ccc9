"""What a window keeps for each of its keys, and how values are added to it.

A window without a result yet is a dict from key to contents. `add_all` is where the time goes when records are many:
one loop for each kind of function, without a call of ours per record. Sessions and counts add value by value.
All of this calls user code: the operator wraps it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.task.functions import AggregateFunction
    from headgate.task.operator import Values

__all__ = ["Aggregated", "Contents", "Gathered", "Reduced"]

_MISSING: Any = object()


class Contents(ABC):
    """How the values of a key and window become what is kept of them; without a key function, all have the key None.

    >>> gathered, window = Gathered(key_of=len), {}
    >>> gathered.add_all(window, ["to", "be", "not"]); gathered.add_one(window, "or")
    2
    >>> window
    {2: ['to', 'be', 'or'], 3: ['not']}
    """

    key_of: Callable[[Any], Any] | None

    def keys(self, values: Values) -> Iterable[Any]:
        """The key of each value."""
        return repeat(None, len(values)) if self.key_of is None else map(self.key_of, values)

    @abstractmethod
    def first(self, value: Any) -> Any:
        """What is kept of one value."""

    @abstractmethod
    def more(self, kept: Any, value: Any) -> Any:
        """What is kept with one value more."""

    @abstractmethod
    def merge(self, kept: Any, other: Any) -> Any:
        """What is kept of two windows that have become one."""

    @abstractmethod
    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """Add a batch to a window."""

    def add_one(self, window: dict[Any, Any], value: Any) -> Any:
        """Add one value to a window; returns its key."""
        key = None if self.key_of is None else self.key_of(value)
        kept = window.get(key, _MISSING)
        window[key] = self.first(value) if kept is _MISSING else self.more(kept, value)
        return key


class Reduced(Contents):
    """One value, made of all so far by a function of two.

    >>> reduced, window = Reduced(None, lambda a, b: a + b), {}
    >>> reduced.add_all(window, [1, 2, 3]); window
    {None: 6}
    """

    def __init__(
        self,
        key_of: Callable[[Any], Any] | None,
        function: Callable[[Any, Any], Any],
        own: Callable[[Any], Any] | None = None,
    ) -> None:
        self.key_of = key_of
        self._own = own  # copies a first value that is in several windows: the function may change what it is given
        self._function = function

    def first(self, value: Any) -> Any:
        """The value itself."""
        return value if self._own is None else self._own(value)

    def more(self, kept: Any, value: Any) -> Any:
        """Both as one."""
        return self._function(kept, value)

    def merge(self, kept: Any, other: Any) -> Any:
        """Both as one."""
        return self._function(kept, other)

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `Contents`."""
        function, own = self._function, self._own
        if self.key_of is None:
            if values and None not in window:
                window[None], values = self.first(values[0]), values[1:]
            if values:
                window[None] = reduce(function, values, window[None])
            return
        get = window.get
        missing = _MISSING
        for key, value in zip(map(self.key_of, values), values, strict=False):
            kept = get(key, missing)
            if kept is not missing:
                window[key] = function(kept, value)
            else:
                window[key] = value if own is None else own(value)


class Aggregated(Contents):
    """An accumulator.

    >>> from headgate.task.functions import AggregateFunction
    >>> class Total(AggregateFunction):
    ...     def create_accumulator(self): return 0
    ...     def add(self, value, accumulator): return accumulator + value
    ...     def get_result(self, accumulator): return accumulator
    >>> window = {}
    >>> Aggregated(lambda n: n % 2, Total()).add_all(window, [1, 2, 3]); window
    {1: 4, 0: 2}
    """

    def __init__(self, key_of: Callable[[Any], Any] | None, function: AggregateFunction[Any, Any, Any]) -> None:
        self.key_of = key_of
        self._create, self._add, self._merge = function.create_accumulator, function.add, function.merge

    def first(self, value: Any) -> Any:
        """A new accumulator with the value."""
        return self._add(value, self._create())

    def more(self, kept: Any, value: Any) -> Any:
        """The accumulator with a value more."""
        return self._add(value, kept)

    def merge(self, kept: Any, other: Any) -> Any:
        """Both accumulators as one."""
        return self._merge(kept, other)

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `Contents`."""
        add, create = self._add, self._create
        missing = _MISSING
        if self.key_of is None:
            kept = window.get(None, missing)
            if kept is missing:
                kept = create()
            for value in values:
                kept = add(value, kept)
            window[None] = kept
            return
        get = window.get
        for key, value in zip(map(self.key_of, values), values, strict=False):
            kept = get(key, missing)
            window[key] = add(value, create() if kept is missing else kept)


class Gathered(Contents):
    """A list of all values, in the order in which they came.

    >>> window = {}
    >>> Gathered(lambda n: n % 2).add_all(window, [1, 2, 3]); window
    {1: [1, 3], 0: [2]}
    """

    def __init__(self, key_of: Callable[[Any], Any] | None) -> None:
        self.key_of = key_of

    def first(self, value: Any) -> list[Any]:
        """A list of one."""
        return [value]

    def more(self, kept: list[Any], value: Any) -> list[Any]:
        """The list with a value more."""
        kept.append(value)
        return kept

    def merge(self, kept: list[Any], other: list[Any]) -> list[Any]:
        """One list after the other."""
        kept.extend(other)
        return kept

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `Contents`."""
        if self.key_of is None:
            window.setdefault(None, []).extend(values)
            return
        get = window.get
        for key, value in zip(map(self.key_of, values), values, strict=False):
            kept = get(key)
            if kept is None:
                window[key] = [value]
            else:
                kept.append(value)
