"""The batch suite: every case runs and yields its row, tiny and without Spark; speed is not asserted."""

import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import Codec

import headgate as hg
from headgate.bench import batch as suite_module
from headgate.bench import batch_files, batch_words
from headgate.bench.batch import BatchAmounts, batch
from headgate.bench.batch_files import Load, Moved, _Blocks, _read
from headgate.bench.batch_words import WordCount, _count, _LastCounts, _Lines, count_by_headgate, expected
from headgate.bench.harness import Bench, BenchReport, Suite, run_suite
from headgate.bench.process_memory import Resident, peak_of, resident_of, tree_of, wait_until_gone
from headgate.bench.workloads import take
from headgate.cli import main
from headgate.config import Compression
from headgate.errors import ConfigError, InvariantViolated
from headgate.local import LocalHost

TINY = BatchAmounts(total=3 * 2**20, lines=500)
LIMIT_S = 30.0
threads = partial(hg.environment, local=True, parallelism=2)

DISK = {
    f"disk, {codec}, {what}": 0.7 if what == "blocking partition" else None
    for codec in ("none", "lz4", "zstd")
    for what in (
        "plain file",
        "blocking partition",
        "blocking partition, write",
        "blocking partition, read",
        "blocking partition, processor",
        "blocking partition, on disk",
        "blocking partition, remote reader",
        "blocking partition, remote reader, processor",
    )
}
WORDS = {
    f"word count, {what}": None
    for what in (
        "BATCH",
        "STREAMING",
        "BATCH, beside STREAMING",
        "BATCH, peak memory",
        "STREAMING, peak memory",
        "BATCH, peak memory without the JVM",
        "STREAMING, peak memory without the JVM",
    )
}
SPARK = {
    f"word count, {what}": None
    for what in (
        "PySpark",
        "BATCH, beside PySpark",
        "PySpark, peak memory",
        "PySpark, peak memory without the JVM",
    )
}


def run_tiny(directory: Path, *only: str, local: bool = True, quick: bool = False, repeats: int = 1) -> BenchReport:
    cases = partial(batch, amounts=TINY, local=local)
    bench = Bench(quick=quick, repeats=repeats, only=only, directory=directory)
    return run_suite(Suite("batch", "Tiny.", cases), bench)


def test_every_case_runs_and_has_its_row_and_goal(tmp_path: Path) -> None:
    report = run_tiny(tmp_path)
    assert {row.case: row.goal for row in report.rows} == DISK | WORDS
    assert all(row.value > 0 for row in report.rows)
    assert not any(row.at_most for row in report.rows)
    rows = {row.case: row for row in report.rows}
    stored = [rows[f"disk, {codec}, blocking partition, on disk"] for codec in ("none", "lz4", "zstd")]
    assert 100 < stored[0].value < 101, "all bytes and an index"
    assert stored[0].value > stored[1].value > stored[2].value
    for row in stored:
        assert row.ratio == pytest.approx(1.0, abs=0.01), "the same codec on both sides"
    assert list(tmp_path.iterdir()) == []
    (note,) = report.notes
    assert note.startswith(f"files are in {tmp_path}, which is on ")


