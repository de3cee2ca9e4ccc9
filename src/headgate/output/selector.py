"""Which channel a record goes to.

A writer owns one selector and calls it on its task's thread: `choose` for one record, `split` for a batch.
Randomness is handed in as a function `below(n)` that answers 0 <= i < n.

Invariant: an answer is a valid channel; for the user's own functions this is checked.
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
L = TypeVar("L")

_KNOWN_KEYS = 16_384  # most keys a selector remembers the channel of
_MANY = 128  # unknown keys of one batch, so that hashing them as a column pays

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
    """Whether every record goes to every channel; the writer then has one lane for all."""

    channels: int = 0

    _hot: HotKeys | None = None

    def watch_keys(self, hot: HotKeys) -> None:
        """Let hot keys be looked for in the batches from now on; a selector without keys does not."""

    def hot_keys(self) -> list[KeyShare]:
        """The keys that many records have, as far as they are looked for; from any thread."""
        return [] if self._hot is None else self._hot.shares()

    def connect(self, channels: int) -> None:
        """Called once by the writer: how many channels there are."""
        assert channels >= 1, "a partition has at least one channel"
        self.channels = channels

    @abstractmethod
    def choose(self, value: T) -> int:
        """The channel of one record."""

    def picker(self, lanes: Sequence[L]) -> Callable[[T], L]:
        """`choose` as a function straight to what the writer keeps per channel: one call less per record."""
        choose = self.choose
        return lambda value: lanes[choose(value)]

    def split(self, values: list[T]) -> list[list[T]]:
        """Several records by channel; each channel's in their order."""
        parts: list[list[T]] = [[] for _ in range(self.channels)]
        choose = self.choose
        for value in values:
            parts[choose(value)].append(value)
        return parts

    def split_timed(self, values: list[T], times: list[int]) -> list[tuple[list[T], list[int]]]:
        """As `split`, for records with event times."""
        parts: list[tuple[list[T], list[int]]] = [([], []) for _ in range(self.channels)]
        for channel, value, time in zip(self._chosen(values), values, times, strict=True):
            part = parts[channel]
            part[0].append(value)
            part[1].append(time)
        return parts

    def _chosen(self, values: list[T]) -> list[int]:
        """The channel of each."""
        return list(map(self.choose, values))


class _Constant(Selector[T]):
    def picker(self, lanes: Sequence[L]) -> Callable[[T], L]:
        """Always the first."""
        first = lanes[0]
        return lambda _: first

    def choose(self, value: T) -> int:  # noqa: ARG002 - the same whatever the value
        """Always channel 0."""
        return 0

    def split(self, values: list[T]) -> list[list[T]]:
        """Everything in channel 0."""
        return [values, *([] for _ in range(self.channels - 1))]

    def split_timed(self, values: list[T], times: list[int]) -> list[tuple[list[T], list[int]]]:
        """Everything in channel 0."""
        return [(values, times), *(([], []) for _ in range(self.channels - 1))]


class Forward(_Constant[T]):
    """To the one subtask at the other end.

    >>> forward = Forward(); forward.connect(1); forward.choose("anything")
    0
    """

    def connect(self, channels: int) -> None:
        """Forward has one channel."""
        if channels != 1:
            raise SelectorError(f"forward connects one subtask to one, not to {channels}: use rebalance or rescale")
        super().connect(channels)


class Global(_Constant[T]):
    """Everything to the first subtask.

    >>> selector = Global(); selector.connect(8); selector.choose("anything")
    0
    """


class Rescale(Selector[T]):
    """Round robin over the channels there are: a writer has only those of its neighbours.

    >>> rescale = Rescale(); rescale.connect(3)
    >>> [rescale.choose(None) for _ in range(4)], rescale.split([5, 6, 7, 8])
    ([0, 1, 2, 0], [[7], [5, 8], [6]])
    """

    def __init__(self) -> None:
        self._next = 0

    def choose(self, value: T) -> int:  # noqa: ARG002 - the same whatever the value
        """The next channel."""
        channel = self._next
        self._next = channel + 1 if channel + 1 < self.channels else 0
        return channel

    def split(self, values: list[T]) -> list[list[T]]:
        """Every n-th record to the same channel."""
        start, channels = self._next, self.channels
        self._next = (start + len(values)) % channels
        return [values[(channel - start) % channels :: channels] for channel in range(channels)]


class Rebalance(Rescale[T]):
    """Round robin over all channels, beginning at a random one so that not all writers begin at the same.

    >>> rebalance = Rebalance(lambda n: n - 1); rebalance.connect(3)
    >>> [rebalance.choose(None) for _ in range(4)]
    [2, 0, 1, 2]
    """

    def __init__(self, below: Below) -> None:
        super().__init__()
        self._below = below

    def connect(self, channels: int) -> None:
        """Choose where to begin."""
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
        """Any channel."""
        return self._below(self.channels)


