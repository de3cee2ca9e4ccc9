"""The progress of a job in the terminal: a line per vertex, below all other output.

`show_progress` draws on stderr from a thread of its own, and only if stderr is a terminal. Other output to stdout or
stderr first erases the view and then passes through unchanged; the next tick draws the view again. The cursor is never
hidden, so nothing has to be restored after a crash.

Invariants: the view is the last output in the terminal, or absent; after `show_progress` it is erased, and `sys.stdout`
and `sys.stderr` are restored.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

from headgate.control.messages import TaskState
from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from headgate.coordinator.job import Job
    from headgate.observe.progress import Progress, VertexProgress

__all__ = ["count_text", "progress_table", "show_progress"]

_TICK_S: Final = 0.25
_BAR: Final = 10  # characters
_BUSY_ENOUGH: Final = 0.5  # from this share on a vertex is shown as busy or back-pressured
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@contextmanager
def show_progress(job: Job, *, enabled: bool | None = None, stream: TextIO | None = None) -> Iterator[None]:
    """Show a job's progress inside a `with` block. `enabled` None: if stderr is a terminal that can move its cursor.

    >>> with show_progress(None, enabled=False):
    ...     print("quiet")
    quiet
    """
    stream = sys.stderr if stream is None else stream
    if enabled is None:
        enabled = stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    if not enabled:
        yield
        return
    view = _View(job, stream)
    try:
        view.start()
        yield
    finally:
        view.close()


def count_text(number: float) -> str:
    """Return a number in at most five characters.

    >>> [count_text(one) for one in (0, 9.6, 999, 1000, 25_400, 999_999, 1.5e6, 2e9)]
    ['0', '10', '999', '1.0k', '25k', '1.0M', '1.5M', '2.0G']
    """
    for unit, letter in _UNITS:
        scaled = number / unit
        if scaled >= 0.9995:
            return f"{scaled:.1f}{letter}" if scaled < 9.95 else f"{scaled:.0f}{letter}"
    return f"{number:.0f}"


def progress_table(progress: Progress, max_rows: int) -> Table:
    """Return the view: a heading and a line for each vertex, at most `max_rows`.

    >>> from headgate.observe.progress import Progress, VertexProgress
    >>> from headgate.observe.status import JobStatus
    >>> words = VertexProgress(
    ...     id=0, name="words", parallelism=2, state=TaskState.RUNNING, records_out_per_s=1500, busy=0.3, subtasks=()
    ... )
    >>> progress = Progress(job="1", name="etl", status=JobStatus.RUNNING, uptime_s=5, workers=(), vertices=(words,))
    >>> from rich.console import Console
    >>> Console(width=60, color_system=None).print(progress_table(progress, max_rows=5))
    etl: running, 5 s      in/s  out/s
    words              2      0   1.5k  ━━━        busy 30 %
    """
    from rich.table import Table  # noqa: PLC0415 - imported only for a terminal
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    beginning = progress.status is JobStatus.CREATED
    state = "starting its workers" if beginning else f"{progress.status}, {progress.uptime_s:.0f} s"
    heading = Text(f"{progress.name}: {state}", no_wrap=True, overflow="ellipsis")
    table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("", "in/s", "out/s"):
        table.add_column(title, justify="right", no_wrap=True, min_width=5 if title else None)
    table.add_column("", no_wrap=True)
    shown = progress.vertices if len(progress.vertices) <= max_rows else progress.vertices[: max_rows - 1]
    for vertex in shown:
        rates = (count_text(vertex.records_in_per_s), count_text(vertex.records_out_per_s))
        table.add_row(Text(vertex.name), str(vertex.parallelism), *rates, _bar(vertex))
    if len(shown) < len(progress.vertices):
        table.add_row(Text(f"... and {len(progress.vertices) - len(shown)} more"))
    return table


def _bar(vertex: VertexProgress) -> Any:
    """Return a bar: green, yellow if a task is mostly busy, red if a task is mostly back-pressured."""
    from rich.text import Text  # noqa: PLC0415

    if vertex.state is not TaskState.RUNNING:
        return Text(str(vertex.state), style="red" if vertex.state is TaskState.FAILED else "dim")
    if vertex.max_back_pressured >= _BUSY_ENOUGH:
        share, colour, word = vertex.back_pressured, "red", "back-pressured"
    elif vertex.waiting > max(vertex.busy, vertex.idle):
        share, colour, word = vertex.waiting, "yellow", "waiting"
    else:
        share, colour, word = vertex.busy, "yellow" if vertex.max_busy >= _BUSY_ENOUGH else "green", "busy"
    filled = min(_BAR, round(share * _BAR))
    return Text.assemble(("━" * filled, colour), " " * (_BAR - filled), f" {word} {share:.0%}".replace("%", " %"))


class _View:
    """The view on the screen, and its thread."""

    def __init__(self, job: Job, stream: TextIO) -> None:
        self._job = job
        self._stream = stream
        self._lock = threading.RLock()  # a signal handler or a finalizer may write while this thread writes
        self._lines = 0  # of the view on the screen
        self._mid_line = False  # other output has begun a line that the view would cut
        self._closed = threading.Event()
        self._console: Console | None = None
        self._thread = threading.Thread(target=self._run, name="headgate-progress", daemon=True)
        self._replaced: list[tuple[str, TextIO, _StreamProxy]] = []

    def start(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - imported only for a terminal

        self._console = Console(file=self._stream, force_terminal=True, highlight=False)
        for name in ("stdout", "stderr"):
            real: TextIO = getattr(sys, name)
            if real.isatty():
                proxy = _StreamProxy(self, real)
                self._replaced.append((name, real, proxy))
                setattr(sys, name, proxy)
        self._thread.start()

    def close(self) -> None:
        """Erase the view. Also safe after a `start` that was interrupted."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock, suppress(OSError, ValueError):
            self._erase()
        for name, real, proxy in self._replaced:
            if getattr(sys, name) is proxy:  # else other code has replaced it since, and may still write to the proxy
                setattr(sys, name, real)

    def pass_through(self, text: str, real: TextIO) -> int:
        """Write other output to the terminal, above the view."""
        with self._lock:
            self._erase()
            if text:
                self._mid_line = not text.endswith("\n")
            return real.write(text)

    def tick(self) -> None:
        """Draw the current progress, unless other output has begun a line."""
        with self._lock:
            if not self._mid_line and not self._job.status.over:
                self._draw()

    def _run(self) -> None:
        while not self._closed.wait(_TICK_S):
            try:
                self.tick()
            except (OSError, ValueError):  # the terminal is closed
                return

    def _draw(self) -> None:
        console = self._console
        assert console is not None, "start() makes it before the thread"
        with console.capture() as captured:
            console.print(progress_table(self._job.last_progress, max(1, console.height - 2)), crop=True)
        text = captured.get()
        self._erase(flush=False)
        self._stream.write(text)
        self._stream.flush()
        self._lines = text.count("\n")

    def _erase(self, *, flush: bool = True) -> None:
        if self._lines:
            self._stream.write(f"\r\x1b[{self._lines}A\x1b[J")
            self._lines = 0
            if flush:
                self._stream.flush()


class _StreamProxy:
    """Replaces `sys.stdout` or `sys.stderr` while the view is shown."""

    def __init__(self, view: _View, real: TextIO) -> None:
        self._view = view
        self._real = real

    def write(self, text: str) -> int:
        return self._view.pass_through(text, self._real)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
