"""The network thread of an event loop, and callbacks whose errors go to the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["THREAD_NAME", "Callback", "NetworkThread", "call_logged"]

THREAD_NAME: Final = "headgate-network"
"""The name of every loop's thread."""

Callback = Callable[[], object]
"""A function that an event loop runs; the value that it returns is ignored."""

_log = logging.getLogger(__name__)


def call_logged(callback: Callback) -> None:
    """Call a callback; log the error that it raises.

    >>> call_logged(lambda: print("hello"))
    hello
    """
    try:
        callback()
    except BaseException:  # noqa: BLE001 - also SystemExit: without this thread the worker would block without an error
        _log.exception("%r failed on the network thread", callback)


class NetworkThread:
    """The thread of an event loop: started once, joined by other threads.

    >>> thread = NetworkThread(lambda: print(thread.is_current_or_dead))
    >>> thread.start(); thread.join()
    True
    """

    __slots__ = ("_thread",)

    def __init__(self, run: Callback) -> None:
        self._thread = threading.Thread(target=run, name=THREAD_NAME, daemon=True)

    @property
    def started(self) -> bool:
        """True from `start` on, also after the thread's end."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    @property
    def is_current_or_dead(self) -> bool:
        """True if the caller is this thread, or the thread does not run: the caller may then touch the loop."""
        return self._thread.ident == threading.get_ident() or not self.alive

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def join(self) -> None:
        """Block until the thread's end, unless it was not started or is the caller."""
        if not self.is_current_or_dead:
            self._thread.join()
