"""Sources without an external system: a collection, a function, a function at a rate.

The driver calls `splits`, the task's thread calls `read`. A batch has at most `BATCH_RECORDS` records, so that a slow
consumer holds little, and is yielded after about 5 ms, however slow the function is.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.clock import SystemClock
from headgate.errors import ConfigError
from headgate.functions.source import Source, Wait
from headgate.record.copying import copied, copied_batch
from headgate.task.operators.calls import gather_for, mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headgate.clock import Clock
    from headgate.functions.place import Place
    from headgate.task.operators.calls import Gather

__all__ = ["BATCH_RECORDS", "CollectionSource", "GeneratorSource", "RateSource", "skip"]

T = TypeVar("T")

BATCH_RECORDS = 1000
"""The maximum number of records in a batch of a built-in source."""

_MAX_BATCH_NS = 5_000_000  # a batch that takes longer is yielded before it is full
_MIN_WAIT_S = 0.001
_MAX_WAIT_S = 0.1


def skip(batches: Iterator[list[T] | Wait], offset: int) -> Iterator[list[T] | Wait]:
    """Yield batches without the first `offset` records: `read` of a source that cannot start in the middle.

    >>> list(skip(iter([[1, 2], [3, 4], [5]]), 3))
    [[4], [5]]
    """
    try:
        for batch in batches:
            if isinstance(batch, Wait):
                yield batch
            elif offset < len(batch):
                yield batch[offset:] if offset else batch
                offset = 0
            else:
                offset -= len(batch)
    finally:
        if isinstance(batches, Generator):
            batches.close()  # now, because a traceback may keep the generator alive


class CollectionSource(Source[T]):
    """The values of a collection: one subtask reads all, in order; with `parallel=True` each subtask reads a part.

    >>> source = CollectionSource("to be or not to be".split())
    >>> [batch for split in source.splits(2) for batch in source.read(split, 0, None)]
    [['to', 'be', 'or'], ['not', 'to', 'be']]
    >>> list(source.read(range(3, 6), 2, None))  # from an offset on
    [['be']]
    """

    def __init__(self, values: Iterable[T], *, hint: object = None, parallel: bool = False) -> None:
        self._values = list(values)
        self.fresh = copied_batch(self._values) is self._values  # `read` slices: each batch is a new list
        self.default_parallelism = None if parallel else 1
        self.hint = hint or _common_type(self._values)

    def splits(self, parallelism: int) -> Sequence[range]:
        """Return contiguous parts of the collection."""
        n = len(self._values)
        return [range(i * n // parallelism, (i + 1) * n // parallelism) for i in range(parallelism)]

    def read(self, split: range, offset: int, place: Place) -> Iterator[list[T] | Wait]:  # noqa: ARG002
        """Yield the values of a part."""
        for begin in range(split.start + offset, split.stop, BATCH_RECORDS):
            yield self._values[begin : min(begin + BATCH_RECORDS, split.stop)]


def _common_type(values: list[Any]) -> object:
    """Return the type of all values if it is str or bytes, else None; a subclass does not count."""
    types = set(map(type, values))
    return types.pop() if types in ({str}, {bytes}) else None


class GeneratorSource(Source[T]):
    """The results of a function: of each index, or as an iterable for each subtask.

    A plain function is called with 0, 1, 2 ... up to `count`, or without end; subtask i of p calls it with i, i + p,
    i + 2 p ... With a count, and unless `parallel=True`, one subtask calls it for all numbers, so the records keep
    their order.

    >>> squares = GeneratorSource(lambda n: n * n, count=7)
    >>> [sum(squares.read(split, 0, None), []) for split in squares.splits(2)]
    [[0, 4, 16, 36], [1, 9, 25]]

    A generator function, or any callable with `per_subtask=True`, is called once in each subtask, with as many of the
    arguments (subtask, parallelism) as it takes. It may yield `Wait` if it has no record now. `count` is divided among
    the subtasks, too. Without a count it is unknown if the iterable ends: set `bounded`. A mutable value is copied when
    it is yielded.

    >>> def letters(subtask):
    ...     yield from "abc" if subtask == 0 else "xyz"
    >>> source = GeneratorSource(letters)
    >>> [sum(source.read(split, 1, None), []) for split in source.splits(2)]
    [['b', 'c'], ['y', 'z']]
    """

    fresh = True

    def __init__(
        self,
        function: Callable[..., Any],
        count: int | None = None,
        *,
        per_subtask: bool | None = None,
        bounded: bool | None = None,
        hint: object = None,
        parallel: bool = False,
    ) -> None:
        _check_count(count)
        self._function = function
        self._count = count
        self._per_subtask = inspect.isgeneratorfunction(function) if per_subtask is None else per_subtask
        self._arguments = _positional(function) if self._per_subtask else 1
        self.bounded = bounded
        if bounded is None and (count is not None or not self._per_subtask):
            self.bounded = count is not None
        self.hint = hint
        self.default_parallelism = None if parallel or self._per_subtask or count is None else 1

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        """Return one split for each subtask: its index and the parallelism."""
        return [(subtask, parallelism) for subtask in range(parallelism)]

    def read(self, split: tuple[int, int], offset: int, place: Place | None) -> Iterator[list[T] | Wait]:
        """Yield the values of a subtask."""
        indices, reuse = _share(self._count, split), place is not None and place.object_reuse
        if not self._per_subtask:
            return self._by_index(indices[offset:], gather_for(self._function, object_reuse=reuse))
        values, own = self._function(*split[: self._arguments]), _itself if reuse else copied
        return self._by_iterable(values, offset, len(indices), own)

    def _by_index(self, indices: range, gather: Gather) -> Iterator[list[T]]:
        function, size = self._function, 16
        while indices:
            began_ns = time.monotonic_ns()
            batch = mapped(function, indices[:size], gather)
            took_ns = time.monotonic_ns() - began_ns
            yield batch
            indices = indices[size:]
            if took_ns > _MAX_BATCH_NS:
                size = max(1, size // 2)
            elif took_ns < _MAX_BATCH_NS // 4:
                size = min(2 * size, BATCH_RECORDS)

    @staticmethod
    def _by_iterable(
        values: Iterable[Any], offset: int, limit: int, own: Callable[[Any], Any]
    ) -> Iterator[list[T] | Wait]:
        now_ns, taken = time.monotonic_ns, 0
        batch: list[T] = []
        due_ns = now_ns() + _MAX_BATCH_NS
        if limit == 0:
            return
        for value in values:
            if value.__class__ is Wait:
                if batch:
                    yield batch
                    batch = []
                yield value
                due_ns = now_ns() + _MAX_BATCH_NS
                continue
            taken += 1
            if taken > offset:
                batch.append(own(value))
            if len(batch) >= BATCH_RECORDS or now_ns() > due_ns:
                if batch:
                    yield batch
                    batch = []
                due_ns = now_ns() + _MAX_BATCH_NS
            if taken >= limit:  # stop before the next value, which might block without end
                break
        if batch:
            yield batch


def _itself(value: Any) -> Any:
    return value


def _check_count(count: int | None) -> None:
    if count is not None and count < 0:
        raise ConfigError(f"count is {count}: it is how many records there are, or None for no end")


def _share(count: int | None, split: tuple[int, int]) -> range:
    """Return the indices of a subtask."""
    subtask, parallelism = split
    return range(subtask, sys.maxsize if count is None else count, parallelism)


def _positional(function: Callable[..., Any]) -> int:
    """Return the number of arguments, at most two, that a callable takes."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 2
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return min(2, sum(kind in places for kind in kinds))


