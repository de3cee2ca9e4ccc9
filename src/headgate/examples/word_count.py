"""Word count: how often does each word occur in a text?

    $ python -m headgate.examples.word_count

Shows: `flat_map`, `key_by`, a running aggregate, type hints that choose a fast serializer, results in the driver.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import TYPE_CHECKING

import headgate as hg

if TYPE_CHECKING:
    from collections.abc import Iterable


def text() -> list[str]:
    """Return the lines of a small text about water, part of the package."""
    return files("headgate.examples").joinpath("text.txt").read_text("utf-8").splitlines()


# By the hints of `words` and `one` headgate chooses the serializers between tasks. Without hints it uses pickle, which
# is slower.
def words(line: str) -> list[str]:
    """Return the words of a line, in lower case."""
    return re.findall(r"[a-z]+", line.lower())


def one(word: str) -> tuple[str, int]:
    """Return a word with its count of 1."""
    return word, 1


def main(env: hg.StreamExecutionEnvironment | None = None, lines: Iterable[str] | None = None) -> dict[str, int]:
    """Count the words of some lines.

    >>> sorted(main(hg.environment(local=True, parallelism=2), ["to be or", "not to be"]).items())
    [('be', 2), ('not', 1), ('or', 1), ('to', 2)]
    """
    env = env or hg.environment()
    counts = (
        env.from_collection(text() if lines is None else lines)
        .flat_map(words)
        .map(one)
        .key_by(lambda pair: pair[0])  # from here on, one subtask receives all records of a word
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    # A stream may be endless, so `reduce` emits a new count for every word. The counts of one word stay in order: the
    # last is the final one, and the dict keeps it.
    return dict(counts.execute_and_collect("word count"))


if __name__ == "__main__":
    for word, n in sorted(main().items(), key=lambda pair: (-pair[1], pair[0]))[:10]:
        print(f"{n:5}  {word}")
