"""WindowContents: the data that a window keeps for each of its keys, and how values are added to it.

An open window is a dict from key to contents. `add_all` is the hot path: one loop for each kind of function, without a
call of headgate's code per record. Sessions and count windows add value by value. All methods call user code inside
the operator's `user_code` block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import reduce
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.functions.basic import AggregateFunction
    from headgate.task.operator import Values

__all__ = ["AggregatedContents", "ListedContents", "ReducedContents", "WindowContents"]

_MISSING: Any = object()


class WindowContents(ABC):
    """Adds values to the contents of a key and window; without a key function, all values have the key None.

    >>> contents, window = ListedContents(key_of=len), {}
    >>> contents.add_all(window, ["to", "be", "not"]); contents.add_one(window, "or")
    2
    >>> window
    {2: ['to', 'be', 'or'], 3: ['not']}
    """

    key_of: Callable[[Any], Any] | None

    def keys(self, values: Values) -> Iterable[Any]:
        """Return the key of each value."""
        return repeat(None, len(values)) if self.key_of is None else map(self.key_of, values)

    @abstractmethod
    def first(self, value: Any) -> Any:
        """Return the contents of one value."""

    @abstractmethod
    def more(self, kept: Any, value: Any) -> Any:
        """Return the contents with one more value."""

    @abstractmethod
    def merge(self, kept: Any, other: Any) -> Any:
        """Return the contents of two merged windows."""

    @abstractmethod
    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """Add a batch to a window."""

    def add_one(self, window: dict[Any, Any], value: Any) -> Any:
        """Add one value to a window. Return its key."""
        key = None if self.key_of is None else self.key_of(value)
        kept = window.get(key, _MISSING)
        window[key] = self.first(value) if kept is _MISSING else self.more(kept, value)
        return key


class ReducedContents(WindowContents):
    """One value, into which a function merges each value.

    >>> reduced, window = ReducedContents(None, lambda a, b: a + b), {}
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
        self._own = own  # copies a first value that is in several windows, because the function may change it
        self._function = function

    def first(self, value: Any) -> Any:
        """Return the value itself, or its copy."""
        return value if self._own is None else self._own(value)

    def more(self, kept: Any, value: Any) -> Any:
        """Return both merged."""
        return self._function(kept, value)

    def merge(self, kept: Any, other: Any) -> Any:
        """Return both merged."""
        return self._function(kept, other)

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `WindowContents`."""
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


class AggregatedContents(WindowContents):
    """An accumulator.

    >>> from headgate.functions.basic import AggregateFunction
    >>> class Total(AggregateFunction):
    ...     def create_accumulator(self): return 0
    ...     def add(self, value, accumulator): return accumulator + value
    ...     def get_result(self, accumulator): return accumulator
    >>> window = {}
    >>> AggregatedContents(lambda n: n % 2, Total()).add_all(window, [1, 2, 3]); window
    {1: 4, 0: 2}
    """

    def __init__(self, key_of: Callable[[Any], Any] | None, function: AggregateFunction[Any, Any, Any]) -> None:
        self.key_of = key_of
        self._create, self._add, self._merge = function.create_accumulator, function.add, function.merge

    def first(self, value: Any) -> Any:
        """Return a new accumulator with the value."""
        return self._add(value, self._create())

    def more(self, kept: Any, value: Any) -> Any:
        """Return the accumulator with the value added."""
        return self._add(value, kept)

    def merge(self, kept: Any, other: Any) -> Any:
        """Return both accumulators merged."""
        return self._merge(kept, other)

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `WindowContents`."""
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


class ListedContents(WindowContents):
    """A list of all values, in the order of arrival.

    >>> window = {}
    >>> ListedContents(lambda n: n % 2).add_all(window, [1, 2, 3]); window
    {1: [1, 3], 0: [2]}
    """

    def __init__(self, key_of: Callable[[Any], Any] | None) -> None:
        self.key_of = key_of

    def first(self, value: Any) -> list[Any]:
        """Return a list of one value."""
        return [value]

    def more(self, kept: list[Any], value: Any) -> list[Any]:
        """Return the list with the value appended."""
        kept.append(value)
        return kept

    def merge(self, kept: list[Any], other: list[Any]) -> list[Any]:
        """Return both lists concatenated."""
        kept.extend(other)
        return kept

    def add_all(self, window: dict[Any, Any], values: Values) -> None:
        """See `WindowContents`."""
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
