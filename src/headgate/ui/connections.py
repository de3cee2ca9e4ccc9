"""HTTP connections that nobody can hold open: uvicorn's, with limits on their number and on how long they may take.

uvicorn makes one `BoundedProtocol` per connection, on the server's event loop. Who sends no whole request within some
seconds, or does not read its answer, is cut off.

Invariants: at most `MAX_CONNECTIONS`; nothing is written to a log that a handler of the user's did not ask for, and no
address of a request, which may hold the token.
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
"""A browser opens six to one server."""

_REQUEST_S: Final = 10.0  # for the whole head of a request, from the first byte or the connection's start
_READ_S: Final = 30.0  # in which something of an answer must have been read
_LINGER_S: Final = 10.0  # for the last bytes, once it is being closed

_log = logging.getLogger("headgate.ui.http")
_log.addHandler(logging.NullHandler())  # strangers must not fill a terminal


class BoundedProtocol(H11Protocol):
    """One connection.

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
        self.app = self.config.app  # as given: uvicorn's wrapper can log whole addresses
        self._to_ask: asyncio.TimerHandle | None = None
        self._to_read: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Refuse it, if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._to_ask = self.loop.call_later(self.request_s, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        for timer in (self._to_ask, self._to_read):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of a request: the clock runs until all of its head is there."""
        super().data_received(data)
        if self._is_asked():
            self._asked()
        elif self._to_ask is None and not self.transport.is_closing():
            self._to_ask = self.loop.call_later(self.request_s, self.transport.abort)

    def on_response_complete(self) -> None:
        """The answer is written."""
        super().on_response_complete()
        if self.transport.is_closing():
            self.loop.call_later(_LINGER_S, self.transport.abort)
        elif self._is_asked():
            self._asked()  # the next request was there already

    def _is_asked(self) -> bool:
        """Whether there is a request that is not answered yet."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _asked(self) -> None:
        if self._to_ask is not None:
            self._to_ask.cancel()
            self._to_ask = None

    def pause_writing(self) -> None:
        """What was written is not read."""
        super().pause_writing()
        if self._to_read is None:
            self._to_read = self.loop.call_later(self.read_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It is."""
        if self._to_read is not None:
            self._to_read.cancel()
            self._to_read = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for a while."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(_LINGER_S, self.transport.abort)
