"""The races of `threads/`, at random, for SOAK_SECONDS (60): memory must come back and nothing may pile up."""

import os
import random
import resource
import threading
import time

import pytest
from tests.support import races
from tests.support.leaks import unnamed_files
from tests.support.threads import switching_often

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
MIB = 1 << 20


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.spec("T5", "M9", "G4", "G7")
def test_for_a_long_time(monkeypatch):
    monkeypatch.undo()  # the leak fixture remembers every pool, and so its memory; each round looks by itself
    chance = random.Random()
    start = chance.randrange(2**32)
    print(f"first seed: {start}")  # noqa: T201 - pytest shows it when a round fails
    threads, files, warm_kib = threading.active_count(), unnamed_files(), None
    deadline = time.monotonic() + SECONDS
    seed = start
    while time.monotonic() < deadline:
        with switching_often():
            for play in (races.small_exchange, races.flushed_exchange, races.fan_in, races.dropped_batches):
                play(seed)
            races.cancelled(chance.choice(races.CALLS), chance.choice(races.CANCELS), seed)
        seed += 1
        if warm_kib is None and seed - start >= 200:
            warm_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert seed > start
    assert threading.active_count() == threads
    assert unnamed_files() <= files
    if warm_kib is not None:
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - warm_kib
        assert grown_kib * 1024 < 64 * MIB, f"{grown_kib} KiB were left behind"
