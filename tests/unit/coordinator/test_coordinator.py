"""The coordinator, with fake workers over real sockets."""

import os
import threading

import pytest
from tests.support.coordinator import ATTEMPT, JOB, SECRET, FakeWorker, Site, plan_of
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.config import Settings
from headgate.control.messages import (
    Cancel,
    Deploy,
    Done,
    Failed,
    PartitionConsumable,
    PartitionLocation,
    TaskState,
    TaskStateChanged,
)
from headgate.control.reports import ProcessMeters, SubtaskReport, WorkerReport
from headgate.coordinator import Coordinator, JobStatus
from headgate.errors import (
    ConfigError,
    HeadgateError,
    InsufficientBuffers,
    ProducerFailed,
    RequestTimeout,
    TransportError,
    UserCodeError,
)
from headgate.graph.plan import Partition, Plan, ShipKind

BROKE = UserCodeError("division by zero", operator="map", subtask=3, trace="Traceback: line 1")


def subtask_report(vertex, subtask, records=0):
    return SubtaskReport(vertex=vertex, subtask=subtask, records_in=records, records_out=records, busy_ns=10**9)


def wait_cancelled(worker):
    worker.wait(lambda: any(isinstance(one, Cancel) for one in worker.heard), "Cancel")
    return next(one.reason for one in worker.heard if isinstance(one, Cancel))


def running(site):
    workers = site.all_workers()
    for worker in workers:
        worker.wait_heard(Deploy())
    return workers


def test_workers_begin_when_all_are_there_and_the_job_ends_when_all_are_done():
    with Site(plan_of(3)) as site:
        changes = []
        site.job.on_change(lambda job: changes.append(job.status))
        first, second = site.worker(0), site.worker(2)
        wait_until(lambda: sum(one.pid > 0 for one in site.job.last_progress.workers) == 2, "two registrations")
        assert site.job.status is JobStatus.CREATED
        assert not first.heard
        third = site.worker(1)
        for worker in (first, second, third):
            worker.wait_heard(Deploy())
        assert site.job.status is JobStatus.RUNNING
        assert not site.job.await_termination(timeout_s=0)
        for worker in (first, second, third):
            worker.say(Done())
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.FINISHED
        assert site.job.exception is None
        assert not site.job.stopping
        assert changes[-1] is JobStatus.FINISHED


@pytest.mark.spec("M5")
def test_a_job_for_which_one_worker_has_too_little_memory_is_not_deployed_anywhere():
    with Site(plan_of(3)) as site:  # each: a partition of 3 (4 buffers), a gate with 2 remote channels (4)
        workers = [site.worker(0), site.worker(1, segments=7), site.worker(2, segments=8)]
        with pytest.raises(InsufficientBuffers, match="needs 8 network buffers on worker 1, which has 7:"):
            site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.FAILED
        for worker in workers:
            assert "needs 8 network buffers" in wait_cancelled(worker)
            worker.wait_lost()
            assert Deploy() not in worker.heard


def test_workers_leave_when_all_workers_are_done():
    with Site() as site:
        first, second = running(site)
        first.say(Done(), WorkerReport(0, []))
        second.say(TaskStateChanged(0, 1, TaskState.RUNNING))
        wait_until(lambda: site.job.last_progress.vertices[0].subtasks[1].state is TaskState.RUNNING, "the state")
        assert not first.losses
        second.say(Done())
        assert first.wait_lost() is None
        assert second.wait_lost() is None


def test_the_driver_is_one_more_worker_if_the_plan_has_tasks_for_it():
    with Site(plan_of(1, sink_in_driver=True)) as site:
        worker, driver = running(site)
        assert driver.number == 1
        worker.say(PartitionConsumable(Partition(1, 0, 0)))
        driver.wait_heard(PartitionLocation(Partition(1, 0, 0), 0, "127.0.0.1", 9000))
        worker.say(Done())
        driver.say(Done())
        assert site.job.await_termination(PATIENCE_S)


