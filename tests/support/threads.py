"""Threads whose results and errors reach the test, and which cannot hang unnoticed."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.waiting import PATIENCE_S


class Thread(threading.Thread):
    """A thread that starts at once and keeps what its function returned or raised, for `end` to hand over."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: object = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - `end` raises it on the test's thread
            self.error = error

    def end(self) -> object:
        """Join the thread, and return what its function returned or raise what it raised. Fail if it hangs."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "a thread hangs"
        if self.error is not None:
            raise self.error
        return self.result


def run_threads(*functions: Callable[[], object]) -> None:
    """Run each function on a thread of its own, all released at once; raise the first exception of any."""
    start = threading.Barrier(len(functions))

    def released(function: Callable[[], object]) -> Callable[[], object]:
        return lambda: (start.wait(PATIENCE_S), function())

    threads = [Thread(released(function)) for function in functions]
    for thread in threads:
        thread.join(PATIENCE_S)
    errors = [thread.error for thread in threads if thread.error is not None]
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


@contextmanager
def switching_often() -> Iterator[None]:
    """Make the interpreter switch between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
