"""The data of the measured pipelines W1 to W4, the same for headgate and for its peers.

Each generator yields the batches of one of two sources and runs in the source's process. It makes its data before the
first batch: no clock runs before then. Only the standard library is imported, because peers' programs load this file
where headgate is not installed.
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
    "lines",
    "pace",
    "records",
    "repeat",
    "second",
    "seconds_of",
    "take",
]

T = TypeVar("T")

LINE_WORDS = 10  # words in a line of text
KEYS = 1_000  # different keys of W2 and W3
SECOND_RECORDS = 50_000  # records of one source of W2 with their time in one second
WAIT_S = 0.0005
"""A source of W3 without a due record waits this long."""

_WORDS = 10_000  # different words
_TEXT = "x" * 72
_SEED = 7


def lines(count: int) -> list[str]:
    """Return W1's lines of ten words, drawn evenly from ten thousand words."""
    chance = random.Random(_SEED)  # noqa: S311 - no secret
    words = [f"word{number}" for number in range(_WORDS)]
    return [" ".join(chance.choices(words, k=LINE_WORDS)) for _ in range(count)]


def records(count: int) -> list[tuple[int, float, str, int]]:
    """Return W4's records of about 100 bytes."""
    chance = random.Random(_SEED)  # noqa: S311 - no secret
    return [(number, chance.random(), _TEXT, number * 7) for number in range(count)]


def second() -> list[tuple[str, int]]:
    """Return W2's keys and ascending times in milliseconds, for the records of one second."""
    keys = [f"key{number * 7919 % KEYS}" for number in range(SECOND_RECORDS)]
    return [(key, number * 1000 // SECOND_RECORDS) for number, key in enumerate(keys)]


def repeat(values: Sequence[T], size: int, seconds: float) -> Iterator[Sequence[T]]:
    """Yield slices of the values again and again for a time, at least one.

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


def take(values: Sequence[T], size: int, count: int) -> Iterator[Sequence[T]]:
    """Yield slices of the values again and again, `count` values in all.

    >>> list(take("abcde", 2, 8))
    ['ab', 'cd', 'e', 'ab', 'c']
    """
    left = count
    while left > 0:
        for start in range(0, min(left, len(values)), size):
            yield values[start : start + min(size, left - start)]
        left -= len(values)


def seconds_of(size: int, seconds: float) -> Iterator[list[tuple[str, int, int]]]:
    """Yield W2's records for a time: key, time in milliseconds, 1; one second of event time after the other."""
    made, base_ms = second(), 0
    for batch in repeat(made, size, seconds):
        yield [(key, base_ms + at_ms, 1) for key, at_ms in batch]
        if batch[-1] is made[-1]:
            base_ms += 1000


def pace(rate_hz: float, seconds: float) -> Iterator[list[tuple[int, int]]]:
    """Yield the W3 records that are due at each call, perhaps none: number, and when it was made.

    Late calls do not lower the rate. Records that are due together are made together.
    """
    count, made, started_ns = round(rate_hz * seconds), 0, time.monotonic_ns()
    while made < count:
        now_ns = time.monotonic_ns()
        due = min(count, int((now_ns - started_ns) * rate_hz / 1e9))
        yield [(number, now_ns) for number in range(made, due)]
        made = due
