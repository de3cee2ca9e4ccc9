"""BATCH jobs on Spark: a worker is killed in each region, and what has finished is not run again.

Killing one ends all of Spark's tasks, so there is another attempt with other processes each time. What ran is counted
by files, for the workers are processes.
"""

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headgate as hg
from headgate.coordinator import Job, JobStatus
from headgate.errors import TransportError, UserCodeError
from headgate.functions.sink import Sink
from headgate.spark import SparkHost

MOST_S = 60.0
"""Only a hang takes so long."""

NUMBERS = list(range(60))


@pytest.fixture
def place() -> Iterator[Path]:
    """Short, and no link: where BATCH jobs keep what they write."""
    with tempfile.TemporaryDirectory(prefix="headgate-batch-") as directory:
        yield Path(directory)


def environment(spark: SparkSession, place: Path, **settings: Any) -> Any:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return hg.environment(
        host=SparkHost(spark),
        parallelism=2,
        runtime_mode="BATCH",
        settings={"batch.directories": str(place), **dotted},
    )


def left(place: Path) -> list[str]:
    """The files of BATCH jobs."""
    return sorted(str(one) for one in place.glob("headgate-*/**/*"))


class Step(hg.MapFunction):
    """Notes by files that it runs; in its first run it waits to be killed, until the file `go` is there."""

    def __init__(self, notes: Path, name: str, *, waits: bool = False) -> None:
        self.notes, self.name, self.waits = notes, name, waits

    def open(self, context: Any) -> None:
        self.seen = 0
        self.mark = f"{self.name}-{context.subtask_index}"
        (self.notes / f"{self.mark}-{time.time_ns()}").touch()

    def map(self, value: Any) -> Any:
        self.seen += 1
        if self.waits and self.seen == 2:
            (self.notes / f"pid-{self.mark}-{os.getpid()}").touch()
            deadline = time.monotonic() + MOST_S
            while not (self.notes / "go").exists():
                assert time.monotonic() < deadline, "nobody has killed it"
                time.sleep(0.01)
        return value


def runs(notes: Path) -> Counter[str]:
    """How often each step was opened, by step and subtask."""
    return Counter(one.name.rpartition("-")[0] for one in notes.iterdir() if one.name.startswith("step"))


def pids(notes: Path, count: int) -> list[int]:
    """The processes that wait, once there are so many."""
    deadline = time.monotonic() + MOST_S
    while len(found := list(notes.glob("pid-*"))) < count:
        assert time.monotonic() < deadline, f"only {found}"
        time.sleep(0.01)
    return [int(one.name.rpartition("-")[2]) for one in found]


class Delivered(Sink[Any]):
    """In the driver: remembers, and may wait at its first batch."""

    in_driver = True

    def __init__(self, waits: bool = False) -> None:
        self.values: list[Any] = []
        self.opened, self.waits = 0, waits
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # it runs here only

    def open(self, place: Any) -> None:
        self.opened += 1

    def write(self, values: list[Any]) -> None:
        if self.waits:
            self.reached.set()
            assert self.go_on.wait(MOST_S)
        self.values += values


def three_stages(env: Any, notes: Path, sink: Delivered, waits: int) -> Job:
    """source -> step 0 | step 1 | step 2 -> a sink in the driver."""
    steps = [Step(notes, f"step{number}", waits=number == waits) for number in range(3)]
    stream = env.from_collection(NUMBERS).map(steps[0]).rebalance().map(steps[1])
    stream.key_by(lambda n: n % 7).map(steps[2]).sink_to(sink)
    job: Job = env.execute_async("three stages")
    return job


@pytest.mark.spec("T4", "P3")
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_worker_killed_in_a_region(spark: SparkSession, place: Path, tmp_path: Path, stage: int) -> None:
    sink = Delivered()
    job = three_stages(environment(spark, place), tmp_path, sink, stage)
    waiting = pids(tmp_path, 2)
    before = [one.pid for one in job.last_progress.workers][:2]
    assert sorted(before) == sorted(waiting)
    os.kill(before[1], signal.SIGKILL)
    wait_for_event(job, "goes on with new workers: worker 1 was lost")
    (tmp_path / "go").touch()
    assert job.await_termination(MOST_S)
    assert job.status is JobStatus.FINISHED
    assert sorted(sink.values) == NUMBERS, "each once"
    assert sink.opened == 1
    (killed,) = (one.name.split("-", 1)[1].rpartition("-")[0] for one in tmp_path.glob(f"pid-*-{before[1]}"))
    counts = runs(tmp_path)
    # The other worker of the stage lives until Spark ends it, for up to 2 s. If its region sees `go` before that, the
    # region finishes, and the next attempt uses its partitions.
    survivor = f"step{stage}-{1 - int(killed[-1])}"
    assert counts.pop(survivor) in (1, 2)
    steps = {f"step{number}-{subtask}" for number in range(3) for subtask in range(2)} - {survivor}
    assert counts == {step: 1 + (step == killed) for step in steps}, "only what was running is run again"
    assert before[1] not in [one.pid for one in job.last_progress.workers]
    assert left(place) == []


def wait_for_event(job: Job, text: str) -> None:
    deadline = time.monotonic() + MOST_S
    while not any(text in event.text for event in job.events):
        assert time.monotonic() < deadline, [event.text for event in job.events]
        assert not job.status.over, job
        time.sleep(0.01)


