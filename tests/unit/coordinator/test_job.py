"""The handle of a job, used from several threads."""

import pytest
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S

from headgate.control.messages import Failed
from headgate.coordinator.job import Job, JobStatus
from headgate.errors import ConfigError, HeadgateError, InsufficientBuffers, TransportError, UserCodeError
from headgate.ids import JobId


def new_job(cancel=lambda reason: None):
    return Job(JobId("1"), "etl", progress=lambda: "figures", cancel=cancel)


def test_the_end_of_a_job_wakes_all_waiting_threads():
    job = new_job()
    waiting = [Thread(lambda: job.await_termination(PATIENCE_S)) for _ in range(3)]
    job.begin()
    job.end(JobStatus.FINISHED)
    assert [one.end() for one in waiting] == [True, True, True]


def test_waiting_for_a_failed_job_raises_its_cause_also_later():
    job = new_job()
    waiting = Thread(lambda: job.await_termination(PATIENCE_S))
    cause = ConfigError("wrong")
    job.ending(cause)
    assert (job.status, job.exception, job.stopping) == (JobStatus.CREATED, cause, True)
    job.end(JobStatus.FAILED)
    for wait in (waiting.end, job.await_termination):
        with pytest.raises(ConfigError, match="wrong"):
            wait()


def test_a_wait_may_have_a_limit():
    assert new_job().await_termination(timeout_s=0) is False
    assert new_job().cancel(timeout_s=0) is False


def test_a_job_ends_once():
    job = new_job()
    job.end(JobStatus.FINISHED)
    job.ending(HeadgateError("too late"))
    job.end(JobStatus.CANCELLED)
    assert (job.status, job.exception) == (JobStatus.FINISHED, None)


def test_a_job_that_is_over_is_not_cancelled():
    asked = []
    job = new_job(asked.append)
    job.cancel(wait=False)
    assert asked == ["cancelled by its user"]
    job.end(JobStatus.FINISHED)
    assert job.cancel()
    assert len(asked) == 1


def test_callbacks_are_called_until_they_are_taken_back_and_their_errors_end_nothing(caplog):
    job, heard = new_job(), []
    job.on_change(lambda job: 1 / 0)
    stop = job.on_change(lambda job: heard.append(job.status))
    job.begin()
    job.changed()
    stop()
    stop()
    job.end(JobStatus.FINISHED)
    assert heard == [JobStatus.RUNNING, JobStatus.RUNNING]
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_may_take_itself_back():
    job, heard = new_job(), []

    def once(job):
        heard.append(job)
        stop()

    stop = job.on_change(once)
    job.changed()
    job.changed()
    assert heard == [job]


def test_figures_are_asked_for_when_wanted():
    assert new_job().last_progress == "figures"


# What travels of an error.


@pytest.mark.parametrize(
    "error",
    [
        InsufficientBuffers("too few"),
        TransportError("reset", peer="10.0.0.7:1"),
        UserCodeError("division by zero", operator="map, but odd: ", subtask=3),
        UserCodeError("a\n\nb", operator="map", subtask=0, trace="Traceback\n\nline"),
    ],
    ids=repr,
)
def test_an_error_is_of_the_same_class_and_text_on_the_other_side(error):
    again = Failed.of(error).error()
    assert type(again) is type(error)
    assert str(again) == str(error)
    for attribute in ("operator", "subtask", "trace"):
        assert getattr(again, attribute, None) == getattr(error, attribute, None)


def test_any_other_error_is_named():
    assert str(Failed.of(ValueError("odd")).error()) == "ValueError: odd"


def test_a_long_error_keeps_the_start_of_its_text_and_the_end_of_its_trace():
    error = UserCodeError("x" * 10**6, operator="map", subtask=0, trace="y" * 10**6 + "the end")
    failed = Failed.of(error)
    assert len(failed.text) < 10**5
    assert len(failed.trace) < 10**5
    assert failed.trace.endswith("the end")
    assert failed.text.startswith("x")
