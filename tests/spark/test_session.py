"""Sessions that are started for the user, and how slots are counted."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from headgate.errors import ConfigError
from headgate.spark import session as module
from headgate.spark.session import check_barrier, is_loopback, local_session, require_slots, slots


def test_a_local_session_is_quiet_and_counts_its_slots() -> None:
    code = (
        "from headgate.spark.session import local_session, slots\n"
        "session = local_session(3)\n"
        "print(session.sparkContext.master, slots(session), session.range(5).count())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=True)
    assert done.stdout == "local[3] 3 5\n"
    assert done.stderr == ""


def test_the_running_session_is_taken(spark: SparkSession) -> None:
    assert local_session(7) is spark
    assert slots(spark) == 4
    assert is_loopback(spark)


def test_too_few_slots_are_refused_with_numbers(spark: SparkSession) -> None:
    require_slots(spark, 4)
    with pytest.raises(ConfigError, match=r"needs 5 task slots at once, and local\[4\] has 4: .*local\[5\]"):
        require_slots(spark, 5)
    with pytest.raises(ConfigError, match=r"has 4, 1 of them taken by other pipelines"):
        require_slots(spark, 4, busy=1)


@pytest.mark.parametrize("key", ["spark.dynamicAllocation.enabled", "spark.speculation"])
def test_settings_incompatible_with_barriers_are_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "conf_of", lambda spark, asked, default: "true" if asked == key else default)
    with pytest.raises(ConfigError, match=key):
        check_barrier(SimpleNamespace())  # type: ignore[arg-type]


def test_executors_that_are_still_coming_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 0, 1, 1, 2])
    monkeypatch.setattr(module, "slots", lambda spark: next(counts))
    monkeypatch.setattr(module, "master_of", lambda spark: "spark://host:7077")
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    require_slots(SimpleNamespace(), 2)  # type: ignore[arg-type]
