"""Selectors: they choose the channel of a record.

A writer owns one selector and calls it on its task's thread: `choose` for one record, `split` for a batch. Randomness
is a parameter: a function `below(n)` that returns 0 <= i < n.

Invariant: the result is a valid channel; the results of user functions are checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from headgate.errors import SelectorError
from headgate.record.keys import group_channels, hasher_of, stable_hash

if TYPE_CHECKING:
    from headgate.output.hot_keys import HotKeys, KeyShare

__all__ = [
    "Below",
    "Broadcast",
    "Custom",
    "Forward",
    "Global",
    "Hash",
    "Rebalance",
    "Rescale",
    "Selector",
    "Shuffle",
]

T = TypeVar("T")
Q = TypeVar("Q")

_MAX_CACHED_KEYS = 16_384  # whose channel a selector caches
_COLUMN_KEYS = 128  # from this number of uncached keys on, hashing them as a column is faster

Below: TypeAlias = Callable[[int], int]
"""A source of randomness: `random.Random(seed).randrange` is one."""


class Selector(ABC, Generic[T]):
    """Chooses channels for the records of one writer.

    >>> even_odd = Custom(lambda value, channels: value % 2, name="even_odd")
    >>> even_odd.connect(2)
    >>> even_odd.choose(7), even_odd.split([1, 2, 3])
    (1, [[2], [1, 3]])
    """

    broadcast: bool = False
    """True if every record is sent to every channel; the writer then has one queue for all."""

    channels: int = 0

    _hot: HotKeys | None = None

    def watch_keys(self, hot: HotKeys) -> None:
        """Sample the keys of batches from now on; no effect for a selector without keys."""

    def hot_keys(self) -> list[KeyShare]:
        """Return the keys with many records; empty unless they are sampled. Called from any thread."""
        return [] if self._hot is None else self._hot.shares()

    def connect(self, channels: int) -> None:
        """Set the number of channels. Called once by the writer."""
        assert channels >= 1, "a partition has at least one channel"
        self.channels = channels

    @abstractmethod
    def choose(self, value: T) -> int:
        """Return the channel of one record."""

    def picker(self, queues: Sequence[Q]) -> Callable[[T], Q]:
        """Return a function from a record to the writer's queue of its channel: one call less per record."""
        choose = self.choose
        return lambda value: queues[choose(value)]

    def split(self, values: list[T]) -> list[list[T]]:
        """Return several records by channel; those of a channel in order."""
        parts: list[list[T]] = [[] for _ in range(self.channels)]
        choose = self.choose
        for value in values:
            parts[choose(value)].append(value)
        return parts

    def split_timed(self, values: list[T], times: list[int]) -> list[tuple[list[T], list[int]]]:
        """Return several records with event times by channel."""
        parts: list[tuple[list[T], list[int]]] = [([], []) for _ in range(self.channels)]
        for channel, value, time in zip(self._chosen(values), values, times, strict=True):
            part = parts[channel]
            part[0].append(value)
            part[1].append(time)
        return parts

    def _chosen(self, values: list[T]) -> list[int]:
        """Return the channel of each record."""
        return list(map(self.choose, values))


class _Constant(Selector[T]):
    def picker(self, queues: Sequence[Q]) -> Callable[[T], Q]:
        """See `Selector.picker`."""
        first = queues[0]
        return lambda _: first

    def choose(self, value: T) -> int:  # noqa: ARG002 - the same whatever the value
        """Return channel 0."""
        return 0

    def split(self, values: list[T]) -> list[list[T]]:
        """Return all records in channel 0."""
        return [values, *([] for _ in range(self.channels - 1))]

    def split_timed(self, values: list[T], times: list[int]) -> list[tuple[list[T], list[int]]]:
        """Return all records in channel 0."""
        return [(values, times), *(([], []) for _ in range(self.channels - 1))]


class Forward(_Constant[T]):
    """Sends records to the only subtask at the other end.

    >>> forward = Forward(); forward.connect(1); forward.choose("anything")
    0
    """

    def connect(self, channels: int) -> None:
        """See `Selector`; raise SelectorError unless there is one channel."""
        if channels != 1:
            raise SelectorError(f"forward connects one subtask to one, not to {channels}: use rebalance or rescale")
        super().connect(channels)


class Global(_Constant[T]):
    """Sends all records to the first subtask.

    >>> selector = Global(); selector.connect(8); selector.choose("anything")
    0
    """


class Rescale(Selector[T]):
    """Round robin over the channels of a writer, which lead to a group of subtasks.

    >>> rescale = Rescale(); rescale.connect(3)
    >>> [rescale.choose(None) for _ in range(4)], rescale.split([5, 6, 7, 8])
    ([0, 1, 2, 0], [[7], [5, 8], [6]])
    """

    def __init__(self) -> None:
        self._next = 0

    def choose(self, value: T) -> int:  # noqa: ARG002 - the same whatever the value
        """Return the next channel."""
        channel = self._next
        self._next = channel + 1 if channel + 1 < self.channels else 0
        return channel

    def split(self, values: list[T]) -> list[list[T]]:
        """Return every n-th record in the same channel."""
        start, channels = self._next, self.channels
        self._next = (start + len(values)) % channels
        return [values[(channel - start) % channels :: channels] for channel in range(channels)]


class Rebalance(Rescale[T]):
    """Round robin over all channels, from a random one on, so that not all writers start with the same.

    >>> rebalance = Rebalance(lambda n: n - 1); rebalance.connect(3)
    >>> [rebalance.choose(None) for _ in range(4)]
    [2, 0, 1, 2]
    """

    def __init__(self, below: Below) -> None:
        super().__init__()
        self._below = below

    def connect(self, channels: int) -> None:
        """Choose the first channel."""
        super().connect(channels)
        self._next = self._below(channels)


