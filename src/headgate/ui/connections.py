"""HTTP connections of uvicorn, with limits of their number and of the time of a request.

uvicorn creates one `BoundedProtocol` per connection, on the server's event loop. A client that does not send a complete
request or does not read its answer within some seconds is disconnected.

Invariants: there are at most `MAX_CONNECTIONS`; log records appear only if the user has added a handler, and never
contain the address of a request, which may contain the token.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

__all__ = ["MAX_CONNECTIONS", "BoundedProtocol"]

MAX_CONNECTIONS: Final = 64
"""A browser opens six connections to a server."""

_REQUEST_S: Final = 10.0  # for the whole head of a request, from the first byte or the connection's start
_READ_S: Final = 30.0  # within which a client must read some bytes of an answer
_LINGER_S: Final = 10.0  # for the last bytes of a connection that is being closed

_log = logging.getLogger("headgate.ui.http")
_log.addHandler(logging.NullHandler())  # without it, failed requests would be printed on stderr


class BoundedProtocol(H11Protocol):
    """One connection, with time limits.

    >>> import uvicorn
    >>> uvicorn.Config(lambda scope, receive, send: None, http=BoundedProtocol, log_config=None).http
    <class 'headgate.ui.connections.BoundedProtocol'>
    """

    request_s = _REQUEST_S
    read_s = _READ_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _log
        self.access_log = False
        self.app = self.config.app  # without uvicorn's wrapper, which can log whole addresses
        self._request_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the time limit of the first request; close the connection if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._request_timer = self.loop.call_later(self.request_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limits."""
        for timer in (self._request_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; the time limit applies until its head is complete."""
        super().data_received(data)
        if self._has_request():
            self._stop_request_timer()
        elif self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(self.request_s, self.transport.abort)

    def on_response_complete(self) -> None:
        """Limit the time of a connection that is being closed."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(_LINGER_S, self.transport.abort)
        elif self._has_request():
            self._stop_request_timer()  # the next request has been received already

    def _has_request(self) -> bool:
        """Return True if a request has been received and is not answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def pause_writing(self) -> None:
        """Start the time limit for reading: the client does not read."""
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit for reading."""
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(_LINGER_S, self.transport.abort)
