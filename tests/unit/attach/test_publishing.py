"""A process publishes its jobs, and writes their files; errors of that do not affect a job."""

import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support.published_jobs import FakeJob, ended, offered, sockets
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.attach import find, kept, publishing, running, server
from headgate.attach.publishing import PublishedJobs
from headgate.observe import JobStatus

ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


def test_after_the_last_job_there_is_a_file_and_no_socket(root):
    one, other = FakeJob("job-1"), FakeJob("job-2")
    with offered(root, one, other) as process:
        thread = process._thread
        one.end()
        wait_until(lambda: list(process.jobs()) == ["job-2"])
        assert [line.id for line in kept(root)] == ["job-1"]
        assert len(running(root)) == 1
        other.end(JobStatus.FAILED)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert {(line.id, line.status) for line in kept(root)} == {("job-1", "finished"), ("job-2", "failed")}
        assert sockets(root) == []
        assert process._wake is None


def test_jobs_are_published_one_after_the_other(root):
    process = PublishedJobs(root)
    for number in range(30):
        job = FakeJob(f"job-{number}", keep=5)
        process.add(job)
        job.end()
    ended(process)
    assert len(kept(root)) == 5
    assert sockets(root) == []


def test_a_job_that_is_over_before_it_is_published_is_kept(root):
    process, job = PublishedJobs(root), FakeJob()
    job.end()
    process.add(job)
    wait_until(lambda: kept(root))
    ended(process)


def test_a_job_without_references_is_dropped(root):
    process, job, other = PublishedJobs(root), FakeJob("job-1"), FakeJob("job-2")
    process.add(job)
    process.add(other)
    other.end()
    gone = weakref.ref(other)
    del other
    wait_until(lambda: kept(root))
    wait_until(lambda: gone() is None)
    del job
    ended(process)
    assert [line.id for line in kept(root)] == ["job-2"]


def test_a_job_that_is_over_is_kept_without_references(root, monkeypatch):
    go, real = threading.Event(), publishing.keep
    monkeypatch.setattr(publishing, "keep", lambda *args: go.wait(PATIENCE_S) and real(*args))
    process, first, second = PublishedJobs(root), FakeJob("job-1"), FakeJob("job-2")
    process.add(first)
    process.add(second)
    first.end()
    second.end()
    del first, second
    go.set()
    wait_until(lambda: len(kept(root)) == 2)
    ended(process)


def test_no_file_is_written_if_none_is_kept(root):
    job = FakeJob(keep=0)
    with offered(root, job):
        assert find(None, root=root).id == "job-1", "it is offered all the same"
    assert not (root / "jobs").exists()


@pytest.fixture
def looks_at_once(monkeypatch):
    monkeypatch.setattr(publishing, "_FIRST_VIEW_S", 0.001)
    monkeypatch.setattr(publishing, "_VIEW_S", 0.001)


def test_the_diagnosis_is_made_from_the_last_view_of_the_running_job(root, looks_at_once):
    job = FakeJob(sampled=False)
    with offered(root, job) as process:
        wait_until(lambda: process._seen)
    (line,) = kept(root)
    found = find(line.id, root=root).view().diagnosis
    assert found is not None
    assert found.vertex == 1, "the slow one"
    assert found.at_ms == job.shown.at_ms
    assert "why" not in job.calls, "no stacks are sampled"
    assert process._seen == {}


def test_an_existing_diagnosis_is_kept(root, looks_at_once):
    job = FakeJob()
    with offered(root, job) as process:
        wait_until(lambda: process._seen)
    assert find(None, root=root).view().diagnosis == job.shown.diagnosis


def test_a_job_does_not_wait_for_its_file(root, monkeypatch):
    """`on_change` is called on the coordinator's network thread."""
    go, real = threading.Event(), publishing.keep
    monkeypatch.setattr(publishing, "keep", lambda *args: go.wait(PATIENCE_S) and real(*args))
    job = FakeJob()
    with offered(root, job):
        job.end()
        assert not kept(root)
        go.set()
    wait_until(lambda: kept(root))


def test_waiting_for_a_job_includes_its_file(root):
    one, other = FakeJob("job-1"), FakeJob("job-2")
    with offered(root, one, other) as process:
        one.end()
        assert process.wait_kept("job-1", PATIENCE_S)
        assert [line.id for line in kept(root)] == ["job-1"]
        assert not process.wait_kept("job-2", 0.01), "it is not over"
        other.end()
        assert process.wait_kept("job-2", PATIENCE_S)
        assert not process._thread.is_alive(), "and after the last for the rest"
        assert sockets(root) == []
        assert process.wait_kept("nonesuch", 0)