class Figures:
    """Hand-made figures in place of runs, and the names of the runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def carry(self, name: str, moved: Moved, *args: object) -> Moved:
        self.runs.append(f"{args[-1].compression}, {name}")
        return moved

    def count(self, way: str, lines: int, directory: str, *, local: bool) -> WordCount:
        self.runs.append(way)
        words, total = {"BATCH": (600, 900), "STREAMING": (400, 700), "PySpark": (300, 800)}[way]
        return WordCount(words, 1.0, Resident(total * 2**20, (total - 500) * 2**20))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Figures:
    made = Figures()
    total = 4 * 10**9
    moved = {
        "plain": Moved(total, stored=2 * 10**9, write_s=1.0, read_s=1.0, cpu_s=2.0),
        "local": Moved(total, stored=2 * 10**9, write_s=1.0, read_s=2.0, cpu_s=3.0),
        "remote": Moved(total, stored=2 * 10**9, write_s=1.0, read_s=3.0, cpu_s=5.0),
    }
    for name, one in moved.items():
        monkeypatch.setattr(suite_module, f"carry_{name}", partial(made.carry, name, one))
    monkeypatch.setattr(suite_module, "count_words", made.count)
    return made


@pytest.mark.usefixtures("figures")
def test_values_ratios_and_goals(tmp_path: Path) -> None:
    report = run_tiny(tmp_path, local=False)
    assert {row.case: row.goal for row in report.rows} == DISK | WORDS | SPARK
    assert set(report.missed) == {f"disk, {codec}, blocking partition" for codec in ("none", "lz4", "zstd")}
    found = {row.case: (row.value, row.ratio) for row in report.rows if "none" in row.case or "word" in row.case}
    assert found == {
        "disk, none, plain file": (2.0, None),
        "disk, none, blocking partition": (pytest.approx(4 / 3), pytest.approx(2 / 3)),
        "disk, none, blocking partition, write": (4.0, 1.0),
        "disk, none, blocking partition, read": (2.0, 0.5),
        "disk, none, blocking partition, processor": (3.0, 1.5),
        "disk, none, blocking partition, on disk": (50.0, 1.0),
        "disk, none, blocking partition, remote reader": (1.0, 0.5),
        "disk, none, blocking partition, remote reader, processor": (5.0, 2.5),
        "word count, BATCH": (600.0, None),
        "word count, STREAMING": (400.0, None),
        "word count, PySpark": (300.0, None),
        "word count, BATCH, beside STREAMING": (600.0, 1.5),
        "word count, BATCH, beside PySpark": (600.0, 2.0),
        "word count, BATCH, peak memory": (900.0, None),
        "word count, STREAMING, peak memory": (700.0, None),
        "word count, PySpark, peak memory": (800.0, None),
        "word count, BATCH, peak memory without the JVM": (400.0, None),
        "word count, STREAMING, peak memory without the JVM": (200.0, None),
        "word count, PySpark, peak memory without the JVM": (300.0, None),
    }


def test_only_the_chosen_cases_are_run_and_quick_runs_them_once(tmp_path: Path, figures: Figures) -> None:
    run_tiny(tmp_path, "lz4, blocking partition, write", repeats=3)
    assert sorted(figures.runs) == ["lz4, local"] * 3 + ["lz4, plain"] * 3
    figures.runs.clear()
    run_tiny(tmp_path, "beside PySpark", local=False, quick=True, repeats=3)
    assert figures.runs == ["BATCH", "PySpark"]


def test_each_run_starts_with_pages_that_were_used_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm, warmed = batch_files._warm, []
    monkeypatch.setattr(batch_files, "_warm", lambda *what: warmed.append(what) or warm(*what))
    load = Load(str(tmp_path), Compression.NONE, total=3 * 2**20)
    for run in range(2):
        with batch_files._prepared(load) as own:
            assert [size for _, size in warmed] == [3 * 2**20] * (run + 1)
            assert list(Path(own.directory).iterdir()) == [], "nothing is left of it"


# Where files go.


def test_a_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=TINY.total))
    with pytest.raises(ConfigError, match=f"writes up to 0.0 GB at once to {tmp_path}.*--directory, or do less by"):
        run_tiny(tmp_path)
    assert (figures.runs, list(tmp_path.iterdir())) == ([], [])
    run_tiny(tmp_path, "word count")  # which needs less


@pytest.mark.usefixtures("figures")
def test_the_directory_is_the_given_one_or_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, first = tmp_path / "given", tmp_path / "first"
    given.mkdir()
    first.mkdir()
    monkeypatch.setenv("HEADGATE_BATCH_DIRECTORIES", f"{first}, {tmp_path / 'second'}")
    assert str(given) in run_tiny(given, "lz4").notes[0]
    assert str(first) in run_tiny(None, "lz4").notes[0]
    first.rmdir()
    with pytest.raises(ConfigError, match=r"batch\.directories: .*first is no directory"):
        run_tiny(None, "lz4")
    with pytest.raises(ConfigError, match=r"--directory: .*absent is no directory"):
        run_tiny(tmp_path / "absent", "lz4")


def test_a_directory_for_a_suite_without_files_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "batch", "local", "--directory", str(tmp_path)]) == 2
    assert "--directory: suite local writes no files; those that do are batch" in capsys.readouterr().err


@pytest.mark.usefixtures("figures")
def test_the_command_passes_the_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "batch", "--case", "zstd, plain", "--quick", "--directory", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert f"batch: files are in {tmp_path}" in shown.err
    assert "disk, zstd, plain file" in shown.out


# What is carried.


def test_a_wrong_block_is_an_error() -> None:
    blocks = _Blocks(1000)
    for number in (0, 5, 16, 21):
        blocks.check(number, memoryview(blocks[number]))
    assert blocks[0] == blocks[16] != blocks[1]
    for wrong in (blocks[4], blocks[5][:-1]):
        with pytest.raises(InvariantViolated, match="not block 5"):
            blocks.check(5, memoryview(wrong))


def test_text_can_be_compressed_as_text_can() -> None:
    block = _Blocks(2**18)[3]
    assert 1.5 < len(block) / len(Codec("lz4_raw").compress(block)) < 5


def test_missing_blocks_are_an_error() -> None:
    class Ended:
        def read(self) -> None:
            return None

    load = Load("", Compression.NONE, total=4096, buffer_bytes=1024, channels=2)
    with pytest.raises(InvariantViolated, match="0 of 4 blocks were read"):
        _read(Ended(), [], load, _Blocks(1024))


# Word count.


class RecordingParent:
    """In place of the parent's end of the pipe."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, value: str) -> None:
        self.sent.append(value)

    def receive(self, timeout_s: float) -> str:
        return "begin"


