"""Waits of the main thread that Ctrl-C always ends.

Python runs signal handlers on the main thread, between two bytecodes. A signal interrupts a lock that the main thread
waits for, but only if it arrives while the thread is blocked in the system call. If it arrives just before, while the
thread waits for the interpreter, for example, the C handler only sets a flag, the thread then blocks, and the
KeyboardInterrupt is raised when the lock is released: perhaps never. On a loaded machine one Ctrl-C in about 30 was
lost like this at the start of a job. So whatever a user may wait for in the main thread is waited for in short pieces:
between them the flag is seen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["wait_until"]

_PIECE_S: Final = 0.25  # the longest that a Ctrl-C waits


def wait_until(changed: threading.Condition, predicate: Callable[[], object], timeout_s: float | None = None) -> bool:
    """Block until `predicate` is true or `timeout_s` have passed, and return whether it is true.

    As `Condition.wait_for`, with the condition's lock held, but a KeyboardInterrupt is raised at most a quarter of a
    second after its signal.

    >>> import threading
    >>> changed = threading.Condition()
    >>> with changed:
    ...     wait_until(changed, lambda: False, timeout_s=0.01)
    False
    """
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not predicate():
        left_s = _PIECE_S if end_s is None else min(_PIECE_S, end_s - time.monotonic())
        if left_s <= 0:
            return False
        changed.wait(left_s)
    return True
