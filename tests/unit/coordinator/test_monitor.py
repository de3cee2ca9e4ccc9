"""A job as it is looked at: while it runs, when it has failed, and when nobody is there any more."""

import sys
import types
from dataclasses import replace

import pytest
from tests.support.coordinator import ATTEMPT, SECRET, Site, plan_of
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.config import load_settings
from headgate.control.messages import (
    Cancel,
    Deploy,
    Done,
    Failed,
    PartitionConsumable,
    SampleStacks,
    TaskState,
    TaskStateChanged,
)
from headgate.control.reports import StackSamples, SubtaskInterval, SubtaskReport, SubtaskSamples, WorkerReport
from headgate.coordinator import Coordinator, JobStatus
from headgate.coordinator.job import Job
from headgate.errors import HeadgateError, UserCodeError
from headgate.graph.plan import Partition
from headgate.observe import Cause, Diagnosis, JobView, ObservedJob, Pressure

BROKE = UserCodeError("division by zero", operator="map", subtask=3, trace="Traceback: line 1")


MOMENT = SubtaskInterval(busy=900, idle=0, back_pressured=100, records_in=1, records_out=2, in_queued=0, backlog=0)


def report(worker, *, intervals=(), at_ms=1_000_000):
    figures = {"busy_ns": 10**9, "idle_ns": 0, "back_pressured_ns": 0}
    past = {"intervals": list(intervals), "intervals_end_ms": at_ms // 100 * 100}
    worker.say(
        WorkerReport(
            at_ms, [SubtaskReport(vertex=0, subtask=worker.number, records_in=10, records_out=20, **figures, **past)]
        )
    )


def running(site):
    workers = site.all_workers()
    for worker in workers:
        worker.wait_heard(Deploy())
        worker.say(TaskStateChanged(0, worker.number, TaskState.RUNNING))
    wait_until(lambda: site.job.view().progress.vertices[0].state is TaskState.RUNNING, "all tasks to run")
    return workers


def texts(job):
    return [one.text for one in job.events]


def test_a_view_has_the_graph_the_figures_the_settings_and_the_events():
    settings = load_settings(code={"backpressure.samples": 7})
    with Site(plan_of(2, settings=settings)) as site:
        watched: ObservedJob = site.job
        assert watched.view().progress.status is JobStatus.CREATED
        workers = running(site)
        report(workers[1])
        workers[0].say(PartitionConsumable(Partition(0, 0, 0)))
        wait_until(lambda: site.job.view().progress.vertices[0].records_out == 20, "the report")
        wait_until(lambda: len(texts(site.job)) == 5, "all events")
        view = site.job.view()
        assert [one.name for one in view.graph.vertices] == ["words", "count"]
        assert view.graph.edges[0].ship == "hash"
        assert next(one for one in view.settings if one.key == "backpressure.samples").value == "7"
        assert next(one for one in view.settings if one.key == "backpressure.samples").origin == "code"
        assert view.timeline is None
        assert view.error is None
        assert sorted(texts(site.job)[:2]) == [
            f"worker {number} is there: 127.0.0.1, process {view.progress.workers[0].pid}" for number in (0, 1)
        ]
        assert texts(site.job)[2] == "the job begins, with 2 workers"
        assert sorted(texts(site.job)[3:]) == ["1 of 2 partitions can be read", "words: all 2 tasks run"]
        assert list(view.events) == list(site.job.events)
        times = [one.at_ms for one in view.events]
        assert times == sorted(times)
        assert times[-1] <= view.at_ms
        assert JobView.from_json(view.to_json()) == view


def test_the_timeline_is_part_of_a_view_on_request():
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        now_ms = site.job.view().at_ms
        report(worker, intervals=[MOMENT] * 5, at_ms=now_ms)
        wait_until(lambda: site.job.timeline(vertex=0).tasks, "the past")
        assert all(900 in one.busy for one in site.job.timeline(vertex=0).tasks)
        assert {(one.vertex, one.subtask) for one in site.job.timeline().tasks} >= {(0, -1)}
        assert {one.subtask for one in site.job.timeline(vertex=0).tasks} == {-1, 0}
        assert site.job.timeline(seconds=10, points=5).steps <= 5
        full = site.job.view(timeline=True)
        assert any(900 in line.busy for line in full.timeline.tasks)
        for vertex in (-1, 2):
            with pytest.raises(HeadgateError, match=f"there is no vertex {vertex}"):
                site.job.timeline(vertex=vertex)
        for wrong in ({"seconds": 0}, {"seconds": float("nan")}, {"points": 0}):
            with pytest.raises(HeadgateError, match="both must be greater than 0"):
                site.job.timeline(**wrong)


def test_a_failed_job_shows_its_error_in_view_and_events():
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        worker.say(Failed.of(BROKE), Done())
        with pytest.raises(UserCodeError):
            site.job.await_termination(PATIENCE_S)
        assert site.job.view().error == str(BROKE)
        events = {one.text: one.level for one in site.job.events}
        assert events["the job fails: map, subtask 3: division by zero"] == "error"
        assert texts(site.job)[-1] == "the job has failed"


@pytest.mark.parametrize("who", ["user", "driver"])
def test_a_cancelled_job_has_an_event_with_the_reason(who):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        if who == "user":
            site.job.cancel(wait=False)
            worker.wait(lambda: any(isinstance(one, Cancel) for one in worker.heard), "Cancel")
            worker.say(Done())
            assert site.job.wait(PATIENCE_S)
        else:
            site.coordinator.close()
        assert {"user": "cancelled by its user", "driver": "the driver has left"}[who] in texts(site.job)[-2]
        assert texts(site.job)[-1] == "the job has been cancelled"
        assert site.job.view().error is None


def test_workers_that_do_not_leave_in_time_are_named():
    with Site(plan_of(1), goodbye_timeout_s=0.05) as site:
        running(site)
        site.job.cancel()
        assert ("workers [0] did not leave in time", "warning") in [(one.text, one.level) for one in site.job.events]


def test_everything_can_still_be_looked_at_when_the_coordinator_is_closed():
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        report(worker)
        worker.say(Done())
        assert site.job.wait(PATIENCE_S)
        site.coordinator.close()
        view = site.job.view(timeline=True)
        assert view.progress.status is JobStatus.FINISHED
        assert view.progress.vertices[0].records_out == 20
        assert view.progress.uptime_s == site.job.view().progress.uptime_s
        assert view.events[-1].text == "the job has finished"
        assert JobView.from_json(view.to_json()) == view


def test_a_job_that_never_began_can_be_looked_at():
    coordinator = Coordinator(plan_of(), SECRET, ATTEMPT)
    coordinator.close()
    assert coordinator.job.view(timeline=True).progress.status is JobStatus.CREATED


def test_the_secret_is_nowhere():
    secret = b"a secret of 32 bytes, not to see"
    coordinator = Coordinator(plan_of(), secret, ATTEMPT)
    with coordinator:
        said = coordinator.job.view(timeline=True).to_json() + repr(coordinator.job).encode()
    assert secret not in said
    assert secret.hex().encode() not in said


def test_a_job_without_a_coordinator_has_nothing_to_look_at():
    job = Job("1", "etl", progress=lambda: None, cancel=print)
    with pytest.raises(HeadgateError, match="has no figures"):
        job.view()


class Doctor:
    """In place of `observe.why`: answers by what it is given, and remembers."""

    def __init__(self, *causes):
        self.causes, self.asked = list(causes), []

    def diagnose(self, view, timelines, pressure):
        self.asked.append((view, timelines, pressure))
        return Diagnosis(cause=self.causes.pop(0), summary=f"{'with' if pressure else 'without'} samples")


@pytest.fixture
def doctor(monkeypatch):
    made = Doctor()
    module = types.ModuleType("headgate.observe.why")
    module.diagnose = made.diagnose
    monkeypatch.setitem(sys.modules, "headgate.observe.why", module)
    return made


def answer(worker):
    worker.wait(lambda: any(isinstance(one, SampleStacks) for one in worker.heard), "a request")
    request = next(one for one in worker.heard if isinstance(one, SampleStacks))
    worker.say(StackSamples(request.request, [SubtaskSamples(0, 0, 1, 0, 0, [])]))


def test_why_is_asked_with_the_past_of_every_vertex_and_with_samples_if_the_answer_is_in_the_code(doctor):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        report(worker, intervals=[MOMENT] * 5, at_ms=site.job.view().at_ms)
        wait_until(lambda: site.job.timeline(vertex=0).tasks, "the past")
        doctor.causes += [Cause.CPU, Cause.CPU]
        asking = Thread(site.job.why)
        answer(worker)
        found = asking.end()
        assert found.summary == "with samples"
        assert site.job.view().diagnosis is found
        view, timelines, pressure = doctor.asked[-1]
        assert len(timelines) == 2, "one for each vertex"
        assert {(line.vertex, line.subtask) for line in timelines[0].tasks} == {(0, -1), (0, 0)}
        assert pressure is site.job.view().pressure
        assert view.progress.status is JobStatus.RUNNING


@pytest.mark.parametrize("cause", [Cause.NONE, Cause.SOURCE, Cause.HOT_KEY, Cause.NETWORK])
def test_why_does_not_sample_if_the_cause_needs_no_samples(doctor, cause):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        doctor.causes += [cause]
        assert site.job.why().cause is cause
        assert not [one for one in worker.heard if isinstance(one, SampleStacks)]


def test_why_answers_without_samples_if_the_job_ends_meanwhile(doctor):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        doctor.causes += [Cause.CPU]
        asking = Thread(site.job.why)
        worker.wait(lambda: any(isinstance(one, SampleStacks) for one in worker.heard), "a request")
        worker.say(Done())
        assert asking.end().summary == "without samples"
        assert site.job.why() is site.job.view().diagnosis, "of a job that is over: what was said last"


def test_why_describes_the_running_job_if_it_ends_during_sampling(doctor, monkeypatch):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        doctor.causes += [Cause.CPU, Cause.CPU]
        sampling = site.coordinator._monitor.sampling

        def ends_meanwhile(*, refresh):
            worker.say(Done())
            assert site.job.wait(PATIENCE_S)
            return Pressure(at_ms=0, samples=1, delay_ms=1, vertices=())

        monkeypatch.setattr(sampling, "pressure", ends_meanwhile)
        site.job.why()
        view, _, pressure = doctor.asked[-1]
        assert view.progress.status is JobStatus.RUNNING
        assert pressure is not None


def test_why_of_a_job_that_is_over_and_was_not_asked_before(doctor):
    with Site(plan_of(1)) as site:
        (worker,) = running(site)
        worker.say(Done())
        assert site.job.wait(PATIENCE_S)
        doctor.causes += [Cause.NONE]
        assert site.job.why().cause is Cause.NONE
        assert site.job.view().diagnosis is None


def test_a_view_does_not_change_after_it_was_returned():
    with Site(plan_of(1)) as site:
        before = site.job.view()
        (worker,) = running(site)
        report(worker)
        wait_until(lambda: site.job.view().progress.vertices[0].records_out == 20, "the report")
        assert before == replace(before)
        assert before.progress.vertices[0].records_out == 0
        assert before.events == ()
