"""What whoever started an experiment sees meanwhile, on stderr: a chart that is drawn anew, or a line now and then.

Used on the thread that waits for the job. In a terminal that can show them, rows of a chart stand below everything
else and vanish at the end; elsewhere there is one line every so many seconds. The cursor is never hidden, so there is
nothing to restore after a hard end.

Invariant: after the block of `watching_live` nothing that was drawn is left.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

from headgate.api.running import is_terminal
from headgate.experiments.chart import LEAST_HEIGHT, LEAST_WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from headgate.experiments.chart import Row

__all__ = ["Live", "can_draw", "styled", "watching_live"]

_HIGHEST: Final = 16  # rows of a chart
_WIDEST: Final = 110
_REST: Final = 20  # times as long as a chart takes to draw, none is drawn: the job needs the processor


def can_draw(stream: TextIO) -> bool:
    """Whether a chart can be drawn there: a terminal, whose characters include braille.

    >>> import io
    >>> can_draw(io.StringIO())
    False
    """
    if not is_terminal(stream):
        return False
    try:
        "⣿│━".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def styled(rows: list[Row], console: Console) -> str:
    r"""Rows as the console would print them.

    >>> from rich.console import Console
    >>> styled([[("a", "blue"), ("b", "")]], Console(color_system=None))
    'ab\n'
    """
    from rich.text import Text  # noqa: PLC0415 - only a terminal pays for importing it

    with console.capture() as captured:
        for row in rows:
            console.print(Text.assemble(*row, no_wrap=True, overflow="crop"), crop=True)
    return captured.get()


class Live:
    r"""The view of one run; `show` decides by itself whether it is time.

    >>> import io
    >>> log = io.StringIO()
    >>> live = Live(log, every_s=60.0)
    >>> live.show(lambda width, height: [], lambda: "phase 1"); live.show(lambda width, height: [], lambda: "phase 2")
    >>> log.getvalue()
    'phase 1\n'
    """

    def __init__(self, stream: TextIO, *, every_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every_s = every_s
        self._now = now
        self._due_s: float | None = None
        self._lines = 0  # that stand there
        self._console: Console | None = None
        if can_draw(stream):
            from rich.console import Console  # noqa: PLC0415 - only a terminal pays for importing it

            self._console = Console(file=stream, force_terminal=True, highlight=False)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._write(f"{text}\n")

    def show(self, rows: Callable[[int, int], list[Row]], line: Callable[[], str]) -> None:
        """Draw what `rows` gives for a width and a height; where nothing can be drawn, write a line if one is due."""
        if self._console is None:
            now_s = self._now()
            if self._due_s is None or now_s >= self._due_s:
                self._due_s = now_s + self._every_s
                self._write(f"{line()}\n")
            return
        now_s = self._now()
        if self._due_s is not None and now_s < self._due_s:
            return
        width, height = min(_WIDEST, self._console.width - 1), min(_HIGHEST, self._console.height - 4)
        found = rows(width, height) if width >= LEAST_WIDTH and height >= LEAST_HEIGHT else [[(line(), "")]]
        text = styled(found, self._console)
        self._erase()
        self._write(text)
        self._lines = text.count("\n")
        self._due_s = self._now() + _REST * (self._now() - now_s)

    def clear(self) -> None:
        """Take away what is drawn."""
        self._erase()
        self._write("")

    def _erase(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, 0
            with suppress(OSError, ValueError):
                self._stream.write(f"\r\x1b[{lines}A\x1b[J")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody looks any more: the run goes on
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def watching_live(*, every_s: float, stream: TextIO | None = None) -> Iterator[Live]:
    """A view on stderr, as long as the block lasts.

    >>> import io
    >>> with watching_live(every_s=5.0, stream=io.StringIO()) as live:
    ...     live.say("it begins")
    """
    live = Live(sys.stderr if stream is None else stream, every_s=every_s)
    try:
        yield live
    finally:
        live.clear()