@pytest.mark.spec("P6")
@pytest.mark.parametrize(
    ("kind", "readers"),
    [(ShipKind.HASH, [0, 1, 2]), (ShipKind.FORWARD, [1]), (ShipKind.BROADCAST, [0, 1, 2]), (ShipKind.RESCALE, [1])],
)
def test_readers_of_a_partition_are_wired_when_it_can_be_read_and_once(kind, readers):
    with Site(plan_of(3, kind)) as site:
        workers = running(site)
        partition = Partition(0, 0, 1)
        wire = PartitionLocation(partition, 1, "127.0.0.1", 9001)
        workers[1].say(PartitionConsumable(partition), PartitionConsumable(partition))
        for number in readers:
            workers[number].wait_heard(wire)
        site.job.cancel(wait=False)
        for worker in workers:
            wait_cancelled(worker)
        heard = [[one for one in worker.heard if isinstance(one, PartitionLocation)] for worker in workers]
        assert heard == [[wire] if number in readers else [] for number in range(3)]


@pytest.mark.parametrize(
    "lie",
    [
        PartitionConsumable(Partition(0, 0, 1)),
        PartitionConsumable(Partition(0, 1, 0)),
        PartitionConsumable(Partition(1, 0, 0)),
        PartitionConsumable(Partition(0, -1, 0)),
        PartitionConsumable(Partition(-1, 0, 0)),
        PartitionConsumable(Partition(9, 0, 0)),
        TaskStateChanged(0, 1, TaskState.FAILED),
        TaskStateChanged(7, 0, TaskState.FAILED),
        WorkerReport(0, [subtask_report(1, 1)]),
    ],
    ids=repr,
)
def test_a_message_about_tasks_of_another_worker_is_refused(lie):
    with Site() as site:
        first, second = running(site)
        first.say(lie)
        assert isinstance(first.wait_lost(), TransportError)
        wait_cancelled(second)
        second.say(Done())
        with pytest.raises(TransportError, match="worker 0 was lost before it was done"):
            site.job.await_termination(PATIENCE_S)


# Failures.


def test_a_failure_is_the_jobs_cause_and_stops_the_others():
    with Site(plan_of(3)) as site:
        first, second, third = running(site)
        second.say(Failed.of(BROKE))
        assert "division by zero" in wait_cancelled(first)
        wait_cancelled(third)
        assert site.job.stopping
        assert not site.job.status.over, "nobody has left yet"
        for worker in (first, second, third):
            worker.say(Done())
        with pytest.raises(UserCodeError) as caught:
            site.job.await_termination(PATIENCE_S)
        error = caught.value
        assert (error.operator, error.subtask, error.trace) == (BROKE.operator, BROKE.subtask, BROKE.trace)
        assert str(error) == str(BROKE)
        assert site.job.exception is error
        assert site.job.status is JobStatus.FAILED
        assert not any(isinstance(one, Cancel) for one in second.heard)


def test_the_first_of_two_failures_is_the_cause():
    with Site() as site:
        first, second = running(site)
        first.say(Failed.of(InsufficientBuffers("the first")))
        wait_cancelled(second)
        second.say(Failed.of(BROKE), Done())
        first.say(Done())
        with pytest.raises(InsufficientBuffers, match="the first"):
            site.job.await_termination(PATIENCE_S)


def test_a_failed_producer_is_the_cause_not_the_failure_of_its_consumer():
    with Site() as site:
        first, second = running(site)
        first.say(Failed.of(ProducerFailed("its producer failed")))
        wait_cancelled(second)
        assert isinstance(site.job.exception, ProducerFailed)
        second.say(Failed.of(BROKE), Done())
        first.say(Done())
        with pytest.raises(UserCodeError) as caught:
            site.job.await_termination(PATIENCE_S)
        assert "its producer failed" in caught.value.__notes__[0]


