"""The report of an experiment: one HTML file that needs nothing else, to be read in any browser, now or in years.

Called in the driver after a run. Charts are drawn by plotly.js, which is written into the file; plotly, from the extra
`ui`, is where it is taken from. The file fetches nothing: its own policy forbids that, and its scripts are its own. It
follows the reader's choice of light or dark. All text of a run is escaped; figures are JSON and never read as HTML.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import ConfigError
from headgate.experiments.panels import COLOURS, DARK_COLOURS, check_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headgate.experiments.panels import Line, Panel
    from headgate.experiments.running import Verdict

__all__ = ["Report", "check_html", "render", "write_html"]

_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --faint: #59636e; --rule: #d1d9e0;
  --good: #11652a; --bad: #a40e26; --well: #f6f8fa; --grid: #e4e8ec; --shade: rgba(90, 100, 110, .12) }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9aa4af; --rule: #30363d;
  --good: #56d364; --bad: #ff7b72; --well: #161b22; --grid: #262c34; --shade: rgba(160, 170, 180, .14) } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 60rem; padding: 1rem 1rem 4rem }
h1 { font-size: 1.5rem; margin: 1rem 0 .5rem } h2 { font-size: 1.15rem; margin: 2rem 0 .25rem }
.verdict { border-left: .3rem solid; padding: .5rem .75rem; background: var(--well) }
.pass { border-color: var(--good) } .fail { border-color: var(--bad) }
.pass strong { color: var(--good) } .fail strong { color: var(--bad) }
.about { color: var(--faint); font-size: .9rem }
pre { background: var(--well); padding: .5rem .75rem; overflow-x: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
figure { margin: 0 } .chart { height: 22rem }
"""
_SCRIPT: Final = """
const panels = JSON.parse(document.getElementById("panels").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function look(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function draw() {
  const colours = dark.matches ? panels.dark : panels.light;
  const ink = look("--ink"), faint = look("--faint"), grid = look("--grid"), shade = look("--shade");
  panels.panels.forEach((panel, at) => {
    const chart = document.getElementById(`chart-${at}`);
    const lines = panel.lines.map((line, number) => {
      const colour = line.kind === "limit" ? faint : colours[number % colours.length];
      return {
        x: line.x, y: line.y, name: line.name, mode: line.kind === "points" ? "markers" : "lines", connectgaps: false,
        marker: { color: colour, size: 4 },
        line: { color: colour, width: 1.5, dash: line.kind === "limit" ? "dash" : "solid" },
      };
    });
    const perSecond = chart.clientWidth / (panel.range ? panel.range[1] : 1);
    const fits = (span) => (span.end_s - span.begin_s) * perSecond > 6 * span.name.length;
    const shapes = panel.spans.filter((span) => span.shaded).map((span) => ({
      type: "rect", xref: "x", yref: "paper", x0: span.begin_s, x1: span.end_s, y0: 0, y1: 1, layer: "below",
      fillcolor: shade, line: { width: 0 },
    }));
    const annotations = panel.spans.filter(fits).map((span) => ({
      x: (span.begin_s + span.end_s) / 2, xref: "x", y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
      text: span.name.replace(/&/g, "&amp;").replace(/</g, "&lt;"), font: { size: 10, color: faint },
    }));
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: faint, tickfont: { color: ink } };
    Plotly.react(chart, lines, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: ink, family: "system-ui, sans-serif" },
      margin: { l: 64, r: 16, t: 28, b: 40 }, shapes, annotations, hovermode: "closest",
      legend: { orientation: "h", y: -0.12, font: { color: ink } },
      xaxis: { ...axis, ticksuffix: " s", range: panel.range },
      yaxis: { ...axis, title: { text: panel.y_label }, type: panel.log_y ? "log" : "linear",
               rangemode: panel.log_y ? "normal" : "tozero" },
    }, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
  });
}
draw();
dark.addEventListener("change", draw);
window.addEventListener("resize", draw);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report says.

    >>> from headgate.experiments.running import Verdict
    >>> report = Report(
    ...     title="follow", verdict=Verdict(True, "it did"), command="headgate experiment follow", about="2 cores",
    ...     words=("What this is.",), header=("phase",), rows=(("released",),), panels=(),
    ... )
    >>> report.command
    'headgate experiment follow'
    """

    title: str
    verdict: Verdict
    command: str  # that made it
    about: str  # when and where, in one line
    words: tuple[str, ...]  # paragraphs
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    panels: tuple[Panel, ...]


