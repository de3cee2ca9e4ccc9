"""Rolling aggregates in BATCH mode: the last value of each key, when all input is there. Called on the task's thread.

As long as they fit, aggregates are kept by key in a dict, and each value is added to that of its key: one loop over the
batch. When the dict has grown too large, values of keys that are not in it are put aside by a `Grouping`, which spills,
and are added up in the end, key by key. Aggregates that grow with their values go there, too.

Invariants: the values of a key are added one by one in the order in which they came, so functions need not be
associative; a key is either in the dict or in the grouping, or its aggregate is the first of its values there; a result
has the time of the last value.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import Cancelled
from headgate.task.basic import FunctionOperator, method_of
from headgate.task.batch_keyed import Gathered, grouping_of, named_here
from headgate.task.key_by_key import OWN, UNTIMED
from headgate.task.operator import MAX_WATERMARK_MS
from headgate.task.sizes import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from headgate.task.operator import Times, Values

__all__ = ["LastCount", "LastOfEach", "LastReduce"]

_EMIT_AT: Final = 1024
_KEY_BYTES: Final = 120  # of a key in the dict
_TIME_BYTES: Final = 150  # of a key in the dict of times
_LOOKED_AT: Final = 32  # keys of a batch

_MISSING: Any = object()


class LastOfEach(FunctionOperator):
    """What is left of each key at the end: see `LastReduce` and `LastCount`.

    >>> issubclass(LastReduce, LastOfEach)
    True
    """

    grows = True  # whether an aggregate may become as large as all its values

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key = key
        self._kept: dict[Any, Any] = {}
        self._times: dict[Any, int] = {}  # of the last value of a key that has one
        self._bytes_each = 0.0  # of a key and its aggregate, about
        self._unseen = 0  # how many values may come before the dict is looked at
        self._full = False  # no more keys fit in the dict
        self._most = 0.0  # bytes that it may have then, if its aggregates grow
        self._done = False
        self._cancelled = False

    @abstractmethod
    def fold(self, keys: list[Any], values: Values) -> None:
        """Add values to the aggregates of their keys, which may be new."""

    @abstractmethod
    def fold_known(self, keys: list[Any], values: Values) -> list[int]:
        """Add values to the aggregates of keys that are there; returns the places of the others."""

    @abstractmethod
    def added(self, aggregate: Any, values: Values) -> Any:
        """An aggregate with values of its key added; there may be none yet."""

    def results(self, keys: list[Any], aggregates: Values) -> Values:  # noqa: ARG002 - most do not show keys
        """What is given out for some keys."""
        return aggregates

    def open(self) -> None:
        """See `FunctionOperator`."""
        super().open()
        self._grouping = grouping_of(self, 0.5, check=self._refuse_if_cancelled)

    def process(self, values: Values, times: Times) -> None:
        """Add a batch to what is kept."""
        others: list[int] = []
        with self.user_code():
            keys = self.answers(self._key, values)
            if self._full:
                others = self.fold_known(keys, values)
            else:
                self.fold(keys, values)
        if times is not None:
            self._times.update(zip(keys, times, strict=True))
        elif self._times:
            for key in keys:
                self._times.pop(key, None)
        if others:
            self._put_aside(others, keys, values, times)
        self._unseen -= len(values)
        if self._unseen < 0 and keys:
            self._look_at(keys)

    def _put_aside(self, places: list[int], keys: list[Any], values: Values, times: Times) -> None:
        """Leave the values at these places of a batch to the end: they are of keys that are not in the dict."""
        apart = [keys[place] for place in places]
        of_these = None if times is None else [times[place] for place in places]
        if of_these is not None:
            for key in apart:
                self._times.pop(key, None)
        with named_here(self):
            self._grouping.add(apart, [values[place] for place in places], of_these, UNTIMED if of_these is None else 0)

    def _look_at(self, keys: list[Any]) -> None:
        """Estimate what the dict takes, by some of a batch's keys, and when to look again."""
        space, kept = self.place.spill, self._kept
        if space is None:
            self._unseen = sys.maxsize
            return
        sample = keys[:: -(-len(keys) // _LOOKED_AT)]
        aggregates = [kept[key] for key in sample if key in kept]
        if aggregates:
            each = memory_of(aggregates) / len(aggregates) + memory_of(sample) / len(sample) + _KEY_BYTES
            if self._times:
                each += _TIME_BYTES
            self._bytes_each = (self._bytes_each + each) / 2 if self._bytes_each else each
        memory = len(kept) * self._bytes_each
        if not self._full and memory > space.memory_bytes / 2:
            self._full = True
            self._most = max(memory * 5 / 4, space.memory_bytes * 3 / 4)
        if self._full and self.grows and memory > self._most:
            self._put_all_aside()
        self._unseen = int(space.memory_bytes / 16 / max(self._bytes_each, 1))

    def _put_all_aside(self) -> None:
        """The aggregates themselves have grown too large: each becomes the first of its key's values."""
        for keys, aggregates, times in self._taken_out():
            with named_here(self):
                self._grouping.add(keys, aggregates, times, OWN | (UNTIMED if times is None else 0))

    def _taken_out(self) -> Iterator[tuple[list[Any], Values, Times]]:
        """All keys with their aggregates and times, some at a time; nothing is left in the dict."""
        kept, times_of = self._kept, self._times
        if not times_of or len(times_of) == len(kept):
            alike = [(list(kept), bool(times_of))]
        else:
            alike = [
                ([key for key in kept if key in times_of], True),
                ([key for key in kept if key not in times_of], False),
            ]
        for keys, timed in alike:
            for begin in range(0, len(keys), _EMIT_AT):
                self._refuse_if_cancelled()
                some = keys[begin : begin + _EMIT_AT]
                yield some, list(map(kept.pop, some)), list(map(times_of.pop, some)) if timed else None

    def watermark(self, timestamp_ms: int) -> None:
        """Give everything out when the last one comes; there is no other behind this operator."""
        if timestamp_ms >= MAX_WATERMARK_MS:
            self.finish()
            self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """There is nothing to hand on before the end."""

    def finish(self) -> None:
        """Give everything out, once."""
        if self._done:
            return
        self._done = True
        for keys, aggregates, times in self._taken_out():
            self.out.emit(self.results(keys, aggregates), times)
        out = Gathered(self.out)
        with named_here(self):
            for key, several in self._grouping.groups():
                self._refuse_if_cancelled()
                aggregate, last = _MISSING, None
                for last in several:
                    with self.user_code():
                        aggregate = self.added(aggregate, last.values)
                assert last is not None, "a key has values"
                out.emit(self.results([key], [aggregate]), None if last.tags[-1] & UNTIMED else [last.times[-1]])
            out.flush()

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def cancel(self) -> None:
        """See `Operator`."""
        self._cancelled = True

    def close(self) -> None:
        """Close the function, and let go of all files."""
        try:
            super().close()
        finally:
            self._grouping.close()


class LastReduce(LastOfEach):
    """The values of each key, made one by a function; given out at the end.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(LastReduce(lambda pair: pair[0], lambda a, b: (a[0], a[1] + b[1]))) as harness:
    ...     harness.process([("to", 1), ("be", 1), ("to", 1)], [10, 20, 30])
    ...     harness.end()
    >>> harness.timed
    [(('to', 2), 30), (('be', 1), 20)]
    """

    def open(self) -> None:
        """See `LastOfEach`."""
        super().open()
        self._reduce = method_of(self.function, "reduce")

    def fold(self, keys: list[Any], values: Values) -> None:
        """See `LastOfEach`."""
        kept, function, missing = self._kept, self._reduce, _MISSING
        get = kept.get
        for key, value in zip(keys, values, strict=True):
            before = get(key, missing)
            kept[key] = value if before is missing else function(before, value)

    def fold_known(self, keys: list[Any], values: Values) -> list[int]:
        """See `LastOfEach`."""
        kept, function = self._kept, self._reduce
        others = []
        for place, key in enumerate(keys):
            if key in kept:
                kept[key] = function(kept[key], values[place])
            else:
                others.append(place)
        return others

    def added(self, aggregate: Any, values: Values) -> Any:
        """See `LastOfEach`."""
        rest = iter(values)
        return reduce(self._reduce, rest, next(rest) if aggregate is _MISSING else aggregate)


class LastCount(LastOfEach):
    """How many values each key has had: `(key, n)`; given out at the end.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(LastCount(str.lower)) as harness:
    ...     harness.process(["To", "be", "to"])
    ...     harness.end()
    >>> harness.values
    [('to', 2), ('be', 1)]
    """

    grows = False

    def __init__(self, key: Callable[[Any], Hashable]) -> None:
        super().__init__(key, None)
        self._kept: Counter[Any] = Counter()

    def fold(self, keys: list[Any], values: Values) -> None:  # noqa: ARG002 - only how many there are
        """See `LastOfEach`."""
        self._kept.update(keys)

    def fold_known(self, keys: list[Any], values: Values) -> list[int]:  # noqa: ARG002 - only how many there are
        """See `LastOfEach`."""
        kept = self._kept
        others = []
        for place, key in enumerate(keys):
            if key in kept:
                kept[key] += 1
            else:
                others.append(place)
        return others

    def added(self, aggregate: Any, values: Values) -> Any:
        """See `LastOfEach`."""
        return len(values) if aggregate is _MISSING else aggregate + len(values)

    def results(self, keys: list[Any], aggregates: list[Any]) -> Values:
        """See `LastOfEach`."""
        return list(zip(keys, aggregates, strict=True))
