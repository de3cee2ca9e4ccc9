"""Which jobs the page of `headgate ui` has: those that run, as they come and go."""

import pytest
from tests.support_attach import FakeJob, offered, until

from headgate.attach import find, running
from headgate.cli import ui
from headgate.cli.ui import Looked


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADGATE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_jobs_that_begin_later_are_there_and_those_that_end_stay_if_they_were_kept(root, monkeypatch):
    monkeypatch.setattr(ui, "_LOOK_S", 0.005)
    first, second, third = FakeJob("job-1"), FakeJob("job-2"), FakeJob("job-3", keep=0)
    with offered(root, first), Looked(find(None), others=True) as looked:
        assert list(looked.jobs()) == ["job-1"]
        with offered(root, second, third):
            until(lambda: set(looked.jobs()) == {"job-1", "job-2", "job-3"})
            assert looked.jobs()["job-2"].view().progress.job == "job-2"
        until(lambda: set(looked.jobs()) == {"job-1", "job-2"})
        assert len(running()) == 1
        assert looked.jobs()["job-2"].view().progress.status.over


def test_one_that_was_named_stays_alone(root, monkeypatch):
    monkeypatch.setattr(ui, "_LOOK_S", 0.005)
    with offered(root, FakeJob("job-1")) as process, Looked(find("job-1")) as looked:
        assert looked._thread is None
        assert list(looked.jobs()) == list(process.jobs())


def test_a_directory_that_goes_away_is_no_end(root):
    with offered(root, FakeJob("job-1")):
        looked = Looked(find(None), others=True)
        root.chmod(0o777)
        answers = iter([False, True])
        looked._over.wait = lambda timeout: next(answers)
        looked._look()
        assert list(looked.jobs()) == ["job-1"]
        root.chmod(0o700)
