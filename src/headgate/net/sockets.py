"""TCP under an event loop: the `Transport` that workers use.

Whoever builds a worker makes one with `open_loop(...)`, starts it, and closes it at the end. `start`, `close`, `call`
and `call_soon` are for any thread, the rest for the network thread, or for anyone before `start`.

Invariant: after `close` every stream that was started has been told `lost`, whoever waited for a connection has had an
answer, and no thread, socket or other file is left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from headgate.errors import Cancelled, TransportError
from headgate.net.socket_open import Connecting, SocketListener, SocketOptions
from headgate.net.socket_stream import StreamSet
from headgate.net.stream import Address

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.loop import Loop
    from headgate.net.stream import Stream, Timer
    from headgate.switching import Pace

__all__ = ["SocketOptions", "SocketTransport", "TransportStatistics"]

_Result = TypeVar("_Result")

_CLOSE_GRACE_NS: Final = 1_000_000_000  # how long peers may keep `SocketTransport.close` waiting
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """What a transport holds at a moment.

    >>> TransportStatistics(streams=2, lingering=0, connecting=1, listeners=1).streams
    2
    """

    streams: int
    lingering: int  # closed, with the peer still to notice
    connecting: int
    listeners: int


class SocketTransport:
    """Streams over TCP, and time, on a thread of its own.

    >>> from headgate.net.loop import open_loop
    >>> with SocketTransport(open_loop("auto")) as transport:
    ...     listener = transport.call(lambda: transport.listen("127.0.0.1", 0, accepted=lambda stream: stream.close()))
    ...     listener.address.host
    '127.0.0.1'
    """

    def __init__(self, loop: Loop, options: SocketOptions | None = None, pace: Pace | None = None) -> None:
        self._loop = loop
        self._options = SocketOptions() if options is None else options
        self._streams = StreamSet(loop, pace)
        self._listeners: set[SocketListener] = set()
        self._connecting: set[Connecting] = set()
        self._started = False
        self._closing = False
        self._finished = threading.Event()

    def start(self) -> None:
        """Start the network thread; once."""
        self._started = True
        self._loop.start()

    def close(self) -> None:
        """Close all streams, listeners and the loop, and wait for the thread, unless it is that which calls.

        Peers that do not close their ends keep it waiting for a second. May be repeated.
        """
        if not self._started:
            self.start()  # one way to close is enough
        self._loop.call_soon(self._shut)
        self._loop.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def now_ns(self) -> int:
        """The time, on a clock that only goes forward."""
        return self._loop.now_ns()

    def call_at(self, when_ns: int, function: Callable[[], object]) -> Timer:
        """Call a function on the network thread at a time; from that thread only."""
        return self._loop.call_at(when_ns, function)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the network thread as soon as it is free; from any thread."""
        self._loop.call_soon(function)

    def call_lazily(self, function: Callable[[], object]) -> None:
        """As `call_soon`, but within a moment: not worth a change of threads. From any thread."""
        self._loop.call_lazily(function)

    def attend(self) -> None:
        """What the peers say next is waited for: not within a moment, but at once. From any thread."""
        self._loop.attend()

    def glance(self) -> None:
        """Hear what the peers have said by now, unless somebody is about to. From any thread."""
        self._loop.glance()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the network thread and wait for what it returns or raises; from any other thread.

        Raises:
            Cancelled: the transport was closed before.
        """
        assert self._started, "nobody would answer"
        outcome: list[_Result] = []
        raised: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - raised again where the call came from
                raised.append(error)
            done.set()

        self._loop.call_soon(run)
        while not done.wait(_POLL_S):
            if self._finished.is_set():
                self._loop.join()
                if not done.is_set():
                    raise Cancelled("the transport is closed")
        if raised:
            raise raised[0]
        return outcome[0]

    def listen(self, host: str, port: int, accepted: Callable[[Stream], object]) -> SocketListener:
        """Open a port (0: any that is free); `accepted` gets a stream for each who connects, and starts it.

        Raises:
            TransportError: the port is in use, or the address is not this machine's.
        """
        if self._closing:
            raise TransportError("the transport is closed", peer=str(Address(host, port)))
        return SocketListener(Address(host, port), accepted, self._options, self._streams, self._listeners)

    def connect(self, address: Address, timeout_ns: int, connected: Callable[[Stream | Exception], object]) -> Timer:
        """Connect to a listener; `connected` gets a stream to start, or the TransportError. Cancel it to give up."""
        attempt = Connecting(address, connected, self._streams, self._connecting)
        if self._closing:
            attempt.fail_soon("the transport is closed")
        else:
            attempt.begin(timeout_ns, self._options)
        return attempt

    def statistics(self) -> TransportStatistics:
        """What there is now; from any thread."""
        return TransportStatistics(
            streams=len(self._streams.open),
            lingering=len(self._streams.lingering),
            connecting=len(self._connecting),
            listeners=len(self._listeners),
        )

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