def check_html(file: Path) -> None:
    """Raise before anything is run if the report could not be written afterwards.

    >>> from pathlib import Path
    >>> check_html(Path("report.html"))
    """
    check_file("--html", file, ".html")
    if find_spec("plotly") is None:
        raise ConfigError("--html needs plotly, which is not installed: pip install 'headgate[ui]', or say --no-html")


def render(report: Report, *, plotly_js: str | None = None) -> str:
    """The file's text; `plotly_js` is the library's source, by default the installed one's.

    >>> from headgate.experiments.running import Verdict
    >>> report = Report(
    ...     title="follow", verdict=Verdict(True, "it did"), command="headgate experiment follow", about="2 cores",
    ...     words=("What this is.",), header=("phase",), rows=(("released",),), panels=(),
    ... )
    >>> text = render(report, plotly_js="")
    >>> "<strong>PASS</strong>: it did" in text, "<td>released</td>" in text
    (True, True)
    """
    verdict = report.verdict
    colour, word = ("pass", "PASS") if verdict.passed else ("fail", "FAIL")
    library = _library() if plotly_js is None else plotly_js
    charts = "\n".join(
        f'<figure><h2>{_text(panel.title)}</h2>\n<div class="chart" id="chart-{at}" role="img" '
        f'aria-label="{_text(panel.title)}, {_text(panel.y_label)}"></div>\n'
        f"<figcaption>{_text(panel.words)}</figcaption></figure>"
        for at, panel in enumerate(report.panels)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(report.title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1>{_text(report.title)}</h1>
<p class="verdict {colour}"><strong>{word}</strong>: {_text(verdict.text)}</p>
{"".join(f"<p>{_text(words)}</p>{chr(10)}" for words in report.words)}
<pre><code>$ {_text(report.command)}</code></pre>
<p class="about">{_text(report.about)}</p>
<h2>Figures</h2>
<div class="wide">{_table(report)}</div>
{charts}
<script type="application/json" id="panels">{_json(_data(report.panels))}</script>
<script>{library}</script>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def write_html(report: Report, file: Path) -> None:
    """Render a report into a file.

    >>> from pathlib import Path
    >>> write_html.__name__
    'write_html'
    """
    try:
        file.write_text(render(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {file}: {error.strerror or error}") from error


def _library() -> str:
    """plotly.js, without importing plotly, which takes a second."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def _table(report: Report) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in report.header)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in report.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _data(panels: Sequence[Panel]) -> dict[str, Any]:
    return {"light": COLOURS, "dark": DARK_COLOURS, "panels": [_panel(panel) for panel in panels]}


def _panel(panel: Panel) -> dict[str, Any]:
    ends = [span.end_s for span in panel.spans]
    return {
        "y_label": panel.y_label,
        "log_y": panel.log_y,
        "range": [0.0, max(ends)] if ends else None,
        "spans": [
            {"begin_s": one.begin_s, "end_s": one.end_s, "name": one.name, "shaded": one.shaded} for one in panel.spans
        ],
        "lines": [_line(line) for line in panel.lines],
    }


def _line(line: Line) -> dict[str, Any]:
    return {"name": line.name, "kind": line.kind.value, "x": _rounded(line.x), "y": _rounded(line.y)}


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _json(data: object) -> str:
    """JSON that cannot end the script it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
