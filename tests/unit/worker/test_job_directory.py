"""A job's directory: whose it may be, who uses it, and what a sweep leaves alone."""

import errno
import fcntl
import os
import stat
import threading
import time

import pytest

from headgate.errors import StorageError, StorageFull
from headgate.ids import JobId
from headgate.worker import job_directory
from headgate.worker.job_directory import ABANDONED_S, JobDirectory, sweep

pytestmark = pytest.mark.spec("P3")

JOB = JobId("etl")


@pytest.fixture
def base(tmp_path):
    return tmp_path / f"headgate-{os.geteuid()}"


def enter(place, job=JOB, *, driver_here=True):
    return JobDirectory(str(place), job, driver_here=driver_here)


def crashed(place, job=JOB, *, driver_here=True, files=("v0.0-0.partition",), age_s=0.0):
    """What a job leaves whose processes were killed: everything, but nobody holds the lock."""
    one = enter(place, job, driver_here=driver_here)
    for name in files:
        os.close(one.folder.open(name, os.O_CREAT | os.O_RDWR))
    path = one.folder.path
    one.leave(remove=False)
    past = time.time() - age_s
    for name in (*os.listdir(path), "."):
        os.utime(os.path.join(path, name), (past, past))
    return path


def test_it_is_for_this_user_alone_whatever_the_umask(tmp_path, base):
    before = os.umask(0)
    try:
        mine = enter(tmp_path, driver_here=False)
    finally:
        os.umask(before)
    assert mine.folder.path == str(base / "etl")
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in (base, base / "etl")} == {0o700}
    assert {stat.S_IMODE(os.stat(base / "etl" / name).st_mode) for name in ("lock", "remote-driver")} == {0o600}
    mine.leave(remove=True)


def test_the_last_worker_to_leave_removes_the_directory(tmp_path, base):
    first, second = enter(tmp_path), enter(tmp_path)
    assert first.leave(remove=True) is False
    assert (base / "etl").exists()
    assert second.leave(remove=True) is True
    assert os.listdir(base) == []
    assert second.leave(remove=True) is False


def test_nothing_is_removed_that_is_to_stay(tmp_path, base):
    enter(tmp_path).leave(remove=False)
    assert os.listdir(base) == ["etl"]
    again = enter(tmp_path)
    assert again.leave(remove=True) is True


def test_a_sweep_removes_directories_of_crashed_jobs(tmp_path, base):
    path = crashed(tmp_path)
    (base / "etl" / "deeper").mkdir()
    assert sweep([str(tmp_path)]) == [path]
    assert os.listdir(base) == []
    assert sweep([str(tmp_path)]) == []


def test_a_sweep_leaves_live_jobs_alone(tmp_path, base):
    one, other = enter(tmp_path, JobId("one")), enter(tmp_path, JobId("other"), driver_here=False)
    crashed(tmp_path, JobId("dead"))
    assert sweep([str(tmp_path)]) == [str(base / "dead")]
    assert sorted(os.listdir(base)) == ["one", "other"]
    one.leave(remove=True)
    other.leave(remove=True)


def test_a_job_with_a_driver_elsewhere_has_ten_minutes(tmp_path, base):
    crashed(tmp_path, driver_here=False, age_s=ABANDONED_S - 5)
    assert sweep([str(tmp_path)]) == []
    assert os.listdir(base / "etl") != []
    crashed(tmp_path, driver_here=False, age_s=ABANDONED_S + 5)
    assert sweep([str(tmp_path)]) == [str(base / "etl")]


@pytest.mark.parametrize("changed", ["lock", "v0.0-0.partition", "."])
def test_any_file_that_has_changed_counts(tmp_path, changed):
    path = crashed(tmp_path, driver_here=False, age_s=2 * ABANDONED_S)
    os.utime(os.path.join(path, changed))
    assert sweep([str(tmp_path)]) == []


