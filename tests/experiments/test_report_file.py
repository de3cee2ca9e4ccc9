"""The report: one file that needs no other, contains all figures, and is safe to open."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headgate.bench import charts
from headgate.bench.charts import ChartPanel, Line, LineKind, Span, check_chart, check_file, draw_panels
from headgate.errors import ConfigError
from headgate.experiments import report
from headgate.experiments.report import ExperimentReport, check_html, points_of, render, write_html
from headgate.experiments.running import ExperimentVerdict

EVIL = "</script><script src='https://evil.example/x.js'></script><img src=x onerror=alert(1)>"
PANEL = ChartPanel(
    title=f"Speed {EVIL}",
    y_label="%",
    lines=(
        Line(f"producer {EVIL}", (0.0, 0.1), (1.0, None)),
        Line("points", (0.0,), (3.14159265,), LineKind.POINTS),
        Line("limit", (0.0, 1.0), (5.0, 5.0), LineKind.LIMIT),
    ),
    spans=(Span(0.0, 1.0, f"phase {EVIL}", shaded=True),),
    words=f"Both are one. {EVIL}",
)


def made(**changes):
    given = {
        "title": f"Does it follow? {EVIL}",
        "verdict": ExperimentVerdict(True, f"it did {EVIL}"),
        "command": f"headgate experiment follow {EVIL}",
        "about": f"2 cores {EVIL}",
        "words": (f"What this is. {EVIL}",),
        "header": ("phase", EVIL),
        "rows": ((EVIL, "1"),),
        "panels": (PANEL,),
    }
    return ExperimentReport(**{**given, **changes})


class Page(HTMLParser):
    """The tags of a page, and the text of each script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._in_script = [], [], False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self._in_script = True

    def handle_endtag(self, tag):
        if tag == "script":
            self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def test_nothing_is_fetched_from_anywhere():
    page = Page(render(made()))
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "poster", "data", "srcset"):
            assert attributes.get(name, "data:,") == "data:,", (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", render(made(), plotly_js=""), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [one["content"] for tag, one in page.tags if one.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'"), "not even what plotly might want to"
    assert "http" not in policy
    own = [script for script in page.scripts if len(script) < 100_000]
    assert len(own) == 2
    assert not any(re.search(r"\bfetch\(|XMLHttpRequest|import\(", script) for script in own)


def test_the_library_is_in_the_file_once():
    text = render(made())
    assert text.count("plotly.js v") == 1
    assert len(Page(text).scripts) == 3


def test_no_text_of_a_run_becomes_markup():
    page = Page(render(made(), plotly_js=""))
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(page.scripts) == 3
    assert "<script src" not in render(made(), plotly_js="")
    data = json.loads(page.scripts[0])
    assert data["panels"][0]["lines"][0]["name"] == f"producer {EVIL}"


def test_the_figures_are_in_it_as_they_are_drawn():
    data = json.loads(Page(render(made(), plotly_js="")).scripts[0])
    (panel,) = data["panels"]
    assert panel["lines"][0] == {"name": f"producer {EVIL}", "kind": "line", "x": [0.0, 0.1], "y": [1.0, None]}
    assert panel["lines"][1]["y"] == [3.142]
    assert panel["spans"][0]["shaded"] is True
    assert panel["range"] == [0.0, 1.0]


def test_it_has_the_verdict_the_command_and_the_title():
    text = render(
        made(title="Does it follow?", verdict=ExperimentVerdict(False, "it did not"), command="headgate x"),
        plotly_js="",
    )
    assert "<title>Does it follow?</title>" in text
    assert '<p class="verdict fail"><strong>FAIL</strong>: it did not</p>' in text
    assert "<code>$ headgate x</code>" in text
    assert 'lang="en"' in text
    assert "prefers-color-scheme: dark" in text
    assert 'role="img" aria-label="Speed' in text


def test_it_is_written_and_a_full_disk_is_one_line(tmp_path):
    file = tmp_path / "report.html"
    write_html(made(), file)
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match=r"--html .*No such file"):
        write_html(made(), tmp_path / "nowhere" / "report.html")


def test_a_png_is_drawn_of_every_kind_of_line(tmp_path):
    file = tmp_path / "chart.png"
    logarithmic = ChartPanel(title="x", y_label="y", lines=PANEL.lines[:1], log_y=True)
    draw_panels("--png", [PANEL, logarithmic], file, "Speed")
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--png .*No such file"):
        draw_panels("--png", [PANEL], tmp_path / "nowhere" / "chart.png")


def test_names_of_files_are_checked_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"--html report\.txt: the name must end in \.html"):
        check_html(Path("report.txt"))
    with pytest.raises(ConfigError, match="there is no directory"):
        check_chart("--png", tmp_path / "nowhere" / "chart.png", ".png")
    (tmp_path / "chart.png").mkdir()
    with pytest.raises(ConfigError, match="that is a directory"):
        check_file("--png", tmp_path / "chart.png", ".png")
    check_html(tmp_path / "report.HTML")
    monkeypatch.setattr(charts.os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(ConfigError, match="it cannot be written there"):
        check_html(tmp_path / "report.html")


@pytest.mark.parametrize(
    ("module", "check", "name", "how"),
    [
        (
            charts,
            lambda file: check_chart("--png", file, ".png", otherwise=", or say --no-png"),
            "chart.png",
            r"pip install 'headgate\[bench\]', or say --no-png",
        ),
        (report, check_html, "report.html", r"pip install 'headgate\[ui\]', or say --no-html"),
    ],
)
def test_the_error_for_a_missing_library_has_the_command_that_installs_it(
    module, check, name, how, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "find_spec", lambda library: None)
    with pytest.raises(ConfigError, match=how):
        check(tmp_path / name)


def test_of_very_many_points_the_highest_stay():
    points = [(float(n), 9.0 if n == 4321 else float(n % 2)) for n in range(10_000)]
    line = points_of("it", points)
    kept = list(zip(line.x, line.y, strict=True))
    assert len(kept) <= 3000
    assert set(kept) <= set(points)
    assert (4321.0, 9.0) in kept
    assert points_of("it", points[:10], 2.0).y == [2 * y for _, y in points[:10]]
    assert points_of("it", []).x == []
