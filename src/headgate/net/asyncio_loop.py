"""The loops that others wrote: asyncio's, which runs everywhere, and uvloop's, behind the same `Loop`.

Chosen by `open_loop`; imported only then. asyncio gets one timer, the next one, and one call from other threads at a
time: order and wake-ups are ours, so that every loop behaves the same.

Invariants: while the bell is gone, `_drain` is on its way to the loop or about to be sent; the loop is closed only with
the bell in hand.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from headgate.net.loop import LONGEST_SLEEP_NS, NetworkThread, call_logged
from headgate.net.timers import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.stream import Timer

    Call = Callable[[], object]

__all__ = ["AsyncioLoop"]

_NS_PER_MS = 1_000_000


class AsyncioLoop:
    """A loop around one of asyncio's: the portable one, or with `uvloop.new_event_loop` uvloop's.

    >>> loop = AsyncioLoop()
    >>> loop.call_soon(lambda: print("hello")); loop.call_soon(loop.stop)
    >>> loop.start(); loop.join()
    hello
    """

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop) -> None:
        self._loop = make()
        self._watched: dict[int, tuple[Call | None, Call | None]] = {}
        self._timers = Timers()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ns: int | None = None
        self._soon: deque[Call] = deque()
        self._bell: deque[None] = deque([None])  # holds one token unless `_drain` is on its way; who takes it sends it
        self._stopping = False
        self._thread = NetworkThread(self._run)

    def call_at(self, when_ns: int, function: Call) -> Timer:
        """Call a function at a time, never before it."""
        assert self._thread.here, "timers are for the network thread"
        timer = self._timers.add(when_ns, function)
        self._set_alarm()
        return timer

    def call_soon(self, function: Call) -> None:
        """Call a function on the loop's thread; from any thread."""
        self._soon.append(function)  # before the look at the bell: `_drain` does the opposite
        if self._bell and self._take_bell():
            self._loop.call_soon_threadsafe(self._drain)

    call_lazily = call_soon

    def attend(self) -> None:
        """What happens next is seen at once: this thread has nothing else to do."""

    glance = attend

    def watch(self, fd: int, readable: Call | None, writable: Call | None) -> None:
        """Call these whenever a file descriptor can be read or written, or is broken. None for both: no more."""
        assert self._thread.here, "file descriptors are for the network thread"
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
        """Start the thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after all that was asked for by `call_soon` until now."""
        self.call_soon(self._end)
        if not self._thread.started:
            self._loop.close()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            while not self._take_bell():  # who took it has sent `_drain`, or is about to; that leads here again
                self._loop.run_forever()
        finally:
            self._loop.close()

    def _take_bell(self) -> bool:
        try:
            self._bell.pop()
        except IndexError:
            return False  # another was faster
        return True

    def _drain(self) -> None:
        self._bell.append(None)
        soon = self._soon
        for _ in range(len(soon)):
            call_logged(soon.popleft())
        if self._stopping:
            self._loop.stop()

    def _end(self) -> None:
        self._stopping = True

    def _set_alarm(self) -> None:
        """Have asyncio call us for the next timer; it knows only that one, since its order is not exact enough."""
        at_ns = self._timers.next_ns()
        if at_ns == self._alarm_ns:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_ns = None, at_ns
        if at_ns is not None:
            delay_ns = min(max(0, at_ns - self.now_ns()), LONGEST_SLEEP_NS)
            # Whole milliseconds, up: uvloop would round down, and be asked again and again until it is time.
            self._alarm = self._loop.call_later(math.ceil(delay_ns / _NS_PER_MS) / 1000, self._ring_alarm)

    def _ring_alarm(self) -> None:
        self._alarm, self._alarm_ns = None, None
        for timer in self._timers.take_due(self.now_ns()):
            call_logged(timer.run)
        self._set_alarm()
