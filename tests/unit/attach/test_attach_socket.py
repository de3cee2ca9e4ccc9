"""Jobs of another process: finding them, and requests about them."""

import os
import socket
import stat
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.support.job_views import FakeWatched
from tests.support.published_jobs import FakeJob, all_of, connected, message, offered, sockets
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.attach import client, find, kept, running, server
from headgate.attach.client import AttachedJob
from headgate.attach.directories import PrivateDirectory
from headgate.attach.kept_jobs import KeptJob
from headgate.errors import AuthError, ConfigError, HeadgateError, RemoteProtocolError
from headgate.observe import JobStatus, ObservedJob, SettingView


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


def as_watched(job: AttachedJob | KeptJob) -> ObservedJob:
    """Checked by mypy: these classes implement the protocol."""
    return job


def test_an_attached_job_has_all_answers(root):
    job = FakeJob(vertices=4, subtasks=3)
    with offered(root, job):
        (seen,) = running(root)
        assert (seen.id, seen.name, seen.line.pid, seen.line.status) == ("job-1", "etl", os.getpid(), "running")
        watched = as_watched(seen)
        assert watched.view() == job.view()
        assert watched.view(timeline=True) == job.view(timeline=True)
        assert watched.timeline(seconds=5, points=7, vertex=1) == job.timeline(seconds=5, points=7, vertex=1)
        assert watched.pressure() == job.pressure()
        assert watched.why() == job.why()
        assert watched.why(refresh=True) == job.shown.diagnosis
        assert watched.cancel()
        assert job.status is JobStatus.CANCELLED


def test_the_time_limit_of_why_follows_the_settings_of_sampling(root):
    job = FakeJob()
    slow = (("backpressure.samples", "200"), ("backpressure.delay", "1 s"))
    with offered(root, job):
        (seen,) = running(root)
        assert seen._sampling_s() == 5 + client._SAMPLING_S, "the defaults"
        job.shown = replace(job.shown, settings=tuple(SettingView(key=k, value=v, origin="code") for k, v in slow))
        assert seen._sampling_s() == 200 + client._SAMPLING_S
        job.shown = replace(job.shown, settings=(SettingView(key="backpressure.delay", value="?", origin="code"),))
        assert seen._sampling_s() == 5 + client._SAMPLING_S


def test_a_view_of_a_large_job_is_complete(root):
    job = FakeJob(vertices=30, subtasks=20)
    with offered(root, job):
        (seen,) = running(root)
        assert seen.view(timeline=True) == job.view(timeline=True)


def test_jobs_are_found_by_id_by_name_or_as_the_only_one(root):
    old, new = FakeJob("job-abc1", "etl", at_ms=1000_000), FakeJob("job-abd2", "words", at_ms=2000_000)
    with offered(root, old, new):
        assert [one.id for one in running(root)] == ["job-abd2", "job-abc1"]
        assert find(None, root=root).id == "job-abd2"
        assert find("job-abc1", root=root).id == "job-abc1"
        assert find("job-abc", root=root).id == "job-abc1"
        assert find("words", root=root).id == "job-abd2"
        with pytest.raises(ConfigError, match=r"any of job-abd2 \(words\), job-abc1 \(etl\): give an id"):
            find("job-ab", root=root)
        with pytest.raises(ConfigError, match=r"no job 'nonesuch': there are job-abd2 \(words\), job-abc1 \(etl\)"):
            find("nonesuch", root=root)


def test_a_running_job_is_preferred_to_a_kept_one(root):
    with offered(root, FakeJob("job-1", "etl")):
        pass
    assert find("etl", root=root).view().progress.status is JobStatus.FINISHED
    with offered(root, FakeJob("job-2", "etl")):
        assert find("etl", root=root).id == find(None, root=root).id == "job-2"
        assert find("job-1", root=root).id == "job-1"
    assert find("etl", root=root).id == "job-2", "the newest"


def test_without_a_job_there_is_an_error(root):
    with pytest.raises(ConfigError, match="there is no job: none runs, and none was kept in"):
        find(None, root=root)
    assert not root.exists()


def test_an_attached_job_that_ends_continues_with_its_file(root):
    one, other = FakeJob("job-1"), FakeJob("job-2")
    with offered(root, one, other):
        seen = find("job-1", root=root)
        one.end()
        wait_until(lambda: len(kept(root)) == 1)
        assert seen.view(timeline=True) == one.shown, "its process goes on"
    seen = find("job-2", root=root)
    assert isinstance(seen, KeptJob)
    assert seen.view(timeline=True) == other.shown


