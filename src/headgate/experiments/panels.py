"""Drawings as plain data, and the PNG that is made of them; terminal and report draw the same data.

An experiment hands in panels: lines over the seconds of a run, with its phases behind them. matplotlib, from the extra
`bench`, is imported only to draw the file.
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

__all__ = ["COLOURS", "DARK_COLOURS", "Kind", "Line", "Panel", "Span", "check_file", "check_png", "draw_png"]

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""One for each line of a panel, on white; they can be told apart by those who see fewer colours."""
DARK_COLOURS: Final = ("#56b4e9", "#e69f00", "#2ec4a0", "#e8a3c9")
"""Likewise, on black."""

_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 2.8  # of one panel


class Kind(StrEnum):
    """How a line is drawn.

    >>> Kind("points") is Kind.POINTS
    True
    """

    LINE = "line"
    POINTS = "points"
    LIMIT = "limit"  # dashed, in grey


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time; None: not known.

    >>> Line("producer", (0.0, 0.1), (1.0, None)).kind
    <Kind.LINE: 'line'>
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    kind: Kind = Kind.LINE

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y), "every point has two coordinates"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase, behind the lines; shaded or not.

    >>> Span(0.0, 10.0, "consumer 30 %", shaded=True).shaded
    True
    """

    begin_s: float
    end_s: float
    name: str
    shaded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One drawing, and what is to be seen in it.

    >>> Panel(title="Speed", y_label="%", lines=(), spans=(), words="Both lines are one.").log_y
    False
    """

    title: str
    y_label: str
    lines: tuple[Line, ...]
    spans: tuple[Span, ...]
    words: str
    log_y: bool = False


def check_file(option: str, file: Path, ending: str) -> None:
    """Raise before anything is run if a file could not be written afterwards.

    >>> from pathlib import Path
    >>> check_file("--png", Path("chart.jpeg"), ".png")
    Traceback (most recent call last):
    headgate.errors.ConfigError: --png chart.jpeg: the name must end in .png
    """
    if file.suffix.lower() != ending:
        raise ConfigError(f"{option} {file}: the name must end in {ending}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"{option} {file}: there is no directory {file.absolute().parent}")
    if file.is_dir():
        raise ConfigError(f"{option} {file}: that is a directory")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise ConfigError(f"{option} {file}: it cannot be written there")


def check_png(file: Path) -> None:
    """Likewise, and whether there is what draws it.

    >>> from pathlib import Path
    >>> check_png(Path("chart.png"))
    """
    check_file("--png", file, ".png")
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "--png needs matplotlib, which is not installed: pip install 'headgate[bench]', or say --no-png"
        )


def draw_png(title: str, panels: Sequence[Panel], file: Path) -> None:
    """Draw the panels below each other.

    >>> import tempfile
    >>> from pathlib import Path
    >>> panel = Panel(title="Speed", y_label="%", lines=(Line("it", (0.0, 1.0), (1.0, 2.0)),), spans=(), words="")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     draw_png("Speed", [panel], Path(directory, "chart.png"))
    ...     Path(directory, "chart.png").read_bytes()[1:4]
    b'PNG'
    """
    # Not pyplot: that one keeps figures, and asks the environment for a window system.
    from matplotlib.figure import Figure  # noqa: PLC0415 - see the module

    assert panels, "there is something to draw"
    figure = Figure(figsize=(_WIDTH_INCHES, 0.5 + _HEIGHT_INCHES * len(panels)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
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
            axes.plot(line.x, y, label=line.name, **_look(line.kind, COLOURS[number % len(COLOURS)]))
        axes.set_title(panel.title, loc="left", fontsize="medium", pad=14)
        axes.set_ylabel(panel.y_label)
        if panel.log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        if panel.spans:
            axes.set_xlim(panel.spans[0].begin_s, panel.spans[-1].end_s)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)
    axes.set_xlabel("seconds")
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise ConfigError(f"--png {file}: {error.strerror or error}") from error


def _look(kind: Kind, colour: str) -> dict[str, Any]:
    if kind is Kind.LIMIT:
        return {"linewidth": 1.0, "linestyle": "--", "color": "0.4"}
    if kind is Kind.POINTS:
        return {"linestyle": "", "marker": ".", "markersize": 3, "color": colour}
    return {"linewidth": 1.2, "color": colour}
