"""System calls that are over at once, made without giving the interpreter away.

What Python's own sockets and epoll do gives the interpreter away around each call, and gets it back when another thread
lets go of it. Where a task is busy, that may take longer than all the rest: so what is small, and does not wait, is
done with the interpreter kept. Called by whoever drives the network; errors are raised as by Python's own calls.

All of this is for Linux (`USABLE`); elsewhere Python's own are used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SMALL_READ_BYTES", "SMALL_WRITE_BYTES", "USABLE", "Alarm", "Look", "receive", "ring", "send"]

USABLE: Final = sys.platform == "linux"
"""Whether all of this is here."""

SMALL_READ_BYTES: Final = 16 * 1024
"""Most bytes of one read: for as long as it takes to copy them, nobody else computes."""

SMALL_WRITE_BYTES: Final = 4 * 1024
"""Most bytes of one write: they are put together first."""

_READ_FLAGS: Final = getattr(socket, "MSG_DONTWAIT", 0)
_WRITE_FLAGS: Final = _READ_FLAGS | getattr(socket, "MSG_NOSIGNAL", 0)
_MAX_EVENTS: Final = 64  # taken from the kernel at once
# What epoll reports: events, descriptor, padding. Packed on one architecture only.
_EVENT: Final = struct.Struct("=Ii4x" if platform.machine() == "x86_64" else "=I4xi4x")
_ALARM: Final = struct.Struct("=qqqq")  # period and delay, each in seconds and nanoseconds
_ONE: Final = struct.pack("=Q", 1)


def _fail() -> int:
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error))  # of the class that is right for it


def _call(name: str, result: type, *arguments: type) -> Callable[..., int]:
    """One of the system library's functions, which keeps the interpreter."""
    if not USABLE:
        return lambda *_: -1
    function = ctypes.PyDLL(None, use_errno=True)[name]
    function.argtypes = arguments
    function.restype = result
    return function


_INT, _SIZE, _ADDRESS, _BYTES = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
_recv = _call("recv", ctypes.c_ssize_t, _INT, _ADDRESS, _SIZE, _INT)
_send = _call("send", ctypes.c_ssize_t, _INT, _BYTES, _SIZE, _INT)
_write = _call("write", ctypes.c_ssize_t, _INT, _BYTES, _SIZE)
_epoll_wait = _call("epoll_wait", _INT, _INT, _ADDRESS, _INT, _INT)
_timerfd_create = _call("timerfd_create", _INT, _INT, _INT)
_timerfd_settime = _call("timerfd_settime", _INT, _INT, _INT, _BYTES, _ADDRESS)


def receive(descriptor: int, address: int) -> int:
    """Read a little from a socket to an address, without waiting; how many bytes.

    >>> ours, theirs = socket.socketpair(); into = bytearray(SMALL_READ_BYTES)
    >>> _ = theirs.send(b"hello")
    >>> receive(ours.fileno(), ctypes.addressof(ctypes.c_char.from_buffer(into))), into[:5]
    (5, bytearray(b'hello'))
    >>> ours.close(); theirs.close()
    """
    size = _recv(descriptor, address, SMALL_READ_BYTES, _READ_FLAGS)
    return size if size >= 0 else _fail()


def send(descriptor: int, data: bytes) -> int:
    """Write a little to a socket, without waiting; how many bytes it took.

    >>> ours, theirs = socket.socketpair()
    >>> send(ours.fileno(), b"hello"), theirs.recv(100)
    (5, b'hello')
    >>> ours.close(); theirs.close()
    """
    size = _send(descriptor, data, len(data), _WRITE_FLAGS)
    return size if size >= 0 else _fail()


def ring(descriptor: int) -> None:
    """Add one to an eventfd.

    >>> bell = os.eventfd(0)
    >>> ring(bell); os.eventfd_read(bell)
    1
    >>> os.close(bell)
    """
    _write(descriptor, _ONE, len(_ONE))


class Look:
    """What has happened to the descriptors of an epoll, without waiting for it. One thread at a time.

    >>> import select
    >>> epoll, (ours, theirs) = select.epoll(), socket.socketpair()
    >>> look = Look(epoll.fileno())
    >>> epoll.register(ours.fileno(), select.EPOLLIN); look()
    []
    >>> theirs.send(b"hello"), look() == [(ours.fileno(), select.EPOLLIN)]
    (5, True)
    >>> ours.close(); theirs.close(); epoll.close()
    """

    __slots__ = ("_address", "_descriptor", "_events")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._events = ctypes.create_string_buffer(_MAX_EVENTS * _EVENT.size)
        self._address = ctypes.addressof(self._events)

    def __call__(self) -> list[tuple[int, int]]:
        """Descriptors and their events; none when a signal comes in between."""
        count = _epoll_wait(self._descriptor, self._address, _MAX_EVENTS, 0)
        if count <= 0:
            return []
        return [(fd, events) for events, fd in _EVENT.iter_unpack(self._events.raw[: count * _EVENT.size])]


class Alarm:
    """Where one thread sleeps until a time that others may set anew, which wakes nobody.

    >>> alarm = Alarm()
    >>> alarm.set(3600 * 10**9); alarm.set(1); alarm.wait()
    >>> alarm.close()
    """

    __slots__ = ("_descriptor",)

    def __init__(self) -> None:
        self._descriptor = _timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._descriptor < 0:
            _fail()

    def set(self, delay_ns: int) -> None:
        """Let it ring after so long, once, instead of when it would have rung, or has, unheard. From any thread."""
        _timerfd_settime(self._descriptor, 0, _ALARM.pack(0, 0, *divmod(delay_ns, 1_000_000_000)), None)

    def wait(self) -> None:
        """Sleep until it rings; at once if it has, since the last wait."""
        os.read(self._descriptor, 8)

    def close(self) -> None:
        """No thread waits any more."""
        os.close(self._descriptor)
