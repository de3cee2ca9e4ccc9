"""The event loop: one thread that waits for sockets, timers and calls from other threads, and does their work.

`EpollLoop` is our own; `asyncio_loop` wraps those of asyncio and uvloop. `open_loop` chooses by `network.transport`. A
loop belongs to one transport. Everything is called on its thread, 'headgate-network', or before that is started; only
`call_soon`, `stop` and `join` are for any thread.

Invariants: a wake-up is never lost, and costs nothing while the loop is awake; who takes the bell owes exactly one
ring, and the loop closes nothing before all it is owed have come; what a callback raises is logged and ends nothing.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from headgate.errors import ConfigError
from headgate.net.brief import Look, ring
from headgate.net.timers import Timers
from headgate.slices import ask_as_usual, ask_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.stream import Timer

    Call = Callable[[], object]

__all__ = ["LONGEST_SLEEP_NS", "THREAD_NAME", "EpollLoop", "Loop", "NetworkThread", "call_logged", "open_loop"]

THREAD_NAME = "headgate-network"
"""What the thread of every loop is called."""

LONGEST_SLEEP_NS = 3600 * 1_000_000_000
"""A loop sleeps no longer, also when no timer is due before: the kernel counts milliseconds in an int."""

_log = logging.getLogger(__name__)

_KNOWN = "Known are 'auto', 'shared' and 'epoll' (Linux), 'asyncio' and, after pip install 'headgate[uvloop]', 'uvloop'"
_MAX_EVENTS = 64  # taken from the kernel at once: room for them is allocated in every turn


class Loop(Protocol):
    """What a transport needs of an event loop."""

    def now_ns(self) -> int:
        """The time, on a clock that only goes forward."""
        ...

    def call_at(self, when_ns: int, function: Call) -> Timer:
        """Call a function at a time, never before it."""
        ...

    def call_soon(self, function: Call) -> None:
        """Call a function on the loop's thread, in order; from any thread. After `stop` it may be lost."""
        ...

    def call_lazily(self, function: Call) -> None:
        """As `call_soon`, but within a moment: not worth a change of threads."""
        ...

    def attend(self) -> None:
        """What happens next is waited for: not within a moment, but at once."""
        ...

    def glance(self) -> None:
        """Act on what has happened by now, unless somebody is about to. From any thread."""
        ...

    def watch(self, fd: int, readable: Call | None, writable: Call | None) -> None:
        """Call these whenever a file descriptor can be read or written, or is broken. None for both: watch it no more.

        It must not be closed while it is watched. A call may come without reason.
        """
        ...

    def start(self) -> None:
        """Start the thread; once."""
        ...

    def stop(self) -> None:
        """End the thread after all that was asked for by `call_soon` until now. From any thread; may be repeated."""
        ...

    def join(self) -> None:
        """Wait for the thread's end, with all of the loop's own files closed; that thread itself does not wait."""
        ...


def open_loop(name: str = "auto") -> Loop:
    """The loop of a name, not started: the value of `network.transport`.

    >>> loop = open_loop("epoll")
    >>> loop.call_soon(lambda: print("on", threading.current_thread().name))
    >>> loop.start(); loop.stop(); loop.join()
    on headgate-network

    Raises:
        ConfigError: there is no such loop, or not here.
    """
    has_epoll = hasattr(select, "epoll") and hasattr(os, "eventfd")
    if name == "auto":
        name = "shared" if has_epoll else "asyncio"
    if name == "epoll" and has_epoll:
        return EpollLoop()
    if name == "shared" and has_epoll:
        from headgate.net.shared_loop import SharedLoop  # noqa: PLC0415 - it is built on this module

        return SharedLoop()
    if name in ("asyncio", "uvloop"):
        from headgate.net.asyncio_loop import AsyncioLoop  # noqa: PLC0415 - asyncio takes long to import

        if name == "asyncio":
            return AsyncioLoop()
        try:
            import uvloop  # noqa: PLC0415 - an optional dependency
        except ImportError:
            raise ConfigError(f"network.transport: uvloop is not installed. {_KNOWN}") from None
        return AsyncioLoop(uvloop.new_event_loop)
    if name in ("epoll", "shared"):
        raise ConfigError(f"network.transport: this platform has no epoll. {_KNOWN}")
    raise ConfigError(f"network.transport: there is no driver {name!r}. {_KNOWN}")


def call_logged(function: Call) -> None:
    """Call a function; what it raises goes to the log.

    >>> call_logged(lambda: print("hello"))
    hello
    """
    try:
        function()
    except BaseException:  # noqa: BLE001 - also SystemExit: without this thread the worker would hang in silence
        _log.exception("%r failed on the network thread", function)


class NetworkThread:
    """The thread of a loop: started once, joined by others.

    >>> thread = NetworkThread(lambda: print(thread.here))
    >>> thread.start(); thread.join()
    True
    """

    __slots__ = ("_thread",)

    def __init__(self, run: Call) -> None:
        self._thread = threading.Thread(target=run, name=THREAD_NAME, daemon=True)

    @property
    def started(self) -> bool:
        """Whether `start` was called, however long ago."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether the caller may touch the loop: it is on its thread, or that does not run."""
        return self._thread.ident == threading.get_ident() or not self.alive

    def start(self) -> None:
        """Start it; once."""
        self._thread.start()

    def join(self) -> None:
        """Wait for its end, if it was started by now and is another."""
        if not self.here:
            self._thread.join()


