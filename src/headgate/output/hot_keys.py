"""HotKeys: the keys with many records, by a sketch of heavy hitters over a sample of a keyed writer's records.

A selector calls `count` for every batch and `sample` for few of them, on its task's thread; any thread calls `shares`.
The sample consists of short runs of records, about 160 per second, which continue from batch to batch: so the size of
a batch does not affect the probability of its records. The shares are those of the last 15 to 30 seconds.

Invariants: memory is bounded by two sketches and a sample. A sketch that another thread may read is never changed, but
replaced. An error of a key's hash, comparison or repr does not stop the writer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

__all__ = ["HotKeys", "KeyShare", "Sketch"]

_TRACKED: Final = 100  # keys of a sketch: a share is too small by at most a hundredth
_RUN: Final = 8  # records; longer runs add little, because neighbours often have equal keys
_EVERY_NS: Final = 6_250_000  # from one run to the next
_SAMPLE: Final = 64  # records that are added to the sketch together, which is cheaper
_SAMPLE_NS: Final = 50_000_000  # the usual time of a sample
_STALE_NS: Final = 4 * _SAMPLE_NS
_SECOND_NS: Final = 1_000_000_000
_SPAN_NS: Final = 15 * _SECOND_NS  # of one sketch
_MIN_RECORDS: Final = 50  # fewer records are no evidence
_HOT_PERMILLE: Final = 50
_MAX_SHOWN: Final = 80  # characters of a key
_NAN: Final = float("nan")  # one object for all NaN keys, because two NaN are not equal


@dataclass(frozen=True, slots=True)
class KeyShare:
    """A key with many records, and its share of them: an estimate that is never too high."""

    key: str  # its repr, cut to 80 characters
    share_permille: int


@dataclass(frozen=True, slots=True)
class Sketch:
    """The keys of a stream that may be frequent, with their counts.

    The algorithm is Space-Saving for batches: with more than 100 keys, the count of the 101st is subtracted from all.
    A count is never above the true one, and below it by less than `total / 100`; so a key that is not in the sketch has
    a share of less than a hundredth.

    >>> sketch = Sketch().plus(["a", "b", "a"]).plus(["a"])
    >>> sketch.counts, sketch.total
    ({'a': 3, 'b': 1}, 4)
    """

    counts: Mapping[Hashable, int] = field(default_factory=dict)
    total: int = 0

    def plus(self, keys: Sequence[Hashable]) -> Sketch:
        """Return a sketch with these keys counted, too."""
        counts = dict(self.counts)
        for key, count in Counter(keys).items():
            counts[key] = counts.get(key, 0) + count
        if len(counts) > _TRACKED:
            cut = sorted(counts.values())[-_TRACKED - 1]
            counts = {key: count - cut for key, count in counts.items() if count > cut}
        return Sketch(counts, self.total + len(keys))


class _KeyText(str):
    """The text of a key that cannot be hashed."""

    __slots__ = ()
    __repr__ = str.__str__


class HotKeys:
    """Finds the hot keys of one writer.

    >>> hot = HotKeys(now_ns=lambda: 0, below=lambda n: 0)
    >>> keys = ["london", "paris", "london", "london"] * 100
    >>> if hot.count(len(keys)):
    ...     hot.sample(len(keys), keys.__getitem__)
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
        self._next = 0  # the record at which a run starts or continues
        self._sample: list[Hashable] = []  # of the last runs
        self._sketches = (Sketch(), Sketch())  # of the current span of time, and of the one before; replaced together
        self._taken_ns = self._span_ns = self._rated_ns = now_ns()
        self._rated_at = 0  # the record at which the rate was measured last
        self._runs = 0  # since then
        self._mean = 0  # records between runs

    def count(self, records: int) -> bool:
        """Count records. Return True if `sample` must be called for them. Most batches cost only this call."""
        self._seen += records
        return self._seen > self._next

    def sample(self, records: int, keys: Callable[[slice], Sequence[Hashable]]) -> None:
        """Sample the records counted last; `keys` returns the keys of a slice of them."""
        try:
            self._sample_runs(records, keys)
        except Exception:  # noqa: BLE001 - an error of a user's key must not stop the writer
            self._sample = []
            self._next = self._seen + self._below(2 * self._mean + _SAMPLE)

    def _sample_runs(self, records: int, keys: Callable[[slice], Sequence[Hashable]]) -> None:
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
                    self._add_sample(now_ns)
        self._next = first + at
        if self._sample and (now_ns := self._now_ns()) - self._taken_ns >= _SAMPLE_NS:
            self._add_sample(now_ns)  # records are rare: do not wait for a full sample

    def _add_sample(self, now_ns: int) -> None:
        sample, self._sample = self._sample, []
        sample = [_NAN if type(key) is float and key != key else key for key in sample]  # noqa: PLR0124 - NaN
        current, before = self._sketches
        elapsed_ns = now_ns - self._span_ns
        if elapsed_ns >= _SPAN_NS:
            current, before = Sketch(), current if elapsed_ns < 2 * _SPAN_NS else Sketch()
            self._span_ns = now_ns
        try:
            current = current.plus(sample)
        except Exception:  # noqa: BLE001 - Arrow's structs are dicts, and a user's class may raise anything
            current = current.plus([_KeyText(_key_text(key)) for key in sample])
        self._sketches = (current, before)
        self._taken_ns = now_ns

    def _pause(self, at: int, now_ns: int) -> int:
        """Return the number of records to skip; a random number, so that periodic data does not bias the sample."""
        self._runs += 1
        elapsed_ns = now_ns - self._rated_ns
        if elapsed_ns >= _SECOND_NS or self._runs * _EVERY_NS >= 2 * _SECOND_NS:
            self._mean = max(0, (at - self._rated_at) * _EVERY_NS // max(1, elapsed_ns) - _RUN)
            self._rated_at, self._rated_ns, self._runs = at, now_ns, 0
        return self._below(2 * self._mean + 1)

    def shares(self) -> list[KeyShare]:
        """Return the keys of at least 5 % of the records, the hottest first. Called from any thread."""
        if self._now_ns() - self._taken_ns >= _STALE_NS:
            self._next = 0  # records have become rare: sample the next. A lost update by a race is harmless
        current, before = self._sketches
        total = current.total + before.total
        if total < _MIN_RECORDS:
            return []
        try:
            counts = dict(before.counts)
            for key, count in current.counts.items():
                counts[key] = counts.get(key, 0) + count
        except Exception:  # noqa: BLE001 - a user's key may raise anything
            counts = dict(current.counts)
        hot = [(1000 * count // total, key) for key, count in counts.items()]
        hot = sorted([one for one in hot if one[0] >= _HOT_PERMILLE], key=itemgetter(0), reverse=True)
        return [KeyShare(_key_text(key), permille) for permille, key in hot]


def _key_text(key: object) -> str:
    """Return a key as short, printable text."""
    try:
        if type(key) is str or type(key) is bytes:
            return _cut(repr(key[: _MAX_SHOWN + 1]))  # sliced first: the key may be very long
        return _cut(repr(key))
    except BaseException:  # noqa: BLE001 - a user's repr may raise anything
        return _cut(f"<{type(key).__name__}>")


def _cut(text: str) -> str:
    text = text[: _MAX_SHOWN + 1]
    if not text.isprintable():
        text = text.encode("unicode_escape").decode("ascii")
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}\u2026"