class Hash(Selector[T]):
    """By key group: equal keys meet in one subtask, in every process and after every restart.

    >>> by_word = Hash(lambda pair: pair[0], max_parallelism=128); by_word.connect(4)
    >>> by_word.choose(("to", 1)) == by_word.choose(("to", 99))
    True
    """

    def __init__(self, key: Callable[[T], Hashable], max_parallelism: int = 128) -> None:
        self._key = key
        self._groups = max_parallelism
        self._channel_of: list[int] = []
        self._known: dict[Hashable, int] = {}  # where the first keys of `split` went: a look-up is half of a hash

    def watch_keys(self, hot: HotKeys) -> None:
        """See `Selector`; single records, that do not come in batches, are not looked at."""
        self._hot = hot

    def connect(self, channels: int) -> None:
        """Lay out the key groups over the channels."""
        super().connect(channels)
        self._channel_of = group_channels(self._groups, channels)

    def choose(self, value: T) -> int:
        """The channel that owns the key's group."""
        return self._channel_of[stable_hash(self._key(value)) % self._groups]

    def picker(self, lanes: Sequence[L]) -> Callable[[T], L]:
        """See `Selector.picker`. Remembers where the first keys went: a look-up is half of a hash."""
        key_of, groups = self._key, self._groups
        lane_of = [lanes[channel] for channel in self._channel_of]
        known: dict[Hashable, L] = {}
        find = known.get

        def pick(value: T) -> L:
            key = key_of(value)
            try:
                lane = find(key)
            except TypeError:  # not hashable: let the stable hash say so
                lane = None
            if lane is None:
                lane = lane_of[stable_hash(key) % groups]
                if len(known) < _KNOWN_KEYS:
                    known[key] = lane
            return lane

        return pick

    def split(self, values: list[T]) -> list[list[T]]:
        """Several records by the channel that owns their key's group."""
        parts: list[list[T]] = [[] for _ in range(self.channels)]
        for channel, value in zip(self._chosen(values), values, strict=True):
            parts[channel].append(value)
        return parts

    def _chosen(self, values: list[T]) -> list[int]:
        channel_of, groups, known = self._channel_of, self._groups, self._known
        keys = list(map(self._key, values))
        if len(keys) != len(values):
            raise SelectorError("the key function raised StopIteration: `next` without a default, perhaps")
        hot = self._hot
        if hot is not None and hot.passes(len(keys)):
            hot.take(len(keys), keys.__getitem__)
        kinds = set(map(type, keys))
        if len(kinds) != 1:
            return [channel_of[stable_hash(key) % groups] for key in keys]
        kind = kinds.pop()
        hash_of: Callable[[Hashable], int] = hasher_of(kind)  # spares the dispatch
        if kind is not str and kind is not int:  # equal keys of these types are the same in every way
            return [channel_of[hash_of(key) % groups] for key in keys]
        channels = list(map(known.get, keys))
        if None in channels:
            if kind is int and len(known) >= _KNOWN_KEYS and channels.count(None) >= _MANY:
                found = _int_groups(keys, groups)
                if found is not None:
                    return [channel_of[group] for group in found]
            for index, key in enumerate(keys):
                if channels[index] is None:
                    channels[index] = channel = channel_of[hash_of(key) % groups]
                    if len(known) < _KNOWN_KEYS:
                        known[key] = channel
        return channels  # type: ignore[return-value]  # none is None any more


def _int_groups(keys: Sequence[Hashable], groups: int) -> list[int] | None:
    """The key groups of many numbers at once; None if one of them does not fit into 64 bits."""
    import pyarrow as pa  # noqa: PLC0415 - only who has very many keys pays for importing it

    from headgate.record.key_columns import hash_array  # noqa: PLC0415

    try:
        column = pa.array(keys, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        return None
    found: list[int] = (hash_array(column) % groups).tolist()
    return found


class Broadcast(_Constant[T]):
    """Every record to every channel: serialized once, one buffer, many readers.

    >>> Broadcast().broadcast
    True
    """

    broadcast = True


class Custom(Selector[T]):
    """By the user's function of the record and the number of channels.

    >>> wrong = Custom(lambda value, channels: channels, name="off_by_one"); wrong.connect(2)
    >>> wrong.choose("x")
    Traceback (most recent call last):
    headgate.errors.SelectorError: partitioner off_by_one answered 2 for a str: it must answer an int from 0 to 1
    """

    def __init__(self, function: Callable[[T, int], int], name: str | None = None) -> None:
        self._function = function
        self._name = name or getattr(function, "__qualname__", repr(function))

    def choose(self, value: T) -> int:
        """What the function says, checked."""
        channel: object = self._function(value, self.channels)
        if type(channel) is int and 0 <= channel < self.channels:
            return channel
        raise SelectorError(
            f"partitioner {self._name} answered {channel!r} for a {type(value).__name__}: "
            f"it must answer an int from 0 to {self.channels - 1}"
        )