def test_a_sweep_that_was_interrupted_is_finished_by_the_next(tmp_path, base):
    crashed(tmp_path, driver_here=False)
    (base / "etl").rename(base / ".swept-0123")
    assert sweep([str(tmp_path)]) == [str(base / ".swept-0123")]
    (base / ".swept-4567").mkdir(mode=0o700)  # its lock was removed already
    assert sweep([str(tmp_path)]) == [str(base / ".swept-4567")]


def test_a_sweep_ignores_directories_that_belong_to_no_job(tmp_path, base):
    base.mkdir(mode=0o700)
    (base / "notes.txt").write_text("mine")
    (base / "open").mkdir()
    (base / "open").chmod(0o755)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    (base / "link").symlink_to(tmp_path / "elsewhere")
    assert sweep([str(tmp_path), "/nonesuch"]) == []
    assert sorted(os.listdir(base)) == ["link", "notes.txt", "open"]
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_a_link_in_a_swept_directory_is_not_followed(tmp_path, base):
    path = crashed(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    os.symlink(tmp_path / "elsewhere", os.path.join(path, "link"))
    assert sweep([str(tmp_path)]) == [path]
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_entering_during_a_sweep_creates_a_new_directory(tmp_path, base, monkeypatch):
    path = crashed(tmp_path)
    entered, remove = [], job_directory.shutil.rmtree

    def enter_meanwhile(*args, **kwargs):
        entered.append(enter(tmp_path))
        remove(*args, **kwargs)

    monkeypatch.setattr(job_directory.shutil, "rmtree", enter_meanwhile)
    assert sweep([str(tmp_path)]) == [path]
    assert os.listdir(base / "etl") == ["lock"]  # of the one that has entered, still there
    monkeypatch.undo()
    assert sweep([str(tmp_path)]) == []
    assert entered[0].leave(remove=True)


def test_entering_is_retried_if_a_sweep_removed_the_opened_directory(tmp_path, base, monkeypatch):
    path, real, swept = crashed(tmp_path), fcntl.flock, []

    def sweep_first(fd, operation):
        if operation == fcntl.LOCK_SH | fcntl.LOCK_NB and not swept:
            swept.append(True)
            swept.extend(sweep([str(tmp_path)]))
        return real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    mine = enter(tmp_path)
    assert swept == [True, path]
    assert os.path.samestat(os.stat(base / "etl"), os.fstat(mine.folder.fd))
    monkeypatch.undo()
    assert sweep([str(tmp_path)]) == []
    mine.leave(remove=True)


def test_a_sweep_that_comes_late_does_not_touch_the_new_one(tmp_path, base, monkeypatch):
    """Another sweep has removed the directory, and a job has made it anew, between opening it and taking the lock."""
    crashed(tmp_path)
    real, new = job_directory._lock_exclusively, []

    def late(lock):
        if not new:
            new.append(None)
            assert len(sweep([str(tmp_path)])) == 1
            new[0] = enter(tmp_path)
        return real(lock)

    monkeypatch.setattr(job_directory, "_lock_exclusively", late)
    assert sweep([str(tmp_path)]) == []
    assert os.listdir(base / "etl") == ["lock"]
    monkeypatch.undo()
    new[0].leave(remove=True)


def test_a_lock_that_is_never_given_back_is_an_error(tmp_path, base, monkeypatch):
    crashed(tmp_path)
    monkeypatch.setattr(job_directory, "_PAUSE_S", 0.0)
    fd = os.open(base / "etl" / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(StorageError, match=r"headgate-\d+/etl: cannot be used: another process keeps its lock"):
        enter(tmp_path)
    os.close(fd)


def test_concurrent_entries_and_sweeps_lose_no_file_in_use(tmp_path, base):
    until, failures = time.monotonic() + 1.0, []

    def come_and_go(number):
        try:
            while time.monotonic() < until:
                mine = enter(tmp_path)
                os.close(mine.folder.open(f"v0.0-{number}.partition", os.O_CREAT | os.O_RDWR))
                for _ in range(3):
                    sweep([str(tmp_path)])
                os.stat(base / "etl" / f"v0.0-{number}.partition")
                mine.leave(remove=number % 2 == 0)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    sweep([str(tmp_path)])
    assert os.listdir(base) == []


@pytest.mark.parametrize("job", ["", "..", ".swept-1", "a/b", "a" * 101, "é", "../../etc", "lock\n"])
def test_any_job_has_a_directory_of_its_own(tmp_path, base, job):
    mine, other = enter(tmp_path, JobId(job)), enter(tmp_path, JobId(job + "x"))
    assert os.path.dirname(mine.folder.path) == str(base)
    assert mine.folder.path != other.folder.path
    assert sorted(os.listdir(tmp_path)) == [base.name]
    mine.leave(remove=True)
    other.leave(remove=True)


# Attacks: who could write to the directory could let pickles run code.


def refused(place, reason):
    with pytest.raises(StorageError, match=reason) as error:
        enter(place)
    assert "batch.directories" in str(error.value)
    assert sweep([str(place)]) == []


def test_a_link_in_its_place_is_refused(tmp_path, base):
    (tmp_path / "theirs").mkdir(mode=0o700)
    base.symlink_to(tmp_path / "theirs")
    refused(tmp_path, rf"{base.name}: is a link or no directory")
    assert os.listdir(tmp_path / "theirs") == []


def test_a_link_in_the_place_of_the_job_is_refused(tmp_path, base):
    (tmp_path / "theirs").mkdir(mode=0o700)
    base.mkdir(mode=0o700)
    (base / "etl").symlink_to(tmp_path / "theirs")
    refused(tmp_path, r"etl: is a link or no directory")
    assert os.listdir(tmp_path / "theirs") == []


def test_a_file_in_its_place_is_refused(tmp_path, base):
    base.write_text("")
    refused(tmp_path, "is a link or no directory")


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o720, 0o704])
@pytest.mark.parametrize("which", ["base", "job"])
def test_a_directory_open_to_other_users_is_refused(tmp_path, base, mode, which):
    base.mkdir(mode=0o700)
    (base / "etl").mkdir(mode=0o700)
    (base if which == "base" else base / "etl").chmod(mode)
    refused(tmp_path, rf"is open to others \(its mode is {mode:o}\): chmod 700")


