"""One connected TCP socket as a `Stream`.

Made by `SocketTransport` for connections in both directions; everything happens on the network thread.
Reads go into one slab that all streams of a transport share, since a view is valid during `received` only: few large
reads cost less than many that fit. Writes hand the caller's pieces to the kernel
as they are.

Invariants: `lost` is called exactly once, through the loop; the socket is watched only while it is open; a socket that
was closed with input unread stays open as `Lingering` for a time, since closing it at once would make the kernel reset
the connection, and a reset destroys the bytes that the peer has not read yet.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net.stream import PathStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.net.loop import EventLoop
    from headgate.net.stream import StreamHandler

__all__ = ["LINGER_NS", "MAX_LINGERING", "SLAB_BYTES", "Lingering", "SocketStream", "StreamSet", "close_copy"]

# Few large reads; but the bytes of one read, and the segments that they are copied to, should fit into a core's own
# cache. On loopback 512 KiB were no slower than 1 MiB (`headgate bench wire`).
SLAB_BYTES: Final = 512 * 1024
"""The most bytes of one read."""

LINGER_NS: Final = 10 * 1_000_000_000
"""The longest time for which the input of a closed stream is discarded while its peer finishes reading."""

MAX_LINGERING: Final = 64
"""The most sockets of one transport that linger; with one more, the oldest is reset."""

_IOV_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16  # 16: what POSIX promises
_TCP_INFO_BYTES: Final = 256  # more than `struct tcp_info` has: the kernel returns what it fills
_ROUND_TRIP: Final = 68  # the offset of the smoothed round trip, in microseconds,
_UNSENT: Final = 144  # and of the bytes not sent yet; since Linux 4.6
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close by a reset

_log = logging.getLogger(__name__)


class StreamSet:
    """The streams of one transport, and the parts that they share.

    >>> from headgate.net.loop import open_loop
    >>> streams = StreamSet(open_loop())
    >>> len(streams.slab), len(streams.open), len(streams.lingering)
    (524288, 0, 0)
    >>> streams.loop.stop()
    """

    __slots__ = ("drained", "lingering", "loop", "open", "slab")

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.slab = memoryview(bytearray(SLAB_BYTES))
        self.open: set[SocketStream] = set()
        self.lingering: dict[Lingering, None] = {}  # the oldest first
        self.drained: Callable[[], object] | None = None  # called whenever the last lingering socket is closed


class _State(enum.Enum):
    OPEN = "open"
    BROKEN = "broken"  # a write failed; what the peer had sent before is still handed over
    OVER = "over"  # `lost` was called, or is posted


_OPEN, _OVER = _State.OPEN, _State.OVER


class SocketStream:
    """A stream over a connected, non-blocking socket.

    >>> from headgate.net.loop import open_loop
    >>> ours, theirs = socket.socketpair(); ours.setblocking(False)
    >>> stream = SocketStream(ours, "127.0.0.1:7077", StreamSet(open_loop()))
    >>> stream.write([b"one ", b"two"]), theirs.recv(100)
    (7, b'one two')
    >>> stream.abort(); theirs.close(); stream.streams.loop.stop()
    """

    __slots__ = (
        "_blocked",
        "_error",
        "_handler",
        "_lingering",
        "_paused",
        "_peer",
        "_socket",
        "_state",
        "streams",
    )

    def __init__(self, connected: socket.socket, peer: str, streams: StreamSet) -> None:
        self._socket = connected
        self._peer = peer
        self.streams = streams
        self._handler: StreamHandler | None = None
        self._state = _State.OPEN
        self._paused = False
        self._blocked = False  # the kernel did not take all that was offered; `writable` follows
        self._error: TransportError | None = None
        self._lingering: Lingering | None = None
        streams.open.add(self)

    @property
    def peer(self) -> str:
        """The peer's address."""
        return self._peer

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        assert self._handler is None, "a stream is started once"
        self._handler = handler
        if self._state is _OVER:
            self.streams.loop.post(self._call_lost)
        else:
            self._watch()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; return how many of them the kernel took."""
        if self._blocked or self._state is not _OPEN:
            return 0
        taken = 0
        for start in range(0, len(pieces), _IOV_MAX):
            batch = pieces if len(pieces) <= _IOV_MAX else pieces[start : start + _IOV_MAX]
            size = sum(map(len, batch))
            try:
                sent = self._socket.sendmsg(batch)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._break(error)
                return taken
            taken += sent
            if sent < size:
                self._blocked = True
                self._watch()
                break
        return taken

    def pause_reading(self) -> None:
        """Stop calling `received`. May be repeated."""
        if not self._paused:
            self._paused = True
            self._watch()

    def resume_reading(self) -> None:
        """Call `received` again. May be repeated."""
        if self._paused:
            self._paused = False
            self._watch()

    def abandon(self) -> None:
        """Close the descriptor of a forked child."""
        close_copy(self._socket)

    def close(self) -> None:
        """End in order: all bytes that were taken reach the peer. May be repeated."""
        if self._state is _State.BROKEN:
            self._end(self._error)
            self._socket.close()
        elif self._state is _OPEN:
            self._end(None)
            self._lingering = Lingering(self._socket, self.streams)

    def abort(self) -> None:
        """End at once; the peer gets a reset. May be repeated."""
        if self._lingering is not None:
            self._lingering.end(reset=True)
        elif self._state is not _OVER:
            self._end(self._error)
            _reset(self._socket)

    def path(self) -> PathStatistics:
        """See `Stream`. A socket that the network thread closes meanwhile has no figures."""
        if sys.platform != "linux":
            return PathStatistics()
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:  # closed, or not TCP
            return PathStatistics()
        found = [struct.unpack_from("I", info, at)[0] if len(info) >= at + 4 else -1 for at in (_ROUND_TRIP, _UNSENT)]
        return PathStatistics(*found)

    def _watch(self) -> None:
        if self._state is _OPEN and self._handler is not None:
            readable = None if self._paused else self._receive
            self.streams.loop.watch(self._socket.fileno(), readable, self._continue_writing if self._blocked else None)

    def _receive(self) -> bool:
        """Read once, so that other sockets are served too. Return True if there may be more."""
        assert self._handler is not None, "only a started stream is read"
        slab = self.streams.slab
        try:
            size = self._socket.recv_into(slab)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(self._error or self._describe(error))
            self._socket.close()
            return False
        if not size:
            self._end(self._error)
            self._socket.close()
            return False
        self._call(self._handler.received, slab[:size])
        return True

    def _continue_writing(self) -> None:
        assert self._handler is not None, "only a started stream is watched"
        self._blocked = False
        self._call(self._handler.writable)
        # Only now: under load the handler's writes block again, and the epoll needs no change.
        if not self._blocked:
            self._watch()

    def _call(self, function: Callable[..., object], *arguments: memoryview) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            if self._state is not _OVER:  # the bytes that it has not handled, or not sent, are lost
                self._end(TransportError(f"the connection's handler failed: {error!r}", peer=self._peer))
                _reset(self._socket)
            raise  # to the log

    def _break(self, error: OSError) -> None:
        self._error = self._describe(error)
        self.streams.loop.watch(self._socket.fileno(), None, None)
        self._state = _State.BROKEN
        self.streams.loop.post(self._receive_rest)

    def _receive_rest(self) -> None:
        # The peer's last frame often holds the reason of its end; a failed write must not overtake it.
        while self._state is _State.BROKEN and self._handler is not None and not self._paused and self._receive():
            pass
        if self._state is _State.BROKEN:
            self._end(self._error)
            self._socket.close()

    def _end(self, error: TransportError | None) -> None:
        """End the stream: only `lost` follows. The caller closes the socket in the way that is right."""
        if self._state is _OPEN:
            self.streams.loop.watch(self._socket.fileno(), None, None)
        self._state = _State.OVER
        self._error = error
        self.streams.open.discard(self)
        if self._handler is not None:
            self.streams.loop.post(self._call_lost)

    def _call_lost(self) -> None:
        assert self._handler is not None, "only a started stream is lost"
        self._handler.lost(self._error)

    def _describe(self, error: OSError) -> TransportError:
        described = TransportError(f"the connection broke: {error.strerror or error}", peer=self._peer)
        described.__cause__ = error
        return described


class Lingering:
    """A socket that its owner has closed: it is shut down for writing, and its input is discarded for a time.

    >>> from headgate.net.loop import open_loop
    >>> streams = StreamSet(open_loop()); ours, theirs = socket.socketpair()
    >>> lingering = Lingering(ours, streams)
    >>> theirs.recv(1), theirs.send(b"too late"), len(streams.lingering)
    (b'', 8, 1)
    >>> lingering.end(); theirs.close(); streams.loop.stop()
    """

    __slots__ = ("_socket", "_streams", "_timer")

    def __init__(self, closed: socket.socket, streams: StreamSet) -> None:
        self._socket = closed
        self._streams = streams
        self._timer = streams.loop.call_at(streams.loop.now_ns() + LINGER_NS, self.end)
        if len(streams.lingering) >= MAX_LINGERING:  # refused strangers must not use up the file descriptors
            next(iter(streams.lingering)).end(reset=True)
        streams.lingering[self] = None
        streams.loop.watch(closed.fileno(), self._discard, None)
        try:
            closed.shutdown(socket.SHUT_WR)
        except OSError:  # the peer is gone
            self.end()

    def abandon(self) -> None:
        """Close the descriptor of a forked child."""
        close_copy(self._socket)

    def end(self, *, reset: bool = False) -> None:
        """Close the socket. May be repeated."""
        if self not in self._streams.lingering:
            return
        del self._streams.lingering[self]
        self._streams.loop.watch(self._socket.fileno(), None, None)
        self._timer.cancel()
        if reset:
            _reset(self._socket)
        else:
            self._socket.close()
        if not self._streams.lingering and self._streams.drained is not None:
            self._streams.drained()

    def _discard(self) -> None:
        try:
            size = self._socket.recv_into(self._streams.slab)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.end()


def close_copy(inherited: socket.socket) -> None:
    """Close a forked child's copy of a socket: the connection stays open, and nothing is sent to the peer.

    >>> ours, theirs = socket.socketpair()
    >>> close_copy(ours); ours.fileno()
    -1
    >>> theirs.close()
    """
    descriptor = inherited.detach()  # so that the number, which another file may have later, is not closed again
    if descriptor >= 0:
        os.close(descriptor)


def _reset(broken: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not every socket lingers
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    broken.close()
