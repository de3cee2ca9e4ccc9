"""What is carried through the pipelines that are measured: the same for headgate and for its peers.

Each function is a generator of the batches of one of two sources, called in that source's process. What it carries is
made before it gives out the first batch: no clock runs before then. Nothing but the standard library is imported, for
peers' programs load this file where headgate is not installed.
"""

import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = [
    "KEYS",
    "LINE_WORDS",
    "SECOND_RECORDS",
    "WAIT_S",
    "exactly",
    "lines",
    "pace",
    "records",
    "repeat",
    "second",
    "seconds_of",
]

T = TypeVar("T")

LINE_WORDS = 10  # words in a line of text
KEYS = 1_000  # different keys of W2 and W3
SECOND_RECORDS = 50_000  # records of one source of W2 that have their time in one second
WAIT_S = 0.0005
"""A source of W3 that has nothing due looks again after this."""

_WORDS = 10_000  # different words
_TEXT = "x" * 72
_SEED = 7


def lines(count: int) -> list[str]:
    """W1: lines of ten words, of ten thousand that are all equally frequent.

    >>> [len(line.split()) for line in lines(2)]
    [10, 10]
    """
    chance = random.Random(_SEED)  # noqa: S311 - no secret
    words = [f"word{number}" for number in range(_WORDS)]
    return [" ".join(chance.choices(words, k=LINE_WORDS)) for _ in range(count)]


def records(count: int) -> list[tuple[int, float, str, int]]:
    """W4: records of about 100 bytes.

    >>> records(2)[1][0], len(records(1)[0][2])
    (1, 72)
    """
    chance = random.Random(_SEED)  # noqa: S311 - no secret
    return [(number, chance.random(), _TEXT, number * 7) for number in range(count)]


def second() -> list[tuple[str, int]]:
    """W2: keys and times, in milliseconds, of the records of one second; the times never fall.

    >>> made = second()
    >>> len({key for key, _ in made}) == KEYS, made[0][1], made[-1][1]
    (True, 0, 999)
    """
    keys = [f"key{number * 7919 % KEYS}" for number in range(SECOND_RECORDS)]
    return [(key, number * 1000 // SECOND_RECORDS) for number, key in enumerate(keys)]


def repeat(values: Sequence[T], size: int, seconds: float) -> Iterator[Sequence[T]]:
    """Slices of the values, again and again, until so much time has passed; one at least.

    >>> batches = repeat("abcde", 2, seconds=60)
    >>> [next(batches) for _ in range(4)]
    ['ab', 'cd', 'e', 'ab']
    """
    until_ns = time.monotonic_ns() + round(seconds * 1e9)
    while True:
        for start in range(0, len(values), size):
            yield values[start : start + size]
            if time.monotonic_ns() >= until_ns:
                return


def exactly(values: Sequence[T], size: int, count: int) -> Iterator[Sequence[T]]:
    """Slices of the values, again and again, until so many have been given out.

    >>> list(exactly("abcde", 2, 8))
    ['ab', 'cd', 'e', 'ab', 'c']
    """
    left = count
    while left > 0:
        for start in range(0, min(left, len(values)), size):
            yield values[start : start + min(size, left - start)]
        left -= len(values)


def seconds_of(size: int, seconds: float) -> Iterator[list[tuple[str, int, int]]]:
    """W2: key, time in milliseconds and 1, a second of event time after the other, until so much time has passed.

    >>> batches = seconds_of(2 * SECOND_RECORDS, seconds=60)
    >>> next(batches)[-1][1:], next(batches)[0]
    ((999, 1), ('key0', 1000, 1))
    """
    made, base_ms = second(), 0
    for batch in repeat(made, size, seconds):
        yield [(key, base_ms + at_ms, 1) for key, at_ms in batch]
        if batch[-1] is made[-1]:
            base_ms += 1000


def pace(rate_hz: float, seconds: float) -> Iterator[list[tuple[int, int]]]:
    """W3: number of the record and when it was made, as many as are due at this moment: perhaps none.

    The rate holds whenever the source is asked; records that are due together are made together.

    >>> sum(len(batch) for batch in pace(1_000, 0.02))
    20
    """
    count, made, started_ns = round(rate_hz * seconds), 0, time.monotonic_ns()
    while made < count:
        now_ns = time.monotonic_ns()
        due = min(count, int((now_ns - started_ns) * rate_hz / 1e9))
        yield [(number, now_ns) for number in range(made, due)]
        made = due
