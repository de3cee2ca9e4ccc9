"""Charts of characters for the terminal: lines of braille dots over time, under a scale and above the phases.

Pure: panels in, rows out; a row is a list of (text, style) pieces, which the live view prints and tests read. A
character is two dots wide and four high. Where lines meet, a character belongs to all of them and has its own style.

Invariant: every row is at most as wide as was asked for, and there are as many as was asked for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headgate.experiments.panels import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.experiments.panels import Line, Panel

__all__ = ["LEAST_HEIGHT", "LEAST_WIDTH", "Row", "draw_rows", "plain"]

Row = list[tuple[str, str]]
"""A line of the terminal: pieces of text, each with the name of its style."""

LEAST_WIDTH: Final = 30
"""Characters below which there is no chart."""
LEAST_HEIGHT: Final = 6
"""Likewise rows."""

_STYLES: Final = ("blue", "dark_orange", "green", "magenta")
_ALL: Final = "bold"  # where lines meet
_DIM: Final = "dim"
_LABEL: Final = 8  # characters of the scale
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character: rows, then columns


def plain(rows: Sequence[Row]) -> str:
    r"""The rows as text.

    >>> plain([[("a", "blue"), ("b", "")], [("c", "")]])
    'ab\nc'
    """
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def draw_rows(panel: Panel, *, width: int, height: int, end_s: float, top: float) -> list[Row]:
    """A panel from second 0 to `end_s` and from 0 to `top`, in so many columns and rows of the terminal.

    >>> from headgate.experiments.panels import Line, Panel, Span
    >>> up = Line("it", (0.0, 10.0), (0.0, 100.0))
    >>> panel = Panel(title="Speed", y_label="%", lines=(up,), spans=(Span(0.0, 5.0, "first"),), words="")
    >>> print(plain(draw_rows(panel, width=30, height=6, end_s=10.0, top=100.0)))
    Speed, %  ━ it
         100 │             ⢀⣀⡠⠤⠒⠒⠉
             │      ⢀⣀⠤⠤⠒⠒⠉⠁
           0 │⣀⠤⠤⠒⠊⠉⠁
             └┬───────────────────
              first
    """
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        raise ValueError(f"a chart needs {LEAST_WIDTH} columns and {LEAST_HEIGHT} rows")
    columns, rows = width - _LABEL - 2, height - 3
    cells = [[[0] * len(panel.lines) for _ in range(columns)] for _ in range(rows)]
    for number, line in enumerate(panel.lines):
        for x, y in _dots(line, 2 * columns, 4 * rows, end_s, top):
            cells[rows - 1 - y // 4][x // 2][number] |= _DOTS[3 - y % 4][x % 2]
    drawn: list[Row] = [_heading(panel, width)]
    for at, row in enumerate(cells):
        label = {0: top, rows - 1: 0.0}.get(at)
        text = "" if label is None else f"{label:,.4g}"
        drawn.append([(f"{text:>{_LABEL}} │", _DIM), *_pieces(row, panel.lines)])
    return [*drawn, *_axis(panel, columns, end_s)]


def _heading(panel: Panel, width: int) -> Row:
    row: Row = [(f"{panel.title}, {panel.y_label}", "bold")]
    for number, line in enumerate(panel.lines):
        row.append((f"  {_mark(line)} {line.name}", _style(number, line)))
    left = width
    cut: Row = []
    for text, style in row:
        cut.append((text[:left], style))
        left -= len(cut[-1][0])
    return cut


def _mark(line: Line) -> str:
    return {Kind.LINE: "━", Kind.POINTS: "•", Kind.LIMIT: "┄"}[line.kind]


def _style(number: int, line: Line) -> str:
    return _DIM if line.kind is Kind.LIMIT else _STYLES[number % len(_STYLES)]


def _dots(line: Line, columns: int, rows: int, end_s: float, top: float) -> list[tuple[int, int]]:
    """The dots of a line: its values as one for each column, the steps between them filled."""
    found: list[list[float]] = [[] for _ in range(columns)]
    for x, y in zip(line.x, line.y, strict=True):
        if y is not None and 0 <= x <= end_s:
            found[min(columns - 1, int(x / end_s * columns))].append(min(max(y / top, 0.0), 1.0) * (rows - 1))
    if line.kind is Kind.POINTS:
        return [(x, round(y)) for x, values in enumerate(found) for y in values]
    heights = _between([sum(values) / len(values) if values else None for values in found], _gap(line, columns, end_s))
    dots, before = [], None
    for x, height in enumerate(heights):
        if height is not None:
            y = round(height)
            near = y if before is None or before == y else before + (1 if before < y else -1)
            dots += [(x, one) for one in range(min(near, y), max(near, y) + 1)]
            before = y
        else:
            before = None
    return dots if line.kind is Kind.LINE else [(x, y) for x, y in dots if x % 4 < 2]


def _gap(line: Line, columns: int, end_s: float) -> int:
    """How many columns are between two values that follow each other, at most; beyond that something is missing."""
    known = [x for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if len(line.x) < 2 or len(known) < 2:
        return 1
    step = max(after - before for before, after in pairwise(line.x))
    return int(step / end_s * columns) + 2


def _between(heights: list[float | None], gap: int) -> list[float | None]:
    """With what lies between two columns that have values, unless they are too far apart."""
    filled = list(heights)
    known = [x for x, height in enumerate(heights) if height is not None]
    for left, right in pairwise(known):
        low, high = heights[left], heights[right]
        assert low is not None, "it is known"
        assert high is not None, "it is known"
        if right - left <= gap:
            for x in range(left + 1, right):
                filled[x] = low + (high - low) * (x - left) / (right - left)
    return filled


def _pieces(cells: Sequence[Sequence[int]], lines: Sequence[Line]) -> Row:
    """A row of characters, those of one style in one piece."""
    row: Row = []
    for cell in cells:
        owners = [number for number, dots in enumerate(cell) if dots]
        style = "" if not owners else _style(owners[0], lines[owners[0]]) if len(owners) == 1 else _ALL
        dots = 0
        for one in cell:
            dots |= one
        character = chr(0x2800 | dots) if dots else " "
        if row and row[-1][1] == style:
            row[-1] = (row[-1][0] + character, style)
        else:
            row.append((character, style))
    return row


def _axis(panel: Panel, columns: int, end_s: float) -> list[Row]:
    """The line below, with a mark where each phase begins, and their names as far as there is room."""
    line, names = ["─"] * columns, [" "] * columns
    for span in panel.spans:
        at = int(span.begin_s / end_s * columns)
        if not 0 <= at < columns:
            continue
        line[at] = "┬"
        room = max(0, min(columns, int(span.end_s / end_s * columns)) - at - 1)
        for offset, character in enumerate(span.name[:room]):
            names[at + offset] = character
    margin = " " * _LABEL
    return [[(f"{margin} └{''.join(line)}", _DIM)], [(f"{margin}  {''.join(names)}".rstrip(), _DIM)]]
