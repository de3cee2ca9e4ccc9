"""The files of the page, read from the installed package, for the server and for reports.

Plotly's script is in the installed plotly package; it is found without importing that package, which takes long. No
file is fetched from the network, and no path is taken from a request: the names are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Final

from headgate.errors import HeadgateError

__all__ = ["MODULES", "StaticFile", "index_html", "static_files"]

MODULES: Final = (
    "format.js",
    "source.js",
    "layout.js",
    "parts.js",
    "graph.js",
    "tables.js",
    "charts.js",
    "lines.js",
    "flame.js",
    "past.js",
    "vertex.js",
    "edge.js",
    "panels.js",
    "why.js",
    "frame.js",
    "app.js",
)
"""The page's scripts; each imports only from those before it."""

_PLOTLY: Final = "plotly.min.js"
_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file below /static/."""

    name: str
    media_type: str
    content: bytes


def index_html() -> str:
    """Return the page, which refers to the static files and contains no script."""
    return files("headgate.ui").joinpath("static", "index.html").read_text(encoding="utf-8")


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all files of the page, by name.

    Raises:
        HeadgateError: plotly is not installed.
    """
    folder = files("headgate.ui").joinpath("static")
    found = {name: folder.joinpath(name).read_bytes() for name in ("app.css", *MODULES)}
    found[_PLOTLY] = _plotly()
    return {
        name: StaticFile(name=name, media_type=_TYPES[name[name.rindex(".") :]], content=content)
        for name, content in found.items()
    }


def _plotly() -> bytes:
    try:
        path = Path(str(distribution("plotly").locate_file(f"plotly/package_data/{_PLOTLY}")))
        return path.read_bytes()
    except (PackageNotFoundError, OSError):
        raise HeadgateError("the page needs plotly: pip install 'headgate[ui]'") from None
