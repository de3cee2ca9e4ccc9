"""The report of an experiment: one HTML file that needs no other, and the description of the run.

plotly.js draws the charts. Its source, from the extra `ui`, is written into the file. The file fetches nothing: its own
policy forbids it. It follows the reader's choice of light or dark. All text of a run is escaped.
"""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from headgate.bench.charts import COLOURS, DARK_COLOURS, ChartPanel, Line, LineKind, Span, check_file
from headgate.bench.harness import machine
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headgate.experiments.figures import Speeds
    from headgate.experiments.running import ExperimentVerdict
    from headgate.experiments.schedule import PhaseSchedule

__all__ = [
    "ExperimentReport",
    "RunInfo",
    "check_html",
    "line_of",
    "points_of",
    "render",
    "spans_of",
    "steps_json",
    "write_html",
]

_MOST_POINTS: Final = 3000  # of one line: more cannot be distinguished, and make files large
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


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The command of a run and where it ran."""

    command: str
    where: str

    def machine(self) -> dict[str, Any]:
        """Return what a reader needs to judge the figures."""
        found: dict[str, Any] = machine()
        own = {key: found[key] for key in ("cores", "platform", "python")}
        return {**own, "headgate": found["versions"]["headgate"]}

    def line(self) -> str:
        """Return all of it, and the time, in one line."""
        found = self.machine()
        cores = f"{found['cores']} core{'' if found['cores'] == 1 else 's'}"
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"{when}; {self.where}; {cores}, {found['python']}, {found['platform']}; headgate {found['headgate']}"

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"command": self.command, "where": self.where, "machine": self.machine()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentReport:
    """The content of a report."""

    title: str
    verdict: ExperimentVerdict
    command: str  # that made it
    about: str  # when and where, in one line
    words: tuple[str, ...]  # paragraphs
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    panels: Sequence[ChartPanel]


def check_html(file: Path) -> None:
    """Check that the report can be written, before anything runs.

    Raises:
        ConfigError: The file cannot be written, or plotly is missing.
    """
    check_file("--html", file, ".html")
    if find_spec("plotly") is None:
        raise ConfigError("--html needs plotly, which is not installed: pip install 'headgate[ui]', or say --no-html")


def write_html(report: ExperimentReport, file: Path) -> None:
    """Render a report into a file.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        file.write_text(render(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {file}: {error.strerror or error}") from error


def render(report: ExperimentReport, *, plotly_js: str | None = None) -> str:
    """Return the text of the file; `plotly_js` is the library's source, by default the installed one's."""
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


def _library() -> str:
    """Return the source of plotly.js, without importing plotly, which takes a second."""
    return files("plotly").joinpath("package_data", "plotly.min.js").read_text("utf-8")


def _table(report: ExperimentReport) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in report.header)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in report.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _data(panels: Sequence[ChartPanel]) -> dict[str, Any]:
    return {"light": COLOURS, "dark": DARK_COLOURS, "panels": [_panel(panel) for panel in panels]}


def _panel(panel: ChartPanel) -> dict[str, Any]:
    ends = [span.end_s for span in panel.spans]
    return {
        "y_label": panel.y_label,
        "log_y": panel.log_y,
        "range": [0.0, max(ends)] if ends else None,
        "spans": [asdict(span) for span in panel.spans],
        "lines": [
            {"name": one.name, "kind": one.kind.value, "x": _rounded(one.x), "y": _rounded(one.y)}
            for one in panel.lines
        ],
    }


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _json(data: object) -> str:
    """Return JSON that cannot end the script around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


# The parts of a panel ----------------------------------------------------------------------------------------------


def spans_of(schedule: PhaseSchedule) -> list[Span]:
    """Return the lead and the phases; those with a slow consumer are shaded."""
    return [
        Span(0.0, schedule.lead_s, "full speed"),
        *(
            Span(*schedule.bounds(number), phase.name, shaded=phase.consumer < 1 or phase.neighbour)
            for number, phase in enumerate(schedule.phases)
        ),
    ]


def line_of(name: str, speeds: Speeds, scale: float, end_s: float) -> Line:
    """Return speeds times a scale, from the start to the end of the schedule."""
    kept = [(x, y) for x, y in zip(speeds.middles_s(), speeds.per_s, strict=True) if 0 <= x <= end_s]
    return Line(name, [round(x, 3) for x, _ in kept], [None if y is None else y * scale for _, y in kept])


def points_of(name: str, points: Sequence[tuple[float, float]], scale: float = 1.0) -> Line:
    """Return points, their heights times a scale; of very many, the highest of each few."""
    each = max(1, -(-len(points) // _MOST_POINTS))
    kept = [max(points[at : at + each], key=lambda point: point[1]) for at in range(0, len(points), each)]
    return Line(name, [x for x, _ in kept], [y * scale for _, y in kept], LineKind.POINTS)


def steps_json(speeds: Speeds) -> dict[str, Any]:
    """Return speeds for JSON."""
    return {"start_s": speeds.start_s, "step_s": speeds.step_s, "per_s": list(speeds.per_s)}
