"""Charts as plain data, and the file drawn from them; the experiments draw the same data in the terminal and in HTML.

matplotlib, from the extra `bench`, is imported only when a file is drawn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "COLOURS",
    "DARK_COLOURS",
    "ChartPanel",
    "Line",
    "LineKind",
    "Span",
    "check_chart",
    "check_file",
    "draw_panels",
]

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""One for each line of a panel, on white; distinct for colour-blind readers."""
DARK_COLOURS: Final = ("#56b4e9", "#e69f00", "#2ec4a0", "#e8a3c9")
"""The same on black."""

_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 2.8  # of one panel


class LineKind(StrEnum):
    """How a line is drawn."""

    LINE = "line"
    POINTS = "points"
    LIMIT = "limit"  # dashed, grey


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time; None is unknown and leaves a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    kind: LineKind = LineKind.LINE

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y), "every point has two coordinates"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase of the run, drawn behind the lines."""

    begin_s: float
    end_s: float
    name: str
    shaded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPanel:
    """One chart over the seconds of a run, and the text below it."""

    title: str
    y_label: str
    lines: Sequence[Line]
    spans: Sequence[Span] = ()
    words: str = ""
    log_y: bool = False


def check_file(option: str, file: Path, *endings: str) -> None:
    """Check that a file can be written, before anything is measured.

    Raises:
        ConfigError: The name has another ending, or the file cannot be written there.
    """
    if file.suffix.lower() not in endings:
        raise ConfigError(f"{option} {file}: the name must end in {' or '.join(endings)}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{option} {file}: there is no directory {file.absolute().parent}")
    if file.is_dir():
        raise ConfigError(f"{option} {file}: that is a directory")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ConfigError(f"{option} {file}: it cannot be written there")


def check_chart(option: str, file: Path, *endings: str, otherwise: str = "") -> None:
    """Check that a chart can be drawn into a file, before anything is measured; `otherwise` ends the error message.

    Raises:
        ConfigError: The file cannot be written, or matplotlib is missing.
    """
    check_file(option, file, *endings)
    if find_spec("matplotlib") is None:
        install = "pip install 'headgate[bench]'"
        raise ConfigError(f"{option} needs matplotlib, which is not installed: {install}{otherwise}")


def draw_panels(option: str, panels: Sequence[ChartPanel], file: Path, title: str = "") -> None:
    """Draw the panels below each other, in the format of the file's name.

    Raises:
        ConfigError: The file cannot be written.
    """
    # Not pyplot: it keeps figures, and requests a window system from the environment.
    from matplotlib import rc_context  # noqa: PLC0415 - see the module
    from matplotlib.figure import Figure  # noqa: PLC0415

    assert panels, "there is something to draw"
    # Without a date and with fixed ids, the same data give the same file.
    with rc_context({"svg.hashsalt": "headgate"}):
        height = _HEIGHT_INCHES * len(panels) + (0.5 if title else 0.0)
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            _draw(axes, panel)
        try:
            figure.savefig(file, dpi=120, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)
        except OSError as error:
            raise ConfigError(f"{option} {file}: {error.strerror or error}") from error


def _draw(axes: Any, panel: ChartPanel) -> None:
    for span in panel.spans:
        if span.shaded:
            axes.axvspan(span.begin_s, span.end_s, color="0.92", zorder=0)
        axes.axvline(span.begin_s, color="0.8", linewidth=0.6, zorder=0)
        axes.annotate(
            span.name,
            ((span.begin_s + span.end_s) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
            color="0.35",
        )
    for number, line in enumerate(panel.lines):
        y = [float("nan") if value is None else value for value in line.y]
        axes.plot(line.x, y, label=line.name, **_style(line.kind, COLOURS[number % len(COLOURS)]))
    axes.set_title(panel.title, loc="left", fontsize="medium", pad=14)
    axes.set_xlabel("seconds")
    axes.set_ylabel(panel.y_label)
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if len(panel.spans) > 1:
        axes.set_xlim(panel.spans[0].begin_s, panel.spans[-1].end_s)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)


def _style(kind: LineKind, colour: str) -> dict[str, Any]:
    if kind is LineKind.LIMIT:
        return {"linewidth": 1.0, "linestyle": "--", "color": "0.4"}
    if kind is LineKind.POINTS:
        return {"linestyle": "", "marker": ".", "markersize": 3, "color": colour}
    return {"linewidth": 1.2, "color": colour}
