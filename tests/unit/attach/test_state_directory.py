"""The state directory: where it is, and that only its user can write to it."""

import os
import stat
from pathlib import Path

import pytest

from headgate.attach import directories
from headgate.attach.directories import PrivateDirectory, state_directory
from headgate.config import load_settings
from headgate.errors import ConfigError


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"HEADGATE_STATE_DIR": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"HEADGATE_STATE_DIR": "", "XDG_STATE_HOME": "/b", "HOME": "/c"}, "/b/headgate"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/c"}, "/c/.local/state/headgate"),
        ({"HOME": "/c"}, "/c/.local/state/headgate"),
        ({"HEADGATE_STATE_DIR": "here"}, f"{os.getcwd()}/here"),
    ],
)
def test_the_state_directory_by_environment(environ, found):
    assert state_directory(environ) == Path(found)


def test_without_a_home_the_variable_is_required(monkeypatch):
    monkeypatch.setattr(directories.os.path, "expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="HEADGATE_STATE_DIR"):
        state_directory({})


def test_its_variable_is_no_setting():
    load_settings(environ={"HEADGATE_STATE_DIR": "/a"})
    with pytest.raises(ConfigError, match="did you mean HEADGATE_STATE_DIR"):
        load_settings(environ={"HEADGATE_STATEDIR": "/a"})


def test_created_directories_are_private(tmp_path):
    root = tmp_path / "some" / "where"
    before = os.umask(0)
    try:
        with PrivateDirectory("jobs", root=root, create=True):
            pass
    finally:
        os.umask(before)
    assert mode(root) == mode(root / "jobs") == 0o700


def test_opening_does_not_create_it(tmp_path):
    with pytest.raises(FileNotFoundError):
        PrivateDirectory("jobs", root=tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("which", ["", "jobs"])
@pytest.mark.parametrize("bits", [0o770, 0o720, 0o702])
def test_a_directory_that_others_can_write_to_is_refused(which, bits, tmp_path):
    root = tmp_path / "state"
    (root / "jobs").mkdir(parents=True, mode=0o700)
    (root / which).chmod(bits)
    with pytest.raises(ConfigError, match=rf"others \(its mode is {bits:o}\): chmod 700"):
        PrivateDirectory("jobs", root=root, create=True)


@pytest.mark.parametrize("which", ["", "jobs"])
def test_a_directory_of_another_user_is_refused(which, tmp_path, monkeypatch):
    root = tmp_path / "state"
    with PrivateDirectory("jobs", root=root, create=True):
        pass
    if os.geteuid() == 0:
        os.chown(root / which, 12345, -1)
    else:
        monkeypatch.setattr(directories.os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to user"):
        PrivateDirectory("jobs", root=root, create=True)


@pytest.mark.parametrize("which", ["", "jobs"])
def test_a_link_is_refused(which, tmp_path):
    root, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if which:
        root.mkdir(mode=0o700)
    (root / which).symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="link or no directory"):
        PrivateDirectory("jobs", root=root, create=True)
    assert not list(elsewhere.iterdir())


def test_a_directory_that_is_replaced_later_is_not_used(tmp_path):
    """What was looked at is what is used, whatever its name leads to by then."""
    root = tmp_path / "state"
    with PrivateDirectory("jobs", root=root, create=True) as jobs:
        (root / "jobs").rename(root / "real")
        (root / "jobs").mkdir()
        Path(jobs.via("a")).write_text("kept")
        assert jobs.names() == ["a"]
        assert (root / "real" / "a").read_text() == "kept"


def test_descriptors_are_closed_also_when_it_is_refused(tmp_path):
    root = tmp_path / "state"
    (root / "jobs").mkdir(parents=True)
    (root / "jobs").chmod(0o777)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError):
        PrivateDirectory("jobs", root=root)
    assert len(os.listdir("/proc/self/fd")) == before