class Shuffle(Selector[T]):
    """A random channel for every record.

    >>> import random
    >>> shuffle = Shuffle(random.Random(7).randrange); shuffle.connect(4)
    >>> 0 <= shuffle.choose("anything") < 4
    True
    """

    def __init__(self, below: Below) -> None:
        self._below = below

    def choose(self, value: T) -> int:  # noqa: ARG002 - the same whatever the value
        """Return a random channel."""
        return self._below(self.channels)


class Hash(Selector[T]):
    """Selects by key group: equal keys have the same subtask, in every process and after every restart.

    >>> by_word = Hash(lambda pair: pair[0], max_parallelism=128); by_word.connect(4)
    >>> by_word.choose(("to", 1)) == by_word.choose(("to", 99))
    True
    """

    def __init__(self, key: Callable[[T], Hashable], max_parallelism: int = 128) -> None:
        self._key = key
        self._groups = max_parallelism
        self._channel_of: list[int] = []
        self._cached: dict[Hashable, int] = {}  # channels of the first keys: a lookup costs half of a stable hash

    def watch_keys(self, hot: HotKeys) -> None:
        """See `Selector`; only batches are sampled, not single records."""
        self._hot = hot

    def connect(self, channels: int) -> None:
        """Assign the key groups to the channels."""
        super().connect(channels)
        self._channel_of = group_channels(self._groups, channels)

    def choose(self, value: T) -> int:
        """Return the channel of the key's group."""
        return self._channel_of[stable_hash(self._key(value)) % self._groups]

    def picker(self, queues: Sequence[Q]) -> Callable[[T], Q]:
        """See `Selector.picker`. Caches the queues of the first keys: a lookup costs half of a stable hash."""
        key_of, groups = self._key, self._groups
        queue_of = [queues[channel] for channel in self._channel_of]
        cached: dict[Hashable, Q] = {}
        find = cached.get

        def pick(value: T) -> Q:
            key = key_of(value)
            try:
                queue = find(key)
            except TypeError:  # not hashable: `stable_hash` raises an error that names the key
                queue = None
            if queue is None:
                queue = queue_of[stable_hash(key) % groups]
                if len(cached) < _MAX_CACHED_KEYS:
                    cached[key] = queue
            return queue

        return pick

    def split(self, values: list[T]) -> list[list[T]]:
        """Return several records by the channel of their key's group."""
        parts: list[list[T]] = [[] for _ in range(self.channels)]
        for channel, value in zip(self._chosen(values), values, strict=True):
            parts[channel].append(value)
        return parts

    def _chosen(self, values: list[T]) -> list[int]:
        channel_of, groups, cached = self._channel_of, self._groups, self._cached
        keys = list(map(self._key, values))
        if len(keys) != len(values):
            raise SelectorError("the key function raised StopIteration: `next` without a default, perhaps")
        hot = self._hot
        if hot is not None and hot.count(len(keys)):
            hot.sample(len(keys), keys.__getitem__)
        kinds = set(map(type, keys))
        if len(kinds) != 1:
            return [channel_of[stable_hash(key) % groups] for key in keys]
        kind = kinds.pop()
        hash_of: Callable[[Hashable], int] = hasher_of(kind)  # saves the dispatch per key
        if kind is not str and kind is not int:  # keys of other types may be equal and have different stable hashes
            return [channel_of[hash_of(key) % groups] for key in keys]
        channels = list(map(cached.get, keys))
        if None in channels:
            if kind is int and len(cached) >= _MAX_CACHED_KEYS and channels.count(None) >= _COLUMN_KEYS:
                found = _int_groups(keys, groups)
                if found is not None:
                    return [channel_of[group] for group in found]
            for index, key in enumerate(keys):
                if channels[index] is None:
                    channels[index] = channel = channel_of[hash_of(key) % groups]
                    if len(cached) < _MAX_CACHED_KEYS:
                        cached[key] = channel
        return channels  # type: ignore[return-value]  # no entry is None


def _int_groups(keys: Sequence[Hashable], groups: int) -> list[int] | None:
    """Return the key groups of many integers; None if one of them does not fit into 64 bits."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and only needed for very many keys

    from headgate.record.key_columns import hash_array  # noqa: PLC0415

    try:
        column = pa.array(keys, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return None
    found: list[int] = (hash_array(column) % groups).tolist()
    return found


class Broadcast(_Constant[T]):
    """Sends every record to every channel: serialized once, in one buffer with many readers."""

    broadcast = True


class Custom(Selector[T]):
    """Selects by the user's function of the record and the number of channels.

    >>> wrong = Custom(lambda value, channels: channels, name="off_by_one"); wrong.connect(2)
    >>> wrong.choose("x")
    Traceback (most recent call last):
    headgate.errors.SelectorError: partitioner off_by_one answered 2 for a str: it must answer an int from 0 to 1
    """

    def __init__(self, function: Callable[[T, int], int], name: str | None = None) -> None:
        self._function = function
        self._name = name or getattr(function, "__qualname__", repr(function))

    def choose(self, value: T) -> int:
        """Return the function's result; raise SelectorError if it is not a channel."""
        channel: object = self._function(value, self.channels)
        if type(channel) is int and 0 <= channel < self.channels:
            return channel
        raise SelectorError(
            f"partitioner {self._name} answered {channel!r} for a {type(value).__name__}: "
            f"it must answer an int from 0 to {self.channels - 1}"
        )
