"""The portable event loop: asyncio's, on a network thread of its own.

asyncio gets one timer, the next one, and one call from other threads at a time: the order of callbacks and the wake-ups
are those of this class, so that every `EventLoop` behaves the same.

Invariants: while the token is gone, `_run_posted` is queued in asyncio's loop or about to be; the loop is closed only
by the thread that holds the token.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.net.loop.thread import NetworkThread, call_logged
from headgate.net.loop.timers import LONGEST_WAIT_NS, Timers

if TYPE_CHECKING:
    from headgate.net.loop.thread import Callback
    from headgate.net.stream import Timer

__all__ = ["AsyncioLoop"]

_NS_PER_MS: Final = 1_000_000


class AsyncioLoop:
    """An `EventLoop` around asyncio's selector loop.

    >>> loop = AsyncioLoop()
    >>> loop.post(lambda: print("hello")); loop.post(loop.stop)
    >>> loop.start(); loop.join()
    hello
    """

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._watched: dict[int, tuple[Callback | None, Callback | None]] = {}
        self._timers = Timers()
        self._next_timer: asyncio.TimerHandle | None = None
        self._next_timer_ns: int | None = None
        self._urgent: deque[Callback] = deque()
        self._token: deque[None] = deque([None])  # the thread that takes it queues `_run_posted`
        self._stopping = False
        self._thread = NetworkThread(self._run)

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        """See `EventLoop`."""
        assert self._thread.is_current_or_dead, "timers are touched on the network thread"
        timer = self._timers.add(when_ns, callback)
        self._set_next_timer()
        return timer

    def post(self, callback: Callback, *, urgent: bool = True) -> None:  # noqa: ARG002 - all are urgent
        """Run a callback on the network thread; from any thread."""
        self._urgent.append(callback)  # before the look at the token: `_run_posted` does the opposite
        if self._token and self._take_token():
            self._loop.call_soon_threadsafe(self._run_posted)

    def poll_once(self, *, before_blocking: bool = False, reply_expected: bool = False) -> bool:  # noqa: ARG002 - an EventLoop
        """Return False: the network thread polls all the time."""
        return False

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None) -> None:
        """See `EventLoop`."""
        assert self._thread.is_current_or_dead, "descriptors are touched on the network thread"
        before = self._watched.pop(fd, (None, None))
        if readable is None and before[0] is not None:
            self._loop.remove_reader(fd)
        if writable is None and before[1] is not None:
            self._loop.remove_writer(fd)
        if readable is not None and readable != before[0]:
            self._loop.add_reader(fd, call_logged, readable)
        if writable is not None and writable != before[1]:
            self._loop.add_writer(fd, call_logged, writable)
        if readable is not None or writable is not None:
            self._watched[fd] = (readable, writable)

    def start(self) -> None:
        """Start the network thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after all callbacks posted until now."""
        self.post(self._request_stop)
        if not self._thread.started:
            self._loop.close()

    def join(self) -> None:
        """Block until the network thread's end."""
        self._thread.join()

    def abandon(self) -> None:
        """See `EventLoop`. Without the token, nothing is written to asyncio's wake-up pipe, which the parent shares."""
        self._token.clear()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            while not self._take_token():  # the thread that took it queues `_run_posted`, which leads here again
                self._loop.run_forever()
        finally:
            self._loop.close()

    def _take_token(self) -> bool:
        try:
            self._token.pop()
        except IndexError:
            return False  # another thread was faster
        return True

    def _run_posted(self) -> None:
        self._token.append(None)
        urgent = self._urgent
        for _ in range(len(urgent)):
            call_logged(urgent.popleft())
        if self._stopping:
            self._loop.stop()

    def _request_stop(self) -> None:
        self._stopping = True

    def _set_next_timer(self) -> None:
        """Give asyncio the next timer. It gets only that one: its order of equal times is not exact enough."""
        at_ns = self._timers.next_ns()
        if at_ns == self._next_timer_ns:
            return
        if self._next_timer is not None:
            self._next_timer.cancel()
        self._next_timer, self._next_timer_ns = None, at_ns
        if at_ns is not None:
            delay_ns = min(max(0, at_ns - self.now_ns()), LONGEST_WAIT_NS)
            self._next_timer = self._loop.call_later(math.ceil(delay_ns / _NS_PER_MS) / 1000, self._run_due)

    def _run_due(self) -> None:
        self._next_timer, self._next_timer_ns = None, None
        for timer in self._timers.take_due(self.now_ns()):
            call_logged(timer.run)
        self._set_next_timer()
