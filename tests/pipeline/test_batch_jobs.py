"""BATCH jobs on the local host: regions one after another, run again where they fail, and nothing left on disk."""

import threading
from pathlib import Path

import pytest
from tests.support.batch_jobs import Watched, batch_env, files_of, texts
from tests.support.pipelines import END_S, Batches, Gathered, failure, run, running, wait_progress
from tests.support.waiting import wait_until

import headgate as hg
from headgate.cli.top_screen import TopPanel, TopState, screen
from headgate.control.messages import TaskState
from headgate.errors import InsufficientBuffers, StorageError, UserCodeError
from headgate.functions.sink import Sink
from headgate.observe import Cause
from headgate.output.compression import Unpacker
from headgate.ui.prometheus import exposition
from headgate.ui.report import render

NUMBERS = list(range(200))


@pytest.mark.spec("T4", "P3", "P6", "M9")
def test_ten_exchanges_run_on_two_slots(tmp_path):
    env = batch_env(tmp_path)
    shared = Watched()
    stream = env.from_collection(NUMBERS, parallel=True)
    for number in range(10):
        stream = stream.rebalance() if number % 2 else stream.key_by(lambda n: n % 5)
        stream = stream.map(Watched(seen=shared))
    sink = Gathered()
    stream.sink_to(sink)
    job = run(env)
    assert sorted(sink.values) == NUMBERS
    assert len([one for one in job.view().graph.edges if one.blocking]) == 10
    assert len(job.last_progress.workers) == 2
    assert shared.seen.together == 1, "a worker runs one region at a time"
    assert shared.seen.opened == {0: 10, 1: 10}
    assert files_of(tmp_path) == []


@pytest.mark.spec("P6", "T4")
def test_a_region_begins_when_its_inputs_are_finished(tmp_path):
    env = batch_env(tmp_path)
    first, second = Watched(waits=True), Watched()
    env.from_collection(NUMBERS, parallel=True).map(first).rebalance().map(second).for_each(lambda _: None)
    with running(env) as job:
        assert first.seen.reached.wait(END_S)
        wait_progress(job, lambda progress: progress.vertices[0].state is TaskState.RUNNING)
        assert {one.state for one in job.last_progress.vertices[1].subtasks} == {TaskState.CREATED}
        assert not second.seen.opened
        first.seen.go_on.set()
        assert job.await_termination(END_S)
    assert sorted(second.seen.values) == NUMBERS


# A failure in place.


@pytest.mark.spec("T4")
@pytest.mark.parametrize("method", ["open", "map", "close"])
def test_a_region_that_fails_is_run_again_from_its_inputs(tmp_path, method):
    env = batch_env(tmp_path)
    before, flaky, after = Watched(), Watched(fails=2, method=method), Watched()
    sink = Gathered()
    env.from_collection(NUMBERS, parallel=True).map(before).rebalance().map(flaky).rebalance().map(after).sink_to(sink)
    job = run(env)
    assert sorted(sink.values) == NUMBERS, "what the failed runs had written is gone"
    assert before.seen.opened == {0: 1, 1: 1}, "finished regions are not run again"
    assert flaky.seen.opened == {0: 3, 1: 1}, "nor those of other subtasks"
    assert after.seen.opened == {0: 1, 1: 1}
    again = [text for text in texts(job) if "is run again, where it was" in text]
    assert len(again) == 2, texts(job)
    assert "subtask 0" in again[0]
    assert "made to fail in run 1" in again[0]
    states = [one.state for vertex in job.last_progress.vertices for one in vertex.subtasks]
    assert set(states) == {TaskState.FINISHED}
    assert files_of(tmp_path) == []


class Remembers(hg.MapFunction):
    """Fails in its first run when it has seen ten values; says what it has counted."""

    def __init__(self, seen):
        self.count, self.seen = 0, seen

    def open(self, context):
        self.seen.open(context)

    def map(self, value):
        self.count += 1
        if self.count == 10 and self.seen.seen.opened[0] == 1:
            raise ValueError("made to fail")
        return self.count


