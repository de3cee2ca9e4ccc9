"""The coordinator of a BATCH job, with fake workers over real sockets: regions, attempts, and what is stale."""

import os
import threading
from dataclasses import replace

import pytest
from tests.support.coordinator import ATTEMPT, SECRET, SEGMENTS, Site, plan_of
from tests.support.waiting import PATIENCE_S, wait_until

import headgate
from headgate.config import load_settings
from headgate.control.messages import (
    Adopt,
    Cancel,
    DeployRegion,
    Done,
    Failed,
    PartitionConsumable,
    PartitionLocation,
    RegionOver,
    Register,
    Release,
    TaskState,
    TaskStateChanged,
)
from headgate.coordinator import JobStatus, batch
from headgate.coordinator.batch import coordinator_for
from headgate.errors import (
    HeadgateError,
    InsufficientBuffers,
    ProducerFailed,
    RequestTimeout,
    StorageError,
    TransportError,
    UserCodeError,
)
from headgate.graph.plan import Exchange, Partition, Ship, ShipKind, Vertex
from headgate.ids import AttemptId

BROKE = UserCodeError("division by zero", operator="map", subtask=0)
WORDS = [Partition(0, 0, 0), Partition(0, 0, 1)]
COUNTS = [Partition(1, 0, 0), Partition(1, 0, 1)]


def batch_plan(*, driver=False):
    """words -> count [-> fetch -> print, in the driver]: two workers, each exchange through disk."""
    plan = plan_of(2)
    vertices = list(plan.vertices)
    exchanges = [replace(one, blocking=True) for one in plan.exchanges]
    if driver:
        vertices += [Vertex(2, "fetch", 1, 128, (), in_driver=True), Vertex(3, "print", 1, 128, (), in_driver=True)]
        to_fetch, to_print = Ship(ShipKind.GLOBAL), Ship(ShipKind.FORWARD)
        exchanges += [
            Exchange(1, producer=1, operator=0, consumer=2, ship=to_fetch, blocking=True),
            Exchange(2, producer=2, operator=0, consumer=3, ship=to_print, blocking=True),
        ]
    return replace(plan, vertices=tuple(vertices), exchanges=tuple(exchanges), batch=True)


class BatchSite(Site):
    """A coordinator of a BATCH job and its fake workers, in as many attempts as it takes."""

    def __init__(self, plan=None, *, renews=True, attempts=3, **options):
        super().__init__()  # only for its stack
        self.coordinator.close()
        self.plan = batch_plan() if plan is None else plan
        self.coordinator = coordinator_for(self.plan, SECRET, ATTEMPT, renews=renews, attempts=attempts, **options)
        self.job = self.coordinator.job
        self.address = self.coordinator.start()
        self._stack.callback(self.coordinator.close)
        self.attempt = ATTEMPT

    def worker(self, number=0, *, found=(), segments=SEGMENTS, **options):
        made = super().worker(number, register=False, **{"attempt": self.attempt, **options})
        made.say(Register("127.0.0.1", 9000 + number, os.getpid(), headgate.__version__, list(found), segments))
        return made

    def all_workers(self, found=(), **options):
        return [
            self.worker(number, found=found, **options) for number in range(self.plan.workers + self.plan.uses_driver)
        ]

    def next_attempt(self, found=(), **options):
        """The workers of the attempt that follows."""
        following = self.coordinator.next_attempt(self.attempt)
        assert following == self.attempt + 1
        self.attempt = following
        return self.all_workers(found, **options)

    @property
    def texts(self):
        return [event.text for event in self.job.events]


def deployed(worker, stage, run=1):
    """Wait until a region of that stage is deployed to a worker."""

    def told():
        return [one for one in worker.heard if isinstance(one, DeployRegion) and (one.stage, one.run) == (stage, run)]

    worker.wait(lambda: told() or worker.losses, f"stage {stage}, run {run}")
    assert told(), (worker.heard, worker.losses)
    return told()[0]


def finish(worker, stage, run=1, outputs=1, subtask=None):
    subtask = worker.number if subtask is None else subtask
    deployed(worker, stage, run)
    worker.say(RegionOver(stage, subtask, run, consumable=[Partition(stage, 0, subtask)] if outputs else []))


