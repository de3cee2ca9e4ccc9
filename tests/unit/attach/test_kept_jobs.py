"""Files of finished jobs: writing, listing and reading them."""

import os
import stat
import sys
import time
from dataclasses import replace

import pytest
from tests.support.job_views import synthetic_view

from headgate.attach import find, kept
from headgate.attach.directories import PrivateDirectory
from headgate.attach.kept_jobs import KeptJob, keep
from headgate.attach.timeline_excerpt import excerpt
from headgate.errors import ConfigError, HeadgateError
from headgate.observe import JobStatus, TaskLine, Timeline


@pytest.fixture
def jobs(tmp_path):
    with PrivateDirectory("jobs", root=tmp_path / "state", create=True) as directory:
        yield directory


@pytest.fixture
def root(jobs):
    return jobs.path.parent


def view_of(number=1, **shape):
    given = {"vertices": 3, "subtasks": 2, "status": JobStatus.FINISHED, "at_ms": 1_800_000_000_000 + number}
    return synthetic_view(**{**given, "job": f"job-{number}", **shape})


def test_a_file_is_private_and_complete(jobs, root):
    before = os.umask(0)
    try:
        path = keep(view_of(), jobs, 20)
    finally:
        os.umask(before)
    assert path == root / "jobs" / "20270115T080000.001-job-1.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KeptJob.from_file(path).view(timeline=True) == view_of()
    assert KeptJob.from_file(path).view() == replace(view_of(), timeline=None)


def test_the_newest_are_kept(jobs, root):
    for number in range(6):
        keep(view_of(number), jobs, 3)
    assert [one.id for one in kept(root)] == ["job-5", "job-4", "job-3"]
    keep(view_of(9), jobs, 1)
    assert [one.id for one in kept(root)] == ["job-9"]


def test_the_last_file_stays_even_if_the_clock_was_set_back(jobs, root):
    for number in (7, 8, 1):
        keep(view_of(number), jobs, 2)
    assert [one.id for one in kept(root)] == ["job-8", "job-1"]


def test_a_job_is_kept_once(jobs, root):
    keep(view_of(1), jobs, 20)
    keep(replace(view_of(1), at_ms=1_800_000_009_000), jobs, 20)
    (one,) = kept(root)
    assert one.at_ms == 1_800_000_009_000


def test_only_files_of_headgate_are_removed(jobs, root):
    for name in ("notes.txt", "20270115T080000.001-job-1.json.bak", ".new-7-fresh", ".new-7-old"):
        (jobs.path / name).write_text("x")
    os.utime(jobs.path / ".new-7-old", (time.time() - 7200,) * 2)
    keep(view_of(1), jobs, 1)
    keep(view_of(2), jobs, 1)
    assert jobs.names() == [
        ".new-7-fresh",
        "20270115T080000.001-job-1.json.bak",
        "20270115T080000.002-job-2.json",
        "notes.txt",
    ]


def test_a_file_is_complete_or_not_there(jobs, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules[KeptJob.__module__].os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        keep(view_of(), jobs, 20)
    monkeypatch.setattr(sys.modules[KeptJob.__module__], "_MAX_BYTES", 100)
    with pytest.raises(HeadgateError, match="at most 100 are kept"):
        keep(view_of(), jobs, 20)
    assert jobs.names() == []


def test_an_id_never_becomes_a_path(jobs, root):
    path = keep(view_of(job="../../etc/passwd\x00"), jobs, 20)
    assert path.parent == root / "jobs"
    assert find(None, root=root).id == "../../etc/passwd\x00"


def test_a_link_in_place_of_a_file_is_not_followed(jobs, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(view_of(5).to_json())
    (jobs.path / "20270115T080000.001-job-1.json").symlink_to(victim)
    (one,) = kept(jobs.path.parent)
    assert one.problem
    keep(view_of(), jobs, 20)
    assert victim.read_bytes() == view_of(5).to_json()
    assert not (jobs.path / "20270115T080000.001-job-1.json").is_symlink()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not the view of a job"),
        (b"\xff\xfe", "not the view of a job"),
        (b"[" * 100_000, "not the view of a job"),
        (b'{"at_ms": 1}', "not the view of a job"),
        (view_of(2).to_json()[:-1], "not the view of a job"),
        (view_of(2).to_json().replace(b'"format":1', b'"format":0'), "format 0 of headgate"),
    ],
    ids=["empty", "no text", "deep", "another", "torn", "old"],
)
def test_a_file_that_cannot_be_read_is_listed_with_the_reason(data, said, jobs, root):
    keep(view_of(1), jobs, 20)
    path = jobs.path / "20270115T080000.002-job-2.json"
    path.write_bytes(data)
    with pytest.raises(HeadgateError, match=said) as found:
        KeptJob.from_file(path)
    assert str(path) in str(found.value)
    assert len(kept(root)) == 2
    assert kept(root)[0].status == "unreadable"
    assert find(None, root=root).id == "job-1"
    with pytest.raises(HeadgateError, match=said):
        find("job-2", root=root)