def test_a_second_run_has_function_objects_of_its_own(tmp_path):
    env = batch_env(tmp_path, parallelism=1)
    sink = Gathered()
    env.from_collection(NUMBERS, parallel=True).rebalance().map(Remembers(Watched())).sink_to(sink)
    run(env)
    assert sink.values[:10] == list(range(1, 11)), "not what was left by the first run"


def test_all_tasks_of_a_region_are_run_again(tmp_path):
    """Its vertices are not chained, so that records are pushed from one to the other."""
    env = batch_env(tmp_path, chaining=False)
    first, flaky, sink = Watched(), Watched(fails=1), Gathered()
    env.from_collection(NUMBERS, parallel=True).rebalance().map(first).map(flaky).map(str).sink_to(sink)
    run(env)
    assert first.seen.opened == {0: 2, 1: 1}
    assert flaky.seen.opened == {0: 2, 1: 1}
    assert set(sink.values) == set(map(str, NUMBERS)), "a sink in the region may see records twice, and misses none"


def test_a_region_that_fails_too_often_is_the_cause_of_the_failed_job(tmp_path):
    env = batch_env(tmp_path, batch__attempts=2)
    env.from_collection(NUMBERS, parallel=True).rebalance().map(Watched(fails=9)).name("flaky").for_each(lambda _: None)
    error = failure(env, UserCodeError)
    assert "made to fail in run 2" in str(error), "the last error"
    assert (error.operator, error.subtask) == ("flaky", 0)
    assert error.__notes__ == ["flaky -> for_each, subtask 0 was run 2 times"]
    assert files_of(tmp_path) == []


def test_too_little_memory_is_refused_before_anything_is_on_disk(tmp_path):
    env = batch_env(tmp_path, parallelism=8, memory__network__min="4 KiB", memory__network__max="4 KiB")
    env.from_collection(NUMBERS, parallel=True).rebalance().map(str).for_each(lambda _: None)
    with pytest.raises(InsufficientBuffers, match="read-ahead of blocking partitions"):
        env.execute_async()
    assert files_of(tmp_path) == []


@pytest.mark.spec("N1", "P3")
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_compressed_chunks_are_sent_compressed_to_another_worker(tmp_path, monkeypatch, compression):
    codecs, real = set(), Unpacker.unpack

    def noting(self, codec, stored, size):
        codecs.add(codec)
        return real(self, codec, stored, size)

    monkeypatch.setattr(Unpacker, "unpack", noting)
    env, sink = batch_env(tmp_path, batch__compression=compression, memory__segment_size="4 KiB"), Gathered()
    env.from_source(Batches([["x" * 100] * 500], [["y" * 100] * 500])).rebalance().map(str.upper).sink_to(sink)
    run(env)
    assert sorted(sink.values) == ["X" * 100] * 500 + ["Y" * 100] * 500
    assert codecs == {"lz4": {1}, "zstd": {2}, "none": set()}[compression]


# Sinks in the driver.


class Delivered(Sink):
    """In the driver; remembers, and may fail or wait after so many values."""

    in_driver = True

    def __init__(self, fails_at=None, waits=False):
        self.values, self.opened, self.fails_at, self.waits = [], 0, fails_at, waits
        self.reached, self.go_on = threading.Event(), threading.Event()

    def open(self, place):
        self.opened += 1

    def write(self, values):
        for value in values:
            if self.waits:
                self.reached.set()
                assert self.go_on.wait(END_S)
            self.values.append(value)
            if len(self.values) == self.fails_at:
                raise ValueError("made to fail")


@pytest.mark.spec("T4")
def test_the_driver_gets_every_record_once(tmp_path):
    env = batch_env(tmp_path)
    sink, other = Delivered(), Delivered()
    flaky = env.from_collection(NUMBERS, parallel=True).rebalance().map(Watched(fails=2))
    flaky.sink_to(sink)
    flaky.map(str).sink_to(other)
    run(env)
    assert sorted(sink.values) == NUMBERS
    assert sorted(other.values) == sorted(map(str, NUMBERS))
    assert (sink.opened, other.opened) == (1, 1)


