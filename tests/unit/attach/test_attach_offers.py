"""A process offers its jobs, and keeps what is left of them; nothing of that is a job's trouble."""

import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from textwrap import dedent

import pytest
from tests.support_attach import WAIT_S, FakeJob, ended, offered, sockets, until

from headgate.attach import find, kept, offers, running, server
from headgate.attach.offers import Offers
from headgate.observe import JobStatus

ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


def test_when_the_last_job_is_over_there_is_a_file_and_nothing_else(root):
    one, other = FakeJob("job-1"), FakeJob("job-2")
    with offered(root, one, other) as process:
        thread = process._thread
        one.end()
        until(lambda: list(process.jobs()) == ["job-2"])
        assert [line.id for line in kept(root)] == ["job-1"]
        assert len(running(root)) == 1
        other.end(JobStatus.FAILED)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert {(line.id, line.status) for line in kept(root)} == {("job-1", "finished"), ("job-2", "failed")}
        assert sockets(root) == []
        assert process._wake is None


def test_one_after_the_other(root):
    process = Offers(root)
    for number in range(30):
        job = FakeJob(f"job-{number}", keep=5)
        process.add(job)
        job.end()
    ended(process)
    assert len(kept(root)) == 5
    assert sockets(root) == []


def test_one_that_is_over_before_it_is_offered(root):
    process, job = Offers(root), FakeJob()
    job.end()
    process.add(job)
    until(lambda: kept(root))
    ended(process)


def test_a_job_that_nobody_has_any_more_is_not_kept_alive(root):
    process, job, other = Offers(root), FakeJob("job-1"), FakeJob("job-2")
    process.add(job)
    process.add(other)
    other.end()
    gone = weakref.ref(other)
    del other
    until(lambda: kept(root))
    until(lambda: gone() is None)
    del job
    ended(process)
    assert [line.id for line in kept(root)] == ["job-2"]


def test_a_job_that_is_over_is_kept_although_nobody_has_it(root, monkeypatch):
    go, real = threading.Event(), offers.keep
    monkeypatch.setattr(offers, "keep", lambda *args: go.wait(WAIT_S) and real(*args))
    process, first, second = Offers(root), FakeJob("job-1"), FakeJob("job-2")
    process.add(first)
    process.add(second)
    first.end()
    second.end()
    del first, second
    go.set()
    until(lambda: len(kept(root)) == 2)
    ended(process)


def test_nothing_is_written_if_nothing_is_to_be_kept(root):
    job = FakeJob(keep=0)
    with offered(root, job):
        assert find(None, root=root).id == "job-1", "it is offered all the same"
    assert not (root / "jobs").exists()


