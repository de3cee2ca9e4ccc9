"""The view of an experiment in the terminal: a chart of braille characters, redrawn, or a line every few seconds.

A character is two dots wide and four high. Where lines meet, the character belongs to all of them and has its own
style. The chart is below all other output and is erased at the end. The cursor is never hidden, so a killed process
leaves nothing to restore.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TextIO

from headgate.api.running import is_terminal
from headgate.bench.charts import LineKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from headgate.bench.charts import ChartPanel, Line

__all__ = [
    "LEAST_HEIGHT",
    "LEAST_WIDTH",
    "LiveView",
    "TextRow",
    "can_draw",
    "draw_rows",
    "plain",
    "styled",
    "watching_live",
]

TextRow = list[tuple[str, str]]
"""A line of the terminal: pieces of text, each with the name of its style."""

LEAST_WIDTH: Final = 30
"""Characters of the smallest chart."""
LEAST_HEIGHT: Final = 6
"""Rows of the smallest chart."""

_STYLES: Final = ("blue", "dark_orange", "green", "magenta")
_ALL: Final = "bold"  # where lines meet
_DIM: Final = "dim"
_LABEL: Final = 8  # characters of the scale
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character: rows, then columns
_HIGHEST: Final = 16  # rows of a chart
_WIDEST: Final = 110
_PAUSE: Final = 20  # times as long as a chart takes to draw, none is drawn: the job needs the processor


def plain(rows: Sequence[TextRow]) -> str:
    """Return the rows as text."""
    return "\n".join("".join(text for text, _ in row).rstrip() for row in rows)


def draw_rows(panel: ChartPanel, *, width: int, height: int, end_s: float, top: float) -> list[TextRow]:
    """Draw a panel from second 0 to `end_s` and from 0 to `top`, in `height` rows of at most `width` characters.

    >>> from headgate.bench.charts import ChartPanel, Line, Span
    >>> up = Line("it", (0.0, 10.0), (0.0, 100.0))
    >>> panel = ChartPanel(title="Speed", y_label="%", lines=[up], spans=[Span(0.0, 5.0, "first")])
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
    drawn: list[TextRow] = [_heading(panel, width)]
    for at, row in enumerate(cells):
        label = {0: top, rows - 1: 0.0}.get(at)
        text = "" if label is None else f"{label:,.4g}"
        drawn.append([(f"{text:>{_LABEL}} │", _DIM), *_pieces(row, panel.lines)])
    return [*drawn, *_axis(panel, columns, end_s)]


def _heading(panel: ChartPanel, width: int) -> TextRow:
    row: TextRow = [(f"{panel.title}, {panel.y_label}", "bold")]
    for number, line in enumerate(panel.lines):
        row.append((f"  {_mark(line)} {line.name}", _style(number, line)))
    left = width
    cut: TextRow = []
    for text, style in row:
        cut.append((text[:left], style))
        left -= len(cut[-1][0])
    return cut


def _mark(line: Line) -> str:
    return {LineKind.LINE: "━", LineKind.POINTS: "•", LineKind.LIMIT: "┄"}[line.kind]


def _style(number: int, line: Line) -> str:
    return _DIM if line.kind is LineKind.LIMIT else _STYLES[number % len(_STYLES)]


def _dots(line: Line, columns: int, rows: int, end_s: float, top: float) -> list[tuple[int, int]]:
    """Return the dots of a line: the mean of each column, the steps between them filled."""
    found: list[list[float]] = [[] for _ in range(columns)]
    for x, y in zip(line.x, line.y, strict=True):
        if y is not None and 0 <= x <= end_s:
            found[min(columns - 1, int(x / end_s * columns))].append(min(max(y / top, 0.0), 1.0) * (rows - 1))
    if line.kind is LineKind.POINTS:
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
    return dots if line.kind is LineKind.LINE else [(x, y) for x, y in dots if x % 4 < 2]


def _gap(line: Line, columns: int, end_s: float) -> int:
    """Return the most columns between two successive values; a larger distance is a gap."""
    known = [x for x, y in zip(line.x, line.y, strict=True) if y is not None]
    if len(line.x) < 2 or len(known) < 2:
        return 1
    step = max(after - before for before, after in pairwise(line.x))
    return int(step / end_s * columns) + 2


def _between(heights: list[float | None], gap: int) -> list[float | None]:
    """Interpolate between two columns with values, unless their distance is a gap."""
    filled = list(heights)
    known = [x for x, height in enumerate(heights) if height is not None]
    for left, right in pairwise(known):
        low, high = heights[left], heights[right]
        assert low is not None, "known columns have a height"
        assert high is not None, "known columns have a height"
        if right - left <= gap:
            for x in range(left + 1, right):
                filled[x] = low + (high - low) * (x - left) / (right - left)
    return filled


def _pieces(cells: Sequence[Sequence[int]], lines: Sequence[Line]) -> TextRow:
    """Return a row of characters, those of one style in one piece."""
    row: TextRow = []
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


def _axis(panel: ChartPanel, columns: int, end_s: float) -> list[TextRow]:
    """Return the axis with a mark at the start of each phase, and below it their names, cut to their room."""
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


def can_draw(stream: TextIO) -> bool:
    """Return True for a terminal whose characters include braille."""
    if not is_terminal(stream):
        return False
    try:
        "⣿│━".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def styled(rows: list[TextRow], console: Console) -> str:
    """Return rows as the console prints them."""
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for importing it

    with console.capture() as captured:
        for row in rows:
            console.print(Text.assemble(*row, no_wrap=True, overflow="crop"), crop=True)
    return captured.get()


class LiveView:
    """The view of one run. `show` decides by itself when to draw."""

    def __init__(self, stream: TextIO, *, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every_s = every_s
        self._now = now
        self._due_s: float | None = None
        self._lines = 0  # of the chart that is drawn
        self._console: Console | None = None
        if can_draw(stream):
            from rich.console import Console  # noqa: PLC0415 - only a terminal pays for importing it

            self._console = Console(file=stream, force_terminal=True, highlight=False)

    def print_line(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"{text}\n")

    def show(self, rows: Callable[[int, int], list[TextRow]], line: Callable[[], str]) -> None:
        """Draw what `rows` returns for a width and a height; without a terminal, write a line if one is due."""
        now_s = self._now()
        if self._due_s is not None and now_s < self._due_s:
            return
        if self._console is None:
            self._due_s = now_s + self._every_s
            self._write(f"{line()}\n")
            return
        width, height = min(_WIDEST, self._console.width - 1), min(_HIGHEST, self._console.height - 4)
        found = rows(width, height) if width >= LEAST_WIDTH and height >= LEAST_HEIGHT else [[(line(), "")]]
        text = styled(found, self._console)
        self._erase()
        self._write(text)
        self._lines = text.count("\n")
        self._due_s = self._now() + _PAUSE * (self._now() - now_s)

    def clear(self) -> None:
        """Erase the chart."""
        self._erase()
        self._write("")

    def _erase(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, 0
            with suppress(OSError, ValueError):
                self._stream.write(f"\r\x1b[{lines}A\x1b[J")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is closed: the run goes on
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def watching_live(*, every_s: float, stream: TextIO | None = None) -> Iterator[LiveView]:
    """Yield a view on stderr, which is erased at the end of the block."""
    live = LiveView(sys.stderr if stream is None else stream, every_s=every_s)
    try:
        yield live
    finally:
        live.clear()
