"""What an operator needs that can see one key after the other, as in BATCH mode: see `task.batch_keyed`.

Each value has a tag, an int: which input it is from, whether it has an event time, and, above those bits, how many
watermarks had come before it. With those the operator lets time pass for each key as it did when the values came.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.task.operator import Output, Place, Times

__all__ = ["MARK", "OWN", "SECOND", "UNTIMED", "Entries", "KeyByKey", "Marks", "stretches"]

SECOND: Final = 1
"""The bit of a tag that says that a value is from the second input."""

OWN: Final = 2
"""The bit of a tag that says that a value is none of an input's, but one that the operator has made."""

UNTIMED: Final = 4
"""The bit of a tag that says that a value has no event time."""

MARK: Final = 3
"""Where the bits of a tag begin that count the watermarks before a value; 0: they do not matter to it."""


class Entries(NamedTuple):
    """Values of one key in the order in which they came, with times and tags; all lists have the same length.

    >>> Entries(["to"], [0], [UNTIMED]).values
    ['to']
    """

    values: list[Any]
    times: list[int]
    tags: list[int]

    def given_times(self) -> Times:
        """The times, if these values have any; either all have, or none."""
        return None if self.tags[0] & UNTIMED else self.times


class Marks(Enum):
    """For which values an operator wants to know the watermarks that had come before them.

    >>> Marks.ALL.name
    'ALL'
    """

    NONE = 0
    LATE = 1  # those that may be late
    ALL = 2


class KeyByKey(Protocol):
    """An operator that can be told that from now on there is another key."""

    out: Output
    place: Place

    @property
    def marks(self) -> Marks:
        """What it wants to know."""
        ...

    @property
    def several(self) -> bool:
        """Whether it may see the values of several keys together, if none of them is marked."""
        ...

    def open(self) -> None:
        """See `Operator`."""
        ...

    def begin_key(self, key: Any) -> None:
        """All that follows is about this key, or some keys of which this is one; time begins again."""
        ...

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """Take values of the key; what their tags count are the first of these watermarks."""
        ...

    def end_key(self, watermarks: Sequence[int]) -> None:
        """The key has no more values: let everything fire that waits, then forget it."""
        ...

    def cancel(self) -> None:
        """See `Operator`."""
        ...

    def close(self) -> None:
        """See `Operator`."""
        ...


def stretches(entries: Entries, mask: int) -> Iterator[tuple[int, Entries]]:
    """Values that follow each other and whose tags have the same bits in `mask`, with those bits.

    >>> list(stretches(Entries(["to", "be", "or"], [1, 2, 0], [0, 0, UNTIMED]), UNTIMED))
    [(0, Entries(values=['to', 'be'], times=[1, 2], tags=[0, 0])), (4, Entries(values=['or'], times=[0], tags=[4]))]
    """
    values, times, tags = entries
    if tags.count(tags[0]) == len(tags):  # as it nearly always is
        yield tags[0] & mask, entries
        return
    begin = 0
    while begin < len(tags):
        bits, end = tags[begin] & mask, begin + 1
        while end < len(tags) and tags[end] & mask == bits:
            end += 1
        yield bits, Entries(values[begin:end], times[begin:end], tags[begin:end])
        begin = end
