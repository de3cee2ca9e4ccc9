"""Pipelines that several tests run. No pytest here: Spark's Python workers import it too."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import headgate as hg
from headgate.spark import SparkHost

LINES = ["to be or not", "to be", "that is the question"] * 20
COUNTS = {"to": 40, "be": 40, "or": 20, "not": 20, "that": 20, "is": 20, "the": 20, "question": 20}


@dataclass(frozen=True)
class Word:
    text: str
    n: int


def word_count(host: SparkHost, parallelism: int = 2) -> dict[str, int]:
    env = hg.environment(host=host, parallelism=parallelism)
    counts = (
        env.from_collection(LINES)
        .flat_map(str.split)
        .map(lambda word: Word(word, 1))
        .key_by(lambda word: word.text)
        .reduce(lambda a, b: Word(a.text, a.n + b.n))
    )
    found: dict[str, int] = {}
    for word in counts.execute_and_collect():
        found[word.text] = max(found.get(word.text, 0), word.n)
    return found


def endless(host: SparkHost, begun: Path, *, stubborn: bool = False) -> hg.Job:
    """A job that runs until it is stopped; each worker leaves a file with its process id in the directory `begun`."""

    def work(n: int) -> int:
        (begun / str(os.getpid())).touch()
        time.sleep(60 if stubborn else 0.001)
        return n

    env = hg.environment(host=host, parallelism=2)
    env.from_source(Endless()).map(work).key_by(lambda n: n).map(lambda n: n).for_each(lambda n: None)
    return env.execute_async("endless")


class Endless(hg.Source):
    bounded = False

    def splits(self, parallelism):
        return range(parallelism)

    def read(self, split, offset, place):
        while True:
            yield [split]


def pids(begun: Path, count: int, timeout_s: float = 90.0) -> list[int]:
    """The processes that have left a file, once there are so many."""
    deadline = time.monotonic() + timeout_s
    while len(found := [int(one.name) for one in begun.iterdir()]) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} workers have begun"
        time.sleep(0.05)
    return found


def wait_until_gone(processes: list[int], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while left := [one for one in processes if Path(f"/proc/{one}").exists()]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)
