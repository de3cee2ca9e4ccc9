"""Which keys many records have: a sketch of heavy hitters, fed with a sample of what a keyed writer writes.

A selector calls `passes` for every batch and `take` for few, on its task's thread; `shares` is for any thread. What is
looked at are short runs of records, about 160 a second, that go on from batch to batch: so whether a record is in one
does not depend on the size of its batch. What is told is of the last 15 to 30 seconds.

Invariants: memory is bounded by two sketches and a sample; a sketch that others may see is not changed, a new one takes
its place; whatever a key does when it is hashed, compared or shown, writing goes on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

__all__ = ["HotKeys", "KeyShare", "Sketch"]

_TRACKED: Final = 100  # keys of a sketch: a share is too small by one in a hundred at most
_RUN: Final = 8  # records: neighbours are often alike, so that many at once say little more than few
_EVERY_NS: Final = 6_250_000  # from one run to the next
_SAMPLE: Final = 64  # records that are counted together, which costs less
_SAMPLE_NS: Final = 50_000_000  # and how long they take
_STALE_NS: Final = 4 * _SAMPLE_NS
_SECOND_NS: Final = 1_000_000_000
_SPAN_NS: Final = 15 * _SECOND_NS  # that one sketch is about
_FEW: Final = 50  # records: their keys prove nothing
_HOT_PERMILLE: Final = 50
_LONGEST: Final = 80  # characters of a key that are shown
_NAN: Final = float("nan")  # one for all: others are equal to nothing, not even to each other


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A key that many records have, and how many in a thousand: an estimate that is rather too low.

    >>> KeyShare("'london'", 610).share_permille
    610
    """

    key: str  # as Python writes it, cut to 80 characters
    share_permille: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """The keys of a stream that may be frequent, and how often each was seen.

    This is Space-Saving in the form in which many keys come together: where more keys are known than can be kept, what
    the first of the others has is taken from all. A count is never above the truth, and below it by less than
    `total / 100`; so a key that is not known has a share of less than a hundredth.

    >>> sketch = Sketch().plus(["a", "b", "a"]).plus(["a"])
    >>> sketch.counts, sketch.total
    ({'a': 3, 'b': 1}, 4)
    """

    counts: Mapping[Hashable, int] = field(default_factory=dict)
    total: int = 0

    def plus(self, keys: Sequence[Hashable]) -> Sketch:
        """With these counted, too."""
        counts = dict(self.counts)
        for key, count in Counter(keys).items():
            counts[key] = counts.get(key, 0) + count
        if len(counts) > _TRACKED:
            cut = sorted(counts.values())[-_TRACKED - 1]
            counts = {key: count - cut for key, count in counts.items() if count > cut}
        return Sketch(counts, self.total + len(keys))


class _Shown(str):
    """A key that cannot be counted itself, as text."""

    __slots__ = ()
    __repr__ = str.__str__