def test_cancelling_by_a_request_does_not_deadlock(root, monkeypatch):
    """Its end would wait for the thread that waits for the answer that the end is."""
    monkeypatch.setattr(server, "_CLOSE_S", PATIENCE_S)
    job, settled = FakeJob(), []
    with offered(root, job) as process:

        def cancel():
            job.end(JobStatus.CANCELLED)
            settled.append(process.wait_kept(job.id, 5))
            return True

        job.cancel = cancel
        assert find(job.id, root=root).cancel()
        assert settled == [True]


def warnings(caplog):
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_directory_that_is_refused_is_one_warning(root, caplog):
    root.mkdir()
    root.chmod(0o777)
    process = PublishedJobs(root)
    for number in range(3):
        job = FakeJob(f"job-{number}")
        process.add(job)
        job.end()
        ended(process)
    (text,) = warnings(caplog)
    assert "other processes cannot see its jobs" in text
    assert "can be written to by others" in text
    assert not list(root.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError("a bug")])
def test_a_file_that_cannot_be_written_is_one_warning(error, root, monkeypatch, caplog):
    def fails(*args):
        raise error

    monkeypatch.setattr(publishing, "keep", fails)
    with offered(root, FakeJob("job-1"), FakeJob("job-2")):
        pass
    (text,) = warnings(caplog)
    assert " has no file: " in text


def test_a_job_without_a_view_is_a_warning_and_no_error(root, caplog):
    job = FakeJob()
    job.error = ZeroDivisionError("a bug")
    with offered(root, job):
        pass
    assert len(warnings(caplog)) == 1


def test_publishing_never_raises(monkeypatch, caplog):
    def fails(self, job):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(PublishedJobs, "add", fails)
    publishing.publish(FakeJob())
    assert "can't start new thread" in caplog.text


def test_unfinished_jobs_are_kept_at_exit(root):
    process, job = PublishedJobs(root), FakeJob()
    process.add(job)
    assert process.exit(PATIENCE_S)
    (line,) = kept(root)
    assert line.status == "running"
    assert sockets(root) == []
    process.add(job)
    assert process.jobs() == {}, "it is too late for others"


def test_exit_has_a_time_limit(root, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(publishing, "keep", lambda *args: go.wait(PATIENCE_S))
    process, job = PublishedJobs(root), FakeJob()
    process.add(job)
    assert not process.exit(0.05)
    go.set()
    ended(process)


def run(script, root):
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        cwd=ROOT,
        env={
            **os.environ,
            "HEADGATE_STATE_DIR": str(root),
            "PYTHONPATH": os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_publishes_and_removes_nothing_of_its_parent(root):
    out = run(
        """
        import os, sys
        from tests.support.leaks import unnamed_files
        from tests.support.published_jobs import FakeJob, connected, sockets
        from tests.support.waiting import wait_until
        from headgate.attach import publishing, running, state_directory

        root = state_directory()
        parent = FakeJob("job-parent")
        publishing.publish(parent)
        wait_until(lambda: sockets(root))
        with connected(root):  # a connection that the child inherits as well
            servers = publishing._published._servers  # where it is a moment after its name can be seen
            wait_until(lambda: servers and all(one._connections for one in servers))
            child = os.fork()
            if child == 0:
                own = [one for one in unnamed_files() if "socket:" in one]
                assert len(own) == 1, own  # that of the test itself
                job = FakeJob("job-child")
                publishing.publish(job)
                wait_until(lambda: len(sockets(root)) == 2)
                pids = {one.id: one.line.pid for one in running()}
                assert pids == {"job-parent": os.getppid(), "job-child": os.getpid()}, pids
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert [one.id for one in running()] == ["job-parent"]
        print(*sorted(name.name.partition("-")[2] for name in (root / "jobs").iterdir()))
        """,
        root,
    )
    assert out == "job-child.json\n"
    assert {(line.id, line.status) for line in kept(root)} == {("job-parent", "running"), ("job-child", "running")}
    assert sockets(root) == []


def test_the_socket_of_a_killed_process_is_removed_by_the_next_client(root):
    run(
        """
        import os, signal
        from tests.support.published_jobs import FakeJob, sockets
        from tests.support.waiting import wait_until
        from headgate.attach import publishing, state_directory

        if (child := os.fork()) == 0:
            job = FakeJob()
            publishing.publish(job)
            wait_until(lambda: sockets(state_directory()))
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        """,
        root,
    )
    assert len(sockets(root)) == 1
    assert running(root) == []
    assert sockets(root) == []


def test_importing_headgate_does_not_import_attach(root):
    out = run(
        "import sys, headgate; headgate.environment; print([one for one in sys.modules if 'headgate.attach' in one])",
        root,
    )
    assert out == "[]\n"