@pytest.mark.spec("T4")
def test_a_worker_killed_while_the_driver_delivers(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    sink = Delivered(waits=True)
    job = three_stages(environment(spark, place), tmp_path, sink, waits=-1)
    assert sink.reached.wait(MOST_S)
    os.kill(job.last_progress.workers[0].pid, signal.SIGKILL)
    time.sleep(1.0)  # until Spark has noticed, too
    assert job.status is JobStatus.RUNNING
    sink.go_on.set()
    assert job.await_termination(MOST_S)
    assert sorted(sink.values) == NUMBERS
    assert sink.opened == 1
    assert set(runs(tmp_path).values()) == {1}
    assert left(place) == []


def test_a_worker_that_is_killed_again_and_again(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    def suicide(value: int) -> int:
        (tmp_path / f"step-{time.time_ns()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        return value

    env = environment(spark, place, batch__attempts=2)
    env.from_collection([1]).rebalance().map(suicide).set_parallelism(1).for_each(print)
    job = env.execute_async()
    with pytest.raises(TransportError, match="worker 0 was lost") as caught:
        job.await_termination(MOST_S)
    assert "Python worker exited unexpectedly" in "\n".join([str(caught.value), *caught.value.__notes__])
    assert len(list(tmp_path.iterdir())) == 2
    assert left(place) == []


@pytest.mark.parametrize("how", ["job", "spark"])
def test_cancel_removes_the_files(spark: SparkSession, place: Path, tmp_path: Path, how: str) -> None:
    job = three_stages(environment(spark, place), tmp_path, Delivered(), waits=1)
    pids(tmp_path, 2)
    assert [one for one in left(place) if one.endswith(".partition")]
    if how == "job":
        job.cancel(wait=False)
    else:
        spark.sparkContext.cancelAllJobs()  # what Ctrl-C does, too
    deadline = time.monotonic() + MOST_S
    while not job.stopping:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert job.wait(MOST_S)
    job.wind_up()
    assert job.status is JobStatus.CANCELLED
    assert left(place) == []


def test_a_user_error_is_tried_in_place(spark: SparkSession, place: Path, tmp_path: Path) -> None:
    def flaky(value: int) -> int:
        if value == 7 and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise ValueError("made to fail")
        return value

    env = environment(spark, place)
    stream = env.from_collection(NUMBERS).map(Step(tmp_path, "step0")).rebalance().map(flaky)
    results = stream.execute_and_collect()
    assert sorted(results) == NUMBERS
    assert set(runs(tmp_path).values()) == {1}
    assert any("is run again, where it was" in event.text for event in results.job.events)
    env = environment(spark, place, batch__attempts=2)
    env.from_collection(NUMBERS).rebalance().map(lambda n: 1 // (n - 7)).for_each(print)
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        env.execute()
    assert left(place) == []


# DataFrames.


def test_two_dataframes_are_read_one_after_the_other(spark: SparkSession, place: Path) -> None:
    """They share one stream of Spark's, with queues that hold less than either of them."""
    conf = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(conf, "10")
    try:
        left_frame = spark.range(400).selectExpr("id", "'left' as side").repartition(3)
        right_frame = spark.range(300, 700).selectExpr("id", "'right' as side").repartition(3)
        env = environment(spark, place)
        both = env.from_dataframe(right_frame).union(env.from_dataframe(left_frame))
        counted = both.key_by(lambda row: row[0]).count()
        found = dict(counted.execute_and_collect())
    finally:
        spark.conf.unset(conf)
    assert found == {n: 2 if 300 <= n < 400 else 1 for n in range(700)}
    assert left(place) == []


@pytest.mark.parametrize("killed_in", ["first", "second"])
def test_workers_that_read_dataframes_are_killed(
    spark: SparkSession, place: Path, tmp_path: Path, killed_in: str
) -> None:
    """In the second try only what has not finished is read: what comes for the first source is not wanted then."""
    env = environment(spark, place)
    streams = []
    for number, name in enumerate(["first", "second"]):
        frame = spark.range(number * 40, number * 40 + 40, 1, 2)
        streams.append(env.from_dataframe(frame).map(Step(tmp_path, f"step-{name}", waits=name == killed_in)))
    sink = Delivered()
    streams[0].union(streams[1]).rebalance().map(lambda row: row[0]).sink_to(sink)
    job = env.execute_async()
    os.kill(pids(tmp_path, 2)[0], signal.SIGKILL)
    wait_for_event(job, "goes on with new workers")
    (tmp_path / "go").touch()
    assert job.await_termination(MOST_S)
    assert sorted(sink.values) == list(range(80))
    opened = runs(tmp_path)
    assert [opened[f"step-first-{subtask}"] for subtask in range(2)] == [2 if killed_in == "first" else 1] * 2
    assert left(place) == []


def test_a_pipeline_in_batch_as_a_dataframe(spark: SparkSession, place: Path) -> None:
    env = environment(spark, place)
    rows = [(word,) for word in ["to", "be", "or", "not", "to", "be"]]
    words = env.from_dataframe(spark.createDataFrame(rows, "word string"))
    frame = words.key_by(lambda row: row[0]).count().to_dataframe("word string, n long")
    expected = [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
    assert sorted(map(tuple, frame.collect())) == expected
    assert sorted(map(tuple, frame.collect())) == expected, "and again"
    assert left(place) == []
