"""Charts of characters, and the view of a running experiment."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headgate.bench.charts import ChartPanel, Line, LineKind, Span
from headgate.cli.experiment_view import chart_of, scale_top
from headgate.experiments.terminal import LiveView, can_draw, draw_rows, plain, watching_live

points = st.lists(st.tuples(st.floats(-1, 20), st.floats(-10, 500) | st.none()), max_size=80)
lines = st.lists(st.tuples(points, st.sampled_from(LineKind)), min_size=1, max_size=4)


def panel(*made, spans=()):
    return ChartPanel(title="Speed", y_label="%", lines=made, spans=spans)


def line(values, name="it", kind=LineKind.LINE):
    ordered = sorted(values, key=lambda point: point[0])
    return Line(name, tuple(x for x, _ in ordered), tuple(y for _, y in ordered), kind)


@given(lines, st.integers(30, 120), st.integers(6, 30), st.floats(0.1, 100), st.floats(0.1, 1e4))
def test_every_chart_has_the_size_that_was_asked_for(made, width, height, end_s, top):
    drawn = panel(
        *(line(values, kind=kind) for values, kind in made),
        spans=(Span(0.0, end_s / 2, "a phase with a long name"), Span(end_s / 2, end_s, "b")),
    )
    rows = draw_rows(drawn, width=width, height=height, end_s=end_s, top=top)
    assert len(rows) == height
    assert all(sum(len(text) for text, _ in row) <= width for row in rows)
    assert "\n" not in "".join(text for row in rows for text, _ in row)


def dots(rows):
    """Return the characters with dots, as (column, row from below)."""
    body = plain(rows).split("\n")[1:-2]
    return {
        (column - 10, len(body) - 1 - number)
        for number, text in enumerate(body)
        for column, character in enumerate(text)
        if column >= 10 and 0x2800 < ord(character) <= 0x28FF
    }


def test_low_values_are_drawn_below_and_late_ones_right():
    rows = draw_rows(
        panel(line([(0.1, 0.0), (9.9, 100.0)], kind=LineKind.POINTS)), width=50, height=13, end_s=10, top=100
    )
    assert dots(rows) == {(0, 0), (39, 9)}
    text = plain(rows).split("\n")
    assert (text[1][-1], text[10][10]) == ("⠈", "⡀"), "the highest dot of its character, and the lowest"


def test_a_level_line_is_level_and_a_step_is_connected():
    level = draw_rows(panel(line([(n / 10, 50.0) for n in range(100)])), width=50, height=13, end_s=10, top=100)
    assert {row for _, row in dots(level)} == {5}
    assert len(dots(level)) == 40
    step = [(n / 10, 5.0 if n < 50 else 90.0) for n in range(100)]
    stepped = dots(draw_rows(panel(line(step)), width=50, height=13, end_s=10, top=100))
    assert {row for _, row in stepped} == set(range(9))
    assert {row for column, row in stepped if column < 19} == {0}
    assert {row for column, row in stepped if column > 21} == {8}


def test_unknown_values_are_a_gap():
    values = [(n / 10, None if 40 <= n < 60 else 50.0) for n in range(100)]
    columns = {column for column, _ in dots(draw_rows(panel(line(values)), width=50, height=13, end_s=10, top=100))}
    assert columns == {*range(16), *range(24, 40)}


def test_values_above_the_scale_are_drawn_at_its_top_and_later_ones_are_not_drawn():
    rows = draw_rows(panel(line([(1.0, 900.0), (12.0, 50.0)])), width=50, height=13, end_s=10, top=100)
    assert dots(rows) == {(4, 9)}


def test_lines_that_meet_have_a_style_of_their_own():
    low, high = [(n / 10, 5.0) for n in range(100)], [(n / 10, 5.0 if n < 50 else 90.0) for n in range(100)]
    rows = draw_rows(panel(line(low, "a"), line(high, "b")), width=50, height=13, end_s=10, top=100)
    bottom = {style for text, style in rows[-3][1:] if text.strip()}
    assert bottom == {"blue", "bold"}
    top = [style for text, style in rows[2] if text.strip(" │")]
    assert top == ["dark_orange"]
    assert [text.strip() for text, _ in rows[0][1:]] == ["━ a", "━ b"]


def test_phases_are_marked_and_named_as_far_as_there_is_room():
    spans = [Span(0.0, 5.0, "first"), Span(5.0, 6.0, "a long name"), Span(6.0, 10.0, "last")]
    axis, names = plain(draw_rows(panel(spans=spans), width=50, height=8, end_s=10, top=1)).splitlines()[-2:]
    assert [at - 10 for at, character in enumerate(axis) if character == "┬"] == [0, 20, 24]
    assert names.split() == ["first", "a", "l", "last"]


def test_too_little_room_is_refused():
    with pytest.raises(ValueError, match="30 columns and 6 rows"):
        draw_rows(panel(), width=29, height=6, end_s=1, top=1)


@given(st.floats(1e-6, 1e12))
def test_scales_end_at_round_numbers_that_are_not_far_above(most):
    top = scale_top(most)
    assert most <= top <= 2.01 * most


def test_a_chart_of_a_panel_chooses_its_scale():
    values = line([(n / 10, 130.0) for n in range(100)])
    rows = chart_of(panel(values, spans=[Span(0.0, 10.0, "all")]), 40, 10)
    assert plain(rows).splitlines()[1].split()[0] == "150"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def test_a_live_chart_replaces_the_one_before_and_vanishes(terminal):
    seen = []
    with watching_live(every_s=5.0, stream=terminal) as live:
        live._due_s = None
        live.print_line("it begins")
        for number in range(2):
            live._due_s = None
            live.show(lambda width, height, n=number: seen.append((width, height)) or [[(f"chart {n}", "blue")]], str)
    assert seen == [(79, 16)] * 2
    text = terminal.getvalue()
    assert text.startswith("it begins\n")
    assert text.index("chart 0") < text.index("\x1b[1A\x1b[J") < text.index("chart 1")
    assert text.endswith("\x1b[1A\x1b[J"), "nothing is left of it"
    assert "\x1b[?25l" not in text, "the cursor is never hidden"


def test_drawing_takes_a_small_share_of_the_time(terminal):
    now, drawn = [0.0], []
    live = LiveView(terminal, every_s=5.0, now=lambda: now[0])

    def rows(width, height):
        drawn.append(now[0])
        now[0] += 0.1
        return [[("chart", "")]]

    for _ in range(100):
        live.show(rows, str)
        now[0] += 0.5
    assert 10 <= len(drawn) <= 30, "it takes 0.1 s, so it is drawn about every 2.5 s"
    live.clear()


def test_in_a_small_terminal_there_is_a_line_instead(terminal, monkeypatch):
    monkeypatch.setenv("LINES", "8")
    live = LiveView(terminal, every_s=5.0)
    live.show(lambda width, height: pytest.fail("there is no room"), lambda: "phase 1")
    assert "phase 1" in terminal.getvalue()
    live.clear()


def test_without_a_terminal_there_is_a_line_every_few_seconds():
    now, log = [0.0], io.StringIO()
    live = LiveView(log, every_s=5.0, now=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        live.show(lambda width, height: pytest.fail("nothing is drawn"), lambda: f"second {now[0]:g}")
    live.clear()
    assert log.getvalue() == "second 0\nsecond 5\nsecond 10\n"


def test_a_terminal_without_braille_gets_lines(terminal, monkeypatch):
    assert can_draw(terminal)
    monkeypatch.setattr(Terminal, "encoding", "latin-1")
    assert not can_draw(terminal)
    monkeypatch.setattr(Terminal, "encoding", "utf-8")
    monkeypatch.setenv("TERM", "dumb")
    assert not can_draw(terminal)


def test_a_closed_terminal_does_not_end_the_run(terminal):
    live = LiveView(terminal, every_s=5.0)
    live.show(lambda width, height: [[("chart", "")]], str)
    terminal.close()
    live._console = Console(file=io.StringIO())
    live._due_s = None
    live.show(lambda width, height: [[("chart", "")]], str)
    live.clear()
