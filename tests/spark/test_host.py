"""Jobs on Spark, on a session on this machine: results, failures, and what is left afterwards."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import pipelines

import headgate as hg
from headgate.coordinator import JobStatus
from headgate.errors import ConfigError, TransportError, UserCodeError
from headgate.spark import SparkHost

MOST_S = 60.0
"""Only a hang takes so long."""


@pytest.fixture
def host(spark: SparkSession) -> SparkHost:
    return SparkHost(spark)


def test_a_word_count_with_dataclasses(host: SparkHost) -> None:
    assert pipelines.word_count(host) == pipelines.COUNTS
    assert pipelines.word_count(host, parallelism=1) == pipelines.COUNTS


def test_too_few_slots_are_refused_before_anything_starts(host: SparkHost) -> None:
    with pytest.raises(ConfigError, match=r"needs 5 task slots at once, and local\[4\] has 4"):
        pipelines.word_count(host, parallelism=5)


def test_an_exception_of_the_user_is_the_cause(host: SparkHost) -> None:
    env = hg.environment(host=host, parallelism=2)
    env.from_collection(range(10)).map(lambda n: 1 // (n - 5)).for_each(print)
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        env.execute()
    assert caught.value.operator.startswith("map")
    assert "test_host.py" in caught.value.trace, "the user's own lines"
    assert pipelines.word_count(host) == pipelines.COUNTS, "the session can go on"


def test_what_cannot_be_sent_is_refused(host: SparkHost) -> None:
    lock = threading.Lock()
    env = hg.environment(host=host, parallelism=2)
    env.from_collection([1]).map(lambda n: lock and n).for_each(print)
    with pytest.raises(ConfigError, match=r"cannot be sent to its workers.*open\(\)"):
        env.execute()


def test_a_killed_worker_is_named_and_the_others_end(host: SparkHost, tmp_path: Path) -> None:
    job = pipelines.endless(host, tmp_path)
    processes = pipelines.pids(tmp_path, 2)
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(TransportError, match=r"worker \d was lost") as caught:
        job.await_termination(MOST_S)
    assert job.status is JobStatus.FAILED
    assert "Python worker exited unexpectedly" in "\n".join([str(caught.value), *caught.value.__notes__])
    assert pipelines.word_count(host) == pipelines.COUNTS


@pytest.mark.parametrize("stubborn", [False, True])
def test_cancel_ends_all_workers(host: SparkHost, tmp_path: Path, stubborn: bool) -> None:
    job = pipelines.endless(host, tmp_path, stubborn=stubborn)
    processes = pipelines.pids(tmp_path, 2)
    assert job.cancel(timeout_s=MOST_S)
    assert job.status is JobStatus.CANCELLED
    assert job.exception is None
    if stubborn:
        pipelines.wait_until_gone(processes)
    assert pipelines.word_count(host) == pipelines.COUNTS


def test_a_job_that_spark_cancels_is_cancelled(host: SparkHost, spark: SparkSession, tmp_path: Path) -> None:
    job = pipelines.endless(host, tmp_path)
    pipelines.pids(tmp_path, 2)
    spark.sparkContext.cancelAllJobs()  # what Ctrl-C does, too
    assert job.wait(MOST_S)
    job.wind_up()
    assert job.status is JobStatus.CANCELLED


def test_two_jobs_at_once_have_slots_of_their_own(host: SparkHost, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def work(n: int) -> int:
        (tmp_path / f"{n}").touch()
        deadline = time.monotonic() + MOST_S
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return n

    results = []
    for number in range(2):
        env = hg.environment(host=host, parallelism=2)
        results.append(env.from_collection([number]).map(work).execute_and_collect())
    pipelines.pids(tmp_path, 2)
    with pytest.raises(ConfigError, match="4 of them taken by other pipelines"):
        pipelines.word_count(host, parallelism=1)
    go.touch()
    assert [list(one) for one in results] == [[0], [1]]
    assert pipelines.word_count(host) == pipelines.COUNTS


def test_workers_are_used_again(host: SparkHost) -> None:
    def once() -> list[int]:
        env = hg.environment(host=host, parallelism=2)
        return sorted(set(env.from_collection(range(100)).map(lambda n: os.getpid()).execute_and_collect()))

    used = [pid for _ in range(6) for pid in once()]
    assert len(used) == 12
    assert len(set(used)) < 12, "starting one takes longer than most jobs"
