"""A loop that is driven by whichever thread has nothing better to do.

Changing threads is costly, in CPython above all. So a task that would go to sleep, waiting for input or for an
output buffer, takes the loop over and does the network's work itself until it has what it waits for; and a task that
has something to send, while nobody drives, sends it. The network thread steps in when no task has come for a moment,
or when a task left while another sleeps.

Whoever holds `_turn_lock` drives. Invariants: with a task asleep, somebody drives or has been called; what `call_soon`
was given is run by whoever drives, or by its caller if nobody does, or by the network thread within a moment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

from headgate.net.loop import EpollLoop

if TYPE_CHECKING:
    from headgate.net.loop import Call
    from headgate.sync import Sleeper

__all__ = ["SharedLoop"]

_log = logging.getLogger(__name__)

_MOMENT_S: Final = 0.001  # how long the network thread waits for a task to come and drive


class SharedLoop(EpollLoop):
    """An epoll loop for a worker's network thread and its task threads together.

    >>> from headgate.sync import ThreadSync
    >>> loop, sync = SharedLoop(), ThreadSync()
    >>> sync.driver = loop; loop.start()
    >>> waiter = sync.waiter()
    >>> loop.call_soon(waiter.wake); waiter.wait(timeout_s=None)
    True
    >>> loop.stop(); loop.join()
    """

    def __init__(self) -> None:
        super().__init__()
        self._turn_lock = threading.Lock()
        self._driver = 0  # the thread that holds it
        self._rest_lock = threading.Lock()  # taken while the network thread rests; released to call it
        self._rest_lock.acquire()
        self._asleep: dict[Sleeper, None] = {}  # tasks that sleep without driving
        self._interrupted = False  # by Ctrl-C, in a turn of the main thread
        self._helped = False  # a task has driven since the network thread last looked
        self._sleeper: Sleeper | None = None  # the task that drives
        self._deadline_ns: int | None = None  # when that has waited long enough

    @property
    def here(self) -> bool:
        """Whether the caller may touch the loop: it drives, or nobody can."""
        return self._driver == threading.get_ident() or not self._thread.alive

    def join(self) -> None:
        """Wait for the network thread's end, unless the caller drives: it would wait for itself."""
        if not self.here:
            super().join()

    # For tasks.

    def call_soon(self, function: Call) -> None:
        """Call a function on the thread that drives, which may be this one, now."""
        self._soon.append(function)
        if self._bell:
            self.ring()
        elif self._thread.started and self._take_turn():
            self._leave()

    def call_lazily(self, function: Call) -> None:
        """Call a function on the next thread that drives: now if one sleeps there, else within a moment."""
        self._soon.append(function)
        self.ring()

    def sleep(self, sleeper: Sleeper, timeout_s: float | None) -> bool:
        """Drive until the sleeper is woken (True) or its time is over; asleep while another thread drives."""
        deadline_ns = None if timeout_s is None else self.now_ns() + int(timeout_s * 1e9)
        self._asleep[sleeper] = None  # before the look at the lock: who drives now looks here when it leaves
        if self._thread.started and self._take_turn():
            del self._asleep[sleeper]
            self._drive(sleeper, deadline_ns)
            if sleeper.woken:
                return sleeper.sleep(0)
            self._asleep[sleeper] = None
        try:
            left_s = None if deadline_ns is None else (deadline_ns - self.now_ns()) / 1e9
            return sleeper.sleep(left_s)
        finally:
            del self._asleep[sleeper]

    def _drive(self, sleeper: Sleeper, deadline_ns: int | None) -> None:
        self._sleeper, self._deadline_ns = sleeper, deadline_ns
        try:
            while not (sleeper.woken or self._stopping or (deadline_ns is not None and self.now_ns() >= deadline_ns)):
                self._helped = True
                self._turn()
        finally:
            self._sleeper = self._deadline_ns = None
            self._leave()

    def _leave(self) -> None:
        """Drive no more: run what was asked for, and call the network thread if it is needed."""
        while True:
            self._run_soon()
            self._end_turn()
            # Who asked between the two found the lock taken and relies on this look.
            if not self._soon or not self._take_turn():
                break
        if self._stopping or self._is_needed():
            self._call_network_thread()
        if self._interrupted and _on_main_thread():
            self._interrupted = False
            raise KeyboardInterrupt

    def _take_turn(self) -> bool:
        if not self._turn_lock.acquire(blocking=False):
            return False
        self._driver = threading.get_ident()
        return True

    def _end_turn(self) -> None:
        self._driver = 0
        self._turn_lock.release()

    def _is_needed(self) -> bool:
        """Whether a task sleeps that relies on somebody driving; one that was woken will be back to drive itself."""
        return bool(self._asleep) and any(not sleeper.woken for sleeper in list(self._asleep))

    def _run_soon(self) -> None:
        soon = self._soon
        for _ in range(len(soon)):
            self._call(soon.popleft())

    def _call(self, function: Call) -> None:
        """Call a function. Ctrl-C in the middle of it, on the main thread, comes after the turn."""
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - see `call_logged`
            if isinstance(error, KeyboardInterrupt) and _on_main_thread():
                self._interrupted = True
            else:
                _log.exception("%r failed in the network's turn", function)

    # The network thread.

    def _run(self) -> None:
        while not self._stopping:
            if self._take_turn():
                try:
                    self._turn()
                finally:
                    self._end_turn()
                if self._soon or self._is_needed():
                    continue
            self._rest()
        self._turn_lock.acquire()  # for good: nobody drives any more
        self._driver = threading.get_ident()
        self._release()

    def _rest(self) -> None:
        """Let a task drive, as long as one comes every now and then and none sleeps."""
        while not self._stopping and not self._rest_lock.acquire(timeout=_MOMENT_S):
            if self._soon or not (self._helped or self._turn_lock.locked()):
                return
            self._helped = False

    def _call_network_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has been called already
            self._rest_lock.release()

    def _end(self) -> None:
        super()._end()
        self._call_network_thread()

    # What a turn waits for.

    def _wait_limit_ns(self) -> int | None:
        at_ns, deadline_ns = self._timers.next_ns(), self._deadline_ns
        if at_ns is None or (deadline_ns is not None and deadline_ns < at_ns):
            return deadline_ns
        return at_ns

    def _has_reason_to_stay_awake(self) -> bool:
        return bool(self._soon) or (self._sleeper is not None and self._sleeper.woken)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