def test_a_lost_worker_fails_the_job_and_is_named():
    with Site() as site:
        first, second = running(site)
        first.link.abort()
        wait_cancelled(second)
        second.say(Done())
        with pytest.raises(TransportError, match=rf"worker 0 was lost .*\(127\.0\.0\.1:{os.getpid()}\)") as caught:
            site.job.await_termination(PATIENCE_S)
        assert caught.value.peer == f"127.0.0.1:{os.getpid()}"


def test_a_lost_worker_is_the_cause_not_the_failed_connection_to_it():
    with Site() as site:
        first, second = running(site)
        second.say(Failed.of(TransportError("connection reset", peer="10.0.0.7:7077")))
        wait_cancelled(first)
        first.link.abort()
        second.say(Done())
        with pytest.raises(TransportError, match="worker 0 was lost") as caught:
            site.job.await_termination(PATIENCE_S)
        assert "connection reset" in caught.value.__notes__[0]


def test_a_worker_that_leaves_without_done_is_lost():
    with Site(plan_of(1)) as site:
        [worker] = running(site)
        worker.link.close()
        with pytest.raises(TransportError, match="worker 0 was lost"):
            site.job.await_termination(PATIENCE_S)


def test_a_worker_lost_after_it_was_done_is_none():
    with Site() as site:
        first, second = running(site)
        first.say(Done())
        first.link.close()
        assert first.wait_lost() is None
        second.say(Done())
        assert site.job.await_termination(PATIENCE_S)


def time_is_over(site):
    """As if the time limit for registrations had passed."""
    site.coordinator._transport.call(site.coordinator._on_missing)


def test_missing_workers_are_named():
    with Site(plan_of(3)) as site:
        present = site.worker(1)
        wait_until(lambda: site.job.last_progress.workers[1].pid, "the registration")
        time_is_over(site)
        wait_cancelled(present)
        assert present.wait_lost() is None
        with pytest.raises(RequestTimeout, match=r"2 of 3 workers \(number 0, 2\) did not register within 60 s"):
            site.job.await_termination(PATIENCE_S)


def test_the_time_limit_for_registrations_is_kept():
    with Site(registration_timeout_s=0.01) as site, pytest.raises(RequestTimeout, match=r"2 of 2 .* within 0.01 s"):
        site.job.await_termination(PATIENCE_S)


def test_an_authenticated_worker_that_does_not_register_is_missing():
    with Site() as site:
        silent = site.worker(0, register=False)
        time_is_over(site)
        with pytest.raises(RequestTimeout, match=r"\(number 0, 1\)"):
            site.job.await_termination(PATIENCE_S)
        assert silent.wait_lost() is None


def test_a_worker_that_registers_after_a_failure_is_cancelled_with_its_cause():
    with Site() as site:
        first = site.worker(0)
        first.say(Failed.of(BROKE), Done())
        with pytest.raises(UserCodeError):
            site.job.await_termination(PATIENCE_S)
        late = site.worker(1)
        assert "division by zero" in wait_cancelled(late)
        assert late.wait_lost() is None


def test_the_host_may_let_the_job_fail():
    with Site() as site:
        workers = running(site)
        site.coordinator.fail(HeadgateError("the executor was killed"))
        for worker in workers:
            assert wait_cancelled(worker) == "the executor was killed"
            worker.say(Done())
        with pytest.raises(HeadgateError, match="the executor was killed"):
            site.job.await_termination(PATIENCE_S)


def test_a_worker_that_does_not_leave_in_time_is_closed_and_logged(caplog):
    with Site(goodbye_timeout_s=0.05) as site:
        first, second = running(site)
        first.say(Failed.of(BROKE), Done())
        with pytest.raises(UserCodeError):
            site.job.await_termination(PATIENCE_S)
        wait_cancelled(second)
        assert second.wait_lost() is None
        assert "workers [1] did not leave in time" in caplog.text