def test_missing_words_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parent = RecordingParent()
    assert _count(parent, "STREAMING", 300, str(tmp_path), local=True) > 0
    assert parent.sent == ["warm"]
    monkeypatch.setattr(batch_words, "expected", lambda count: (count * 10, 1))
    with pytest.raises(InvariantViolated, match=r"STREAMING counted 3000 words, \d+ different ones, and not \(3000, 1"):
        _count(parent, "STREAMING", 300, str(tmp_path), local=True)


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_each_mode_counts_every_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str) -> None:
    modes = []
    run = LocalHost.run
    monkeypatch.setattr(LocalHost, "run", lambda host, plan: modes.append(plan.batch) or run(host, plan))
    assert count_by_headgate(threads, mode, str(tmp_path), 301) == expected(301)
    assert modes == [mode == "BATCH"]


def test_subtasks_share_the_lines() -> None:
    env = threads()
    env.from_source(_Lines(301)).map(lambda line: (line, 1)).sink_to(_LastCounts())
    assert env.execute().last_progress.vertices[0].records_in == 301
    assert sum(map(len, take(range(40), 7, 95))) == 95
    assert list(take("abc", 5, 0)) == []


# Memory.


def test_the_memory_of_a_process_includes_its_descendants(tmp_path: Path) -> None:
    shutil.copy(shutil.which("sleep"), tmp_path / "java")
    program = (
        "import subprocess, sys; held = b'x' * 2**25\n"
        f"jvm = subprocess.Popen([{str(tmp_path / 'java')!r}, '600'])\n"
        "print(jvm.pid, flush=True); sys.stdin.read(); jvm.kill(); jvm.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        jvm = int(process.stdout.readline())
        until_s = time.monotonic() + LIMIT_S
        while Path(f"/proc/{jvm}/comm").read_text() != "java\n" and time.monotonic() < until_s:
            time.sleep(0.01)  # forked, before exec
        assert tree_of(process.pid) == {process.pid, jvm}
        assert {os.getpid(), process.pid, jvm} <= tree_of(os.getpid())
        held = resident_of(tree_of(process.pid))
        assert held.python > 2**25
        assert held.total - held.python == resident_of([jvm]).total > 0
        assert resident_of([jvm]).python == 0
        with peak_of(process.pid) as peak:
            process.stdin.close()
            wait_until_gone([jvm])
        assert peak.resident.total >= held.total
        assert peak.processes >= {process.pid, jvm}
    assert tree_of(process.pid) == set()
    assert resident_of([process.pid]) == Resident(0, 0)