def fail(worker, error, stage=0, run=1):
    deployed(worker, stage, run)
    worker.say(RegionOver(stage, worker.number, run, failure=Failed.of(error)))


def cancelled(worker):
    worker.wait(lambda: any(isinstance(one, Cancel) for one in worker.heard), "Cancel")
    return [one for one in worker.heard if isinstance(one, Cancel)][-1]


def leave(*workers, keep):
    for worker in workers:
        assert cancelled(worker).keep is keep
        worker.say(Done())


@pytest.mark.spec("P6", "T4")
def test_regions_run_one_after_another_and_workers_are_closed_at_the_end():
    with BatchSite() as site:
        first, second = site.all_workers()
        assert deployed(first, 0) == DeployRegion(0, 0, 1, [0], [])
        deployed(second, 0)
        assert site.job.status is JobStatus.RUNNING
        finish(first, 0)
        finish(second, 0)
        wires = [PartitionLocation(WORDS[0], 0, "127.0.0.1", 9000), PartitionLocation(WORDS[1], 1, "127.0.0.1", 9001)]
        assert sorted(deployed(first, 1).inputs, key=lambda one: one.worker) == wires
        assert deployed(second, 1) == DeployRegion(1, 1, 1, [1], wires)
        finish(first, 1, outputs=0)
        finish(second, 1, outputs=0)
        first.wait_heard(Release([WORDS[0]]))
        second.wait_heard(Release([WORDS[1]]))
        leave(first, second, keep=False)
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.FINISHED
        assert (first.wait_lost(), second.wait_lost()) == (None, None)
        assert site.coordinator.next_attempt(ATTEMPT) is None


@pytest.mark.spec("M5", "T4")
def test_workers_of_a_later_attempt_with_too_little_memory_get_nothing_to_run():
    with BatchSite() as site:  # most: a gate of 2 channels that may both be remote (4 buffers), and 2 to read ahead
        first, second = site.all_workers(segments=6)
        deployed(first, 0)
        deployed(second, 0)
        second.close()
        leave(first, keep=True)
        workers = site.next_attempt(segments=5)
        with pytest.raises(InsufficientBuffers, match="needs 6 network buffers on worker 0, which has 5"):
            site.job.await_termination(PATIENCE_S)
        for worker in workers:
            assert not cancelled(worker).keep
            assert not [one for one in worker.heard if isinstance(one, DeployRegion)]


def test_the_job_is_not_over_before_all_have_left():
    with BatchSite() as site:
        first, second = site.all_workers()
        for worker in (first, second):
            deployed(worker, 0)
            finish(worker, 0)
        for worker in (first, second):
            deployed(worker, 1)
            finish(worker, 1, outputs=0)
        leave(first, keep=False)
        cancelled(second)
        assert not site.job.wait(0.05)
        assert not first.losses
        site.job.cancel(wait=False)  # too late
        second.link.abort()  # nothing is lost by that: everything has finished
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.FINISHED


# Failures in place.


def test_a_region_is_run_again_where_it_failed():
    with BatchSite() as site:
        first, second = site.all_workers()
        deployed(first, 0)
        first.say(TaskStateChanged(0, 0, TaskState.RUNNING), TaskStateChanged(0, 0, TaskState.FAILED))
        fail(first, BROKE)
        assert deployed(first, 0, run=2).vertices == [0]
        first.say(TaskStateChanged(0, 0, TaskState.DEPLOYED))
        wait_until(lambda: site.job.last_progress.vertices[0].subtasks[0].state is TaskState.DEPLOYED, "the state")
        finish(first, 0, run=1)  # stale
        deployed(second, 0)
        finish(second, 0)
        finish(first, 0, run=2)
        assert {one.partition for one in deployed(first, 1).inputs} == set(WORDS)
        assert [one for one in second.heard if isinstance(one, DeployRegion) and one.run > 1] == []
        assert any("words, subtask 0 is run again" in text and "division by zero" in text for text in site.texts)