def test_pipes_and_directories_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(HeadgateError, match="it is not a regular file"):
        find(str(tmp_path / "a.json"))
    with pytest.raises(HeadgateError, match=r"it is not a regular file|Is a directory"):
        find(str(tmp_path / "."))
    with pytest.raises(ConfigError, match=r"nonesuch\.json cannot be read: No such file"):
        find("nonesuch.json")


def test_a_huge_file_is_not_read(tmp_path):
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(HeadgateError, match="1073741824 bytes"):
        find(str(tmp_path / "a.json"))


def test_a_copied_file_is_found_by_its_path(jobs, tmp_path, monkeypatch):
    copied = tmp_path / "copied"
    keep(view_of(), jobs, 20).rename(copied)
    monkeypatch.chdir(tmp_path)
    assert find("copied", root=tmp_path / "state").id == "job-1"
    assert find(str(copied), root=tmp_path / "state").id == "job-1"


def test_a_kept_job_cannot_sample_or_be_cancelled(jobs):
    job = KeptJob.from_file(keep(view_of(), jobs, 20))
    assert job.pressure() == view_of().pressure
    assert job.why() == view_of().diagnosis
    assert job.cancel() is False
    with pytest.raises(HeadgateError, match="is over: its stacks cannot be sampled any more"):
        job.pressure(refresh=True)
    job = KeptJob.from_file(keep(view_of(2, sampled=False), jobs, 20))
    with pytest.raises(HeadgateError, match="no stacks were sampled while synthetic ran"):
        job.pressure()
    found = job.why()
    assert found.summary
    assert job.view().diagnosis == job.why(refresh=True) == found, "it is found out once"


def test_the_timeline_of_a_file_equals_that_of_the_running_job():
    job = KeptJob(view_of(), None)
    whole = job.timeline(seconds=1000, points=1000)
    assert [(one.vertex, one.subtask) for one in whole.tasks] == [(0, -1), (1, -1), (2, -1)]
    assert (whole.steps, whole.step_ms) == (60, 500)
    last = job.timeline(seconds=10, points=5, vertex=1)
    assert [(one.vertex, one.subtask) for one in last.tasks] == [(1, -1), (1, 0), (1, 1)]
    assert (last.steps, last.step_ms) == (5, 2000)
    assert last.start_ms == whole.start_ms + 20_000
    assert all(len(one.busy) == len(one.records_in) == 5 for one in last.tasks)
    with pytest.raises(HeadgateError, match="there is no vertex 77: the job has 3, from 0"):
        job.timeline(vertex=77)


def line(vertex, subtask, *values, **more):
    return TaskLine(vertex=vertex, subtask=subtask, busy=values, records_in=values, in_queued=values, in_pool=values)


def test_steps_and_tasks_are_combined_by_mean_sum_or_maximum():
    past = Timeline(start_ms=0, step_ms=100, steps=4, tasks=(line(0, 0, 1, 3, 5, -1), line(0, 1, 11, 13, -1, -1)))
    found = excerpt(past, seconds=0.4, points=2, vertex=0).tasks
    assert [(one.subtask, one.busy) for one in found] == [(-1, (7, 5)), (0, (2, 5)), (1, (12, -1))]
    assert [one.records_in for one in found] == [(28, 5), (4, 5), (24, -1)]
    assert [one.in_queued for one in found] == [(16, 5), (3, 5), (13, -1)]
    assert [one.in_pool for one in found] == [(8, 5), (3, 5), (13, -1)]
    assert found[0].backlog == ()


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("points", [1, 2, 3, 50, 1000])
@pytest.mark.parametrize("seconds", [0, 0.1, 0.25, 5, 1e6])
def test_an_excerpt_has_at_most_the_points_and_ends_at_the_last_step(steps, points, seconds):
    past = Timeline(start_ms=0, step_ms=100, steps=steps, tasks=(line(0, -1, *range(steps)),))
    found = excerpt(past, seconds=seconds, points=points)
    assert found.steps <= points
    assert found.start_ms + found.steps * found.step_ms == 100 * steps
    assert all(len(one.busy) == found.steps for one in found.tasks)
    assert (found.steps > 0) == (steps > 0)
    if steps:
        assert found.tasks[0].in_queued[-1] == steps - 1
