"""New seeds for SOAK_SECONDS (60), on all cores; those that fail are kept in seeds.txt for good."""

import os
import random
import time

import pytest
from tests.sim.test_simulation import KEPT, kept_seeds

from headgate.testing import simulate_many

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.spec("T5", "M9", "G5", "G8", "N2")
def test_new_seeds_for_a_long_time():
    start = random.SystemRandom().randrange(10_000, 2**31)
    print(f"first seed: {start}")  # noqa: T201 - pytest shows it when a seed fails
    deadline, failures = time.monotonic() + SECONDS, []
    while time.monotonic() < deadline:
        failures += simulate_many(range(start, start + 200))
        start += 200
    known = kept_seeds()
    with KEPT.open("a", encoding="utf-8") as kept:
        kept.writelines(f"{one.seed}\n" for one in failures if one.seed not in known)
    assert not failures, "\n\n".join(f"{one.repeat}\n{one.text}" for one in failures[:5])
