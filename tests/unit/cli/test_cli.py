"""The command line: its output, and its exit codes."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import __version__
from headgate.bench import charts, harness
from headgate.bench.charts import ChartPanel, Line
from headgate.bench.harness import Bench, Case, Contest, Row, Suite
from headgate.cli import bench as cli_bench
from headgate.cli import main
from headgate.config import SETTINGS
from headgate.errors import TransportError


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for setting in SETTINGS:
        monkeypatch.delenv(setting.environment, raising=False)
    monkeypatch.delenv("HEADGATE_CONFIG", raising=False)


_GOOD = Case("good", "s", "good", goal=1.0)


def _good(bench: Bench) -> Iterator[Row]:
    yield from bench.run([Contest(name="tiny", runs={"good": lambda: 5.0}, cases=[_GOOD])])


def _tiny(bench: Bench) -> Iterator[Row]:
    bad = Case("bad", "records/s", "bad", against="a list", baseline=("list",), goal=3.0)
    runs = {"good": lambda: 5.0, "bad": lambda: 1.0, "list": lambda: 2.0}
    yield from bench.run([Contest(name="tiny", runs=runs, cases=[_GOOD, bad])])


def _drawn(bench: Bench) -> Iterator[Row]:
    panel = ChartPanel(title="drawn", y_label="m", lines=[Line("drawn", [0.0, 1.0], [1.0, 2.0])])
    yield from bench.run(
        [Contest(name="plain", runs={"plain": lambda: 1.0}, cases=[Case("plain", "s", "plain")])],
        [
            Contest(
                name="drawn", runs={"drawn": lambda: 1.0}, cases=[Case("drawn", "s", "drawn")], panels=lambda _: [panel]
            )
        ],
    )


def _interrupted(bench: Bench) -> Iterator[Row]:
    raise KeyboardInterrupt
    yield


def _failing(bench: Bench) -> Iterator[Row]:
    raise TransportError("connection reset", peer="127.0.0.1:1")
    yield


@pytest.fixture(autouse=True)
def tiny_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "drawn": Suite("drawn", "Has a chart.", _drawn, charts=True),
        "failing": Suite("failing", "Fails.", _failing),
        "good": Suite("good", "All goals met.", _good),
        "interrupted": Suite("interrupted", "Ctrl-C.", _interrupted),
        "tiny": Suite("tiny", "A tiny suite.", _tiny),
    }
    monkeypatch.setattr(harness, "SUITES", known)
    monkeypatch.setattr(cli_bench, "SUITES", known)


Captured = pytest.CaptureFixture[str]


def test_version(capsys: Captured):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"headgate {__version__}\n"


def test_help_names_the_commands(capsys: Captured):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "config" in out
    assert "bench" in out


def test_config_lists_every_setting_on_one_uncut_line_each(capsys: Captured):
    assert main(["config"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["setting", "value", "from", "meaning"]
    assert [line.split()[0] for line in lines] == [one.key for one in SETTINGS]
    assert all(line.endswith(one.meaning) for line, one in zip(lines, SETTINGS, strict=True))


def test_config_shows_value_and_origin_by_source(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine.toml").write_text("[backpressure]\nsamples = 7\n", encoding="utf-8")
    monkeypatch.setenv("HEADGATE_BACKPRESSURE_DELAY", "20ms")
    assert main(["config", "backpressure", "--file", "mine.toml", "--set", "backpressure.refresh=90s", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["value"], row["text"], row["origin"]) for row in rows] == [
        ("backpressure.samples", 7, "7", "file mine.toml"),
        ("backpressure.delay", 20_000_000, "20 ms", "environment HEADGATE_BACKPRESSURE_DELAY"),
        ("backpressure.refresh", 90_000_000_000, "90 s", "--set"),
    ]
    assert rows[1]["unit"] == "nanoseconds"
    assert rows[1]["default"] == "50 ms"


@pytest.mark.parametrize(
    ("wanted", "keys"),
    [
        (["memory"], [one.key for one in SETTINGS if one.key.startswith("memory.")]),
        (["network"], [one.key for one in SETTINGS if one.key.startswith("network.")]),
        (["memory.network.max"], ["memory.network.max"]),
        (["overdraft", "record.max_size"], ["network.max_overdraft_buffers", "record.max_size"]),
    ],
)
def test_config_filters_by_section_key_or_part(wanted: list[str], keys: list[str], capsys: Captured):
    assert main(["config", *wanted, "--json"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)] == keys


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config", "--set", "memory.segment_size=1g"], "write GiB (1024-based) or GB (1000-based)"),
        (["config", "--set", "memory.segmnt_size=1"], "did you mean memory.segment_size?"),
        (["config", "--set", "memory.segment_size"], "write it as KEY=VALUE"),
        (["config", "nonesuch"], "no setting matches 'nonesuch'"),
        (["config", "--file", "absent.toml"], "absent.toml: No such file"),
        (["bench", "nonesuch"], "unknown bench suite 'nonesuch': known are drawn, failing, good, interrupted, tiny"),
        (["bench"], "name a bench suite to run: known are drawn, failing, good, interrupted, tiny"),
        (["bench", "failing"], "connection reset (127.0.0.1:1)"),
        (["bench", "tiny", "good", "--case", "best", "--case", "worst"], "no case of tiny, good has 'best' or 'worst'"),
        (["bench", "drawn", "tiny", "--plot", "a.svg"], "suite tiny has no chart; those with one are drawn"),
        (["bench", "drawn", "--plot", "a.jpeg"], "the name must end in .svg or .png"),
        (["bench", "drawn", "--plot", "absent/a.svg"], "there is no directory"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_code_2(arguments: list[str], said: str, capsys: Captured):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("headgate: ")
    assert said in captured.err


@pytest.mark.parametrize("arguments", [["--nonesuch"], ["nonesuch"], ["bench", "tiny", "--repeats", "0"]])
def test_bad_use_is_code_2(arguments: list[str], capsys: Captured):
    assert main(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_ctrl_c_is_code_130_without_a_traceback(capsys: Captured):
    assert main(["bench", "interrupted"]) == 130
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_bench_lists_suites(capsys: Captured):
    assert main(["bench", "--list"]) == 0
    assert "tiny         A tiny suite.\n" in capsys.readouterr().out


def test_bench_prints_exactly_one_object_on_stdout(capsys: Captured):
    assert main(["bench", "tiny", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["suite"] == "tiny"
    assert [(row["case"], row["ratio"], row["ok"]) for row in report["rows"]] == [
        ("good", None, True),
        ("bad", 0.5, False),
    ]


def test_bench_prints_one_object_a_line_for_several_suites(capsys: Captured):
    assert main(["bench", "tiny", "good", "tiny", "--json"]) == 0
    assert [json.loads(line)["suite"] for line in capsys.readouterr().out.splitlines()] == ["tiny", "good"]


def test_bench_table_and_progress(capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli_bench, "_PLAIN_PROGRESS_S", float("inf"))
    assert main(["bench", "tiny"]) == 0
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    assert lines[0] == ["case", "value", "unit", "against", "ratio", "goal", "ok"]
    assert lines[1] == ["good", "5", "s", "-", "-", ">=", "1", "yes"]
    assert lines[2] == ["bad", "1", "records/s", "a", "list", "0.50", ">=", "3", "NO"]
    # The second run starts before the next line is due.
    assert [line for line in captured.err.splitlines() if "run" in line] == ["tiny: run 1 of 9: tiny, good (1/3)"]


def test_check_fails_on_a_missed_goal_only(capsys: Captured):
    assert main(["bench", "good", "--check"]) == 0
    assert main(["bench", "tiny", "--check", "--json"]) == 1
    captured = capsys.readouterr()
    assert "missed 1 goal: tiny: bad" in captured.err
    json.loads(captured.out.splitlines()[-1])


def test_bench_runs_the_cases_that_were_asked_for(capsys: Captured):
    assert main(["bench", "tiny", "good", "drawn", "--case", "BAD", "--case", "plai", "--json", "--check"]) == 1
    captured = capsys.readouterr()
    reports = [json.loads(line) for line in captured.out.splitlines()]
    assert [[one["suite"], *(row["case"] for row in one["rows"])] for one in reports] == [
        ["tiny", "bad"],
        ["drawn", "plain"],
    ]
    assert "missed 1 goal: tiny: bad" in captured.err


def test_bench_draws_a_chart_of_the_measurements(capsys: Captured, tmp_path: Path):
    assert main(["bench", "drawn", "--plot", "a.svg"]) == 0
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("drawn") >= 1
    assert main(["bench", "drawn", "--case", "plain", "--plot", "b.png"]) == 2
    captured = capsys.readouterr()
    assert "none of the cases that were run has a chart" in captured.err
    assert "plain" in captured.out
    assert not (tmp_path / "b.png").exists()


def test_a_chart_without_matplotlib_is_refused_before_anything_is_measured(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert main(["bench", "drawn", "--plot", "a.svg"]) == 2
    captured = capsys.readouterr()
    assert "matplotlib, which is not installed: pip install 'headgate[bench]'" in captured.err
    assert captured.out == ""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminals_get_drawings(monkeypatch: pytest.MonkeyPatch):
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["config", "execution"]) == 0
    assert main(["bench", "tiny"]) == 0
    assert "execution.max_parallelism" in out.getvalue()
    assert "\u2503" in out.getvalue()  # a drawn table
    assert "…" not in out.getvalue()
    assert "tiny" in err.getvalue()
    assert "run 1 of 9" not in err.getvalue()


def test_importing_the_package_is_cheap():
    script = "import sys, headgate.cli; print(sorted({'typer', 'rich', 'headgate.config'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_closed_pipe_is_no_error_message():
    script = "import sys; from headgate.cli import main; sys.exit(main(['config']))"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
