"""A source and a function that write a file when any of their code runs."""

from pathlib import Path

import headgate as hg
from headgate.functions.source import Source


class MarkingSource(Source):
    """Emits some numbers; each of its methods writes a file into a directory when it runs."""

    bounded = True

    def __init__(self, marks):
        self.marks = str(marks)

    def splits(self, parallelism):
        Path(self.marks, "splits").touch()
        return range(parallelism)

    def read(self, split, offset, place):
        Path(self.marks, f"read-{split}").touch()
        yield [split]


class Marking(hg.MapFunction):
    """Writes a file into a directory when it is opened or called."""

    def __init__(self, marks):
        self.marks = str(marks)

    def open(self, context):
        Path(self.marks, "open").touch()

    def map(self, value):
        Path(self.marks, "map").touch()
        return value