def test_the_last_failure_is_the_cause_when_there_were_enough():
    with BatchSite(attempts=2) as site:
        first, second = site.all_workers()
        fail(first, UserCodeError("the first", operator="map", subtask=0))
        deployed(first, 0, run=2)
        fail(first, BROKE, run=2)
        leave(first, second, keep=False)
        with pytest.raises(UserCodeError, match="division by zero"):
            site.job.await_termination(PATIENCE_S)


def test_a_deterministic_failure_is_not_retried():
    with BatchSite() as site:
        first, second = site.all_workers()
        fail(first, InsufficientBuffers("needs 5, has 4"))
        leave(first, second, keep=False)
        with pytest.raises(InsufficientBuffers):
            site.job.await_termination(PATIENCE_S)


def test_a_failure_caused_by_a_lost_worker_does_not_count_as_a_try():
    with BatchSite(attempts=2) as site:
        first, second = site.all_workers()
        for worker in (first, second):
            finish(worker, 0)
        for worker in (first, second):
            deployed(worker, 1)
        fail(first, TransportError("connection reset", peer="127.0.0.1:9001"), stage=1)
        second.link.abort()  # known a moment later
        leave(first, keep=True)
        first, second = site.next_attempt(found=WORDS)
        assert deployed(first, 1, run=2)
        fail(first, BROKE, stage=1, run=2)
        assert deployed(first, 1, run=3), "its first failure counts"
        assert site.job.status is JobStatus.RUNNING


def test_a_region_with_a_failed_producer_is_run_again_if_no_worker_is_lost(monkeypatch):
    monkeypatch.setattr(batch, "_LOSS_NOTICED_S", 0.01)
    with BatchSite() as site:
        first, _ = site.all_workers()
        fail(first, ProducerFailed("its producer failed"))
        assert deployed(first, 0, run=2)


# Another attempt.


@pytest.mark.spec("T4")
def test_finished_regions_are_not_run_again_after_a_worker_is_lost():
    with BatchSite() as site:
        first, second = site.all_workers()
        for worker in (first, second):
            finish(worker, 0)
        deployed(first, 1)
        deployed(second, 1)
        second.link.abort()
        leave(first, keep=True)
        assert first.wait_lost() is None
        assert site.coordinator.next_attempt(ATTEMPT) == ATTEMPT + 1
        assert site.job.status is JobStatus.RUNNING
        assert not site.job.stopping
        assert {one.pid for one in site.job.last_progress.workers} == {0}
        first, second = site.next_attempt(found=WORDS)  # both see the disk that they share
        first.wait_heard(Adopt([WORDS[0]]))
        second.wait_heard(Adopt([WORDS[1]]))
        assert deployed(first, 1, run=2).inputs[0].worker in {0, 1}
        deployed(second, 1, run=2)
        assert [one.stage for one in first.heard if isinstance(one, DeployRegion)] == [1]
        for worker in (first, second):
            finish(worker, 1, run=2, outputs=0)
        leave(first, second, keep=False)
        assert site.job.await_termination(PATIENCE_S)
        assert any("goes on with new workers: worker 1 was lost" in text for text in site.texts)
        assert "run again: count, subtask 0; count, subtask 1" in site.texts


def test_missing_partitions_are_made_again_after_stale_ones_are_removed():
    with BatchSite() as site:
        first, second = site.all_workers()
        finish(first, 0)
        deployed(second, 0)
        second.link.abort()  # its partition is whole, but it has not said so
        leave(first, keep=True)
        first, second = site.next_attempt(found=WORDS)
        assert deployed(second, 0, run=2)
        assert second.heard.index(Release([WORDS[1]])) < second.heard.index(deployed(second, 0, run=2))
        first.wait_heard(Adopt([WORDS[0]]))
        assert not [one for one in first.heard if isinstance(one, DeployRegion)]


def test_a_region_that_finishes_while_workers_leave_counts_as_finished():
    with BatchSite() as site:
        first, second = site.all_workers()
        deployed(first, 0)
        second.link.abort()
        cancelled(first)
        finish(first, 0)
        leave(first, keep=True)
        first, second = site.next_attempt(found=[WORDS[0]])
        deployed(second, 0, run=2)
        assert not [one for one in first.heard if isinstance(one, DeployRegion)]


