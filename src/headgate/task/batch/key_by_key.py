"""KeyByKey: the interface of operators that process one key after the other in BATCH mode: see `batch.keyed`.

Each value has a tag, an int: its input, whether it has an event time, and, above those bits, the number of watermarks
before it. With these the operator replays the watermarks for each key as they arrived between its values.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headgate.record.element import Event
    from headgate.task.operator import Output, Times
    from headgate.task.place import OperatorPlace

__all__ = ["MARK", "OWN", "SECOND", "UNTIMED", "Entries", "KeyByKey", "Marks", "stretches"]

SECOND: Final = 1
"""The bit of a tag for a value of the second input."""

OWN: Final = 2
"""The bit of a tag for a value that the operator has created: it has no input's type."""

UNTIMED: Final = 4
"""The bit of a tag for a value without event time."""

MARK: Final = 3
"""The position of a tag's upper bits: the number of watermarks before the value; 0: they have no effect on it."""


class Entries(NamedTuple):
    """Values of one key in the order of arrival, with times and tags; all lists have the same length."""

    values: list[Any]
    times: list[int]
    tags: list[int]

    def given_times(self) -> Times:
        """Return the times of the values, or None; either all values have a time, or none."""
        return None if self.tags[0] & UNTIMED else self.times


class Marks(Enum):
    """The values for which an operator needs the number of watermarks before them."""

    NONE = 0
    LATE = 1  # values that may be late
    ALL = 2


class KeyByKey(Protocol):
    """An operator that processes one key after the other."""

    out: Output
    place: OperatorPlace

    @property
    def marks(self) -> Marks:
        """The values for which it needs watermarks."""
        ...

    @property
    def several(self) -> bool:
        """True if it may receive values of several keys together, if none of them is marked."""
        ...

    def open(self) -> None:
        """See `Operator`."""
        ...

    def begin_key(self, key: Any) -> None:
        """Start a key, or several keys of which this is one; the watermark starts again."""
        ...

    def play(self, entries: Entries, watermarks: Sequence[int]) -> None:
        """Process values of the key; their tags refer to the first of these watermarks."""
        ...

    def end_key(self, watermarks: Sequence[int]) -> None:
        """End the key: fire its timers and windows, then clear its state."""
        ...

    def event(self, event: Event) -> None:
        """See `Operator`; called after the last key."""
        ...

    def cancel(self) -> None:
        """See `Operator`."""
        ...

    def close(self) -> None:
        """See `Operator`."""
        ...


def stretches(entries: Entries, mask: int) -> Iterator[tuple[int, Entries]]:
    """Yield consecutive values whose tags have the same bits in `mask`, with those bits.

    >>> list(stretches(Entries(["to", "be", "or"], [1, 2, 0], [0, 0, UNTIMED]), UNTIMED))
    [(0, Entries(values=['to', 'be'], times=[1, 2], tags=[0, 0])), (4, Entries(values=['or'], times=[0], tags=[4]))]
    """
    values, times, tags = entries
    if tags.count(tags[0]) == len(tags):  # nearly always
        yield tags[0] & mask, entries
        return
    begin = 0
    while begin < len(tags):
        bits, end = tags[begin] & mask, begin + 1
        while end < len(tags) and tags[end] & mask == bits:
            end += 1
        yield bits, Entries(values[begin:end], times[begin:end], tags[begin:end])
        begin = end
