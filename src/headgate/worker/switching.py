"""The interpreter's switch interval, which all workers of a process share.

The default lets one busy task keep the network thread waiting for milliseconds. Called by the environments of workers,
on any thread.
"""

from __future__ import annotations

import sys
import threading

__all__ = ["Switching", "switching"]


class Switching:
    """The first who begins notes the interval, the last who ends restores it.

    >>> shared, before_s = Switching(), sys.getswitchinterval()
    >>> shared.begin(0.001); shared.begin(0.002); sys.getswitchinterval()
    0.002
    >>> shared.end(); shared.end(); sys.getswitchinterval() == before_s
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before_s = 0.0

    def begin(self, interval_s: float) -> None:
        """A worker wants this interval."""
        with self._lock:
            if not self._users:
                self._before_s = sys.getswitchinterval()
            self._users += 1
            sys.setswitchinterval(interval_s)

    def end(self) -> None:
        """It is gone."""
        with self._lock:
            self._users -= 1
            if not self._users:
                sys.setswitchinterval(self._before_s)


switching = Switching()
"""That of this process."""
