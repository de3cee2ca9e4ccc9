"""A script as a user writes it, with a class of its own: run by python and by spark-submit. Says what it counted."""

import sys
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import headgate as hg
from headgate.spark import SparkHost


class Kind(Enum):
    SHORT = "short"
    LONG = "long"


class Tag(NamedTuple):
    kind: Kind


@dataclass(frozen=True)
class Word:
    text: str
    n: int
    tag: Tag

    @classmethod
    def of(cls, text: str) -> "Word":
        return cls(text, 1, Tag(Kind.SHORT if len(text) < 3 else Kind.LONG))


def main() -> None:
    host = SparkHost(master=sys.argv[1] if len(sys.argv) > 1 else None)
    env = hg.environment(host=host, parallelism=2)
    counts = (
        env.from_collection(["to be or not", "to be"] * 10)
        .flat_map(str.split)
        .map(Word.of)
        .key_by(lambda word: word.text)
        .reduce(lambda a, b: Word(a.text, a.n + b.n, a.tag))
    )
    last: dict[str, Word] = {}
    for word in counts.execute_and_collect():
        if word.text not in last or word.n > last[word.text].n:
            last[word.text] = word
    found = sorted((word.text, word.n, word.tag.kind.value) for word in last.values())
    sys.stdout.write(f"counted {found}\nmaster {host.session().sparkContext.master}\n")
    host.session().stop()


if __name__ == "__main__":
    main()
