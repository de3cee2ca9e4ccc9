"""The interpreter's switch interval while workers of this process run.

A thread that needs the interpreter asks for it after `sys.getswitchinterval()`. CPython's default, 5 ms, lets one busy
task delay the network for that long. The interval belongs to the process, not to a worker: the first worker saves it,
the last one restores it, and in between the worker that began last decides.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

__all__ = ["SwitchInterval"]

_lock: Final = threading.Lock()
_active: Final[list[SwitchInterval]] = []
_saved_s: Final = [0.0]  # the interval before the first worker


class SwitchInterval:
    """One worker's switch interval: in effect from its creation until `end`. Any thread.

    >>> before_s = sys.getswitchinterval()
    >>> one, other = SwitchInterval(0.001), SwitchInterval(0.002)
    >>> sys.getswitchinterval()
    0.002
    >>> other.end(); one.end(); sys.getswitchinterval() == before_s
    True
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        with _lock:
            if not _active:
                _saved_s[0] = sys.getswitchinterval()
            _active.append(self)
            _set_locked()

    def end(self) -> None:
        """Restore the interval of the other workers, or of the process if there are none. May be repeated."""
        with _lock:
            if self in _active:
                _active.remove(self)
                _set_locked()


def _set_locked() -> None:
    sys.setswitchinterval(_active[-1]._seconds if _active else _saved_s[0])
