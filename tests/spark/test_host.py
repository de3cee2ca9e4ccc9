"""Jobs on Spark, on a session on this machine: results, failures, and what is left afterwards."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import pipelines
from tests.support.marks import Marking, MarkingSource

import headgate as hg
from headgate.coordinator import JobStatus
from headgate.errors import ConfigError, InsufficientBuffers, TransportError, UserCodeError
from headgate.spark import SparkHost

MOST_S = 60.0
"""Only a hang takes so long."""


@pytest.fixture
def host(spark: SparkSession) -> SparkHost:
    return SparkHost(spark)


def test_a_word_count_with_dataclasses(host: SparkHost) -> None:
    assert pipelines.word_count(host) == pipelines.COUNTS
    assert pipelines.word_count(host, parallelism=1) == pipelines.COUNTS


@pytest.mark.spec("T5")
def test_a_key_meets_its_records_in_the_order_of_the_collection(host: SparkHost) -> None:
    records = [(f"key-{n % 7}", n) for n in range(2100)]

    def gathered(before: tuple[str, object], record: tuple[str, object]) -> tuple[str, object]:
        return before[0], [*(before[1] if isinstance(before[1], list) else [before[1]]), record[1]]

    env = hg.environment(host=host, parallelism=4, runtime_mode="BATCH")
    keyed = env.from_collection(records).key_by(lambda pair: pair[0])
    orders = dict(keyed.reduce(gathered).execute_and_collect())
    assert orders == {f"key-{key}": list(range(key, 2100, 7)) for key in range(7)}
    env = hg.environment(host=host, parallelism=4)
    numbers = env.from_collection(records).key_by(lambda pair: pair[0]).map(lambda pair: pair)
    seen: dict[str, list[int]] = {}
    for key, number in numbers.execute_and_collect():
        seen.setdefault(key, []).append(number)
    assert seen == orders


def test_too_few_slots_are_refused_before_anything_starts(host: SparkHost) -> None:
    with pytest.raises(ConfigError, match=r"needs 5 task slots at once, and local\[4\] has 4"):
        pipelines.word_count(host, parallelism=5)


@pytest.mark.spec("M5")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_no_user_code_runs_in_a_job_with_too_little_memory(host: SparkHost, tmp_path: Path, mode: str) -> None:
    settings = {"memory.segment_size": "4 KiB", "memory.network.min": "40 KiB", "memory.network.max": "40 KiB"}
    env = hg.environment(host=host, parallelism=2, settings=settings, runtime_mode=mode)
    stream = env.from_source(MarkingSource(tmp_path)).global_().map(Marking(tmp_path)).set_parallelism(1)
    for _ in range(8):
        stream.rebalance().map(Marking(tmp_path)).for_each(print)
    with pytest.raises(InsufficientBuffers, match="on worker 0, which has 10") as caught:
        env.execute()
    assert "partition of 2 subpartitions: 3" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert pipelines.word_count(host) == pipelines.COUNTS, "its slots are free again"


@pytest.mark.spec("M5")
def test_no_user_code_runs_for_a_dataframe_with_too_little_memory(host: SparkHost, tmp_path: Path) -> None:
    settings = {"memory.segment_size": "4 KiB", "memory.network.min": "8 KiB", "memory.network.max": "8 KiB"}
    env = hg.environment(host=host, parallelism=2, settings=settings)
    with pytest.raises(InsufficientBuffers, match="which has 2"):
        env.from_source(MarkingSource(tmp_path)).rebalance().map(Marking(tmp_path)).to_dataframe("n long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("M5")
def test_on_other_machines_the_driver_refuses_a_job_that_no_worker_has_buffers_for(
    host: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say how much they have, which is at most memory.network.max: 16 buffers here, and 2 in the driver."""
    monkeypatch.setattr("headgate.spark.host.is_loopback", lambda spark: False)
    monkeypatch.setattr("headgate.spark.host.expected_segments", lambda plan: [2] * (plan.workers + plan.uses_driver))
    settings = {"memory.segment_size": "4 KiB", "memory.network.min": "8 KiB", "memory.network.max": "64 KiB"}

    def planned(branches: int, *, prints: bool = False) -> None:
        env = hg.environment(host=host, parallelism=2, settings=settings)
        stream = env.from_source(MarkingSource(tmp_path))
        for _ in range(branches):
            stream.rebalance().for_each(print)
        if prints:
            stream.print()
        env._plan(env._graph.nodes(), None, splits=False, check=host.check)

    planned(3)  # each branch: 3 for its partition, 2 for the remote channel of its gate
    with pytest.raises(InsufficientBuffers, match=r"needs 20 network buffers on worker 0, which has 16"):
        planned(4)
    with pytest.raises(InsufficientBuffers, match=r"needs 4 network buffers on the driver, which has 2"):
        planned(1, prints=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("M5")
def test_workers_that_register_with_too_little_memory_run_nothing(
    host: SparkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other machines than the driver's: here the driver expects too much, and the workers have what is set."""
    monkeypatch.setattr("headgate.spark.host.expected_segments", lambda plan: [10_000] * plan.workers)
    settings = {"memory.segment_size": "4 KiB", "memory.network.min": "8 KiB", "memory.network.max": "8 KiB"}
    env = hg.environment(host=host, parallelism=2, settings=settings)
    env.from_source(MarkingSource(tmp_path)).rebalance().map(Marking(tmp_path)).for_each(print)
    with pytest.raises(InsufficientBuffers, match=r"on worker \d, which has 2 \(also too few on worker \d\)"):
        env.execute()
    assert [one.name for one in tmp_path.iterdir()] == ["splits"], "which the driver has asked for"


def test_an_exception_of_the_user_is_the_cause(host: SparkHost) -> None:
    env = hg.environment(host=host, parallelism=2)
    env.from_collection(range(10)).map(lambda n: 1 // (n - 5)).for_each(print)
    with pytest.raises(UserCodeError, match="ZeroDivisionError") as caught:
        env.execute()
    assert caught.value.operator.startswith("map")
    assert "test_host.py" in caught.value.trace, "the user's own lines"
    assert pipelines.word_count(host) == pipelines.COUNTS, "the session can go on"


def test_a_plan_that_cannot_be_pickled_is_refused(host: SparkHost) -> None:
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
