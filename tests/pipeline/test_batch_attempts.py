"""BATCH jobs on the local host whose workers are lost: what has finished is not run again, and nothing is left.

Workers are threads here, so what is lost is a worker's control connection; on Spark they are killed (`tests/spark`).
"""

import os
import threading

import pytest
from tests.pipeline.test_batch_jobs import Delivered
from tests.support.batch_jobs import Watched, batch_env, files_of, links, texts
from tests.support.pipelines import END_S, Gathered
from tests.support.waiting import wait_until

from headgate.control.messages import TaskState
from headgate.errors import TransportError
from headgate.ids import AttemptId
from headgate.worker.batch import BatchWorker
from headgate.worker.storage import Storage

NUMBERS = list(range(200))
FIRST = AttemptId(1)


class Stages:
    """source -> first | second | third -> a sink in the driver; one of them waits for the test at its first value."""

    def __init__(self, directory, *, waits, **settings):
        self.directory = directory
        self.env = batch_env(directory, **settings)
        self.steps = [Watched(waits=number == waits) for number in range(3)]
        self.sink = Delivered(waits=waits == 3)
        first, second, third = self.steps
        stream = self.env.from_collection(NUMBERS, parallel=True).map(first).rebalance().map(second)
        stream.key_by(lambda n: n % 7).map(third).sink_to(self.sink)
        seen = self.sink if waits == 3 else self.steps[waits].seen
        self.reached, self.go_on = seen.reached, seen.go_on

    def wait_and_lose(self, job, found, worker):
        """Once the job is there where it waits, in all subtasks, cut the connection of a worker, and let it go on."""
        assert self.reached.wait(END_S)
        for step in self.steps:
            wait_until(lambda step=step: len(step.seen.waited) in {0, 2}, "both subtasks")
        found[worker, FIRST].abort()
        if self.sink.waits:
            wait_until(lambda: found[worker, FIRST].over, "the end of its link")
        else:
            wait_until(lambda: any("new workers" in one for one in texts(job)), "the loss")
        self.go_on.set()

    def lose(self, job, found, worker, attempt):
        """The same again and again: the second step waits, in each attempt."""
        seen = self.steps[1].seen
        wait_until(lambda: max(seen.waited.values(), default=0) == attempt, f"run {attempt} of the second step")
        found[worker, AttemptId(attempt)].abort()
        wait_until(
            lambda: job.status.over or job.stopping or sum("new workers" in one for one in texts(job)) == attempt,
            "the loss",
        )
        seen.let_go = attempt

    def check(self, job):
        assert job.await_termination(END_S), job.last_progress
        assert sorted(self.sink.values) == NUMBERS, "each once"
        assert self.sink.opened == 1
        assert {one.state for vertex in job.last_progress.vertices for one in vertex.subtasks} == {TaskState.FINISHED}
        assert files_of(self.directory) == []

    @property
    def runs(self):
        return [dict(one.seen.opened) for one in self.steps]


@pytest.mark.spec("T4", "P3", "M9")
@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_worker_lost_in_a_region_causes_a_rerun_of_running_regions_only(tmp_path, monkeypatch, stage, worker):
    stages = Stages(tmp_path, waits=stage)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        stages.wait_and_lose(job, found, worker)
        stages.check(job)
    assert all(one == {0: 1, 1: 1} for number, one in enumerate(stages.runs) if number != stage), stages.runs
    assert worker == 2 or stages.runs[stage][worker] == 2, "others may have finished while they left"
    assert any(f"goes on with new workers: worker {worker} was lost" in text for text in texts(job)), texts(job)
    assert worker == 2 or any(text.startswith("run again: ") for text in texts(job))
    assert (0, AttemptId(2)) in found
    assert (0, AttemptId(3)) not in found


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_lost_while_the_driver_delivers_changes_nothing(tmp_path, monkeypatch, worker):
    stages = Stages(tmp_path, waits=3)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        stages.wait_and_lose(job, found, worker)
        stages.check(job)
    assert stages.runs == [{0: 1, 1: 1}] * 3
    assert (0, AttemptId(2)) not in found


def test_a_driver_lost_while_it_delivers_ends_the_job(tmp_path, monkeypatch):
    stages = Stages(tmp_path, waits=3)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        stages.wait_and_lose(job, found, 2)
        with pytest.raises(TransportError, match="worker 2 was lost"):
            job.await_termination(END_S)
    assert stages.sink.opened == 1, "nothing is delivered twice"
    assert files_of(tmp_path) == []


