"""The progress shown while a thread waits for a job, and the effect of Ctrl-C."""

import io
import sys
import time

import pytest
from tests.support.waiting import wait_until

import headgate as hg
from headgate.api import running
from headgate.api.results import Inbox, Results
from headgate.api.running import await_job, showing_activity, showing_progress, unfinished_jobs
from headgate.config.defaults import Defaults, use_defaults
from headgate.coordinator.job import Job, JobStatus
from headgate.ids import JobId
from headgate.observe.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Waited(Job):
    """Waiting for it is interrupted."""

    def __init__(self):
        self.cancelled = []
        super().__init__(JobId("1"), "etl", progress=self.figures, cancel=self.stop)
        self.begin()

    def figures(self):
        return Progress(job="1", name="etl", status=self.status, uptime_s=1.0, workers=(), vertices=())

    def stop(self, reason):
        self.cancelled.append(reason)
        self.end(JobStatus.CANCELLED)

    def await_termination(self, timeout_s=None):
        raise KeyboardInterrupt


@pytest.fixture
def stderr(monkeypatch):
    """Puts something else there; to be called in the test, because pytest puts its own there before."""
    monkeypatch.setenv("TERM", "xterm")

    def put(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return put


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(running, "_ACTIVITY_S", 0.001)
    monkeypatch.setattr(running, "_LINE_S", 0.001)


def test_ctrl_c_cancels_the_job_and_is_raised_again():
    job = Waited()
    with pytest.raises(KeyboardInterrupt):
        await_job(job)
    assert job.cancelled
    assert job.status is JobStatus.CANCELLED


@pytest.mark.parametrize("where", ["take", "end"])
def test_ctrl_c_among_results_cancels_the_job(where, monkeypatch):
    job, inbox = Waited(), Inbox()
    results = Results(inbox, job)
    inbox.put_batch([1])
    assert next(results) == 1
    if where == "take":

        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(inbox, "take", interrupted)
    else:
        inbox.end()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    assert job.cancelled


def test_ctrl_c_takes_the_view_away(stderr):
    terminal = stderr(Terminal())
    job = Waited()
    stdout = sys.stdout

    def when_drawn(timeout_s=None):
        wait_until(lambda: "etl: running" in terminal.getvalue(), "a view")
        raise KeyboardInterrupt

    job.await_termination = when_drawn
    with pytest.raises(KeyboardInterrupt):
        await_job(job)
    assert terminal.getvalue().endswith("\x1b[J")
    assert (sys.stdout, sys.stderr) == (stdout, terminal)


def test_results_can_be_iterated_in_two_loops_with_a_view_in_each(stderr):
    terminal = stderr(Terminal())
    job, inbox = Waited(), Inbox()
    results = Results(inbox, job)
    inbox.put_batch([1, 2, 3])
    for first in results:
        assert first == 1
        wait_until(lambda: "etl: running" in terminal.getvalue(), "a view")
        break
    assert terminal.getvalue().endswith("\x1b[J")
    assert [next(results), next(iter(results))] == [2, 3]
    results.close()


def test_one_job_at_a_time_is_shown(stderr):
    terminal = stderr(Terminal())
    one, other = Waited(), Waited()
    other.name = "other"
    with showing_progress(one), showing_progress(other):
        wait_until(lambda: "etl: running" in terminal.getvalue(), "a view")
        assert running._display.locked()
    assert not running._display.locked()
    with showing_progress(other):
        wait_until(lambda: terminal.getvalue().count("\x1b[J") > 1, "another view")


def test_a_pipe_gets_lines_if_asked_for(stderr):
    pipe = stderr(io.StringIO())
    with showing_progress(Waited(), progress=True):
        wait_until(lambda: pipe.getvalue().count("\n") >= 2, "lines")
    assert set(pipe.getvalue().splitlines()) == {"etl: running, 1 s"}


@pytest.mark.parametrize("progress", [None, False])
def test_a_pipe_is_left_alone_otherwise(progress, stderr):
    pipe = stderr(io.StringIO())
    with showing_progress(Waited(), progress), showing_activity("starting Spark", progress):
        time.sleep(0.05)
    assert pipe.getvalue() == ""


def test_a_long_activity_is_shown_in_a_terminal_and_erased_at_its_end(stderr):
    terminal = stderr(Terminal())
    with showing_activity("starting Spark"):
        wait_until(lambda: terminal.getvalue().count("starting Spark ... 0 s") > 1, "a word")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_long_activity_is_one_line_in_a_pipe_with_progress(stderr):
    pipe = stderr(io.StringIO())
    with showing_activity("starting Spark", progress=True):
        wait_until(lambda: "\n" in pipe.getvalue(), "a word")
        time.sleep(0.02)
    assert pipe.getvalue() == "starting Spark ...\n"


def test_a_short_activity_is_not_shown(stderr, monkeypatch):
    terminal = stderr(Terminal())
    monkeypatch.setattr(running, "_ACTIVITY_S", 60.0)
    with showing_activity("starting Spark"):
        pass
    assert terminal.getvalue() == ""


def test_a_stream_that_is_closed_ends_the_view_and_nothing_else(stderr):
    pipe = stderr(io.StringIO())
    with showing_progress(Waited(), progress=True):
        pipe.close()
        time.sleep(0.02)


def test_jobs_that_are_not_over_are_known():
    env = hg.environment(local=True, parallelism=1)
    env.rate(100).for_each(lambda n: None)
    job = env.execute_async("endless")
    assert job in unfinished_jobs()
    job.cancel()
    assert job not in unfinished_jobs()


def test_an_environment_keeps_the_progress_setting_of_its_creation(stderr):
    pipe = stderr(io.StringIO())
    with use_defaults(Defaults(local=True, parallelism=1, progress=True)):
        env = hg.environment()
    counted = env.rate(1_000, count=300).execute_and_collect("numbers")
    assert sum(1 for _ in counted) == 300
    assert "numbers: " in pipe.getvalue()