@pytest.mark.parametrize("which", ["base", "job"])
def test_a_directory_of_another_user_is_refused(tmp_path, base, which, monkeypatch):
    base.mkdir(mode=0o700)
    (base / "etl").mkdir(mode=0o700)
    theirs, real = os.stat(base if which == "base" else base / "etl").st_ino, os.fstat

    class Theirs:
        def __init__(self, found):
            self.st_uid, self.st_mode = found.st_uid + 1, found.st_mode

    monkeypatch.setattr(os, "fstat", lambda fd: Theirs(real(fd)) if real(fd).st_ino == theirs else real(fd))
    refused(tmp_path, r"belongs to user \d+, not to you")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_chowned_to_another_user_is_refused(tmp_path, base):
    base.mkdir(mode=0o700)
    os.chown(base, 12345, -1)
    refused(tmp_path, "belongs to user 12345, not to you")


def test_a_world_writable_parent_without_the_sticky_bit_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    refused(tmp_path, "every user may remove files in it")
    tmp_path.chmod(0o1777)
    enter(tmp_path).leave(remove=True)


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path, base):
    base.mkdir(mode=0o700)
    (base / "etl").mkdir(mode=0o700)
    (base / "etl" / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="etl: cannot be used"):
        enter(tmp_path)
    assert not (tmp_path / "target").exists()


def test_a_place_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="nonesuch: cannot be used: No such file or directory"):
        enter(tmp_path / "nonesuch")


def test_a_disk_without_room_for_a_directory_is_full(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(StorageFull, match="No space left on device"):
        enter(tmp_path)
