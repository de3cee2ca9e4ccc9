"""`headgate top`: a live view of a job in the terminal.

The main thread draws and reads keys; one thread requests views, another requests the diagnosis when the user asks for
it. Invariant: after the command the terminal has its former mode.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live

from headgate.api.running import is_terminal, showing_activity
from headgate.attach import AttachedJob, KeptJob
from headgate.cli.job_argument import JobOrFile, chosen_job
from headgate.cli.keys import KeyReader, read_keys
from headgate.cli.top_screen import TopPanel, TopState, screen
from headgate.errors import HeadgateError
from headgate.observe.view import JobView

__all__ = ["top"]

_TICK_S: Final = 0.1  # until a key or a new view is shown
_PIPE_WIDTH: Final = 140  # without a terminal
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def top(
    job: JobOrFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print the job once.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two views of the job.")
    ] = 1.0,
) -> None:
    """Watch a job in the terminal: the time of each vertex, rates, queues, latency, lag, hot keys.

    Up and down (or k and j) choose a vertex, Enter shows its subtasks, e the credit and backlog of its channels,
    w finds out what limits the job, Escape closes these, q or Ctrl-C ends. Without a terminal, it prints the job once.

    Example: headgate top word_count
    """
    chosen = chosen_job(job)
    if once or not is_terminal(sys.stdout):
        with showing_activity("looking at the job"):
            view = chosen.view(timeline=isinstance(chosen, KeptJob))
        _print(view)
        return
    with showing_activity("looking at the job"):
        feed = _ViewFeed(chosen, interval)
    feed.start()
    shown = TopState()
    while not _watch(feed, shown):
        os.kill(os.getpid(), signal.SIGSTOP)  # Ctrl-Z; the command continues here with SIGCONT
    feed.stop()


def _print(view: JobView) -> None:
    terminal = sys.stdout.isatty()
    width = None if terminal or os.environ.get("COLUMNS", "").isdecimal() else _PIPE_WIDTH
    console = Console(width=width, highlight=False)
    for line in screen(view, TopState(fancy=_is_fancy(console)), console.width):
        line.rstrip()
        console.print(line, crop=False, soft_wrap=True)


def _is_fancy(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


class _ViewFeed:
    """The last view of a job, renewed at every interval."""

    def __init__(self, job: AttachedJob | KeptJob, interval_s: float) -> None:
        self._job = job
        self._interval_s = interval_s
        self._over = threading.Event()
        self.view: JobView = job.view(timeline=isinstance(job, KeptJob))
        self.error = ""
        self.answer = ""
        self.asked_s: float | None = None  # the start of a request for a diagnosis in progress

    def start(self) -> None:
        threading.Thread(target=self._renew, name="headgate-views", daemon=True).start()

    def stop(self) -> None:
        """Request no more views; a request in progress is not waited for."""
        self._over.set()

    def ask_why(self) -> None:
        """Request a diagnosis, unless one is in progress."""
        if self.asked_s is None:
            self.asked_s = time.monotonic()
            threading.Thread(target=self._why, name="headgate-why", daemon=True).start()

    def _renew(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                view = self._job.view()
                if view.progress.status.over and self.view.timeline is None:
                    view = self._job.view(timeline=True)  # the rates of a job that is over are 0: show its history
                elif view.progress.status.over:
                    continue
                self.view, self.error = view, ""
            except HeadgateError as error:
                self.error = str(error)

    def _why(self) -> None:
        from headgate.observe.why import render  # noqa: PLC0415 - rarely needed

        try:
            self.answer = render(self._job.why(refresh=bool(self.answer)))
        except HeadgateError as error:
            self.answer = str(error)
        self.asked_s = None


def _watch(feed: _ViewFeed, shown: TopState) -> bool:
    """Show a job until the user ends it. Return False if Ctrl-Z suspends it instead."""
    console = Console(highlight=False)
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    shown.keys, shown.fancy = terminal is not None, _is_fancy(console)
    with (
        _signals() as is_suspended,
        read_keys(terminal) as keys,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        last: object = None
        while not is_suspended():
            shown.note, shown.why = feed.error, _why_text(feed)
            now = (id(feed.view), shown.note, shown.why, console.size, shown.vertex, shown.panel, shown.scroll)
            if now != last:
                live.update(Group(*screen(feed.view, shown, *console.size)), refresh=True)
                last = now
            try:
                if _handle_key(keys, feed, shown):
                    return True
            except EOFError:  # the terminal was closed
                return True
    return False


def _why_text(feed: _ViewFeed) -> str:
    if feed.asked_s is not None:
        return f"finding out, which may take some seconds ... {time.monotonic() - feed.asked_s:.0f} s"
    return feed.answer


_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -sys.maxsize, "end": sys.maxsize}
_SCROLLS: Final = {"page up": -1, "b": -1, "page down": 1, " ": 1}
_PANELS: Final = {"enter": TopPanel.SUBTASKS, "e": TopPanel.CHANNELS, "w": TopPanel.WHY}


def _handle_key(keys: KeyReader, feed: _ViewFeed, shown: TopState) -> bool:
    """Handle the next key. Return True if it ends the command."""
    key = keys.read(_TICK_S)
    if key in {"q", "Q"}:
        return True
    if key in _MOVES:
        shown.vertex = shown.vertex + _MOVES[key]  # `screen` limits it to the vertices
    elif key in _SCROLLS:
        shown.scroll += _SCROLLS[key] * shown.height
    elif key in _PANELS or key == "escape":
        wanted = _PANELS.get(key, TopPanel.NONE)
        again = wanted is shown.panel and wanted is not TopPanel.WHY
        shown.panel, shown.scroll = TopPanel.NONE if again else wanted, 0
        if wanted is TopPanel.WHY:
            feed.ask_why()
    return False


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Turn signals that end the process into SystemExit; yield a function that returns True after Ctrl-Z."""
    suspended = False

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    def suspend(_number: int, _frame: Any) -> None:
        nonlocal suspended
        suspended = True

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield lambda: suspended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
