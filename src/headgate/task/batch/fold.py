"""Running aggregates in BATCH mode: the last result of each key, at the end of the input. Called on the task's thread.

While they fit into memory, aggregates are in a dict by key, and each value is added to its key's aggregate: one loop
over the batch. When the dict is full, values of further keys go to a `Grouping`, which spills to disk, and are added at
the end, key by key. Aggregates that grow with their values are moved to the grouping, too.

Invariants: the values of a key are added one by one in the order of arrival, so functions need not be associative. A
key is either in the dict or in the grouping, or its aggregate is the first of its values there. A result has the time
of the key's last value.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import Cancelled
from headgate.functions.basic import method_of
from headgate.functions.state import KeyedState
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.task.batch.key_by_key import OWN, UNTIMED
from headgate.task.batch.keyed import BatchingOutput, HeldEvents, grouping_of, naming_operator
from headgate.task.batch.sizes import memory_of
from headgate.task.operators.basic import FunctionOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from headgate.record.element import Event
    from headgate.task.operator import Times, Values

__all__ = ["LastCount", "LastOfEach", "LastReduce"]

_EMIT_AT: Final = 1024
_KEY_BYTES: Final = 120  # of a key in the dict of aggregates
_TIME_BYTES: Final = 150  # of a key in the dict of times
_SAMPLE_KEYS: Final = 32  # per batch

_MISSING: Any = object()


class LastOfEach(FunctionOperator):
    """The base of `LastReduce` and `LastCount`: emits one result per key at the end."""

    grows = True  # False: the size of an aggregate does not depend on the number of values

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(function)
        self._key = key
        self._kept: dict[Any, Any] = {}
        self._times: dict[Any, int] = {}  # of the key's last value, if that has a time
        self._bytes_each = 0.0  # estimate for a key and its aggregate
        self._until_estimate = 0  # the number of values before the next estimate
        self._full = False  # no more keys fit in the dict
        self._max_bytes = 0.0  # of a full dict, if its aggregates grow
        self._events = HeldEvents(self)
        self._done = False
        self._cancelled = False

    @abstractmethod
    def fold(self, keys: list[Any], values: Values) -> None:
        """Add values to the aggregates of their keys; create missing ones."""

    @abstractmethod
    def fold_known(self, keys: list[Any], values: Values) -> list[int]:
        """Add values to existing aggregates. Return the indices of the values without one."""

    @abstractmethod
    def added(self, aggregate: Any, values: Values) -> Any:
        """Return an aggregate, which may be `_MISSING`, with values of its key added."""

    def results(self, keys: list[Any], aggregates: Values) -> Values:  # noqa: ARG002 - most do not show keys
        """Return the results of some keys."""
        return aggregates

    def open(self) -> None:
        """See `FunctionOperator`."""
        self._grouping = grouping_of(self, 0.5, check=self._raise_if_cancelled)  # first, because `close` closes it
        super().open()

    def process(self, values: Values, times: Times) -> None:
        """Add a batch to the aggregates."""
        others: list[int] = []
        with self.user_code():
            keys = self.call_each(self._key, values)
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
            self._group(others, keys, values, times)
        self._until_estimate -= len(values)
        if self._until_estimate < 0 and keys:
            self._estimate_memory(keys)

    def _group(self, indices: list[int], keys: list[Any], values: Values, times: Times) -> None:
        """Add the values at these indices of a batch, whose keys are not in the dict, to the grouping."""
        grouped_keys = [keys[index] for index in indices]
        grouped_times = None if times is None else [times[index] for index in indices]
        if grouped_times is not None:
            for key in grouped_keys:
                self._times.pop(key, None)
        tag = UNTIMED if grouped_times is None else 0
        with naming_operator(self):
            self._grouping.add(grouped_keys, [values[index] for index in indices], grouped_times, tag)

    def _estimate_memory(self, keys: list[Any]) -> None:
        """Estimate the dict's memory by a sample of a batch's keys, and the number of values before the next time."""
        space, kept = self.place.spill, self._kept
        if space is None:
            self._until_estimate = sys.maxsize
            return
        sample = keys[:: -(-len(keys) // _SAMPLE_KEYS)]
        aggregates = [kept[key] for key in sample if key in kept]
        if aggregates:
            each = memory_of(aggregates) / len(aggregates) + memory_of(sample) / len(sample) + _KEY_BYTES
            if self._times:
                each += _TIME_BYTES
            self._bytes_each = (self._bytes_each + each) / 2 if self._bytes_each else each
        memory = len(kept) * self._bytes_each
        if not self._full and memory > space.memory_bytes / 2:
            self._full = True
            self._max_bytes = max(memory * 5 / 4, space.memory_bytes * 3 / 4)
        if self._full and self.grows and memory > self._max_bytes:
            self._group_all()
        self._until_estimate = int(space.memory_bytes / 16 / max(self._bytes_each, 1))

    def _group_all(self) -> None:
        """Move all aggregates, which have grown too large, to the grouping: each becomes its key's first value."""
        for keys, aggregates, times in self._pop_all():
            with naming_operator(self):
                self._grouping.add(keys, aggregates, times, OWN | (UNTIMED if times is None else 0))

    def _pop_all(self) -> Iterator[tuple[list[Any], Values, Times]]:
        """Remove and yield all keys with their aggregates and times, 1,024 at a time."""
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
                self._raise_if_cancelled()
                some = keys[begin : begin + _EMIT_AT]
                yield some, list(map(kept.pop, some)), list(map(times_of.pop, some)) if timed else None

    def watermark(self, timestamp_ms: int) -> None:
        """Emit all results before the last watermark; no other is forwarded."""
        if timestamp_ms >= MAX_WATERMARK_MS:
            self.finish()
            self.out.emit_watermark(timestamp_ms)

    def status(self, *, active: bool) -> None:
        """Ignore the status: nothing is emitted before the end."""

    def event(self, event: Event) -> None:
        """Hold an event until all results are emitted, at the end: it must not overtake those of earlier values."""
        self._events.add(event)

    def finish(self) -> None:
        """Emit all results, once."""
        if self._done:
            return
        self._done = True
        for keys, aggregates, times in self._pop_all():
            self.out.emit(self.results(keys, aggregates), times)
        out = BatchingOutput(self.out)
        with naming_operator(self):
            for key, several in self._grouping.groups():
                self._raise_if_cancelled()
                aggregate, last = _MISSING, None
                for last in several:
                    with self.user_code():
                        aggregate = self.added(aggregate, last.values)
                assert last is not None, "a key has values"
                out.emit(self.results([key], [aggregate]), None if last.tags[-1] & UNTIMED else [last.times[-1]])
            out.flush()
        self._events.release(self.out.emit_event)

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the job was cancelled")

    def cancel(self) -> None:
        """See `Operator`."""
        self._cancelled = True

    def close(self) -> None:
        """Close the function and all files."""
        try:
            super().close()
        finally:
            self._grouping.close()


