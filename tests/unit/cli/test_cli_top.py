"""The screen of `headgate top` in any size, and its keys."""

import os
import pty
import re
import termios
from dataclasses import replace

import pytest
from rich.cells import cell_len
from tests.support.job_views import NASTY, synthetic_view

from headgate.cli.keys import read_keys
from headgate.cli.top import _MOVES, _PANELS, _SCROLLS
from headgate.cli.top_screen import TopPanel, TopState, screen
from headgate.names import printable
from headgate.observe import GraphView, HotKey, JobStatus, JobView, Progress


def text(view, width=80, height=24, **shown):
    return "\n".join(line.plain for line in screen(view, TopState(**shown), width, height))


NOTHING = JobView(
    at_ms=0,
    graph=GraphView(vertices=(), edges=()),
    progress=Progress(job="1", name="etl", status=JobStatus.CREATED, uptime_s=0, workers=(), vertices=()),
)
VIEWS = {
    "usual": synthetic_view(),
    "nasty": synthetic_view(nasty=True),
    "over": replace(synthetic_view(status=JobStatus.FINISHED), timeline=synthetic_view().timeline),
    "failed": synthetic_view(status=JobStatus.FAILED, timeline=False),
    "one": synthetic_view(1, 1),
    "wide": synthetic_view(3, 40),
    "many": synthetic_view(60, 3),
    "nothing": NOTHING,
}


@pytest.mark.parametrize("panel", TopPanel)
@pytest.mark.parametrize("name", VIEWS)
def test_the_screen_fits_any_size(name, panel):
    for width, height in ((80, 24), (20, 5), (40, 10), (109, 24), (110, 24), (200, 60), (80, 3)):
        for vertex in (0, 3, 10**9):
            shown = TopState(vertex=vertex, panel=panel, scroll=5, why="cause: cpu\n" * 9, note="")
            lines = screen(VIEWS[name], shown, width, height)
            assert len(lines) == height
            assert all(cell_len(line.plain) <= width for line in lines)
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", "".join(line.plain for line in lines))


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "nothing"])
def test_the_selected_vertex_is_always_visible(name):
    count = len(VIEWS[name].progress.vertices)
    for panel in TopPanel:
        for vertex in range(count):
            shown = text(VIEWS[name], vertex=vertex, panel=panel)
            assert len(re.findall(r"^> ", shown, re.MULTILINE)) == 1


def test_the_order_is_that_of_the_records():
    view = synthetic_view()
    backwards = replace(view, graph=replace(view.graph, vertices=view.graph.vertices[::-1]))
    assert text(view) == text(backwards)


def test_the_screen_has_all_columns():
    view = synthetic_view()
    slow = view.graph.vertices[2]
    (edge,) = [one for one in view.graph.edges if one.consumer == slow.id]
    first = view.progress.vertices[0]
    hot = replace(first, hot_keys=(HotKey(exchange=edge.id, key="'london'", share=0.61),))
    view = replace(view, progress=replace(view.progress, vertices=(hot, *view.progress.vertices[1:])))
    seen = text(view, vertex=2)
    assert "synthetic  job-5eed  running 90s  4 workers" in seen
    assert re.search(r"^  rate -> map\(parse\) +x4 █▒+· +\d+% +\d+% +0 +\d", seen, re.MULTILINE)
    assert re.search(r"^> map\(enrich\).* x4 █████+ +9\d%  +0% .*\d+ +\d+ms +1\.5s$", seen, re.MULTILINE)
    assert "hottest key 61% 'london'" in seen
    wide = text(view, 160, vertex=2)
    assert re.search(r"map\(enrich\).* 1\.5s 61% 'london'", wide)


def test_tasks_and_channels():
    view = synthetic_view()
    tasks = text(view, vertex=2, panel=TopPanel.SUBTASKS)
    assert re.findall(r"^ +(\d) +\d running ", tasks, re.MULTILINE) == ["0", "1", "2", "3"]
    assert re.search(r"^ +4\.0k +2\.0k +10 +5 map\(\w+\)$", tasks, re.MULTILINE), "the operators of its chain"
    assert re.search(r"^ +8\.0k +4\.0k +20 +10 filter\(wanted\), side outputs: late 7$", tasks, re.MULTILINE)
    channels = text(view, vertex=2, panel=TopPanel.CHANNELS)
    assert re.search(r"^task +p0 +p1 +p2 +p3$", channels, re.MULTILINE)
    assert re.search(r"^ +0 +-/\d+ +\d+/\d+ +\d+/\d+ +\d+/\d+ *$", channels, re.MULTILINE)
    assert "it has no input" in text(view, vertex=0, panel=TopPanel.CHANNELS)
    assert "and 33 more" in text(VIEWS["wide"], vertex=1, panel=TopPanel.CHANNELS)


def test_a_panel_can_be_scrolled_to_its_end_and_no_further():
    shown = TopState(vertex=1, panel=TopPanel.SUBTASKS)
    seen = set()
    for _ in range(20):
        lines = [line.plain for line in screen(VIEWS["wide"], shown, 80, 24)]
        seen |= {line for line in lines if re.match(r" +\d+ +\d+ running", line)}
        shown.scroll += shown.height
    assert len(seen) == 40
    assert "filter(wanted), side outputs: late 7" in lines[-2], "the last operator is at the bottom"


def test_a_job_that_is_over_shows_its_history():
    seen = text(VIEWS["over"])
    assert "finished 90s" in seen
    assert re.search(r"busy held +in +out queue", seen)
    assert re.search(r"^  map\(clean\).* █▒▒▒", seen, re.MULTILINE)


def test_without_more_than_ascii():
    assert text(synthetic_view(), fancy=False, panel=TopPanel.SUBTASKS).isascii()


def test_names_cannot_control_the_terminal():
    assert "\x1b" not in printable(NASTY)
    assert printable("wörter 数 -> map") == "wörter 数 -> map"


@pytest.fixture
def terminal():
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def test_keys_are_read_one_by_one(terminal):
    master, slave = terminal
    with read_keys(slave) as keys:
        assert keys.read(0) is None
        os.write(master, b"\x1b[A\x1b[Bjk\r\x1bOAe\x1b[5~\x1b[6~q \x1b[1;5C\x1b[H\x1b[Fw\x7f\xffx")
        pressed = []
        while (key := keys.read(0.05)) is not None:
            pressed.append(key)
        assert pressed == [
            *("up", "down", "j", "k", "enter", "up", "e", "page up", "page down", "q", " "),
            *("", "home", "end", "w", "escape", "\ufffd", "x"),
        ]
        os.write(master, b"\x1b")
        assert keys.read(5) == "escape"
    assert {*_MOVES, *_SCROLLS, *_PANELS} <= {*pressed, "b"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_the_terminal_mode_is_restored(error, terminal):
    _, slave = terminal
    before = termios.tcgetattr(slave)

    def watch():
        with read_keys(slave):
            assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON)
            raise error

    with pytest.raises(error):
        watch()
    assert termios.tcgetattr(slave) == before


def test_a_closed_terminal_ends_reading():
    master, slave = pty.openpty()
    with read_keys(slave) as keys:
        os.close(master)
        with pytest.raises((EOFError, OSError)):
            keys.read(5)
    os.close(slave)
