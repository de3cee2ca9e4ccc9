"""One connected TCP socket as a `Stream`.

Made by `SocketTransport`, for those who connect and those who are accepted; everything happens on the network thread.
Reads go into one slab that all streams of a transport share, since a view is valid during `received` only: few large
reads cost less than many that fit, and small ones keep the interpreter. Writes hand the caller's pieces to the kernel
as they are.

Invariants: a stream is told `lost` exactly once, through the loop; its socket is watched only while it is open; a
socket that was closed with input unread lives on as `Lingering` for a while, since closing it at once would make the
kernel reset the connection, and that destroys what the peer has not read yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import logging
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net import brief
from headgate.net.stream import PathStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.net.loop import Loop
    from headgate.net.stream import StreamHandler
    from headgate.switching import Pace

__all__ = ["LINGER_NS", "MAX_LINGERING", "SLAB_BYTES", "Lingering", "SocketStream", "StreamSet"]

# Few large reads; but what one has brought, and where it is copied to, should fit into a core's own cache. Interleaved
# on loopback, 512 KiB were no slower than 1 MiB, and took a little less of the processor.
SLAB_BYTES: Final = 512 * 1024
"""Most bytes of one read."""

LINGER_NS: Final = 10 * 1_000_000_000
"""How long the input of a closed stream is read and thrown away, at most, while its peer finishes reading."""

MAX_LINGERING: Final = 64
"""Most sockets of one transport that linger; with one more, the oldest is reset."""

_IOV_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16  # 16: what POSIX promises
_TCP_INFO_BYTES: Final = 256  # more than there is: the kernel says how much it gives
_ROUND_TRIP: Final = 68  # where Linux has the smoothed round trip in it, in microseconds,
_UNSENT: Final = 144  # and what waits to be sent; since Linux 4.6
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close by a reset

_log = logging.getLogger(__name__)


class StreamSet:
    """What the streams of one transport share, and which there are.

    >>> from headgate.net.loop import open_loop
    >>> streams = StreamSet(open_loop())
    >>> len(streams.slab), len(streams.open), len(streams.lingering)
    (524288, 0, 0)
    >>> streams.loop.stop()
    """

    __slots__ = ("drained", "lingering", "loop", "open", "pace", "slab", "slab_address")

    def __init__(self, loop: Loop, pace: Pace | None = None) -> None:
        self.loop = loop
        self.pace = pace  # is told how much goes over them
        slab = bytearray(SLAB_BYTES)
        self.slab = memoryview(slab)
        self.slab_address = ctypes.addressof(ctypes.c_char.from_buffer(slab))
        self.open: set[SocketStream] = set()
        self.lingering: dict[Lingering, None] = {}  # the oldest first
        self.drained: Callable[[], object] | None = None  # called whenever the last lingering socket is closed


class _State(enum.Enum):
    OPEN = "open"
    BROKEN = "broken"  # a write failed; what the peer had sent before is still handed over
    OVER = "over"  # `lost` was told, or is on its way


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
        "_small",
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
        self._blocked = False  # the kernel did not take all that was offered; `writable` is owed
        self._small = True  # the last read was
        self._error: TransportError | None = None
        self._lingering: Lingering | None = None
        streams.open.add(self)

    @property
    def peer(self) -> str:
        """The address at the other end."""
        return self._peer

    def start(self, handler: StreamHandler) -> None:
        """Begin to read; called once."""
        assert self._handler is None, "a stream is started once"
        self._handler = handler
        if self._state is _OVER:
            self.streams.loop.call_soon(self._tell_lost)
        else:
            self._watch()

    def write(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Offer bytes; how many of them the kernel took."""
        if self._blocked or self._state is not _OPEN:
            return 0
        taken = 0
        for start in range(0, len(pieces), _IOV_MAX):
            batch = pieces if len(pieces) <= _IOV_MAX else pieces[start : start + _IOV_MAX]
            size = sum(map(len, batch))
            small = brief.USABLE and size <= brief.SMALL_WRITE_BYTES
            try:
                sent = brief.send(self._socket.fileno(), b"".join(batch)) if small else self._socket.sendmsg(batch)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._break(error)
                return taken
            self._tell_pace(size)
            taken += sent
            if sent < size:
                self._blocked = True
                self._watch()
                break
        return taken

    def pause_reading(self) -> None:
        """No more `received`. May be repeated."""
        if not self._paused:
            self._paused = True
            self._watch()

    def resume_reading(self) -> None:
        """Go on with `received`. May be repeated."""
        if self._paused:
            self._paused = False
            self._watch()

    def close(self) -> None:
        """End in order: all that was taken reaches the peer. May be repeated."""
        if self._state is _State.BROKEN:
            self._end(self._error)
            self._socket.close()
        elif self._state is _OPEN:
            self._end(None)
            self._lingering = Lingering(self._socket, self.streams)

    def abort(self) -> None:
        """End at once; the peer sees a reset. May be repeated."""
        if self._lingering is not None:
            self._lingering.end(reset=True)
        elif self._state is not _OVER:
            self._end(self._error)
            _reset(self._socket)

    def path(self) -> PathStatistics:
        """See `Stream`. A socket that is being closed by the network thread meanwhile has nothing to say."""
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
            self.streams.loop.watch(self._socket.fileno(), readable, self._take_more if self._blocked else None)

    def _receive(self) -> bool:
        """Read once, then let others have their turn. Whether there may be more."""
        assert self._handler is not None, "only a started stream is read"
        streams, small = self.streams, brief.USABLE and self._small  # so is the next, then
        slab = streams.slab
        try:
            size = brief.receive(self._socket.fileno(), streams.slab_address) if small else self._socket.recv_into(slab)
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
        self._small = size < brief.SMALL_READ_BYTES
        self._tell_pace(size)
        self._call(self._handler.received, slab[:size])
        return True

    def _tell_pace(self, size: int) -> None:
        if (pace := self.streams.pace) is not None:
            if size < brief.SMALL_READ_BYTES:
                pace.little()
            else:
                pace.much()

    def _take_more(self) -> None:
        assert self._handler is not None, "only a started stream is watched"
        self._blocked = False
        self._call(self._handler.writable)
        # Only now: under load the handler's writes block again, and the kernel need not hear of it twice each time.
        if not self._blocked:
            self._watch()

    def _call(self, function: Callable[..., object], *arguments: memoryview) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            if self._state is not _OVER:  # what it has not seen, or not sent, is missing from now on
                self._end(TransportError(f"the connection's handler failed: {error!r}", peer=self._peer))
                _reset(self._socket)
            raise  # to the log

    def _break(self, error: OSError) -> None:
        self._error = self._describe(error)
        self.streams.loop.watch(self._socket.fileno(), None, None)
        self._state = _State.BROKEN
        self.streams.loop.call_soon(self._receive_rest)

    def _receive_rest(self) -> None:
        # The last that a peer says before it goes is often why it goes, and a failed write overtakes it.
        while self._state is _State.BROKEN and self._handler is not None and not self._paused and self._receive():
            pass
        if self._state is _State.BROKEN:
            self._end(self._error)
            self._socket.close()

    def _end(self, error: TransportError | None) -> None:
        """Nothing more happens to this stream but `lost`. The caller does with the socket what is right."""
        if self._state is _OPEN:
            self.streams.loop.watch(self._socket.fileno(), None, None)
        self._state = _State.OVER
        self._error = error
        self.streams.open.discard(self)
        if self._handler is not None:
            self.streams.loop.call_soon(self._tell_lost)

    def _tell_lost(self) -> None:
        assert self._handler is not None, "only a started stream is lost"
        self._handler.lost(self._error)

    def _describe(self, error: OSError) -> TransportError:
        described = TransportError(f"the connection broke: {error.strerror or error}", peer=self._peer)
        described.__cause__ = error
        return described


class Lingering:
    """A socket that its owner has closed: it says so to the peer and discards what that still sends, for a time.

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


def _reset(broken: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not every socket lingers
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    broken.close()
