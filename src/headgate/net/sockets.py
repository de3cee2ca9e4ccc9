"""TCP under an event loop: the `Transport` that workers use.

The worker's environment creates one with `open_loop(...)`, starts it, and closes it at the end. Any thread may call
`start`, `close`, `call`, `post` and `poll_once`; the rest is for callbacks, or before `start`.

Invariant: after `close` every stream that was started has had its `lost`, every `connect` has had its answer, and no
thread, socket or other file is left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from headgate import forks
from headgate.errors import Cancelled, TransportError
from headgate.net.socket_open import Connecting, SocketListener, SocketOptions
from headgate.net.socket_stream import StreamSet
from headgate.net.stream import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.loop import EventLoop
    from headgate.net.stream import Stream, Timer

__all__ = ["SocketOptions", "SocketTransport", "TransportStatistics"]

_Result = TypeVar("_Result")

_CLOSE_GRACE_NS: Final = 1_000_000_000  # for how long peers may delay `SocketTransport.close`
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """The sockets of a transport.

    >>> TransportStatistics(streams=2, lingering=0, connecting=1, listeners=1).streams
    2
    """

    streams: int
    lingering: int  # closed here, not yet by the peer
    connecting: int
    listeners: int


class SocketTransport:
    """Streams over TCP, and timers, under an event loop.

    >>> from headgate.net.loop import open_loop
    >>> with SocketTransport(open_loop("auto")) as transport:
    ...     listener = transport.call(lambda: transport.listen("127.0.0.1", 0, accepted=lambda stream: stream.close()))
    ...     listener.address.host
    '127.0.0.1'
    """

    def __init__(self, loop: EventLoop, options: SocketOptions | None = None) -> None:
        self._loop = loop
        self._options = SocketOptions() if options is None else options
        self._streams = StreamSet(loop)
        self._listeners: set[SocketListener] = set()
        self._connecting: set[Connecting] = set()
        self._started = False
        self._closing = False
        self._finished = threading.Event()
        forks.register(self)

    def start(self) -> None:
        """Start the network thread; once."""
        self._started = True
        self._loop.start()

    def close(self) -> None:
        """Close all streams, listeners and the loop, and join the network thread, unless that is the caller.

        Peers that do not close their ends delay it by a second. May be repeated.
        """
        if not self._started:
            self.start()  # so that there is one way to close
        self._loop.post(self._shut)
        self._loop.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def now_ns(self) -> int:
        """Return the time of a monotonic clock."""
        return self._loop.now_ns()

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function on the network thread at a time; from that thread only."""
        return self._loop.call_at(when_ns, function)

    def post(self, callback: Callable[[], object], *, urgent: bool = True) -> None:
        """Run a callback on the network thread; from any thread. See `EventLoop.post`."""
        self._loop.post(callback, urgent=urgent)

    def poll_once(self, *, reply_expected: bool = False) -> bool:
        """Receive what has arrived, without blocking; from any thread. See `EventLoop.poll_once`."""
        return self._loop.poll_once(reply_expected=reply_expected)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run a function on the network thread; return or raise its result. From any other thread.

        Raises:
            Cancelled: the transport was closed before.
        """
        assert self._started, "no thread would run it"
        outcome: list[_Result] = []
        raised: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - raised again where the call came from
                raised.append(error)
            done.set()

        self._loop.post(run)
        while not done.wait(_POLL_S):
            if self._finished.is_set():
                self._loop.join()
                if not done.is_set():
                    raise Cancelled("the transport is closed")
        if raised:
            raise raised[0]
        return outcome[0]

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> SocketListener:
        """Open a port (0: any that is free); `accepted` gets a stream for each connection, and starts it.

        Raises:
            TransportError: the port is in use, or the address is not this machine's.
        """
        if self._closing:
            raise TransportError("the transport is closed", peer=str(Address(host, port)))
        return SocketListener(Address(host, port), accepted, self._options, self._streams, self._listeners)

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener; `connected` gets a stream to start, or a TransportError. Cancel the result to stop."""
        attempt = Connecting(address, connected, self._streams, self._connecting)
        if self._closing:
            attempt.fail_soon("the transport is closed")
        else:
            attempt.begin(timeout_ns, self._options)
        return attempt

    def statistics(self) -> TransportStatistics:
        """Return the number of sockets of each kind; from any thread."""
        return TransportStatistics(
            streams=len(self._streams.open),
            lingering=len(self._streams.lingering),
            connecting=len(self._connecting),
            listeners=len(self._listeners),
        )

    def abandon(self) -> None:
        """See `forks`: close every descriptor of a forked child. Nothing is sent to the peers."""
        streams = self._streams
        copies: list[forks.Forked] = [*self._listeners, *self._connecting, *streams.open, *streams.lingering]
        for one in copies:
            one.abandon()
        self._loop.abandon()
        self._finished = threading.Event()  # another: a thread that is not in the child may have held its lock
        self._finished.set()

    def _shut(self) -> None:
        if self._closing:
            return
        self._closing = True
        for listener in tuple(self._listeners):
            listener.close()
        for attempt in tuple(self._connecting):
            attempt.fail_soon("the transport is closed")
        for stream in tuple(self._streams.open):
            stream.close()
        if self._streams.lingering:
            self._streams.drained = self._finish
            self._loop.call_at(self.now_ns() + _CLOSE_GRACE_NS, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        self._streams.drained = None
        for lingering in tuple(self._streams.lingering):
            lingering.end()
        self._finished.set()
        self._loop.stop()
