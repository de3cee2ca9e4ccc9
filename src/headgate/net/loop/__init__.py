"""The event loop under a transport: sockets, timers and callbacks of one worker.

`shared` is the loop of workers on Linux: task threads and the network thread take turns polling; its essay explains
how. `decide` holds its decisions, `poller` its epoll, `rest_timer` and `thread` its network thread. `asyncio_loop` is
the portable loop, always driven by the network thread. `open_loop` chooses by `network.transport`.

A loop belongs to one transport. `post`, `poll_once`, `stop` and `join` may be called from any thread; everything else
only from a callback, or before `start`. A callback that raises is logged and stops nothing.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Protocol

from headgate.errors import ConfigError
from headgate.net.loop.shared import SharedLoop
from headgate.net.loop.thread import THREAD_NAME

if TYPE_CHECKING:
    from headgate.net.loop.thread import Callback
    from headgate.net.stream import Timer

__all__ = ["THREAD_NAME", "EventLoop", "SharedLoop", "open_loop"]

_KNOWN = "Known are 'auto', 'shared' (Linux) and 'asyncio'"
_REMOVED = ("epoll", "uvloop")


class EventLoop(Protocol):
    """The interface of an event loop."""

    def now_ns(self) -> int:
        """Return the time of a monotonic clock."""
        ...

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        """Run a callback at a time, never before it."""
        ...

    def post(self, callback: Callback, *, urgent: bool = True) -> None:
        """Run a callback; urgent ones in the order of posting. From any thread. After `stop` it may be lost.

        A callback that is not urgent is delayed by about a millisecond rather than cause a thread switch.
        """
        ...

    def poll_once(self, *, before_blocking: bool = False, reply_expected: bool = False) -> bool:
        """Poll without blocking, and dispatch, unless another thread polls. Return True if there were events.

        From any thread. `before_blocking`: the caller blocks next if there were none. `reply_expected`: if there are no
        events yet, dispatch the next one without delay.
        """
        ...

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None) -> None:
        """Run these whenever a descriptor can be read or written, or is broken. None for both: stop watching it.

        It must not be closed while it is watched. A callback may run without reason.
        """
        ...

    def start(self) -> None:
        """Start the network thread; once."""
        ...

    def stop(self) -> None:
        """End the loop after all callbacks posted until now. From any thread; may be repeated."""
        ...

    def join(self) -> None:
        """Block until the network thread has ended and closed the loop's files; from a callback, return at once."""
        ...

    def abandon(self) -> None:
        """In a forked child: do nothing any more, and wake nothing in the parent. Takes no lock."""
        ...


def open_loop(name: str = "auto") -> EventLoop:
    """Return the event loop that `network.transport` names, not started.

    >>> loop = open_loop("asyncio")
    >>> loop.post(lambda: print("hello"))
    >>> loop.start(); loop.stop(); loop.join()
    hello

    Raises:
        ConfigError: there is no loop of that name, or not on this platform.
    """
    has_epoll = hasattr(select, "epoll") and hasattr(os, "eventfd")
    if name == "auto":
        name = "shared" if has_epoll else "asyncio"
    if name == "shared":
        if not has_epoll:
            raise ConfigError(f"network.transport: this platform has no epoll. {_KNOWN}")
        return SharedLoop()
    if name == "asyncio":
        from headgate.net.loop.asyncio_loop import AsyncioLoop  # noqa: PLC0415 - importing asyncio takes 50 ms

        return AsyncioLoop()
    if name in _REMOVED:
        raise ConfigError(f"network.transport: {name!r} was removed: 'shared' moves at least as much. {_KNOWN}")
    raise ConfigError(f"network.transport: there is no event loop {name!r}. {_KNOWN}")
