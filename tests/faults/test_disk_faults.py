"""Disks that are really full, and processes that are really killed, with files half written."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.support_disk import PARTITION, SEGMENT, storage_in

from headgate.config import BatchSettings
from headgate.errors import StorageError
from headgate.graph.plan import Partition
from headgate.ids import AttemptId, JobId
from headgate.worker.storage import Storage

pytestmark = pytest.mark.spec("P3")

ROOT = Path(__file__).parents[2]
LIMIT_S = 30


def command(what, place):
    return [sys.executable, "-m", "tests.faults.support_disk", what, str(place)]


def run(words):
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextmanager
def killed_while_writing(place):
    """A process that is in the middle of a file; killed at the end, if not before."""
    with subprocess.Popen(command("write_for_ever", place), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()
            process.wait(LIMIT_S)


def files(place):
    base = place / f"headgate-{os.geteuid()}"
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def test_a_disk_that_is_really_full(tmp_path):
    mounted = f"mount -t tmpfs -o size=2m,mode=1777 tmpfs {tmp_path}"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        tried = subprocess.run([*inside, mounted], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if tried.returncode:
        pytest.skip(f"no file system of one's own may be mounted here: {tried.stderr.strip()}")
    script = f'{mounted} && exec "$@"'
    error, left, again = run([*inside, script, "sh", *command("write_until_it_fails", tmp_path)])
    assert error.startswith("StorageFull ")
    assert "v0.0-0.partition: cannot be written: No space left on device; make room there" in error
    assert left.startswith("['lock', 'v1.0-0.partition'] ")
    assert again == "['v1.0-0.partition', 'v2.0-0.partition']"


def test_a_file_that_may_not_grow(tmp_path):
    error, left, again = run(command("write_large_file", tmp_path))
    assert error.startswith("StorageFull ")
    assert "v0.0-0.partition: cannot be written: File too large" in error
    assert left.startswith("['lock', 'v1.0-0.partition'] ")
    assert again == "['v1.0-0.partition', 'v2.0-0.partition']"
    assert files(tmp_path) == []


def test_an_unfinished_file_of_a_killed_process_is_removed_by_the_next_start(tmp_path):
    with killed_while_writing(tmp_path) as process:
        process.kill()
        process.wait(LIMIT_S)
    parts = [name for name in files(tmp_path) if name.endswith(".part")]
    assert len(parts) == 1
    assert f".{process.pid}." in parts[0]
    half = tmp_path / f"headgate-{os.geteuid()}" / parts[0]
    assert half.stat().st_size > 3 * SEGMENT
    # The next attempt of the same job keeps what was finished.
    settings = BatchSettings(directories=str(tmp_path))
    again = Storage(settings, JobId("child"), AttemptId(2), driver_here=True)
    assert [*again.finished()] == [Partition(1, 0, 0)]
    assert not half.exists()
    with pytest.raises(StorageError, match="No such file"):
        again.open_partition(PARTITION, segment_size=SEGMENT)
    file = again.open_partition(Partition(1, 0, 0), segment_size=SEGMENT)
    memory = memoryview(bytearray(SEGMENT))
    assert bytes(memory[: file.read_many(file.chunks(0), 0, [memory])[0]]) == b"to be"
    again.close(remove=True)
    assert files(tmp_path) == []


def test_the_start_of_any_job_removes_files_of_a_killed_job(tmp_path):
    with killed_while_writing(tmp_path) as process:
        process.kill()
        process.wait(LIMIT_S)
    assert len(files(tmp_path)) == 3
    other = Storage(BatchSettings(directories=str(tmp_path)), JobId("other"), AttemptId(1), driver_here=True)
    other.open()
    assert files(tmp_path) == ["other/lock"]
    other.close(remove=True)


def test_jobs_of_other_processes_that_live_are_left_alone(tmp_path):
    with killed_while_writing(tmp_path) as process:
        before = files(tmp_path)
        assert len(before) == 3
        other = Storage(BatchSettings(directories=str(tmp_path)), JobId("other"), AttemptId(1), driver_here=True)
        other.open()
        assert files(tmp_path) == [*before, "other/lock"]
        joined = storage_in(str(tmp_path))  # another worker of the same job, which leaves
        assert [*joined.finished()] == [Partition(1, 0, 0)]
        joined.close(remove=True)
        assert files(tmp_path) == [*before, "other/lock"]
        assert process.poll() is None
    assert Storage.sweep(BatchSettings(directories=str(tmp_path))) == [str(tmp_path / f"headgate-{os.geteuid()}/child")]
    assert files(tmp_path) == ["other/lock"]
    other.close(remove=True)
