"""The live view, in a terminal of the test's own."""

import io
import os
import pty
import sys
import threading

import pytest
from rich.console import Console
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.control.messages import TaskState
from headgate.coordinator.job import Job, JobStatus
from headgate.coordinator.terminal import _StreamProxy, _View, progress_table, show_progress
from headgate.ids import JobId
from headgate.observe.progress import Progress, VertexProgress


def vertex(name="words", **figures):
    return VertexProgress(id=0, name=name, parallelism=4, subtasks=(), **{"state": TaskState.RUNNING, **figures})


def progress_of(*vertices):
    return Progress(
        job="1", name="word count", status=JobStatus.RUNNING, uptime_s=12.3, workers=(), vertices=tuple(vertices)
    )


def running_job(*vertices):
    job = Job(JobId("1"), "word count", progress=lambda: progress_of(*vertices), cancel=lambda reason: None)
    job.begin()
    return job


def drawn(progress, *, width=80, max_rows=20, colours=False):
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=colours, color_system="standard" if colours else None).print(
        progress_table(progress, max_rows)
    )
    return file.getvalue()


class Terminal:
    """A pseudo terminal; `text` is all that was written to it."""

    def __init__(self):
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._data = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self):
        return self._data.decode(errors="replace")

    def _read(self):
        try:
            while data := os.read(self._master, 4096):
                self._data += data
        except OSError:
            pass  # the other end is closed

    def close(self):
        self.stream.close()
        self._reader.join(PATIENCE_S)
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    made = Terminal()
    yield made
    if not made.stream.closed:
        made.close()


def test_a_line_has_name_parallelism_rates_and_a_bar():
    text = drawn(progress_of(vertex(records_in_per_s=12_345, records_out_per_s=7, busy=0.4)))
    assert text.splitlines()[0].split() == ["word", "count:", "running,", "12", "s", "in/s", "out/s"]
    assert text.splitlines()[1].split() == ["words", "4", "12k", "7", "━━━━", "busy", "40", "%"]


@pytest.mark.parametrize(
    ("figures", "colour"),
    [
        ({"busy": 0.2, "max_busy": 0.3}, "32"),
        ({"busy": 0.4, "max_busy": 0.9}, "33"),
        ({"busy": 0.1, "back_pressured": 0.6, "max_back_pressured": 0.9}, "31"),
    ],
    ids=["green", "yellow", "red"],
)
def test_the_bar_has_the_colour_of_the_worst_task(figures, colour):
    assert f"\x1b[{colour}m━" in drawn(progress_of(vertex(**figures)), colours=True)


def test_a_vertex_that_does_not_run_shows_its_state():
    assert "finished" in drawn(progress_of(vertex(state=TaskState.FINISHED)))
    assert "failed" in drawn(progress_of(vertex(state=TaskState.FAILED)))


def test_no_line_is_wider_than_the_terminal_and_there_are_not_too_many():
    text = drawn(progress_of(*[vertex(f"[b]{'n' * 200}{number}") for number in range(9)]), width=60, max_rows=4)
    assert len(text.splitlines()) == 5
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "... and 6 more" in text
    assert "[b]" in text, "names are not markup"


def test_nothing_is_drawn_without_a_terminal():
    stream = io.StringIO()
    with show_progress(running_job(vertex()), stream=stream):
        assert not isinstance(sys.stderr, _StreamProxy)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_nothing_is_drawn_in_a_terminal_that_cannot_move_its_cursor(kind, terminal, monkeypatch):
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with show_progress(running_job(vertex())):
        assert sys.stderr is terminal.stream


def test_nothing_is_drawn_if_progress_is_disabled(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with show_progress(running_job(vertex()), enabled=False):
        assert sys.stderr is terminal.stream


def test_the_view_is_drawn_and_drawn_again_and_gone_in_the_end(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with show_progress(running_job(vertex("words"), vertex("count"))):
        wait_until(lambda: terminal.text.count("words") >= 2, "two drawings")
    assert sys.stderr is terminal.stream
    wait_until(lambda: terminal.text.endswith("\x1b[3A\x1b[J"), "the last erasure")
    text = terminal.text
    assert text.count("\x1b[3A\x1b[J") == text.count("words"), "each drawing is taken away"
    assert "\x1b[?25l" not in text, "the cursor is not hidden"


def test_ctrl_c_leaves_the_terminal_clean(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)

    def interrupted():
        wait_until(lambda: "words" in terminal.text, "a drawing")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), show_progress(running_job(vertex())):
        interrupted()
    assert sys.stderr is terminal.stream
    wait_until(lambda: terminal.text.endswith("\x1b[2A\x1b[J"), "the last erasure")
    assert "headgate-progress" not in {thread.name for thread in threading.enumerate()}


def test_printed_output_is_shown_unchanged_above_the_view(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    with show_progress(running_job(vertex())):
        wait_until(lambda: "words" in terminal.text, "a drawing")
        print("[bold]hello[/bold]\x1b[1m")  # noqa: T201
        sys.stdout.writelines(["to ", "be\n"])
        assert sys.stdout.isatty()
        drawings = terminal.text.count("words")
        wait_until(lambda: terminal.text.count("words") > drawings, "the next drawing")
    assert "\x1b[2A\x1b[J[bold]hello[/bold]\x1b[1m\r\nto be\r\n" in terminal.text


def test_a_line_that_is_not_finished_is_not_cut(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    view = _View(running_job(vertex()), terminal.stream)
    view.start()
    view.tick()
    sys.stderr.write("how")
    view.tick()
    sys.stderr.write("ever\n")
    view.tick()
    view.close()
    wait_until(lambda: terminal.text.endswith("\x1b[2A\x1b[J"), "the last erasure")
    assert "\x1b[Jhowever\r\n" in terminal.text


def test_output_to_a_file_does_not_pass_through_it(terminal, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    with (tmp_path / "out.txt").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with show_progress(running_job(vertex())):
            assert sys.stdout is file


def test_a_terminal_that_goes_away_ends_the_view_only(terminal, monkeypatch):
    real = sys.stderr
    with show_progress(running_job(vertex()), enabled=True, stream=terminal.stream):
        wait_until(lambda: "words" in terminal.text, "a drawing")
        terminal.close()
        wait_until(
            lambda: "headgate-progress" not in {thread.name for thread in threading.enumerate()}, "the view's end"
        )
    assert sys.stderr is real
