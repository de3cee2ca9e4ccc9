"""How much memory a keyed operator takes in BATCH mode: run as a process of its own, which says so in JSON.

python -m tests.support_group_memory reduce 8388608 80000 60000    what, memory limit, records of 1 KB, keys
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from headgate.config import Compression
from headgate.record import MsgpackSerializer
from headgate.task.functions import KeyedProcessFunction
from headgate.task.keyed import KeyedCount, KeyedProcess, KeyedReduce
from headgate.task.spill import SpillSpace
from headgate.task.window_join import WindowJoin
from headgate.task.window_operator import WindowOperator
from headgate.task.windows import TumblingEventTimeWindows
from headgate.testing.harness import OperatorHarness


def first(value):
    return value[0]


class Numbered(KeyedProcessFunction):
    """Remembers the last value of each key, and gives out how many there were."""

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
    """Only counts what comes out."""

    results = 0

    def emit(self, values, times=None):
        self.results += len(values)


def peak_bytes():
    """The most memory that this program has had; `getrusage` would count what its parent had before it."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def main(what, limit, records, keys):
    serializers = (MsgpackSerializer(tuple[int, str]),) * 2
    spill = SpillSpace(tempfile.gettempdir, limit, Compression.LZ4, serializers=serializers)
    with spill.file() as file:
        file.append([bytes(1000)])  # what is imported for that counts for nobody
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