def test_a_worker_of_an_earlier_attempt_is_a_stranger():
    with BatchSite() as site:
        first, second = site.all_workers()
        second.link.abort()
        leave(first, keep=True)
        assert site.coordinator.next_attempt(ATTEMPT) == ATTEMPT + 1
        with pytest.raises(HeadgateError):
            site.worker(0, attempt=ATTEMPT)
        workers = site.next_attempt()
        assert deployed(workers[0], 0, run=2)


def test_registrations_are_refused_while_workers_leave():
    with BatchSite(batch_plan(driver=True)) as site:
        first, second = site.worker(0), site.worker(1)
        wait_until(lambda: all(one.pid for one in site.job.last_progress.workers[:2]), "two registrations")
        second.link.abort()
        cancelled(first)
        for number in (1, 2):  # who was lost, and who has not come
            with pytest.raises(TransportError, match="refused"):
                site.worker(number)
        leave(first, keep=True)
        site.next_attempt()


def test_a_worker_that_does_not_leave_in_time_does_not_block_the_next_attempt():
    with BatchSite(goodbye_timeout_s=0.05) as site:
        first, second = site.all_workers()
        deployed(first, 0)
        second.link.abort()
        cancelled(first)
        fresh = site.next_attempt()
        assert first.wait_lost() is None
        finish(first, 0)  # whatever it says
        first.say(TaskStateChanged(9, 9, TaskState.FAILED))
        assert deployed(fresh[0], 0, run=2)
        assert site.job.status is JobStatus.RUNNING


def test_a_worker_may_be_lost_before_all_are_there():
    with BatchSite() as site:
        first = site.worker(0)
        wait_until(lambda: site.job.last_progress.workers[0].pid, "the registration")
        first.link.abort()
        first, second = site.next_attempt()
        assert deployed(first, 0)
        assert deployed(second, 0)


@pytest.mark.spec("T4")
def test_attempts_in_which_nothing_ran_do_not_count(monkeypatch):
    monkeypatch.setattr(batch, "_PAUSE_S", 0.001)
    with BatchSite(attempts=2) as site:
        for number in range(5):
            if number:
                site.attempt = site.coordinator.next_attempt(site.attempt)
            first = site.worker(0)  # the second worker has no slot
            wait_until(lambda: site.job.last_progress.workers[0].pid, "the registration")
            first.link.abort()
        first, second = site.next_attempt()
        deployed(first, 0)
        second.link.abort()
        leave(first, keep=True)
        first, _ = site.next_attempt()
        assert deployed(first, 0, run=2), "the first attempt that counts"


@pytest.mark.spec("T4")
def test_attempts_in_which_nothing_runs_end_with_the_time_for_slots(monkeypatch):
    monkeypatch.setattr(batch, "_PAUSE_S", 0.001)
    settings = load_settings(code={"batch.slots_timeout": "200 ms"})
    with BatchSite(replace(batch_plan(), settings=settings), attempts=1000) as site:
        for number in range(100_000):
            following = site.coordinator.next_attempt(site.attempt) if number else site.attempt
            if following is None:
                break
            site.attempt = following
            site.worker(0).link.abort()
            wait_until(lambda: site.coordinator._attempt > site.attempt or site.job.status.over, "the loss")
        with pytest.raises(
            TransportError, match=r"no task has run for more than 200 ms \(batch.slots_timeout\): worker 0"
        ):
            site.job.await_termination(PATIENCE_S)
        assert number > 1, "there were several tries"


def test_a_host_that_waits_for_slots_gets_more_time_for_its_workers():
    with BatchSite(registration_timeout_s=0.2) as site:
        first, second = site.all_workers()
        deployed(second, 0)
        second.link.abort()
        leave(first, keep=True)
        assert site.coordinator.next_attempt(ATTEMPT) == ATTEMPT + 1
        site.coordinator.await_workers(PATIENCE_S)
        assert not site.job.wait(0.5)
        site.coordinator.await_workers(0)
        with pytest.raises(RequestTimeout, match="2 of 2 workers"):
            site.job.await_termination(PATIENCE_S)


