"""A BATCH job in a process of its own that is interrupted or killed: the files it leaves on disk, and their removal."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.batch_jobs import batch_env, files_of
from tests.support.pipelines import END_S, Gathered, run

SCRIPT = """
import sys, time
import headgate as hg

place, mark = sys.argv[1:]

def waits(value):
    open(mark, "w").close()
    time.sleep(0.0005)
    return value

env = hg.environment(local=True, parallelism=2, runtime_mode="BATCH", settings={"batch.directories": place})
env.from_collection(range(100_000)).rebalance().map(waits).rebalance().for_each(print)
env.execute()
"""


@contextmanager
def job_in_a_process(place: Path, mark: Path):
    """A job that is in its second region, with finished partitions on disk."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(place), str(mark)], stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + END_S
            while not mark.exists():
                assert process.poll() is None, process.stderr.read().decode()
                assert time.monotonic() < deadline, "it does not begin"
                time.sleep(0.01)
            assert [one for one in files_of(place) if one.endswith(".partition")]
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "place"
    made.mkdir()
    return made


@pytest.mark.spec("P3")
def test_ctrl_c_removes_all_files(place, tmp_path):
    with job_in_a_process(place, tmp_path / "mark") as process:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=END_S)
    assert b"KeyboardInterrupt" in said
    assert files_of(place) == []


@pytest.mark.spec("P3")
def test_files_of_a_killed_process_are_removed_by_the_next_start(place, tmp_path):
    with job_in_a_process(place, tmp_path / "mark") as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(END_S)
    left = files_of(place)
    assert [one for one in left if one.endswith(".partition")]
    env, sink = batch_env(place), Gathered()
    env.from_collection(range(10), parallel=True).rebalance().map(str).sink_to(sink)
    run(env)
    assert sorted(sink.values) == sorted(map(str, range(10)))
    assert files_of(place) == []
