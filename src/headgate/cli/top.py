"""`headgate top`: a job in the terminal, live; for people on ssh.

The main thread draws and reads keys; one thread asks the job again and again, another asks why, when somebody wants to
know. Invariant: whatever ends it, the terminal is afterwards as it was.
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

from headgate.api.running import is_terminal, saying
from headgate.attach import AttachedJob, KeptJob
from headgate.cli.keys import Keys, pressed_keys
from headgate.cli.looking import JobOrFile, chosen_job
from headgate.cli.top_screen import Panel, Shown, screen
from headgate.errors import HeadgateError
from headgate.observe.view import JobView

__all__ = ["top"]

_TICK_S: Final = 0.1  # within which a key or a new view is shown
_PIPE_WIDTH: Final = 140  # where no terminal says how wide it is
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def top(
    job: JobOrFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two looks at the job.")
    ] = 1.0,
) -> None:
    """Watch a job in the terminal: what each vertex spends its time with, rates, queues, latency, lag, hot keys.

    Up and down (or k and j) choose a vertex, Enter shows its subtasks, e the credit and backlog of its channels,
    w asks what holds the job back, Escape closes that, q or Ctrl-C ends. Without a terminal it is printed once.

    Example: headgate top word_count
    """
    watched = chosen_job(job)
    if once or not is_terminal(sys.stdout):
        with saying("looking at the job"):
            view = watched.view(timeline=isinstance(watched, KeptJob))
        _print(view)
        return
    with saying("looking at the job"):
        feed = _Feed(watched, interval)
    feed.start()
    shown = Shown()
    while not _watch(feed, shown):
        os.kill(os.getpid(), signal.SIGSTOP)  # Ctrl-Z; here it goes on when the user wants it to
    feed.stop()


def _print(view: JobView) -> None:
    terminal = sys.stdout.isatty()
    width = None if terminal or os.environ.get("COLUMNS", "").isdecimal() else _PIPE_WIDTH
    console = Console(width=width, highlight=False)
    for line in screen(view, Shown(fancy=_is_fancy(console)), console.width):
        line.rstrip()
        console.print(line, crop=False, soft_wrap=True)


def _is_fancy(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


class _Feed:
    """The last view of a job, as new as the interval says."""

    def __init__(self, job: AttachedJob | KeptJob, interval_s: float) -> None:
        self._job = job
        self._interval_s = interval_s
        self._over = threading.Event()
        self.view: JobView = job.view(timeline=isinstance(job, KeptJob))
        self.trouble = ""
        self.answer = ""
        self.asked_s: float | None = None  # since when an answer is waited for

    def start(self) -> None:
        threading.Thread(target=self._look, name="headgate-look", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. What is being asked is not waited for."""
        self._over.set()

    def ask_why(self) -> None:
        """Begin to find out why, unless that was begun."""
        if self.asked_s is None:
            self.asked_s = time.monotonic()
            threading.Thread(target=self._why, name="headgate-why", daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                view = self._job.view()
                if view.progress.status.over and self.view.timeline is None:
                    view = self._job.view(timeline=True)  # rates are over: what it did all its life is more
                elif view.progress.status.over:
                    continue
                self.view, self.trouble = view, ""
            except HeadgateError as error:
                self.trouble = str(error)

    def _why(self) -> None:
        from headgate.observe.why import render  # noqa: PLC0415 - only who asks pays

        try:
            self.answer = render(self._job.why(refresh=bool(self.answer)))
        except HeadgateError as error:
            self.answer = str(error)
        self.asked_s = None


def _watch(feed: _Feed, shown: Shown) -> bool:
    """Show a job until the user has seen enough; False: until the user wants to do something else in between."""
    console = Console(highlight=False)
    terminal = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    shown.keys, shown.fancy = terminal is not None, _is_fancy(console)
    with (
        _signals() as suspended,
        pressed_keys(terminal) as keys,
        Live(console=console, screen=True, auto_refresh=False, transient=True) as live,
    ):
        last: object = None
        while not suspended():
            shown.note, shown.why = feed.trouble, _why_text(feed)
            now = (id(feed.view), shown.note, shown.why, console.size, shown.vertex, shown.panel, shown.scroll)
            if now != last:
                live.update(Group(*screen(feed.view, shown, *console.size)), refresh=True)
                last = now
            try:
                if _pressed(keys, feed, shown):
                    return True
            except EOFError:  # the terminal is gone
                return True
    return False


def _why_text(feed: _Feed) -> str:
    if feed.asked_s is not None:
        return f"looking, which may take some seconds ... {time.monotonic() - feed.asked_s:.0f} s"
    return feed.answer


_MOVES: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "home": -sys.maxsize, "end": sys.maxsize}
_SCROLLS: Final = {"page up": -1, "b": -1, "page down": 1, " ": 1}
_PANELS: Final = {"enter": Panel.SUBTASKS, "e": Panel.CHANNELS, "w": Panel.WHY}


def _pressed(keys: Keys, feed: _Feed, shown: Shown) -> bool:
    """Do what the next key says; whether it says that this is the end."""
    key = keys.read(_TICK_S)
    if key in {"q", "Q"}:
        return True
    if key in _MOVES:
        shown.vertex = shown.vertex + _MOVES[key]  # `screen` keeps it within what there is
    elif key in _SCROLLS:
        shown.scroll += _SCROLLS[key] * shown.height
    elif key in _PANELS or key == "escape":
        wanted = _PANELS.get(key, Panel.NONE)
        again = wanted is shown.panel and wanted is not Panel.WHY
        shown.panel, shown.scroll = Panel.NONE if again else wanted, 0
        if wanted is Panel.WHY:
            feed.ask_why()
    return False


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Let a signal that would end the process leave the block in order; tell of Ctrl-Z."""
    asked = False

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    def suspend(_number: int, _frame: Any) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, suspend)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