def test_a_job_is_published_or_kept_at_any_time(root):
    """Whoever asks while a job ends gets an answer every time."""
    for number in range(20):
        job = FakeJob(f"job-{number}")
        with offered(root, job):
            seen = find(job.id, root=root)
            job.end()
            statuses = [seen.view().progress.status for _ in range(20)]
            assert set(statuses) == {JobStatus.FINISHED}


def test_a_job_that_is_gone_without_a_file_is_an_error(root):
    job = FakeJob(keep=0)
    with offered(root, job):
        seen = find("job-1", root=root)
    with pytest.raises(HeadgateError, match=r"etl \(job-1\) is over, or its process \d+ is, and it has no file"):
        seen.view()
    assert not (root / "jobs").exists()


def test_errors_are_received_as_text(root):
    job = FakeJob()
    with offered(root, job):
        (seen,) = running(root)
        job.error = HeadgateError("the network is down")
        with pytest.raises(HeadgateError, match=r"^the network is down$"):
            seen.timeline()
        job.error = ZeroDivisionError("division by zero")
        with pytest.raises(HeadgateError, match="a bug in headgate: ZeroDivisionError: division by zero"):
            seen.timeline()
        job.error = None
        assert seen.view().progress.name == "etl"


def test_the_socket_is_for_this_user_only(root):
    before = os.umask(0)
    try:
        with offered(root, FakeJob()):
            (name,) = sockets(root)
            assert stat.S_IMODE((root / "run" / name).lstat().st_mode) == 0o600
            assert stat.S_IMODE((root / "run").stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_path_that_is_too_long_for_a_socket_address(tmp_path):
    root = tmp_path / ("deep" * 30) / ("deeper" * 30)
    assert len(str(root)) > 108
    with offered(root, FakeJob()):
        assert find(None, root=root).view().progress.name == "etl"


def left_behind(root, name=None):
    """A socket that a process did not remove before it was killed."""
    name = name or f"{server.host_prefix()}99999-0.sock"
    with PrivateDirectory("run", root=root, create=True) as directory, socket.socket(socket.AF_UNIX) as dead:
        dead.bind(directory.via(name))
    return root / "run" / name


def test_stale_sockets_are_removed_and_live_ones_are_not(root):
    stale = left_behind(root)
    with offered(root, FakeJob()):
        assert [one.id for one in running(root)] == ["job-1"]
        assert not stale.exists()
        assert len(sockets(root)) == 1


def test_sockets_of_other_machines_in_the_same_directory_are_kept(root):
    theirs, noise = left_behind(root, "elsewhere-99999-0.sock"), root / "run" / f"{server.host_prefix()}notes.txt"
    noise.write_text("mine")
    assert running(root) == []
    assert theirs.exists()
    assert noise.exists()


def test_a_file_in_place_of_a_socket_is_skipped(root):
    with offered(root, FakeJob()):
        (root / "run" / f"{server.host_prefix()}1-0.sock").write_text("no socket")
        (root / "run" / f"{server.host_prefix()}2-0.sock").symlink_to("/dev/null")
        assert [one.id for one in running(root)] == ["job-1"]


def test_answers_of_another_users_process_are_refused(root, monkeypatch):
    with offered(root, FakeJob()):
        (seen,) = running(root)
        monkeypatch.setattr(client, "peer_uid", lambda sock: 12345)
        with pytest.raises(AuthError, match="not yours, but that of user 12345"):
            seen.view()


def test_another_users_process_is_not_answered(root, monkeypatch):
    with offered(root, FakeJob()):
        monkeypatch.setattr(server, "peer_uid", lambda sock: 12345)
        with connected(root) as sock:
            with suppress(BrokenPipeError):  # it may be hung up on before
                sock.sendall(message(b'{"what":"jobs"}'))
            assert all_of(sock) == b""
        monkeypatch.undo()
        assert len(running(root)) == 1


def test_a_process_that_does_not_answer_is_skipped(root, monkeypatch, caplog):
    job = FakeJob()
    with offered(root, job):
        monkeypatch.setattr(client, "_LIST_S", 0.05)
        monkeypatch.setattr(FakeWatched, "view", lambda self, *, timeline=False: self.gate.wait(PATIENCE_S))
        job.gate.clear()
        assert running(root) == []
        assert "does not answer within 0.05 s: is it stopped?" in caplog.text


def test_an_answer_that_is_not_valid_is_an_error(root, monkeypatch):
    with offered(root, FakeJob()):
        (seen,) = running(root)
        monkeypatch.setattr(server, "_result", lambda job, question: b'{"at_ms":"now"}')
        with pytest.raises(HeadgateError, match="this is not the view of a job"):
            seen.view()
        with pytest.raises(RemoteProtocolError, match="another version of headgate"):
            seen.timeline()
