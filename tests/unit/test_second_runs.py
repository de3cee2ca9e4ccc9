"""Only a test that is marked `timing` runs a second time after a failure, and the closing summary shows why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.timing import NEVER_TWICE

ROOT = Path(__file__).parents[2]

#: A test that appends a line to `runs` each time it runs, and fails while there are at most `failures` lines.
SCRIPT = """
import pathlib
import pytest

@pytest.fixture
def guarded():
    yield
    assert {leaks} is False, "left something behind"

{mark}
def test_it(guarded):
    runs = pathlib.Path(__file__).with_name("runs")
    with runs.open("a") as file:
        file.write("ran\\n")
    ran = len(runs.read_text().splitlines())
    assert ran > {failures}, f"too slow in run {{ran}}"
"""

TIMING = "@pytest.mark.timing"
PARAM = '@pytest.mark.parametrize("speed", [pytest.param(1, marks=pytest.mark.timing)])'


class Session:
    """A directory with test files below tests/, and a way to run pytest there."""

    def __init__(self, root):
        self.root = root
        (root / "pytest.ini").write_text(
            "[pytest]\naddopts = --strict-markers -q\nmarkers =\n    timing: may run twice\n"
        )

    def add(self, directory="unit", mark=TIMING, failures=1, leaks=False):
        directory_path = self.root / "tests" / directory
        directory_path.mkdir(parents=True, exist_ok=True)
        self.file = directory_path / f"test_{directory.replace('/', '_')}.py"
        self.file.write_text(SCRIPT.format(mark=mark, failures=failures, leaks=leaks))

    def run(self, *args):
        command = [sys.executable, "-m", "pytest", "-p", "tests.timing", "-p", "no:cacheprovider", "tests", *args]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False, timeout=100)
        return done.returncode, done.stdout + done.stderr

    @property
    def runs(self):
        return sum(len(runs.read_text().splitlines()) for runs in self.root.rglob("runs"))


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path)


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_timing_test_that_fails_once_passes_and_is_printed(session, processes):
    session.add(failures=1)
    status, output = session.run(*processes)
    assert status == 0, output
    assert session.runs == 2
    assert "tests/unit/test_unit.py::test_it: failed, then passed" in output
    assert "too slow in run 1" in output
    assert "1 passed" in output


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_timing_test_that_fails_twice_fails_with_both_failures_printed(session, processes):
    session.add(failures=5)
    status, output = session.run(*processes)
    assert status == pytest.ExitCode.TESTS_FAILED, output
    assert session.runs == 2
    assert "tests/unit/test_unit.py::test_it: failed, then failed" in output
    assert "too slow in run 1" in output
    assert "too slow in run 2" in output
    assert "1 failed" in output


def test_a_timing_test_that_passes_runs_once(session):
    session.add(failures=0)
    status, output = session.run()
    assert (status, session.runs) == (0, 1), output
    assert "timing" not in output


def test_a_test_without_the_mark_runs_once(session):
    session.add(mark="", failures=1)
    status, output = session.run()
    assert (status, session.runs) == (pytest.ExitCode.TESTS_FAILED, 1), output


def test_a_leak_of_a_timing_test_causes_no_second_run(session):
    session.add(failures=0, leaks=True)
    status, output = session.run()
    assert (status, session.runs) == (pytest.ExitCode.TESTS_FAILED, 1), output
    assert "left something behind" in output


def test_the_second_run_has_a_time_limit_of_its_own(session):
    session.add(failures=5)
    waits = "    import time\n    time.sleep(20)\n"
    session.file.write_text(session.file.read_text().replace("    assert ran >", waits + "    assert ran >"))
    status, output = session.run("--timeout", "1")
    assert (status, session.runs) == (pytest.ExitCode.TESTS_FAILED, 2), output
    assert "too slow" not in output, "it was stopped in both runs"


def test_the_mark_is_refused_in_directories_that_test_races(session):
    directories = [*NEVER_TWICE, "net/deeper"]
    for directory in directories:
        session.add(directory)
    status, output = session.run()
    assert (status, session.runs) == (pytest.ExitCode.INTERRUPTED, 0), output
    for directory in directories:
        assert f"tests/{directory}/test_{directory.replace('/', '_')}.py::test_it is marked `timing`" in output


def test_the_mark_is_refused_however_it_is_given(session):
    session.add("net", mark="pytestmark = pytest.mark.timing")
    session.add("sim", mark=PARAM)
    session.file.write_text(session.file.read_text().replace("test_it(guarded)", "test_it(guarded, speed)"))
    status, output = session.run()
    assert (status, session.runs) == (pytest.ExitCode.INTERRUPTED, 0), output
    assert "tests/net/test_net.py::test_it is marked `timing`" in output
    assert "tests/sim/test_sim.py::test_it[1] is marked `timing`" in output


def test_the_refusal_reaches_the_controller_of_several_processes(session):
    session.add(directory="net")
    status, output = session.run("-n", "2")
    assert status != 0
    assert session.runs == 0
    assert "is marked `timing`" in output
