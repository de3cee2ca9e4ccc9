"""The jobs on the page of `headgate ui`."""

import pytest
from tests.support.published_jobs import FakeJob, offered
from tests.support.waiting import wait_until

from headgate.attach import find, running
from headgate.cli import ui
from headgate.cli.ui import PageJobs


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_later_jobs_are_added_and_ended_ones_stay_if_they_were_kept(root, monkeypatch):
    monkeypatch.setattr(ui, "_RENEW_S", 0.005)
    first, second, third = FakeJob("job-1"), FakeJob("job-2"), FakeJob("job-3", keep=0)
    with offered(root, first), PageJobs(find(None), others=True) as shown:
        assert list(shown.jobs()) == ["job-1"]
        with offered(root, second, third):
            wait_until(lambda: set(shown.jobs()) == {"job-1", "job-2", "job-3"})
            assert shown.jobs()["job-2"].view().progress.job == "job-2"
        wait_until(lambda: set(shown.jobs()) == {"job-1", "job-2"})
        assert len(running()) == 1
        assert shown.jobs()["job-2"].view().progress.status.over


def test_a_named_job_is_the_only_one(root, monkeypatch):
    monkeypatch.setattr(ui, "_RENEW_S", 0.005)
    with offered(root, FakeJob("job-1")) as process, PageJobs(find("job-1")) as shown:
        assert shown._thread is None
        assert list(shown.jobs()) == list(process.jobs())


def test_a_removed_directory_does_not_end_the_thread(root):
    with offered(root, FakeJob("job-1")):
        shown = PageJobs(find(None), others=True)
        root.chmod(0o777)
        answers = iter([False, True])
        shown._over.wait = lambda timeout: next(answers)
        shown._renew_all()
        assert list(shown.jobs()) == ["job-1"]
        root.chmod(0o700)