@pytest.fixture
def looks_at_once(monkeypatch):
    monkeypatch.setattr(offers, "_FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(offers, "_LOOK_S", 0.001)


def test_what_a_job_was_limited_by_is_found_out_before_its_figures_are_gone(root, looks_at_once):
    job = FakeJob(sampled=False)
    with offered(root, job) as process:
        until(lambda: process._seen)
    (line,) = kept(root)
    found = find(line.id, root=root).view().diagnosis
    assert found is not None
    assert found.vertex == 1, "the slow one"
    assert found.at_ms == job.shown.at_ms
    assert "why" not in job.calls, "nothing is sampled that nobody asked for"
    assert process._seen == {}


def test_what_was_asked_is_what_is_kept(root, looks_at_once):
    job = FakeJob()
    with offered(root, job) as process:
        until(lambda: process._seen)
    assert find(None, root=root).view().diagnosis == job.shown.diagnosis


def test_a_job_does_not_wait_for_its_file(root, monkeypatch):
    """`on_change` is called on the coordinator's network thread."""
    go, real = threading.Event(), offers.keep
    monkeypatch.setattr(offers, "keep", lambda *args: go.wait(WAIT_S) and real(*args))
    job = FakeJob()
    with offered(root, job):
        job.end()
        assert not kept(root)
        go.set()
    until(lambda: kept(root))


def test_who_waits_for_a_job_waits_for_its_file(root):
    one, other = FakeJob("job-1"), FakeJob("job-2")
    with offered(root, one, other) as process:
        one.end()
        assert process.settle("job-1", WAIT_S)
        assert [line.id for line in kept(root)] == ["job-1"]
        assert not process.settle("job-2", 0.01), "it is not over"
        other.end()
        assert process.settle("job-2", WAIT_S)
        assert not process._thread.is_alive(), "and after the last for the rest"
        assert sockets(root) == []
        assert process.settle("nonesuch", 0)


def test_a_job_that_is_cancelled_from_elsewhere_does_not_wait_for_itself(root, monkeypatch):
    """Its end would wait for the thread that waits for the answer that the end is."""
    monkeypatch.setattr(server, "_CLOSE_S", WAIT_S)
    job, settled = FakeJob(), []
    with offered(root, job) as process:

        def cancel():
            job.end(JobStatus.CANCELLED)
            settled.append(process.settle(job.id, 5))
            return True

        job.cancel = cancel
        assert find(job.id, root=root).cancel()
        assert settled == [True]


def warnings(caplog):
    return [one.message for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_directory_that_is_not_used_is_one_warning(root, caplog):
    root.mkdir()
    root.chmod(0o777)
    process = Offers(root)
    for number in range(3):
        job = FakeJob(f"job-{number}")
        process.add(job)
        job.end()
        ended(process)
    (text,) = warnings(caplog)
    assert "other processes cannot look at its jobs" in text
    assert "can be written to by others" in text
    assert not list(root.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError("a bug")])
def test_a_file_that_cannot_be_written_is_one_warning(error, root, monkeypatch, caplog):
    def fails(*args):
        raise error

    monkeypatch.setattr(offers, "keep", fails)
    with offered(root, FakeJob("job-1"), FakeJob("job-2")):
        pass
    (text,) = warnings(caplog)
    assert "nothing is kept of job job-" in text


def test_a_job_that_cannot_be_looked_at_is_a_warning_and_no_error(root, caplog):
    job = FakeJob()
    job.error = ZeroDivisionError("a bug")
    with offered(root, job):
        pass
    assert len(warnings(caplog)) == 1


def test_offering_never_raises(monkeypatch, caplog):
    def fails(self, job):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Offers, "add", fails)
    offers.offer(FakeJob())
    assert "can't start new thread" in caplog.text


def test_leaving_keeps_what_there_is_of_unfinished_jobs(root):
    process, job = Offers(root), FakeJob()
    process.add(job)
    assert process.leave(WAIT_S)
    (line,) = kept(root)
    assert line.status == "running"
    assert sockets(root) == []
    process.add(job)
    assert process.jobs() == {}, "it is too late for others"


def test_leaving_waits_for_a_time_only(root, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(offers, "keep", lambda *args: go.wait(WAIT_S))
    process, job = Offers(root), FakeJob()
    process.add(job)
    assert not process.leave(0.05)
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


def test_a_forked_child_does_not_serve_keep_or_remove_anything_of_its_parents(root):
    out = run(
        """
        import os, sys
        from tests.support import unnamed_files
        from tests.support_attach import FakeJob, connected, sockets, until
        from headgate.attach import offers, running, state_directory

        root = state_directory()
        parent = FakeJob("job-parent")
        offers.offer(parent)
        until(lambda: sockets(root))
        with connected(root):  # a connection that the child inherits as well
            servers = offers._offers._servers  # where it is a moment after its name can be seen
            until(lambda: servers and all(one._connections for one in servers))
            child = os.fork()
            if child == 0:
                own = [one for one in unnamed_files() if "socket:" in one]
                assert len(own) == 1, own  # that of the test itself
                job = FakeJob("job-child")
                offers.offer(job)
                until(lambda: len(sockets(root)) == 2)
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


def test_a_killed_process_leaves_a_socket_that_the_next_look_removes(root):
    run(
        """
        import os, signal
        from tests.support_attach import FakeJob, sockets, until
        from headgate.attach import offers, state_directory

        if (child := os.fork()) == 0:
            job = FakeJob()
            offers.offer(job)
            until(lambda: sockets(state_directory()))
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        """,
        root,
    )
    assert len(sockets(root)) == 1
    assert running(root) == []
    assert sockets(root) == []


def test_importing_headgate_does_not_import_this(root):
    out = run(
        "import sys, headgate; headgate.environment; print([one for one in sys.modules if 'headgate.attach' in one])",
        root,
    )
    assert out == "[]\n"
