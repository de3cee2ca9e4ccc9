"""`headgate demo`, without Spark: what it says in a pipe, in a terminal, and when it is interrupted."""

import re
from collections import Counter

from tests.support_commands import command

import headgate as hg
from headgate.cli import main
from headgate.cli.demo_pipeline import PER_SECOND, windows
from headgate.examples import word_count


def test_in_a_pipe_it_says_everything_in_plain_lines(capsys):
    assert main(["demo", "--local", "--seconds", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    counts = Counter(word for line in word_count.text() for word in word_count.words(line))
    assert re.search(rf"^the +{counts['the']} ", out, re.MULTILINE)
    assert f"{counts.total():,} words, {len(counts):,} different ones" in out
    assert re.search(r"^Alder +1 +2,500 ", out, re.MULTILINE)
    assert "10,000 of 10,000 readings are in the 4 windows." in out
    assert out.index("1. Word count") < out.index("2. Windows") < out.index("headgate run")


def test_in_a_terminal_there_are_live_progress_and_tables():
    with command("demo", "--local", "--seconds", "2", terminal=True) as demo:
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


def test_each_window_has_its_share():
    found = windows(hg.environment(local=True, parallelism=2), seconds=1.5)
    assert [(one.gauge, one.start) for one in found[:3]] == [("Alder", 0), ("Alder", 1000), ("Birch", 0)]
    assert [one.readings for one in found] == [PER_SECOND // 4, PER_SECOND // 8] * 4
    assert all(one.mean <= one.highest for one in found)
