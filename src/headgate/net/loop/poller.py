"""epoll, the eventfd that interrupts it, and the callbacks of the watched descriptors.

One thread at a time polls (it holds the loop's poll lock); one thread at a time changes or reads the callbacks (it
holds the dispatch lock). Any thread may interrupt.

Facts: a blocked `epoll_wait` notices neither a new callback in a queue nor an earlier timer; writing to an eventfd that
it watches wakes it, at the price of a system call and a wake-up.

Problem: no change may be missed, and no eventfd may be written while no thread blocks. In addition, the loop must not
close the eventfd while another thread is about to write to it: the number may belong to another file by then.

Solution: `_armed` holds one token while a thread blocks, or is about to.

    polling thread                     changing thread
    1 put the token                    1 make the change (append to a queue, set a flag)
    2 check for changes, then block    2 if there is a token: take it, write to the eventfd
    3 take the token back

If the check (2, left) misses the change (1, right), then the token was put before the change was made, and the changing
thread finds it. Taking is one atomic `deque.pop`: exactly one thread gets the token. If it is gone in step 3, one write
has happened or will happen; `_writes_owed` counts these, and `close` reads the eventfd until all have happened.
"""

from __future__ import annotations

import os
import select
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.loop.thread import Callback

    Events = list[tuple[int, int]]

__all__ = ["Poller"]

_MAX_EVENTS: Final = 64  # per call: room for them is allocated each time


class Poller:
    """Waits for descriptors to become ready; see the module.

    >>> poller = Poller()
    >>> poller.interrupt()  # no thread blocks: no effect
    >>> poller.poll()
    []
    >>> poller.close()
    """

    __slots__ = ("_armed", "_epoll", "_wake_fd", "_writes_owed", "watched")

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        # Edge-triggered, a write is reported once without being read: an interruption costs no further call.
        self._epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._armed: deque[None] = deque()
        self._writes_owed = 0
        self.watched: dict[int, tuple[int, Callback | None, Callback | None]] = {}
        """Descriptor -> (events, readable, writable)."""

    @property
    def blocks(self) -> bool:
        """True while a thread blocks in `wait`, or is about to."""
        return bool(self._armed)

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None) -> None:
        """Report a descriptor from now on whenever it can be read or written, or is broken. None for both: no more."""
        events = (select.EPOLLIN if readable is not None else 0) | (select.EPOLLOUT if writable is not None else 0)
        known = self.watched.get(fd)
        if not events:
            if known is not None:
                del self.watched[fd]
                self._epoll.unregister(fd)
            return
        if known is None:
            self._epoll.register(fd, events)
        elif known[0] != events:
            self._epoll.modify(fd, events)
        self.watched[fd] = (events, readable, writable)

    def poll(self) -> Events:
        """Return the descriptors that are ready, and their events, without blocking."""
        return self._epoll.poll(0, _MAX_EVENTS)

    def wait(self, timeout_s: Callable[[], float]) -> Events:
        """Block until a descriptor is ready, or for `timeout_s()`; return the ready ones and their events.

        `timeout_s` is the check of step 2: it is called after the token is put. 0: do not block; -1: no limit.
        """
        self._armed.append(None)
        try:
            return self._epoll.poll(timeout_s(), _MAX_EVENTS)
        finally:  # also when a signal interrupts it
            if not self._take_token():
                self._writes_owed += 1

    def interrupt(self) -> None:
        """End the `wait` of the thread that blocks, if one does. From any thread."""
        if self._armed and self._take_token():
            os.eventfd_write(self._wake_fd, 1)

    def run_ready(self, events: Events, call: Callable[[Callback], None]) -> None:
        """Call the callbacks of ready descriptors. A callback may stop the watching of any descriptor."""
        watched = self.watched
        for fd, event in events:
            known = watched.get(fd)
            if known is None:
                continue  # the eventfd, or a descriptor that an earlier callback has stopped watching
            # A broken descriptor is neither readable nor writable: its callbacks then find the error.
            if known[1] is not None and event & ~select.EPOLLOUT:
                call(known[1])
                if (known := watched.get(fd)) is None:
                    continue
            if known[2] is not None and event & ~select.EPOLLIN:
                call(known[2])

    def close(self) -> None:
        """Close the descriptors, after the last owed write. May be repeated."""
        if self._epoll.closed:
            return
        while self._writes_owed > 0:
            self._writes_owed -= os.eventfd_read(self._wake_fd)
        self._epoll.close()
        os.close(self._wake_fd)

    @property
    def closed(self) -> bool:
        """True after `close` or `abandon`."""
        return self._epoll.closed

    def abandon(self) -> None:
        """Close the descriptors of a forked child. The parent's poll is not interrupted."""
        self._armed.clear()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    def _take_token(self) -> bool:
        try:
            self._armed.pop()
        except IndexError:
            return False  # another thread was faster
        return True
