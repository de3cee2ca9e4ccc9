"""Waiting, with a limit, for what another thread or process does."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""The limit of every wait: far more than anything takes, so that reaching it means a hang."""


def wait_until(condition: Callable[[], T], what: str = "the condition") -> T:
    """Call `condition` until its result is true, and return that result. Fail after `PATIENCE_S`."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.001)
    return found


class Watched:
    """An object that one thread changes inside `change` while the test blocks in `wait`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    @contextmanager
    def change(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def wait(self, until: Callable[[], object], what: str = "the condition") -> None:
        """Block until `until` is true. Fail after `PATIENCE_S`."""
        with self._changed:
            assert self._changed.wait_for(until, PATIENCE_S), f"{what} did not happen"