# Cancel.


def test_cancel_stops_all_workers_and_waits_for_them():
    with Site() as site:
        workers = running(site)

        def leave(worker):
            wait_cancelled(worker)
            worker.say(Done())

        threads = [Thread(lambda worker=worker: leave(worker)) for worker in workers]
        assert site.job.cancel(timeout_s=PATIENCE_S)
        for thread in threads:
            thread.end()
        assert site.job.status is JobStatus.CANCELLED
        assert site.job.exception is None
        assert site.job.await_termination(PATIENCE_S), "to be cancelled is no error"
        assert site.job.cancel(), "that changes nothing"


def test_a_failure_in_a_cancelled_job_is_ignored():
    with Site() as site:
        first, second = running(site)
        assert not site.job.cancel(wait=False)
        wait_cancelled(first)
        first.say(Failed.of(BROKE))
        first.say(Done())
        second.link.abort()
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.status is JobStatus.CANCELLED


def test_a_job_can_be_cancelled_before_any_worker_registers():
    with Site() as site:
        assert site.job.cancel(timeout_s=PATIENCE_S)
        assert wait_cancelled(site.worker(0)) == "cancelled by its user"


def test_cancel_is_too_late_for_a_job_that_has_failed():
    with Site() as site:
        first, second = running(site)
        first.say(Failed.of(BROKE))
        wait_cancelled(second)
        site.job.cancel(wait=False)
        for worker in (first, second):
            worker.say(Done())
        with pytest.raises(UserCodeError):
            site.job.await_termination(PATIENCE_S)


# The rest.


def test_close_ends_a_running_job_and_everything_else():
    site = Site()
    with site:
        workers = running(site)
        site.coordinator.close()
        site.coordinator.close()
        assert site.job.status is JobStatus.CANCELLED
        for worker in workers:
            assert wait_cancelled(worker) == "the driver has left"
            assert worker.wait_lost() is None
        with pytest.raises(TransportError):
            FakeWorker(site.address)


def test_a_coordinator_that_was_never_started_can_be_closed():
    before = threading.active_count()
    Coordinator(plan_of(), SECRET, ATTEMPT).close()
    assert threading.active_count() == before


def test_a_port_in_use_is_an_error_that_leaves_nothing():
    with Site() as site:
        other = Coordinator(plan_of(), SECRET, ATTEMPT, port=site.address.port)
        with pytest.raises(TransportError, match="in use"):
            other.start()
        other.close()


def test_beyond_loopback_there_must_be_certificates():
    with pytest.raises(ConfigError, match="insecure_plaintext"):
        Coordinator(plan_of(), SECRET, ATTEMPT, bind_host="0.0.0.0")


def test_a_plan_without_workers_is_finished_at_once():
    with Site(Plan(JOB, "nothing", (), (), workers=0, settings=Settings())) as site:
        assert site.job.await_termination(PATIENCE_S)


def test_reports_and_states_become_progress():
    with Site() as site:
        first, second = running(site)
        first.say(
            TaskStateChanged(0, 0, TaskState.RUNNING),
            WorkerReport(1000, [subtask_report(0, 0, 5)], ProcessMeters(memory_bytes=77)),
        )
        second.say(WorkerReport(1000, [subtask_report(0, 1, 6)]))
        wait_until(lambda: site.job.last_progress.vertices[0].records_out == 11, "both reports")
        progress = site.job.last_progress
        assert progress.status is JobStatus.RUNNING
        assert progress.vertices[0].subtasks[0].state is TaskState.RUNNING
        assert [one.memory_bytes for one in progress.workers] == [77, 0]
        assert progress.uptime_s > 0
        for worker in (first, second):
            worker.say(Done())
        assert site.job.await_termination(PATIENCE_S)
        assert site.job.last_progress.uptime_s == site.job.last_progress.uptime_s
