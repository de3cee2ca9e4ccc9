"""Opening streams over TCP: a listener that accepts, and connecting to one.

Used by `SocketTransport`, on the network thread. Addresses are literal: asking a name server would block that thread.

Invariants: `connected` is called exactly once, unless the attempt is cancelled, and never from inside `connect`; a
listener that runs out of file descriptors pauses instead of spinning; a socket that did not become a stream is closed.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import logging
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.errors import TransportError
from headgate.net.socket_stream import SocketStream, close_copy
from headgate.net.stream import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.socket_stream import StreamSet
    from headgate.net.stream import Stream, Timer

__all__ = ["Connecting", "SocketListener", "SocketOptions"]

_BACKLOG: Final = 1024  # all workers of a job may connect at the same moment
_ACCEPTS_PER_DISPATCH: Final = 16  # a quarter of network.max_half_open: a peer's proof is read before a flood drops it
_ACCEPT_PAUSE_NS: Final = 100_000_000

# accept(2): the connection failed before it was accepted; the next one may be fine.
_PASSING: Final = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN} | {
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOptions:
    """The options of a connection's socket; small writes are never delayed (TCP_NODELAY).

    >>> SocketOptions().send_buffer_bytes
    0
    """

    keepalive: bool = True
    send_buffer_bytes: int = 0  # 0: the kernel's own, which grows as needed; 1 and 4 MiB were no faster on loopback
    receive_buffer_bytes: int = 0

    def apply(self, made: socket.socket) -> None:
        """Set the options of a socket, before it connects or listens: the kernel fixes the largest window then."""
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, self.keepalive)
        if self.send_buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)


class SocketListener:
    """An open port.

    >>> from headgate.net.loop import open_loop
    >>> from headgate.net.sockets import SocketTransport
    >>> transport = SocketTransport(open_loop())
    >>> port = transport.listen("127.0.0.1", 0, accepted=print)
    >>> port.address.port > 0
    True
    >>> transport.listen("127.0.0.1", port.address.port, accepted=print)
    Traceback (most recent call last):
    headgate.errors.TransportError: cannot listen: the port is in use; network.port names another, or 0 any that is ...
    >>> transport.close()
    """

    def __init__(
        self,
        address: Address,
        accepted: Callable[[Stream], object],
        options: SocketOptions,
        streams: StreamSet,
        listeners: set[SocketListener],
    ) -> None:
        self._accepted = accepted
        self._options = options
        self._streams = streams
        self._listeners = listeners
        try:
            self._socket = _open_socket(address, options)
        except OSError as error:
            raise _cannot_listen(address, error) from error
        try:
            # A port that an earlier worker has just left counts as free.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(_socket_address(address))
            self._socket.listen(_BACKLOG)
            self._address = Address(*self._socket.getsockname()[:2])
        except OSError as error:
            self._socket.close()
            raise _cannot_listen(address, error) from error
        listeners.add(self)
        self._resume()

    @property
    def address(self) -> Address:
        """The address at which it listens."""
        return self._address

    def close(self) -> None:
        """Stop accepting. May be repeated."""
        if self in self._listeners:
            self._listeners.discard(self)
            self._streams.loop.watch(self._socket.fileno(), None, None)
            self._socket.close()

    def abandon(self) -> None:
        """Close the descriptor of a forked child."""
        close_copy(self._socket)

    def _resume(self) -> None:
        if self in self._listeners:
            self._streams.loop.watch(self._socket.fileno(), self._accept, None)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_DISPATCH):
            try:
                made, there = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _PASSING:
                    continue
                # No file descriptors or no memory, most likely: new connections stay in the kernel's queue.
                _log.warning("%s accepts no connection for 100 ms: %s", self._address, error)
                loop = self._streams.loop
                loop.watch(self._socket.fileno(), None, None)
                loop.call_at(loop.now_ns() + _ACCEPT_PAUSE_NS, self._resume)
                return
            try:
                self._options.apply(made)
            except OSError:  # gone already
                made.close()
                continue
            _pass_on(self._accepted, SocketStream(made, str(Address(*there[:2])), self._streams))
            if self not in self._listeners:
                return


class Connecting:
    """An attempt to connect; `cancel` stops it.

    >>> from headgate.net.loop import open_loop
    >>> from headgate.net.sockets import SocketTransport
    >>> transport = SocketTransport(open_loop())
    >>> attempt = transport.connect(Address("localhost", 7077), 10**9, connected=print)
    >>> transport.close()
    cannot connect: not an IP address and a port (localhost:7077)
    """

    def __init__(
        self,
        address: Address,
        connected: Callable[[Stream | Exception], object],
        streams: StreamSet,
        connecting: set[Connecting],
    ) -> None:
        self._address = address
        self._connected = connected
        self._streams = streams
        self._connecting = connecting  # contains this attempt until its end is known
        self._socket: socket.socket | None = None
        self._timeout: Timer | None = None
        self._answered = False
        connecting.add(self)

    def begin(self, timeout_ns: int, options: SocketOptions) -> None:
        """Ask the kernel to connect."""
        loop = self._streams.loop
        try:
            self._socket = made = _open_socket(self._address, options)
            code = made.connect_ex(_socket_address(self._address))
        except OSError as error:
            self.fail_soon(f"cannot connect: {error.strerror or error}")
            return
        if code not in (0, errno.EINPROGRESS):
            self.fail_soon(f"cannot connect: {os.strerror(code)}")
            return
        loop.watch(made.fileno(), None, functools.partial(self._check, made))
        late = f"no connection within {timeout_ns / 1e9:g} s; network.connect_timeout allows more"
        self._timeout = loop.call_at(loop.now_ns() + timeout_ns, functools.partial(self.fail_soon, late))

    def cancel(self) -> None:
        """Stop; `connected` is not called any more. May be repeated."""
        self._answered = True
        if (made := self._settle()) is not None:
            made.close()

    def abandon(self) -> None:
        """Close the descriptor of a forked child."""
        if self._socket is not None:
            close_copy(self._socket)

    def fail_soon(self, reason: str) -> None:
        """Stop, and post the call of `connected` with the reason."""
        if (made := self._settle()) is not None:
            made.close()
        error = TransportError(reason, peer=str(self._address))
        self._streams.loop.post(functools.partial(self._answer, error))

    def _check(self, made: socket.socket) -> None:
        code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        # ECONNRESET: the peer has accepted and dropped it since (a port without a listener gives ECONNREFUSED). The
        # stream ends at its first read, as it does if the reset arrives later.
        if code not in (0, errno.ECONNRESET):
            self.fail_soon(f"cannot connect: {os.strerror(code)}")
            return
        if code == 0:
            try:
                there = made.getpeername()
            except OSError:
                return  # not yet
            if there == made.getsockname():
                # The kernel may choose for this end the very port that no process listens on, and connect it to itself.
                self.fail_soon("cannot connect: no process listens there")
                return
        self._settle()
        self._answered = True
        _pass_on(self._connected, SocketStream(made, str(self._address), self._streams))

    def _answer(self, error: TransportError) -> None:
        if not self._answered:
            self._answered = True
            self._connected(error)

    def _settle(self) -> socket.socket | None:
        """Remove the attempt, whose end is known. Return its socket, to be closed or used, if there is one."""
        self._connecting.discard(self)
        if self._timeout is not None:
            self._timeout.cancel()
        made, self._socket = self._socket, None
        if made is not None:
            self._streams.loop.watch(made.fileno(), None, None)
        return made


def _pass_on(taker: Callable[[Stream], object], stream: SocketStream) -> None:
    try:
        taker(stream)
    except BaseException:
        stream.abort()
        raise  # to the log


def _open_socket(address: Address, options: SocketOptions) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        options.apply(made)
    except OSError:
        made.close()
        raise
    return made


def _socket_address(address: Address) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return the address in the kernel's form; never asks a name server."""
    host, port = address
    try:
        ipaddress.ip_address(host)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (ValueError, OSError):
        found = []
    if not found or not 0 <= port <= 0xFFFF:
        raise OSError(errno.EINVAL, "not an IP address and a port")
    return found[0][4]  # type: ignore[return-value] # typeshed allows for address families without ports


def _cannot_listen(address: Address, error: OSError) -> TransportError:
    match error.errno:
        case errno.EADDRINUSE:
            reason = "the port is in use; network.port names another, or 0 any that is free"
        case errno.EADDRNOTAVAIL | errno.EINVAL:
            reason = "network.bind_address is not an address of this machine"
        case errno.EACCES | errno.EPERM:
            reason = "this user may not open the port; network.port names another, or 0 any that is free"
        case _:
            reason = error.strerror or str(error)
    return TransportError(f"cannot listen: {reason}", peer=str(address))