def test_workers_that_are_always_lost_fail_the_job():
    with BatchSite(attempts=3) as site:
        for number in range(3):
            first, second = site.all_workers() if number == 0 else site.next_attempt()
            deployed(second, 0, run=number + 1)
            second.link.abort()
            leave(first, keep=number < 2)
        with pytest.raises(TransportError, match="worker 1 was lost"):
            site.job.await_termination(PATIENCE_S)


def test_a_host_that_starts_no_others_fails_with_its_worker():
    with BatchSite(renews=False) as site:
        first, second = site.all_workers()
        second.link.abort()
        leave(first, keep=False)
        with pytest.raises(TransportError, match="worker 1 was lost"):
            site.job.await_termination(PATIENCE_S)


def test_workers_of_another_attempt_that_do_not_come_are_missed():
    with BatchSite(registration_timeout_s=0.2) as site:
        first, second = site.all_workers()
        second.link.abort()
        leave(first, keep=True)
        with pytest.raises(RequestTimeout, match="2 of 2 workers"):
            site.job.await_termination(PATIENCE_S)


def test_a_file_that_cannot_be_adopted_costs_another_attempt():
    with BatchSite() as site:
        first, second = site.all_workers()
        for worker in (first, second):
            finish(worker, 0)
        deployed(second, 1)
        second.link.abort()
        leave(first, keep=True)
        first, second = site.next_attempt(found=WORDS)
        first.wait_heard(Adopt([WORDS[0]]))
        first.say(Failed.of(StorageError("is damaged", path="/data/v0.0-0.partition")))
        leave(first, second, keep=True)
        first, second = site.next_attempt(found=[WORDS[1]])
        assert deployed(first, 0, run=2)


# The driver.


def finished_but_for_the_driver(site):
    first, second, driver = site.all_workers()
    for stage in (0, 1):
        for worker in (first, second):
            deployed(worker, stage)
            finish(worker, stage)
    assert {one.partition for one in deployed(driver, 2).inputs} == set(COUNTS)
    return first, second, driver


def test_the_driver_prints_without_the_other_workers():
    with BatchSite(batch_plan(driver=True)) as site:
        first, second, driver = finished_but_for_the_driver(site)
        finish(driver, 2, subtask=0)
        assert deployed(driver, 3).inputs == [PartitionLocation(Partition(2, 0, 0), 2, "127.0.0.1", 9002)]
        first.link.abort()
        second.link.abort()
        site.coordinator.fail(
            TransportError("a worker was lost", peer="Spark"), attempt=ATTEMPT, workers=range(site.plan.workers)
        )
        wait_until(lambda: second.losses, "both are gone")
        assert not driver.losses
        assert not any(isinstance(one, Cancel) for one in driver.heard)
        finish(driver, 3, outputs=0, subtask=0)
        leave(driver, keep=False)
        assert site.job.await_termination(PATIENCE_S)


def test_a_worker_lost_while_the_driver_fetches_is_another_attempt_and_then_prints_once():
    with BatchSite(batch_plan(driver=True)) as site:
        first, second, driver = finished_but_for_the_driver(site)
        first.link.abort()
        leave(second, driver, keep=True)
        first, second, driver = site.next_attempt(found=COUNTS)
        deployed(driver, 2, run=2)
        assert not [one for one in (*first.heard, *second.heard) if isinstance(one, DeployRegion)]
        finish(driver, 2, run=2, subtask=0)
        deployed(driver, 3)


def test_a_driver_that_was_printing_cannot_go_on():
    with BatchSite(batch_plan(driver=True)) as site:
        first, second, driver = finished_but_for_the_driver(site)
        finish(driver, 2, subtask=0)
        deployed(driver, 3)
        driver.link.abort()
        leave(first, second, keep=False)
        with pytest.raises(TransportError, match="worker 2 was lost"):
            site.job.await_termination(PATIENCE_S)


# What the host says.


