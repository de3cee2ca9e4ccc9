"""Sources that need nothing outside: a collection, a function, a function at a rate.

`splits` is called in the driver, `read` on the task's thread. Batches have at most `BATCH_RECORDS` records, so that a
slow consumer holds little, and are given out after a few milliseconds at the latest, however slow the function is.
Sources over files and sockets are in `source_files` and `source_socket`.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.clock import SystemClock
from headgate.errors import ConfigError
from headgate.task.source import Source, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headgate.clock import Clock
    from headgate.task.operator import Place

__all__ = ["BATCH_RECORDS", "CollectionSource", "GeneratorSource", "RateSource", "skip"]

T = TypeVar("T")

BATCH_RECORDS = 1000
"""The most records that a built-in source gives out at once."""

_PATIENCE_NS = 5_000_000  # a batch that took longer than this to make is given out as it is
_SHORTEST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.1


def skip(batches: Iterator[list[T] | Wait], offset: int) -> Iterator[list[T] | Wait]:
    """Batches without the first `offset` records: what `read` does where a source cannot begin in the middle.

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
            batches.close()  # now, and not when somebody lets go of a traceback


class CollectionSource(Source[T]):
    """The values of a collection, a part of it in each subtask.

    >>> source = CollectionSource("to be or not to be".split())
    >>> [batch for split in source.splits(2) for batch in source.read(split, 0, None)]
    [['to', 'be', 'or'], ['not', 'to', 'be']]
    >>> list(source.read(range(3, 6), 2, None))  # from an offset on
    [['be']]
    """

    def __init__(self, values: Iterable[T], *, hint: object = None) -> None:
        self._values = list(values)
        self.hint = hint or _common_type(self._values)

    def splits(self, parallelism: int) -> Sequence[range]:
        """Contiguous parts of the collection."""
        n = len(self._values)
        return [range(i * n // parallelism, (i + 1) * n // parallelism) for i in range(parallelism)]

    def read(self, split: range, offset: int, place: Place) -> Iterator[list[T] | Wait]:  # noqa: ARG002
        """The values of a part."""
        for begin in range(split.start + offset, split.stop, BATCH_RECORDS):
            yield self._values[begin : min(begin + BATCH_RECORDS, split.stop)]


def _common_type(values: list[Any]) -> object:
    """The type of all values if it has a serializer of its own; a subclass is not that type."""
    types = set(map(type, values))
    return types.pop() if types in ({str}, {bytes}) else None


class GeneratorSource(Source[T]):
    """What a function makes: of each index, or as an iterable for each subtask.

    A plain function is called with 0, 1, 2 ... up to `count`, or for ever; subtask i of p has i, i + p, i + 2 p ...

    >>> squares = GeneratorSource(lambda n: n * n, count=7)
    >>> [sum(squares.read(split, 0, None), []) for split in squares.splits(2)]
    [[0, 4, 16, 36], [1, 9, 25]]

    A generator function, or any callable with `per_subtask=True`, is called once in each subtask, with as many of
    (subtask, parallelism) as it takes. It may yield `Wait` when it has nothing for now. `count` is then shared out too.
    Whether it ends is not known without a count: `bounded` says so.

    >>> def letters(subtask):
    ...     yield from "abc" if subtask == 0 else "xyz"
    >>> source = GeneratorSource(letters)
    >>> [sum(source.read(split, 1, None), []) for split in source.splits(2)]
    [['b', 'c'], ['y', 'z']]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        count: int | None = None,
        *,
        per_subtask: bool | None = None,
        bounded: bool | None = None,
        hint: object = None,
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

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        """One for each subtask: its number and how many there are."""
        return [(subtask, parallelism) for subtask in range(parallelism)]

    def read(self, split: tuple[int, int], offset: int, place: Place) -> Iterator[list[T] | Wait]:  # noqa: ARG002
        """The values of a subtask."""
        indices = _share(self._count, split)
        if not self._per_subtask:
            return self._by_index(indices[offset:])
        return self._by_iterable(self._function(*split[: self._arguments]), offset, len(indices))

    def _by_index(self, indices: range) -> Iterator[list[T]]:
        function, size = self._function, 16
        while indices:
            began_ns = time.monotonic_ns()
            batch = list(map(function, indices[:size]))
            took_ns = time.monotonic_ns() - began_ns
            yield batch
            indices = indices[size:]
            if took_ns > _PATIENCE_NS:
                size = max(1, size // 2)
            elif took_ns < _PATIENCE_NS // 4:
                size = min(2 * size, BATCH_RECORDS)

    @staticmethod
    def _by_iterable(values: Iterable[Any], offset: int, limit: int) -> Iterator[list[T] | Wait]:
        now_ns, taken = time.monotonic_ns, 0
        batch: list[T] = []
        due_ns = now_ns() + _PATIENCE_NS
        if limit == 0:
            return
        for value in values:
            if value.__class__ is Wait:
                if batch:
                    yield batch
                    batch = []
                yield value
                due_ns = now_ns() + _PATIENCE_NS
                continue
            taken += 1
            if taken > offset:
                batch.append(value)
            if len(batch) >= BATCH_RECORDS or now_ns() > due_ns:
                if batch:
                    yield batch
                    batch = []
                due_ns = now_ns() + _PATIENCE_NS
            if taken >= limit:  # not asked for one more, which might take for ever
                break
        if batch:
            yield batch


def _check_count(count: int | None) -> None:
    if count is not None and count < 0:
        raise ConfigError(f"count is {count}: it is how many records there are, or None for no end")


def _share(count: int | None, split: tuple[int, int]) -> range:
    """The indices of a subtask."""
    subtask, parallelism = split
    return range(subtask, sys.maxsize if count is None else count, parallelism)


def _positional(function: Callable[..., Any]) -> int:
    """How many of two arguments a callable takes."""
    kinds = [one.kind for one in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 2
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return min(2, sum(kind in places for kind in kinds))


class RateSource(Source[T]):
    """So many records in a second, over all subtasks: 0, 1, 2 ... or what a function makes of them.

    Record n is due n / per_second after the start, by the clock. What could not be given out in time, because the
    pipeline was slow, follows in small batches as fast as it can.

    >>> source = RateSource(10_000, count=5, function="record {}".format)
    >>> [batch for batch in source.read((0, 1), 3, None) if not isinstance(batch, Wait)][0][0]
    'record 3'
    """

    def __init__(
        self,
        per_second: float,
        count: int | None = None,
        function: Callable[[int], T] | None = None,
        *,
        hint: object = None,
        clock: Clock | None = None,
    ) -> None:
        if not 0 < per_second < float("inf"):
            raise ConfigError(f"a rate of {per_second} records in a second: it must be above 0, and finite")
        _check_count(count)
        self._per_second = per_second
        self._count = count
        self._function = function
        self._clock: Clock = clock or SystemClock()
        self.bounded = count is not None
        self.hint = int if function is None and hint is None else hint

    def splits(self, parallelism: int) -> Sequence[tuple[int, int]]:
        """One for each subtask: its number and how many there are."""
        return [(subtask, parallelism) for subtask in range(parallelism)]

    def read(self, split: tuple[int, int], offset: int, place: Place) -> Iterator[list[T] | Wait]:  # noqa: ARG002
        """The share of a subtask, each record when it is due; its first is due soon after the call."""
        subtask, parallelism = split
        numbers = _share(self._count, split)[offset:]
        total, given = len(numbers), 0
        rate, now_ns = self._per_second / parallelism, self._clock.now_ns
        head_start = subtask / parallelism  # subtasks take turns
        at_once = min(BATCH_RECORDS, max(1, round(rate * 0.01)))
        start_ns = now_ns()
        while given < total:
            due = (now_ns() - start_ns) * rate / 1e9 - head_start  # of numbers[k]: when this reaches k
            ready = min(int(due) + 1 if due >= 0 else 0, total) - given
            if ready <= 0:
                yield Wait(min(max((given - due) / rate, _SHORTEST_WAIT_S), _LONGEST_WAIT_S))
                continue
            part = numbers[given : given + min(ready, at_once)]
            given += len(part)
            yield list(part if self._function is None else map(self._function, part))  # type: ignore[arg-type]