def test_a_sink_in_the_driver_is_not_run_again(tmp_path):
    env = batch_env(tmp_path)
    sink = Delivered(fails_at=5)
    env.from_collection(NUMBERS, parallel=True).sink_to(sink)
    failure(env, UserCodeError)
    assert (sink.opened, len(sink.values)) == (1, 5)
    assert files_of(tmp_path) == []


def test_results_can_be_iterated_and_left(tmp_path):
    env = batch_env(tmp_path)
    with env.from_collection(range(100_000), parallel=True).rebalance().map(str).execute_and_collect() as results:
        assert next(results)
        assert files_of(tmp_path), "the rest is on disk"
    assert files_of(tmp_path) == []


# How it ends otherwise.


def test_cancel_removes_all_files(tmp_path):
    env = batch_env(tmp_path)
    slow = Watched(waits=True)
    env.from_collection(NUMBERS, parallel=True).rebalance().map(slow).rebalance().for_each(lambda _: None)
    with running(env) as job:
        assert slow.seen.reached.wait(END_S)
        assert [one for one in files_of(tmp_path) if one.endswith(".partition")]
        job.cancel(wait=False)
        slow.seen.go_on.set()
        assert job.wait(END_S)
        job.wind_up()
        assert job.status.value == "cancelled"
        assert files_of(tmp_path) == []


def test_partitions_are_removed_when_all_their_readers_have_finished(tmp_path):
    env = batch_env(tmp_path)
    last = Watched(waits=True)
    env.from_collection(NUMBERS, parallel=True).rebalance().map(str).rebalance().map(int).rebalance().map(
        last
    ).for_each(print)
    with running(env):
        assert last.seen.reached.wait(END_S)
        try:  # workers are told to remove them when the next are told to begin
            wait_until(
                lambda: (
                    [Path(one).name for one in files_of(tmp_path) if one.endswith(".partition")]
                    == ["v2.0-0.partition", "v2.0-1.partition"]
                ),
                "files that nobody will read",
            )
        finally:
            last.seen.go_on.set()


def test_a_directory_that_cannot_be_used_is_refused_with_its_name(tmp_path):
    (tmp_path / "file").touch()
    env = batch_env(tmp_path / "file")
    env.from_collection(NUMBERS, parallel=True).rebalance().for_each(lambda _: None)
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        env.execute()


def test_a_full_disk_fails_the_job_with_the_path(tmp_path):
    env = batch_env(tmp_path, batch__disk_quota="8 KiB", batch__compression="none")
    env.from_collection(range(100_000), parallel=True).rebalance().for_each(lambda _: None)
    error = failure(env, StorageError)
    assert str(tmp_path) in str(error)
    assert "batch.disk_quota" in str(error)
    assert files_of(tmp_path) == []


# Looking at it.


def test_a_batch_job_can_be_looked_at(tmp_path):
    env = batch_env(tmp_path, backpressure__samples=5, backpressure__delay="10 ms")
    slow = Watched(waits=True)
    env.from_collection(NUMBERS, parallel=True).rebalance().map(slow).rebalance().for_each(lambda _: None)
    with running(env) as job:
        assert slow.seen.reached.wait(END_S)
        wait_progress(job, lambda progress: progress.vertices[1].state is TaskState.RUNNING)
        pressure = job.pressure()
        assert [one.vertex for one in pressure.vertices] == [1]
        assert [one.state for one in job.last_progress.vertices] == ["finished", "running", "created"]
        wait_progress(job, lambda progress: progress.vertices[1].busy > 0 and job.timeline().tasks)
        assert [one.vertex for one in job.timeline().tasks] == [0, 1, 2]
        view = job.view(timeline=True)
        for panel in TopPanel:
            assert any(
                "created" in str(line) or "map" in str(line) for line in screen(view, TopState(panel=panel), 100)
            )
        assert b"headgate" in exposition({"1": view})[0]
        assert "map(Watched)" in render(view)
        assert job.why().cause not in {Cause.BUFFERS, Cause.NETWORK}
        slow.seen.go_on.set()
        assert job.await_termination(END_S)
        assert job.last_progress.vertices[1].records_in == len(NUMBERS)