class RateSource(Source[T]):
    """Records at a rate, over all subtasks: 0, 1, 2 ... or a function's results for them.

    Record n is due n / per_second seconds after the start. Records that back pressure has delayed follow in small
    batches without waiting. With a count, and unless `parallel=True`, one subtask emits all records, in order.

    >>> source = RateSource(10_000, count=5, function="record {}".format)
    >>> [batch for batch in source.read((0, 1), 3, None) if not isinstance(batch, Wait)][0][0]
    'record 3'
    """

    fresh = True

    def __init__(
        self,
        per_second: float,
        count: int | None = None,
        function: Callable[[int], T] | None = None,
        *,
        hint: object = None,
        clock: Clock | None = None,
        parallel: bool = False,
    ) -> None:
        if not 0 < per_second < float("inf"):
            raise ConfigError(f"a rate of {per_second} records in a second: it must be above 0, and finite")
        _check_count(count)
        self._per_second = per_second
        self._count = count
        self._function = function
        self._clock: Clock = clock or SystemClock()
        self.bounded = count is not None
        self.default_parallelism = None if parallel or count is None else 1
        self.hint = int if function is None and hint is None else hint

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        """Return one split for each subtask: its index and the parallelism."""
        return [(subtask, parallelism) for subtask in range(parallelism)]

    def read(self, split: tuple[int, int], offset: int, place: Place | None) -> Iterator[list[T] | Wait]:
        """Yield the records of a subtask when they are due; the first one within 1 / per_second after the call."""
        subtask, parallelism = split
        numbers = _share(self._count, split)[offset:]
        total, given = len(numbers), 0
        rate, now_ns = self._per_second / parallelism, self._clock.now_ns
        phase = subtask / parallelism  # the subtasks alternate
        function = self._function
        gather = gather_for(function, object_reuse=place is not None and place.object_reuse)
        at_once = min(BATCH_RECORDS, max(1, round(rate * 0.01)))
        start_ns = now_ns()
        while given < total:
            due = (now_ns() - start_ns) * rate / 1e9 - phase  # numbers[k] is due when this reaches k
            ready = min(int(due) + 1 if due >= 0 else 0, total) - given
            if ready <= 0:
                yield Wait(min(max((given - due) / rate, _MIN_WAIT_S), _MAX_WAIT_S))
                continue
            part = numbers[given : given + min(ready, at_once)]
            given += len(part)
            yield list(part) if function is None else mapped(function, part, gather)  # type: ignore[arg-type]
