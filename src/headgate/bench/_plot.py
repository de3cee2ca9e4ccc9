"""Charts of a bench report: plain data that a suite hands in, and a file that is drawn of it.

The harness collects panels, `headgate bench --plot` has them drawn. matplotlib, from the extra `bench`, is imported
only for that: whoever asks for no chart needs none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headgate.errors import ConfigError

__all__ = ["Panel", "Series", "check_plot", "draw_panels"]

_FORMATS: Final = ("svg", "png")
_WIDTH_INCHES: Final = 9.0
_HEIGHT_INCHES: Final = 2.9  # of one panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel, or its points, unconnected."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    points: bool = False
    dashed: bool = False

    def __post_init__(self) -> None:
        assert len(self.x) == len(self.y), "every point has two coordinates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One drawing: what happened over time, with the times shaded in which something was different."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    shaded: Sequence[tuple[float, float]] = ()
    shaded_name: str = ""
    log_y: bool = False


def check_plot(file: Path) -> None:
    """Raise before anything is measured if the chart could not be written afterwards."""
    if file.suffix.lower().removeprefix(".") not in _FORMATS:
        raise ConfigError(f"--plot {file}: the name must end in {' or '.join('.' + one for one in _FORMATS)}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--plot {file}: there is no directory {file.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'headgate[bench]'")


def draw_panels(panels: Sequence[Panel], file: Path) -> None:
    """Draw the panels below each other into a file, in the format that its name ends in."""
    # Not pyplot: that one keeps figures, and asks the environment for a window system.
    from matplotlib import rc_context  # noqa: PLC0415 - see the module
    from matplotlib.figure import Figure  # noqa: PLC0415

    assert panels, "there is something to draw"
    # The same data make the same file: no date in it, and ids that do not depend on chance.
    with rc_context({"svg.hashsalt": "headgate"}):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES * len(panels)), layout="constrained")
        for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
            for span, (start, end) in enumerate(panel.shaded):
                axes.axvspan(start, end, color="0.9", label=panel.shaded_name if span == 0 else None)
            for one in panel.series:
                if one.points:
                    axes.plot(one.x, one.y, linestyle="", marker=".", label=one.name)
                else:
                    axes.plot(one.x, one.y, linewidth=1.2, linestyle="--" if one.dashed else "-", label=one.name)
            axes.set_title(panel.title, loc="left", fontsize="medium")
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
            if panel.log_y:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        try:
            figure.savefig(file, dpi=120, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"--plot {file}: {error.strerror or error}") from error
