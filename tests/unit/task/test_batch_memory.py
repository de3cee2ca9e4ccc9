"""Keys of ten times the memory limit finish within it: measured in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1024 * 1024
LIMIT = 4 * MIB
RECORDS = 40_000  # of 1 KB and some more: ten times as much
ROOT = Path(__file__).parents[3]


def measured(*arguments):
    command = [sys.executable, "-m", "tests.support.group_memory", *map(str, arguments)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.spec("T4")
@pytest.mark.parametrize(
    ("what", "keys", "results"),
    [
        ("reduce", 30_000, 30_000),
        ("grow", 1_000, 1_000),  # ten times the limit in results of 40 KB
        ("count", 40_000, 40_000),
        ("process", 30_000, 40_000),
        ("process", 1, 40_000),  # one key of ten times the limit
        ("window", 30_000, 30_000),
        ("join", 1_009, 392_086),
    ],
)
def test_ten_times_the_limit_finishes_within_it(what, keys, results):
    found = measured(what, LIMIT, RECORDS, keys)
    assert found["results"] == results
    assert found["spilled"] > 0
    assert found["memory"] < 1.5 * LIMIT + 2 * MIB  # the interpreter's own disorder counts, too


def test_without_an_effective_limit_memory_is_not_bounded():
    """Otherwise the test above would prove nothing."""
    found = measured("process", 1024 * MIB, RECORDS, 30_000)
    assert found["spilled"] == 0
    assert found["memory"] > 8 * LIMIT
