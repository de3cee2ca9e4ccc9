"""Keyed state: the values that functions after `key_by` keep, separately for each key.

Used on the task's thread only. The operator sets `KeyedState.key` before it calls the user's code; every state object
then refers to that key. The names are PyFlink's.

Invariants: a key that was cleared, or whose last element was removed, has no entry; a name belongs to one state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.functions.basic import method_of
from headgate.record.copying import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["KeyedState", "ListState", "MapState", "ReducingState", "ValueState"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()


class _NoKey:
    """The key while no value is processed: a lookup raises here, so that lookups of real keys need no check."""

    def __hash__(self) -> int:
        raise TypeError(
            "state and timers belong to the key of a value, and no value is at hand, as in open, close and on_event"
        )


class _State:
    """The base of all states: one dict by key."""

    __slots__ = ("_entries", "_of")

    def __init__(self, of: KeyedState) -> None:
        self._of = of
        self._entries: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Remove the current key's entry."""
        self._entries.pop(self._of.key, None)


class ValueState(_State, Generic[T]):
    """One value per key: see `RuntimeContext.get_state`.

    >>> state = KeyedState(); count = state.value("count", 0)
    >>> state.key = "to"; count.update(count.value() + 1)
    >>> state.key = "be"; count.value()
    0
    """

    __slots__ = ("_default", "_immutable_default")

    def __init__(self, of: KeyedState, default: T | None = None) -> None:
        super().__init__(of)
        self._default = default
        self._immutable_default = copied(default) is default

    def value(self) -> T | None:
        """Return the key's value, or a copy of the default if the key has none."""
        found: T | None = self._entries.get(self._of.key, _MISSING)
        if found is _MISSING:
            return self._default if self._immutable_default else copied(self._default)
        return found

    def update(self, value: T) -> None:
        """Replace the key's value."""
        self._entries[self._of.key] = value


class ListState(_State, Generic[T]):
    """One list per key: see `RuntimeContext.get_list_state`.

    >>> state = KeyedState(); state.key = "to"; seen = state.list("seen")
    >>> seen.add(1); seen.add_all([2, 3]); seen.get()
    [1, 2, 3]
    >>> seen.clear(); seen.get()
    []
    """

    __slots__ = ()

    def get(self) -> list[T]:
        """Return a copy of the key's list."""
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
        """Append several values."""
        fresh = list(values)
        before = self._entries.get(self._of.key)
        if before is not None:
            before.extend(fresh)
        elif fresh:
            self._entries[self._of.key] = fresh

    def update(self, values: Iterable[T]) -> None:
        """Replace the key's list."""
        fresh = list(values)
        if fresh:
            self._entries[self._of.key] = fresh
        else:
            self.clear()


