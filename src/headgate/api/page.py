"""The page of this process: one server for all its jobs, started when the first of them asks for it.

Called by the environment before a job is started, and by `headgate run`; for any thread. It stays until the process
ends or `close_page` is called, so that a finished job can still be looked at.

Invariants: one server per process; its address is printed once, on stderr; of jobs that are over, the last few are
kept, and none before the page is open.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.api.running import unfinished
from headgate.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headgate.api.defaults import Page
    from headgate.coordinator.job import Job
    from headgate.observe.view import Watched
    from headgate.ui import UiServer

__all__ = ["close_page", "keep_page", "open_page", "show_job"]

_KEPT: Final = 16  # jobs that can be looked at although they are over

_lock = threading.Lock()
_server: UiServer | None = None
_shown: deque[Job] = deque(maxlen=_KEPT)


def open_page(options: Page) -> str:
    """Start the page, unless it is there, and return its address.

    Raises:
        ConfigError: `headgate[ui]` is not installed, the port is in use, or the page that is there allows less.

    >>> from headgate.api.defaults import Page
    >>> first, again = open_page(Page()), open_page(Page())
    >>> first == again, close_page()
    (True, None)
    """
    global _server  # noqa: PLW0603 - there is one per process
    from headgate.ui import UiServer  # noqa: PLC0415 - only where it is used

    with _lock:
        if _server is None:
            server = UiServer(_jobs, port=options.port, allow_control=options.allow_control)
            sys.stderr.write(f"headgate: the page is at {server.start()}\n")
            sys.stderr.flush()
            _server = server
            atexit.register(close_page)
        elif options.allow_control and not _server.allow_control:
            raise ConfigError("this process has a page that only shows jobs: ask for control before its first job")
        return _server.url


def show_job(job: Job) -> None:
    """Let a job be seen on the page, if there is one, also after its end.

    >>> show_job(None)
    """
    with _lock:
        if _server is not None:
            _shown.append(job)


def _jobs() -> Mapping[str, Watched]:
    with _lock:
        shown = list(_shown)
    return {str(job.id): job for job in [*shown, *unfinished()]}


def close_page() -> None:
    """End the page, if there is one.

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
            threading.Event().wait()
    except KeyboardInterrupt:
        sys.stderr.write("\n")


def _line() -> str:
    """A line that somebody types; "": nobody can."""
    try:
        return sys.stdin.readline()
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return ""