class EpollLoop:
    """A loop around epoll; other threads wake it through an eventfd.

    >>> loop = EpollLoop()
    >>> _ = loop.call_at(loop.now_ns() + 1000, lambda: (print("a microsecond later"), loop.stop()))
    >>> loop.start(); loop.join()
    a microsecond later
    """

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._look = Look(self._epoll.fileno())
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        # Edge-triggered, a write is reported once without being read: a wake-up costs the loop no further call.
        self._epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._watched: dict[int, tuple[int, Call | None, Call | None]] = {}  # fd -> (events, readable, writable)
        self._timers = Timers()
        self._soon: deque[Call] = deque()
        self._bell: deque[None] = deque()  # holds one token while the loop sleeps; who takes it must ring
        self._rings_owed = 0
        self._stopping = False
        self._thread = NetworkThread(self._run)

    def call_at(self, when_ns: int, function: Call) -> Timer:
        """Call a function at a time, never before it."""
        assert self.here, "timers are for the network thread"
        return self._timers.add(when_ns, function)

    def call_soon(self, function: Call) -> None:
        """Call a function on the loop's thread; from any thread."""
        self._soon.append(function)
        # First the function, then the look at the bell; the loop hangs up the bell first and then looks for functions.
        # So at least one of the two sees the other.
        self.ring()

    call_lazily = call_soon
    _call = staticmethod(call_logged)

    def attend(self) -> None:
        """What happens next is seen at once: this thread has nothing else to do."""

    glance = attend

    def ring(self) -> None:
        """Wake the loop, if it sleeps."""
        if self._bell and self._take_bell():
            ring(self._wake_fd)

    @property
    def here(self) -> bool:
        """Whether the caller may touch the loop."""
        return self._thread.here

    def watch(self, fd: int, readable: Call | None, writable: Call | None) -> None:
        """Call these whenever a file descriptor can be read or written, or is broken. None for both: no more."""
        assert self.here, "file descriptors are for the network thread"
        events = (select.EPOLLIN if readable is not None else 0) | (select.EPOLLOUT if writable is not None else 0)
        known = self._watched.get(fd)
        if not events:
            if known is not None:
                del self._watched[fd]
                self._epoll.unregister(fd)
            return
        if known is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = (events, readable, writable)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after all that was asked for by `call_soon` until now."""
        self.call_soon(self._end)
        if not self._thread.started:
            self._release()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _take_bell(self) -> bool:
        try:
            self._bell.pop()
        except IndexError:
            return False  # another was faster: a caller, who rings, or the loop itself, awake
        return True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._release()

    def _turn(self) -> None:
        self._handle(self._wait())

    def _handle(self, happened: list[tuple[int, int]]) -> None:
        """Do all that is due, for descriptors, at this time, and by request."""
        for fd, events in happened:
            known = self._watched.get(fd)
            if known is None:
                continue  # the eventfd, or what an earlier callback of this turn has stopped watching
            # A broken descriptor is reported as neither: whoever watches it then finds the error.
            if known[1] is not None and events & ~select.EPOLLOUT:
                self._call(known[1])
                if (known := self._watched.get(fd)) is None:
                    continue
            if known[2] is not None and events & ~select.EPOLLIN:
                self._call(known[2])
        if len(self._timers):
            for timer in self._timers.take_due(self.now_ns()):
                self._call(timer.run)
        soon = self._soon
        for _ in range(len(soon)):  # not those they add: sockets get their turn first
            self._call(soon.popleft())

    def _wait(self) -> list[tuple[int, int]]:
        """Sleep until there is something to do; what happened to file descriptors."""
        if self._has_reason_to_stay_awake():
            return self._look()
        self._bell.append(None)
        try:  # whatever changes from here on, rings
            at_ns = self._wait_limit_ns()
            timeout_s = -1.0 if at_ns is None else min(max(0, at_ns - self.now_ns()), LONGEST_SLEEP_NS) / 1e9
            if self._has_reason_to_stay_awake():
                return self._look()
            ask_at_once()
            return self._epoll.poll(timeout_s, _MAX_EVENTS)
        finally:  # also when a signal interrupts it
            ask_as_usual()
            if not self._take_bell():
                self._rings_owed += 1  # rung, or about to be

    def _wait_limit_ns(self) -> int | None:
        return self._timers.next_ns()

    def _has_reason_to_stay_awake(self) -> bool:
        return bool(self._soon)

    def _end(self) -> None:
        self._stopping = True

    def _release(self) -> None:
        if self._epoll.closed:
            return
        # Who took the bell may not have rung yet; by then the number of a closed descriptor could be somebody else's.
        while self._rings_owed > 0:
            self._rings_owed -= os.eventfd_read(self._wake_fd)
        self._epoll.close()
        os.close(self._wake_fd)