class MapState(_State, Generic[K, V]):
    """One map per key: see `RuntimeContext.get_map_state`.

    >>> state = KeyedState(); state.key = "cart"; items = state.map("items")
    >>> items.put("apples", 3); items.put("pears", 1); items.remove("pears")
    >>> items.items(), "pears" in items, items.get("pears")
    ([('apples', 3)], False, None)
    """

    __slots__ = ()

    def get(self, name: K, default: V | None = None) -> V | None:
        """Return the value of a name, or the default if the map does not contain it."""
        found: V | None = self._map().get(name, default)
        return found

    def put(self, name: K, value: V) -> None:
        """Set the value of a name."""
        entries, key = self._entries, self._of.key
        if key in entries:
            entries[key][name] = value
        else:
            entries[key] = {name: value}

    def put_all(self, items: dict[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set the values of several names."""
        merged = {**self._map(), **dict(items)}
        if merged:
            self._entries[self._of.key] = merged

    def remove(self, name: K) -> None:
        """Remove a name, if the map contains it."""
        found = self._map()
        found.pop(name, None)
        if not found:
            self.clear()

    def contains(self, name: K) -> bool:
        """Return True if the map contains a name."""
        return name in self._map()

    def __contains__(self, name: K) -> bool:
        return name in self._map()

    def is_empty(self) -> bool:
        """Return True if the map contains no name."""
        return not self._map()

    def items(self) -> list[tuple[K, V]]:
        """Return a list of names and values; later changes of the map do not affect it."""
        return list(self._map().items())

    def keys(self) -> list[K]:
        """Return a list of the names."""
        return list(self._map())

    def values(self) -> list[V]:
        """Return a list of the values."""
        return list(self._map().values())

    def _map(self) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._entries.get(self._of.key)
        return {} if found is None else found


class ReducingState(_State, Generic[T]):
    """One value per key, into which a function merges each added value: see `RuntimeContext.get_reducing_state`.

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
        """Return the merged value, or None if no value was added."""
        return self._entries.get(self._of.key)

    def add(self, value: T) -> None:
        """Merge a value into the key's value."""
        entries, key = self._entries, self._of.key
        before = entries.get(key, _MISSING)
        entries[key] = value if before is _MISSING else self._reduce(before, value)


class KeyedState:
    """All states of one operator; `key` is the key that they refer to.

    >>> state = KeyedState()
    >>> state.value("total") is state.value("total")
    True
    >>> state.list("total")
    Traceback (most recent call last):
    TypeError: state 'total' is a ValueState already: it cannot be a ListState, too
    """

    __slots__ = ("_by_name", "_refused", "key")

    def __init__(self) -> None:
        self.key: Hashable = _NoKey()
        self._by_name: dict[str, _State] = {}
        self._refused = False

    def settle(self) -> bool:
        """Return True if the function requested state in `open`; if not, refuse later requests.

        For operators that set the key only for functions with state: a state requested later would refer to no key.
        """
        self._refused = not self._by_name
        return not self._refused

    def keyed(self, call: Callable[..., Any], key: Callable[[Any], Hashable]) -> Callable[..., Any]:
        """Return a function that sets the key of its last argument before each call.

        >>> state = KeyedState(); seen = state.value("seen", 0)
        >>> count = state.keyed(lambda word: seen.update(seen.value() + 1), str.lower)
        >>> count("To"); count("to"); seen.value()
        2
        """

        def with_key(*arguments: Any) -> Any:
            self.key = key(arguments[-1])
            return call(*arguments)

        return with_key

    def value(self, name: str, default: Any = None) -> ValueState[Any]:
        """Return the state called `name`, with one value per key."""
        found: ValueState[Any] = self._get_or_create(name, ValueState, default)
        return found

    def list(self, name: str) -> ListState[Any]:
        """Return the state called `name`, with one list per key."""
        found: ListState[Any] = self._get_or_create(name, ListState)
        return found

    def map(self, name: str) -> MapState[Any, Any]:
        """Return the state called `name`, with one map per key."""
        found: MapState[Any, Any] = self._get_or_create(name, MapState)
        return found

    def reducing(self, name: str, function: Any) -> ReducingState[Any]:
        """Return the state called `name`, with one merged value per key."""
        found: ReducingState[Any] = self._get_or_create(name, ReducingState, function)
        return found

    def leave_key(self) -> None:
        """Unset the key: access to state raises until the next one is set."""
        self.key = _NoKey()

    def clear(self) -> None:
        """Remove the entries of all keys from all states."""
        for state in self._by_name.values():
            state._entries.clear()

    def entries(self) -> dict[str, int]:
        """Return the number of keys with an entry, by state."""
        return {name: len(state._entries) for name, state in self._by_name.items()}

    def _get_or_create(self, name: str, kind: type[Any], *arguments: Any) -> Any:
        found = self._by_name.get(name)
        if found is None and self._refused:
            raise TypeError(
                f"state {name!r} is not there: ask for it in open, which decides whether calls have state of their key"
            )
        if found is None:
            found = self._by_name[name] = kind(self, *arguments)
        elif type(found) is not kind:
            raise TypeError(f"state {name!r} is a {type(found).__name__} already: it cannot be a {kind.__name__}, too")
        return found
