"""Measures the memory of a keyed operator in BATCH mode: a process of its own, which prints it as JSON.

python -m tests.support.group_memory reduce 8388608 80000 60000    what, memory limit, records of 1 KB, keys
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from headgate.config import Compression
from headgate.functions.process import KeyedProcessFunction
from headgate.functions.windows import TumblingEventTimeWindows
from headgate.record import MsgpackSerializer
from headgate.task.batch.spill import SpillSpace
from headgate.task.operators.keyed import KeyedCount, KeyedProcess, KeyedReduce
from headgate.task.windows.join import WindowJoin
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness


def first(value):
    return value[0]


class Numbered(KeyedProcessFunction):
    """Keeps the last value of each key, and emits the number of values."""

    def open(self, context):
        self.last = context.get_state("last")
        self.count = context.get_state("count", 0)

    def process_element(self, value, ctx):
        self.last.update(value)
        self.count.update(self.count.value() + 1)
        yield value[0], self.count.value()


WINDOWS = TumblingEventTimeWindows.of(10**9)
OPERATORS = {
    "reduce": lambda: KeyedReduce(first, lambda a, b: b),
    "grow": lambda: KeyedReduce(first, lambda a, b: (a[0], a[1] + b[1])),
    "count": lambda: KeyedCount(first),
    "process": lambda: KeyedProcess(first, Numbered()),
    "window": lambda: WindowOperator(first, WINDOWS, lambda key, window, values: [(key, len(values))], "apply"),
    "join": lambda: WindowJoin(first, first, WINDOWS, lambda a, b: a[0]),
}


class Dropping(OperatorHarness):
    """Counts the emitted values only."""

    results = 0

    def emit(self, values, times=None):
        self.results += len(values)


def peak_bytes():
    """Return the peak memory of this program; `getrusage` would include that of its parent before the fork."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def main(what, limit, records, keys):
    serializers = (MsgpackSerializer(tuple[int, str]),) * 2
    spill = SpillSpace(tempfile.gettempdir, limit, Compression.LZ4, serializers=serializers)
    with spill.file() as file:
        file.append([bytes(1000)])  # imports what appending needs, before the measurement
    with Dropping(OPERATORS[what](), batch=True, spill=spill) as harness:
        give = [
            harness.operator.process,
            harness.operator.process_second if what == "join" else harness.operator.process,
        ]
        for number, begin in enumerate(range(0, records, 100)):
            values = [(n * 7919 % keys, f"{n:1000}") for n in range(begin, begin + 100)]
            if number == 2:
                before = peak_bytes()
            give[number % 2](values, [key for key, _ in values])
        harness.end()
    found = {"results": harness.results, "spilled": harness.counters.get("spilled_bytes", 0)}
    print(json.dumps({**found, "memory": peak_bytes() - before}))  # noqa: T201 - for the test


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
