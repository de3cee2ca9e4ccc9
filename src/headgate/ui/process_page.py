"""The web page of this process: one server for all its jobs, started when the first job asks for it.

Called by the environment before a job is started, and by `headgate run`; from any thread. The server runs until the
process ends or `close_page` is called, so that a finished job can still be inspected.

Invariants: one server per process; its address is printed once, on stderr; of the jobs that have ended, the last 16 are
kept, and none before the page is open.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate.errors import ConfigError
from headgate.interrupts import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headgate.config.defaults import Page
    from headgate.coordinator.job import Job
    from headgate.observe.view import ObservedJob
    from headgate.ui import UiServer

__all__ = ["close_page", "keep_page", "open_page", "show_job"]

_KEPT: Final = 16  # jobs that can be inspected after their end

_lock = threading.Lock()
_server: UiServer | None = None
_shown: deque[Job] = deque(maxlen=_KEPT)


def open_page(options: Page, running: Callable[[], Iterable[Job]]) -> str:
    """Start the page, unless it runs already, and return its address.

    Args:
        options: Its port, and whether it can cancel jobs.
        running: Returns the jobs of this process that have not ended; asked for every answer of the page.

    Raises:
        ConfigError: `headgate[ui]` is not installed, the port is in use, or the page that runs allows less.

    >>> from headgate.config.defaults import Page
    >>> first, again = open_page(Page(), list), open_page(Page(), list)
    >>> first == again, close_page()
    (True, None)
    """
    global _server  # noqa: PLW0603 - there is one per process
    from headgate.ui import UiServer  # noqa: PLC0415 - only where it is used

    with _lock:
        if _server is None:
            server = UiServer(partial(_jobs, running), port=options.port, allow_control=options.allow_control)
            sys.stderr.write(f"headgate: the page is at {server.start()}\n")
            sys.stderr.flush()
            _server = server
            atexit.register(close_page)
        elif options.allow_control and not _server.allow_control:
            raise ConfigError("this process has a page that only shows jobs: ask for control before its first job")
        return _server.url


def show_job(job: Job) -> None:
    """Show a job on the page, if there is one, also after its end.

    >>> show_job(None)
    """
    with _lock:
        if _server is not None:
            _shown.append(job)


def _jobs(running: Callable[[], Iterable[Job]]) -> Mapping[str, ObservedJob]:
    with _lock:
        shown = list(_shown)
    return {str(job.id): job for job in [*shown, *running()]}


def close_page() -> None:
    """Stop the page, if there is one.

    >>> close_page()
    """
    global _server
    with _lock:
        server, _server = _server, None
        _shown.clear()
    if server is not None:
        atexit.unregister(close_page)
        server.close()


def keep_page() -> None:
    """Wait for Enter or Ctrl-C, if there is a page.

    >>> keep_page()
    """
    if _server is None:
        return
    sys.stderr.write(f"headgate: the page stays at {_server.url} until Enter or Ctrl-C\n")
    sys.stderr.flush()
    try:
        if not _line():
            until_ctrl_c = threading.Condition()
            with until_ctrl_c:
                wait_until(until_ctrl_c, lambda: False)
    except KeyboardInterrupt:
        sys.stderr.write("\n")


def _line() -> str:
    """Return a line of stdin; "" if there is no stdin, or it is at its end."""
    try:
        return sys.stdin.readline()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return ""
