"""`headgate demo` without Spark: in a pipe, in a terminal, and with Ctrl-C."""

import re
import sys
from collections import Counter

import pytest
from tests.support.commands import command

import headgate as hg
from headgate.api.running import unfinished_jobs
from headgate.cli import demo as cli_demo
from headgate.cli import main
from headgate.cli.demo_pipeline import PER_SECOND, windows
from headgate.coordinator import JobStatus
from headgate.errors import ConfigError
from headgate.examples import word_count


def test_in_a_pipe_the_demo_prints_plain_lines(capsys):
    assert main(["demo", "--local", "--seconds", "0.5", "--no-follow"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    counts = Counter(word for line in word_count.text() for word in word_count.words(line))
    assert re.search(rf"^the +{counts['the']} ", out, re.MULTILINE)
    assert f"{counts.total():,} words, {len(counts):,} different ones" in out
    assert re.search(r"^Alder +1 +2,500 ", out, re.MULTILINE)
    assert "10,000 of 10,000 readings are in the 4 windows." in out
    assert out.index("1. Word count") < out.index("2. Windows") < out.index("headgate run")


def test_in_a_terminal_there_are_live_progress_and_tables():
    with command("demo", "--local", "--seconds", "2", "--no-follow", terminal=True) as demo:
        assert demo.end() == 0
        assert "windows: running" in demo.out
        assert "window aggregate" in demo.out
        last = demo.out.rpartition("\x1b[J")[2]
        assert "Maple" in last, "the table stays"
        assert "busy" not in last, "the progress does not"


def test_without_a_terminal_progress_is_a_line_now_and_then():
    with command("demo", "--local", "--seconds", "600") as demo:
        demo.wait_until(lambda: "windows: running, " in demo.err)
        assert re.search(r"windows: running, \d+ s \| rate .*/s out \| window aggregate", demo.err)
        demo.interrupt()
        assert demo.end() == 130
        assert demo.err.endswith("\nheadgate: interrupted; its jobs are cancelled\n")
        assert "Traceback" not in demo.err


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(cli_demo, "_PHASE_S", 0.2)
    monkeypatch.setattr(cli_demo, "_LEAD_S", 0.3)
    monkeypatch.delenv("CI", raising=False)


def test_in_a_pipe_it_ends_with_the_verdict_of_follow(short, monkeypatch, capsys):
    monkeypatch.setattr(cli_demo, "open_page", lambda *options: pytest.fail("there is no terminal"))
    monkeypatch.setattr(cli_demo, "keep_page", lambda: pytest.fail("there is no terminal"))
    assert main(["demo", "--local", "--seconds", "0.1"]) == 0
    out = capsys.readouterr().out
    assert out.index("2. Windows") < out.index("3. Back pressure") < out.index("headgate experiment follow")
    assert re.search(r"^consumer 30 % .* (yes|NO)$", out, re.MULTILINE)
    assert re.search(r"^(PASS|FAIL): ", out, re.MULTILINE)


class Keyboard:
    """A stdin that returns Enter."""

    def isatty(self):
        return True

    def readline(self):
        return "\n"


def test_in_a_terminal_it_continues_with_the_page_until_enter(short, monkeypatch, capsys):
    monkeypatch.setattr(cli_demo, "is_terminal", lambda stream: True)
    monkeypatch.setattr(sys, "stdin", Keyboard())
    seen = []
    keep = cli_demo.keep_page

    def look():
        seen.extend((job.name, job.status) for job in unfinished_jobs())
        keep()

    monkeypatch.setattr(cli_demo, "keep_page", look)
    assert main(["demo", "--local", "--seconds", "0.1"]) == 0
    assert seen == [("follow", JobStatus.RUNNING)]
    assert unfinished_jobs() == []
    out, err = capsys.readouterr()
    assert "The pipeline continues" in out
    assert re.search(r"the page is at http://127\.0\.0\.1:\d+/\?token=", err)
    assert "until Enter or Ctrl-C" in err
    assert "ends before its jobs" not in err


@pytest.mark.parametrize(("ci", "keys", "screen"), [("true", True, True), ("", False, True), ("", True, False)])
def test_ci_and_pipes_are_not_interactive(ci, keys, screen, monkeypatch):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"isatty": lambda self: keys})())
    monkeypatch.setattr(cli_demo, "is_terminal", lambda stream: screen)
    assert not cli_demo._is_interactive()


def test_the_demo_runs_without_the_page(short, monkeypatch, capsys):
    def missing(*options):
        raise ConfigError("the page needs headgate[ui]")

    monkeypatch.setattr(cli_demo, "open_page", missing)
    assert not cli_demo._open_page()
    assert "There is no page: the page needs headgate[ui]" in capsys.readouterr().out


def test_each_window_has_its_share():
    found = windows(hg.environment(local=True, parallelism=2), seconds=1.5)
    assert [(one.gauge, one.start) for one in found[:3]] == [("Alder", 0), ("Alder", 1000), ("Birch", 0)]
    assert [one.readings for one in found] == [PER_SECOND // 4, PER_SECOND // 8] * 4
    assert all(one.mean <= one.highest for one in found)