def test_workers_can_be_lost_more_than_once(tmp_path, monkeypatch):
    stages = Stages(tmp_path, waits=1, batch__attempts=4)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        for attempt in range(1, 4):
            stages.lose(job, found, attempt % 3, attempt)
        stages.go_on.set()
        stages.check(job)
    assert stages.runs[0] == {0: 1, 1: 1}
    assert max(stages.runs[1].values()) == 4, "one may have finished while the others left"


def test_a_job_whose_workers_are_always_lost_fails(tmp_path, monkeypatch):
    stages = Stages(tmp_path, waits=1, batch__attempts=2)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        for attempt in (1, 2):
            stages.lose(job, found, 0, attempt)
        with pytest.raises(TransportError, match="worker 0 was lost"):
            job.await_termination(END_S)
    assert files_of(tmp_path) == []


def test_partitions_missing_on_new_workers_are_made_again(tmp_path, monkeypatch):
    """As if the new workers were on other machines."""
    stages = Stages(tmp_path, waits=2)
    monkeypatch.setattr(Storage, "finished", lambda self: {})
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        stages.wait_and_lose(job, found, 1)
        stages.check(job)
    assert stages.runs[0] == {0: 2, 1: 2}
    assert stages.runs[1] == {0: 2, 1: 2}


def test_partitions_are_read_where_they_are_found(tmp_path, monkeypatch):
    """As if the machine of worker 1 had got worker 0 now."""
    stages = Stages(tmp_path, waits=2)
    real = BatchWorker.found
    monkeypatch.setattr(BatchWorker, "found", lambda self: real(self) if self._part.index == 0 else [])
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        stages.wait_and_lose(job, found, 1)
        stages.check(job)
    assert stages.runs[:2] == [{0: 1, 1: 1}] * 2
    assert stages.runs[2][1] == 2


def test_a_file_that_is_damaged_is_made_again(tmp_path, monkeypatch):
    stages = Stages(tmp_path, waits=1)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        assert stages.reached.wait(END_S)
        [damaged] = [one for one in files_of(tmp_path) if one.endswith("v0.0-1.partition")]
        os.truncate(damaged, os.stat(damaged).st_size - 1)
        stages.wait_and_lose(job, found, 1)
        stages.check(job)
    assert stages.runs[0][1] == 2


@pytest.mark.parametrize("when", ["at once", "later"])
def test_cancel_after_a_worker_was_lost(tmp_path, monkeypatch, when):
    stages = Stages(tmp_path, waits=1)
    with links(monkeypatch) as found:
        job = stages.env.execute_async()
        assert stages.reached.wait(END_S)
        found[1, FIRST].abort()
        if when == "later":
            wait_until(lambda: found[1, FIRST].over, "the end of its link")
        job.cancel(wait=False)
        stages.go_on.set()
        assert job.wait(END_S)
        job.wind_up()
    assert job.status.value == "cancelled"
    assert stages.sink.values == []
    assert files_of(tmp_path) == []


def test_a_user_error_after_a_loss_still_counts_its_tries(tmp_path, monkeypatch):
    env = batch_env(tmp_path, batch__attempts=3)
    before, flaky, after = Watched(), Watched(fails=1), Watched(waits=True)
    sink = Gathered()
    env.from_collection(NUMBERS, parallel=True).map(before).rebalance().map(flaky).rebalance().map(after).sink_to(sink)
    with links(monkeypatch) as found:
        job = env.execute_async()
        assert after.seen.reached.wait(END_S)
        found[0, FIRST].abort()
        after.seen.go_on.set()
        assert job.await_termination(END_S)
    assert before.seen.opened == {0: 1, 1: 1}
    assert flaky.seen.opened == {0: 2, 1: 1}
    assert set(sink.values) == set(NUMBERS)


@pytest.mark.spec("P3")
def test_a_file_that_was_damaged_is_made_anew(tmp_path, monkeypatch):
    stages = Stages(tmp_path, waits=1)
    damaged, deploy, one_at_a_time = [], BatchWorker.deploy, threading.Lock()

    def damage_first(worker, message):
        with one_at_a_time:  # two workers are told at once: twice damaged is as good as new
            if message.stage == 1 and not damaged:
                damaged.append(next(tmp_path.rglob("v0.0-0.partition")))
                with damaged[0].open("r+b") as file:
                    file.seek(damaged[0].stat().st_size // 2)
                    byte = file.read(1)[0]
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 0xFF]))
        deploy(worker, message)

    monkeypatch.setattr(BatchWorker, "deploy", damage_first)
    stages.go_on.set()
    job = stages.env.execute_async()
    stages.check(job)
    assert damaged
    assert stages.runs[0][0] == 2, "it was written again"
    assert any("goes on with new workers" in text and damaged[0].name in text for text in texts(job)), texts(job)