class HotKeys:
    """Looks for the hot keys of one writer.

    >>> hot = HotKeys(now_ns=lambda: 0, below=lambda n: 0)
    >>> keys = ["london", "paris", "london", "london"] * 100
    >>> if hot.passes(len(keys)):
    ...     hot.take(len(keys), keys.__getitem__)
    >>> hot.shares()
    [KeyShare(key="'london'", share_permille=750), KeyShare(key="'paris'", share_permille=250)]
    """

    __slots__ = (
        "_below",
        "_mean",
        "_next",
        "_now_ns",
        "_rated_at",
        "_rated_ns",
        "_runs",
        "_sample",
        "_seen",
        "_sketches",
        "_span_ns",
        "_taken_ns",
    )

    def __init__(self, now_ns: Callable[[], int], below: Callable[[int], int]) -> None:
        self._now_ns = now_ns
        self._below = below
        self._seen = 0  # records so far
        self._next = 0  # the record at which a run begins, or goes on
        self._sample: list[Hashable] = []  # of the last runs
        self._sketches = (Sketch(), Sketch())  # of the span of time at hand, and of the one before; replaced as one
        self._taken_ns = self._span_ns = self._rated_ns = now_ns()
        self._rated_at = 0  # record at which it was last looked how fast they come
        self._runs = 0  # since then
        self._mean = 0  # records between runs

    def passes(self, records: int) -> bool:
        """So many records pass; whether to `take` of them. This is all that most batches cost."""
        self._seen += records
        return self._seen > self._next

    def take(self, records: int, keys: Callable[[slice], Sequence[Hashable]]) -> None:
        """Look at some of the records that have passed last; `keys` answers the keys of a slice of them."""
        try:
            self._take(records, keys)
        except Exception:  # noqa: BLE001 - a key that cannot be looked at is not for that refused
            self._sample = []
            self._next = self._seen + self._below(2 * self._mean + _SAMPLE)

    def _take(self, records: int, keys: Callable[[slice], Sequence[Hashable]]) -> None:
        first = self._seen - records
        at = max(0, self._next - first)
        while at < records:
            some = keys(slice(at, min(records, at + _RUN - len(self._sample) % _RUN)))
            self._sample += some
            at += len(some)
            if len(self._sample) % _RUN == 0:
                now_ns = self._now_ns()
                at += self._pause(first + at, now_ns)
                if len(self._sample) >= _SAMPLE:
                    self._count(now_ns)
        self._next = first + at
        if self._sample and (now_ns := self._now_ns()) - self._taken_ns >= _SAMPLE_NS:
            self._count(now_ns)  # records are rare: let what there is be seen

    def _count(self, now_ns: int) -> None:
        sample, self._sample = self._sample, []
        sample = [_NAN if type(key) is float and key != key else key for key in sample]  # noqa: PLR0124 - NaN
        current, before = self._sketches
        elapsed_ns = now_ns - self._span_ns
        if elapsed_ns >= _SPAN_NS:
            current, before = Sketch(), current if elapsed_ns < 2 * _SPAN_NS else Sketch()
            self._span_ns = now_ns
        try:
            current = current.plus(sample)
        except Exception:  # noqa: BLE001 - Arrow's structs are dicts, and a class of the user's does what it likes
            current = current.plus([_Shown(_shown(key)) for key in sample])
        self._sketches = (current, before)
        self._taken_ns = now_ns

    def _pause(self, at: int, now_ns: int) -> int:
        """How many records to pass over; not always as many, for what comes in turns must not be seen in step."""
        self._runs += 1
        elapsed_ns = now_ns - self._rated_ns
        if elapsed_ns >= _SECOND_NS or self._runs * _EVERY_NS >= 2 * _SECOND_NS:
            self._mean = max(0, (at - self._rated_at) * _EVERY_NS // max(1, elapsed_ns) - _RUN)
            self._rated_at, self._rated_ns, self._runs = at, now_ns, 0
        return self._below(2 * self._mean + 1)

    def shares(self) -> list[KeyShare]:
        """The keys that at least 5 % of the records have, the hottest first; from any thread."""
        if self._now_ns() - self._taken_ns >= _STALE_NS:
            self._next = 0  # records have become rare: take the next. That this is lost once in a while does not matter
        current, before = self._sketches
        total = current.total + before.total
        if total < _FEW:
            return []
        try:
            counts = dict(before.counts)
            for key, count in current.counts.items():
                counts[key] = counts.get(key, 0) + count
        except Exception:  # noqa: BLE001 - as above
            counts = dict(current.counts)
        hot = [(1000 * count // total, key) for key, count in counts.items()]
        hot = sorted([one for one in hot if one[0] >= _HOT_PERMILLE], key=itemgetter(0), reverse=True)
        return [KeyShare(_shown(key), permille) for permille, key in hot]


def _shown(key: object) -> str:
    """A key as text that is short and can be sent and printed."""
    try:
        if type(key) is str or type(key) is bytes:
            return _cut(repr(key[: _LONGEST + 1]))  # a very long one is not written out for this
        return _cut(repr(key))
    except BaseException:  # noqa: BLE001 - it is only for show
        return _cut(f"<{type(key).__name__}>")


def _cut(text: str) -> str:
    text = text[: _LONGEST + 1]
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
