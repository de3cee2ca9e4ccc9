"""The timer on which the network thread rests: a `timerfd`.

Other threads re-arm it without waking the network thread. A condition variable with a timeout cannot do that: the
resting thread would have to wake up to learn of the new time, and each wake-up takes the interpreter from a task.
Python 3.11 has no `timerfd`, so the two calls are made through `ctypes`.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from typing import Any, Final

__all__ = ["RestTimer"]

_SPEC: Final = struct.Struct("=qqqq")  # struct itimerspec: interval and delay, each in seconds and nanoseconds
_library: Any = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None


class RestTimer:
    """A one-shot timer that one thread blocks on and any thread re-arms. Linux only.

    >>> timer = RestTimer()
    >>> timer.set(3600 * 10**9); timer.set(1); timer.wait()
    >>> timer.close()
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd: int = _library.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._fd < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    def set(self, delay_ns: int) -> None:
        """Re-arm: fire once after `delay_ns`, dropping any pending expiry. Wakes no thread. From any thread.

        After `close` it has no effect: the descriptor is no timer any more, or the timer of another loop, whose network
        thread then wakes up early once.
        """
        _library.timerfd_settime(self._fd, 0, _SPEC.pack(0, 0, *divmod(delay_ns, 1_000_000_000)), None)

    def wait(self) -> None:
        """Block until the timer fires; return at once if it has fired since the last wait."""
        os.read(self._fd, 8)

    def close(self) -> None:
        """Close the descriptor; no thread may wait any more."""
        os.close(self._fd)
