"""State of keys: what functions after `key_by` remember, each key's apart from all others'.

Used on the task's thread only. The operator sets `KeyedState.key` before it calls the user's code; every state object
then speaks of that key. The names are PyFlink's.

Invariants: a key that was cleared, or whose last element was removed, has no entry; a name stands for one state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.task.basic import method_of
from headgate.task.copying import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["KeyedState", "ListState", "MapState", "ReducingState", "ValueState"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class _NoKey:
    """Stands where no key is at hand; looking it up says so, and finding a key costs nothing extra."""

    def __hash__(self) -> int:
        raise TypeError("state and timers belong to the key of a value, and no value is at hand, as in open and close")


class _State:
    """What all states share: one dict, by key."""

    __slots__ = ("_entries", "_of")

    def __init__(self, of: KeyedState) -> None:
        self._of = of
        self._entries: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Forget what was remembered of this key."""
        self._entries.pop(self._of.key, None)


class ValueState(_State, Generic[T]):
    """One value per key.

    >>> state = KeyedState(); count = state.value("count", 0)
    >>> state.key = "to"; count.update(count.value() + 1)
    >>> state.key = "be"; count.value()
    0
    """

    __slots__ = ("_default", "_shared")

    def __init__(self, of: KeyedState, default: T | None = None) -> None:
        super().__init__(of)
        self._default = default
        self._shared = copied(default) is default  # or each who asks gets one of its own

    def value(self) -> T | None:
        """The key's value; the default if it has none."""
        found: T | None = self._entries.get(self._of.key, _MISSING)
        if found is _MISSING:
            return self._default if self._shared else copied(self._default)
        return found

    def update(self, value: T) -> None:
        """Remember another value."""
        self._entries[self._of.key] = value


class ListState(_State, Generic[T]):
    """One list per key.

    >>> state = KeyedState(); state.key = "to"; seen = state.list("seen")
    >>> seen.add(1); seen.add_all([2, 3]); seen.get()
    [1, 2, 3]
    >>> seen.clear(); seen.get()
    []
    """

    __slots__ = ()

    def get(self) -> list[T]:
        """The key's list, as it is now: a list of the caller's own."""
        return list(self._entries.get(self._of.key, ()))

    def __len__(self) -> int:
        return len(self._entries.get(self._of.key, ()))

    def add(self, value: T) -> None:
        """Append a value."""
        entries, key = self._entries, self._of.key
        if key in entries:
            entries[key].append(value)
        else:
            entries[key] = [value]

    def add_all(self, values: Iterable[T]) -> None:
        """Append values."""
        fresh = list(values)
        before = self._entries.get(self._of.key)
        if before is not None:
            before.extend(fresh)
        elif fresh:
            self._entries[self._of.key] = fresh

    def update(self, values: Iterable[T]) -> None:
        """Remember other values instead."""
        fresh = list(values)
        if fresh:
            self._entries[self._of.key] = fresh
        else:
            self.clear()


class MapState(_State, Generic[K, V]):
    """One map per key.

    >>> state = KeyedState(); state.key = "cart"; items = state.map("items")
    >>> items.put("apples", 3); items.put("pears", 1); items.remove("pears")
    >>> items.items(), "pears" in items, items.get("pears")
    ([('apples', 3)], False, None)
    """

    __slots__ = ()

    def get(self, name: K, default: V | None = None) -> V | None:
        """The value of a name; the default if the map does not have it."""
        found: V | None = self._map().get(name, default)
        return found

    def put(self, name: K, value: V) -> None:
        """Remember a value by its name."""
        entries, key = self._entries, self._of.key
        if key in entries:
            entries[key][name] = value
        else:
            entries[key] = {name: value}

    def put_all(self, items: dict[K, V] | Iterable[tuple[K, V]]) -> None:
        """Remember several values."""
        merged = {**self._map(), **dict(items)}
        if merged:
            self._entries[self._of.key] = merged

    def remove(self, name: K) -> None:
        """Forget a name, if the map has it."""
        found = self._map()
        found.pop(name, None)
        if not found:
            self.clear()

    def contains(self, name: K) -> bool:
        """Whether the map has a name."""
        return name in self._map()

    def __contains__(self, name: K) -> bool:
        return name in self._map()

    def is_empty(self) -> bool:
        """Whether the map has no name."""
        return not self._map()

    def items(self) -> list[tuple[K, V]]:
        """Names and values, as they are now: the map may change meanwhile."""
        return list(self._map().items())

    def keys(self) -> list[K]:
        """The names, as they are now."""
        return list(self._map())

    def values(self) -> list[V]:
        """The values, as they are now."""
        return list(self._map().values())

    def _map(self) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._entries.get(self._of.key)
        return {} if found is None else found


class ReducingState(_State, Generic[T]):
    """One value per key, to which others are added by a function.

    >>> state = KeyedState(); state.key = "to"; best = state.reducing("best", max)
    >>> best.get()
    >>> best.add(3); best.add(2); best.get()
    3
    """

    __slots__ = ("_reduce",)

    def __init__(self, of: KeyedState, function: Any) -> None:
        super().__init__(of)
        self._reduce: Callable[[T, T], T] = method_of(function, "reduce")

    def get(self) -> T | None:
        """All that was added, as one value; None if nothing was."""
        return self._entries.get(self._of.key)

    def add(self, value: T) -> None:
        """Add a value."""
        entries, key = self._entries, self._of.key
        before = entries.get(key, _MISSING)
        entries[key] = value if before is _MISSING else self._reduce(before, value)


class KeyedState:
    """All states of one operator; `key` is the key that they speak of.

    >>> state = KeyedState()
    >>> state.value("total") is state.value("total")
    True
    >>> state.list("total")
    Traceback (most recent call last):
    TypeError: state 'total' is a ValueState already: it cannot be a ListState, too
    """

    __slots__ = ("_by_name", "key")

    def __init__(self) -> None:
        self.key: Hashable = _NoKey()
        self._by_name: dict[str, _State] = {}

    def value(self, name: str, default: Any = None) -> ValueState[Any]:
        """The state of a name: one value per key."""
        found: ValueState[Any] = self._find(name, ValueState, default)
        return found

    def list(self, name: str) -> ListState[Any]:
        """The state of a name: one list per key."""
        found: ListState[Any] = self._find(name, ListState)
        return found

    def map(self, name: str) -> MapState[Any, Any]:
        """The state of a name: one map per key."""
        found: MapState[Any, Any] = self._find(name, MapState)
        return found

    def reducing(self, name: str, function: Any) -> ReducingState[Any]:
        """The state of a name: one value per key, to which others are added."""
        found: ReducingState[Any] = self._find(name, ReducingState, function)
        return found

    def forget(self) -> None:
        """Remember nothing of any key."""
        for state in self._by_name.values():
            state._entries.clear()

    def entries(self) -> dict[str, int]:
        """How many keys each state remembers something of."""
        return {name: len(state._entries) for name, state in self._by_name.items()}

    def _find(self, name: str, kind: type[Any], *how: Any) -> Any:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = kind(self, *how)
        elif type(found) is not kind:
            raise TypeError(f"state {name!r} is a {type(found).__name__} already: it cannot be a {kind.__name__}, too")
        return found