class LastReduce(LastOfEach):
    """Merges the values of each key by a function; emits the results at the end.

    >>> from headgate.testing.harness import OperatorHarness
    >>> with OperatorHarness(LastReduce(lambda pair: pair[0], lambda a, b: (a[0], a[1] + b[1]))) as harness:
    ...     harness.process([("to", 1), ("be", 1), ("to", 1)], [10, 20, 30])
    ...     harness.end()
    >>> harness.timed
    [(('to', 2), 30), (('be', 1), 20)]
    """

    def __init__(self, key: Callable[[Any], Hashable], function: Any) -> None:
        super().__init__(key, function)
        self._state = KeyedState()

    def keyed_state(self) -> KeyedState:
        """Return the state that the function may use: of all keys, in memory."""
        return self._state

    def open(self) -> None:
        """See `LastOfEach`."""
        super().open()
        self._reduce = method_of(self.function, "reduce")
        if self._state.settle():
            self._reduce = self._state.keyed(self._reduce, self._key)

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
        for index, key in enumerate(keys):
            if key in kept:
                kept[key] = function(kept[key], values[index])
            else:
                others.append(index)
        return others

    def added(self, aggregate: Any, values: Values) -> Any:
        """See `LastOfEach`."""
        rest = iter(values)
        return reduce(self._reduce, rest, next(rest) if aggregate is _MISSING else aggregate)


class LastCount(LastOfEach):
    """Counts the values of each key; emits `(key, n)` at the end.

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

    def fold(self, keys: list[Any], values: Values) -> None:  # noqa: ARG002 - one key per value
        """See `LastOfEach`."""
        self._kept.update(keys)

    def fold_known(self, keys: list[Any], values: Values) -> list[int]:  # noqa: ARG002 - one key per value
        """See `LastOfEach`."""
        kept = self._kept
        others = []
        for index, key in enumerate(keys):
            if key in kept:
                kept[key] += 1
            else:
                others.append(index)
        return others

    def added(self, aggregate: Any, values: Values) -> Any:
        """See `LastOfEach`."""
        return len(values) if aggregate is _MISSING else aggregate + len(values)

    def results(self, keys: list[Any], aggregates: list[Any]) -> Values:
        """See `LastOfEach`."""
        return list(zip(keys, aggregates, strict=True))