def test_the_host_may_lose_all_workers_of_an_attempt_and_only_of_that():
    with BatchSite() as site:
        first, second = site.all_workers()
        deployed(first, 0)
        lost = TransportError("a worker was lost: exited", peer="Spark")
        site.coordinator.fail(lost, attempt=ATTEMPT, workers=[0, 1])
        leave(first, second, keep=True)  # who is still there
        workers = site.next_attempt()
        site.coordinator.fail(lost, attempt=ATTEMPT, workers=[0, 1])  # of the one before
        site.coordinator.fail(HeadgateError("a worker could not run"), attempt=ATTEMPT, workers=[0, 1])
        assert deployed(workers[0], 0, run=2)
        assert site.job.status is JobStatus.RUNNING
        site.coordinator.fail(HeadgateError("no such module"), attempt=AttemptId(ATTEMPT + 1), workers=[0, 1])
        leave(*workers, keep=False)
        with pytest.raises(HeadgateError, match="no such module"):
            site.job.await_termination(PATIENCE_S)


# Cancel.


def test_cancel_while_the_others_leave_is_the_end():
    with BatchSite() as site:
        first, second = site.all_workers()
        second.link.abort()
        assert cancelled(first).keep
        site.job.cancel(wait=False)
        first.wait(lambda: not cancelled(first).keep, "that files are not kept")
        first.say(Done())
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.CANCELLED
        assert site.coordinator.next_attempt(ATTEMPT) is None


def test_a_worker_that_left_with_its_files_removes_them_after_cancel():
    with BatchSite(batch_plan(driver=True)) as site:
        first, second, driver = site.all_workers()
        deployed(first, 0)
        second.link.abort()
        leave(first, keep=True)
        assert cancelled(driver).keep
        site.job.cancel(wait=False)
        first.wait(lambda: not cancelled(first).keep, "that files are not kept")
        driver.say(Done())
        assert site.job.await_termination(PATIENCE_S)


def test_cancel_while_new_workers_come_is_the_end():
    with BatchSite() as site:
        first, second = site.all_workers()
        second.link.abort()
        leave(first, keep=True)
        assert site.coordinator.next_attempt(ATTEMPT) == ATTEMPT + 1
        site.attempt = AttemptId(ATTEMPT + 1)
        early = site.worker(0)
        wait_until(lambda: site.job.last_progress.workers[0].pid, "the registration")
        assert site.job.cancel(timeout_s=PATIENCE_S)
        assert not cancelled(early).keep
        assert early.wait_lost() is None
        assert not cancelled(site.worker(1)).keep, "who comes too late is told"
        assert site.coordinator.next_attempt(site.attempt) is None


def test_closing_wakes_a_thread_that_waits_for_the_next_attempt():
    with BatchSite() as site:
        found = []
        waiting = threading.Thread(target=lambda: found.append(site.coordinator.next_attempt(ATTEMPT)))
        waiting.start()
        site.coordinator.close()
        waiting.join(PATIENCE_S)
        assert found == [None]


# What cannot be.


@pytest.mark.parametrize(
    "lie",
    [
        RegionOver(0, 1, 1, consumable=[WORDS[1]]),
        RegionOver(0, 0, 1),
        RegionOver(0, 0, 1, consumable=[WORDS[1]]),
        RegionOver(0, 0, 1, consumable=[WORDS[0], WORDS[1]]),
        RegionOver(7, 0, 1),
        RegionOver(0, 7, 1),
        RegionOver(-1, 0, 1),
        RegionOver(0, -1, 1),
        PartitionConsumable(WORDS[0]),
        Done(),
    ],
    ids=repr,
)
def test_a_worker_that_sends_invalid_messages_is_lost(lie):
    with BatchSite() as site:
        first, second = site.all_workers()
        deployed(first, 0)
        first.say(lie)
        assert isinstance(first.wait_lost(), TransportError)
        leave(second, keep=True)
        assert deployed(site.next_attempt()[0], 0, run=2)


def test_regions_are_not_for_streaming_jobs():
    with Site() as site:
        first, second = site.all_workers()
        first.say(RegionOver(0, 0, 1))
        assert isinstance(first.wait_lost(), TransportError)
        cancelled(second)
