"""Shared by the tests of sockets: two transports, raw sockets as their peers, and ports that do not answer."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.support.leaks import open_files
from tests.support.streams import Keeper, Taker
from tests.support.waiting import PATIENCE_S

from headgate.net import Address
from headgate.net.loop import THREAD_NAME, open_loop
from headgate.net.sockets import SocketTransport

SECOND_NS = 1_000_000_000
LONG_NS = 60 * SECOND_NS
LOCAL = "127.0.0.1"
MIB = 1024 * 1024


class World:
    """Two transports, and raw sockets that connect to them."""

    def __init__(self, name, options=None):
        self.transport = SocketTransport(open_loop(name), options)
        self.other = SocketTransport(open_loop(name), options)
        for one in (self.transport, self.other):
            one.start()
        self._raw = []

    def close(self):
        for one in self._raw:
            one.close()
        for one in (self.transport, self.other):
            one.close()

    def pair(self, host=LOCAL):
        """Return both ends of a connection, not started."""
        accepted, connected = Taker(), Taker()
        listener = self.other.call(lambda: self.other.listen(host, 0, accepted))
        self.transport.call(lambda: self.transport.connect(listener.address, LONG_NS, connected))
        [theirs], [ours] = accepted.wait_for(), connected.wait_for()
        assert not isinstance(ours, Exception), ours
        self.other.call(listener.close)
        return ours, theirs

    def facing_raw(self):
        """Return a stream, not started, and a blocking socket at its other end."""
        accepted = Taker()
        listener = self.transport.call(lambda: self.transport.listen(LOCAL, 0, accepted))
        raw = socket.socket()
        self._raw.append(raw)
        raw.settimeout(PATIENCE_S)
        raw.connect(listener.address)
        [stream] = accepted.wait_for()
        self.transport.call(listener.close)
        return stream, raw

    def kept(self):
        """Return a started stream with its `Keeper`, and a blocking socket at its other end."""
        stream, raw = self.facing_raw()
        keeper = Keeper(stream)
        self.transport.call(lambda: stream.start(keeper))
        return stream, raw, keeper


@contextlib.contextmanager
def new_world(name, options=None) -> Iterator[World]:
    """Yield a `World`, and check that it leaves no thread and no file."""
    before = open_files()
    with contextlib.closing(World(name, options)) as made:
        yield made
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
    assert open_files() <= before, "files are left open"


def reset(raw: socket.socket) -> None:
    """Close a socket by a reset."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


@contextlib.contextmanager
def full_backlog() -> Iterator[Address]:
    """Return a port that does not answer: its accept queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((LOCAL, 0))
        listener.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield Address(*listener.getsockname())
