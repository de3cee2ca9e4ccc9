"""The server of the page: one thread of the driver with an event loop of its own, behind the guard.

`start` and `close` are for any thread but that one. It only reads jobs, through `ObservedJob`; with `allow_control` the
page can also cancel them.

Invariants: it listens on loopback unless an option that begins with `insecure_` allows more; after `close` the port,
the thread and all connections are gone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, Self

import uvicorn

from headgate.errors import ConfigError, HeadgateError
from headgate.ui.api import Api
from headgate.ui.connections import BoundedProtocol
from headgate.ui.guard import Guard, PageSecrets, known_hosts
from headgate.ui.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.observe.view import ObservedJob

__all__ = ["UiServer"]

_START_S: Final = 20.0
_GRACE_S: Final = 1.0  # for answers in progress when it is closed
_CALLS_S: Final = 2.0  # for calls of jobs in progress then
_HEAD_BYTES: Final = 16 * 1024  # of the head of a request


class UiServer:
    """Serves the page, the JSON interface and the metrics of jobs.

    Args:
        jobs: Returns the jobs of the page, by id. It is called for every request and must not block.
        host: The address to listen on.
        port: The port; 0: a free one.
        allow_control: The page can cancel jobs.
        insecure_remote: Required for an address that is not loopback. There is no TLS: an observer of the network can
            read the token, and with it everything that the page shows.

    Raises:
        ConfigError: the address is not loopback, and `insecure_remote` is not set.

    >>> from urllib.request import Request, urlopen
    >>> with UiServer(lambda: {}) as server:
    ...     request = Request(f"http://127.0.0.1:{server.port}/api/jobs")
    ...     request.add_header("Authorization", f"Bearer {server.token}")
    ...     with urlopen(request) as answer:
    ...         answer.read()
    b'[]'
    """

    def __init__(
        self,
        jobs: Callable[[], Mapping[str, ObservedJob]],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allow_control: bool = False,
        insecure_remote: bool = False,
    ) -> None:
        self._address = _address(host)
        if not self._address.is_loopback:
            if not insecure_remote:
                raise ConfigError(
                    f"the page would be served on {host} without TLS: use 127.0.0.1 and a tunnel (ssh -L), or say "
                    "insecure_remote=True"
                )
            warnings.warn(
                f"the page is served on {host} without TLS: an observer of the network can read its token",
                RuntimeWarning,
                stacklevel=2,
            )
        self._jobs = jobs
        self._requested_port = port
        self.allow_control = allow_control
        self._secrets: PageSecrets | None = None
        self._port = 0
        self._views: Views | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._connections: set[Any] = set()  # uvicorn's

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """Return the port it listens on; 0 before `start`."""
        return self._port

    @property
    def token(self) -> str:
        """Return the token, which programs send as `Authorization: Bearer`; '' before `start`."""
        return "" if self._secrets is None else self._secrets.token

    @property
    def url(self) -> str:
        """Return the address to open, with the token; complete after `start`."""
        host = f"[{self._address}]" if self._address.version == 6 else str(self._address)
        return f"http://{host}:{self._port}/?token={self.token}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}:{self._port}>"

    def start(self) -> str:
        """Listen, and return the address to open.

        Raises:
            ConfigError: the port is in use, or not permitted.
        """
        with self._lock:
            if self._thread is not None:
                raise HeadgateError("the server of the page was started before")
            listener = self._listener()
            self._port = listener.getsockname()[1]
            self._secrets = PageSecrets(f"headgate_{self._port}")
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(listener, self._secrets, ready), name="headgate-ui", daemon=True
            )
            self._thread.start()
            if not ready.wait(_START_S) or self._loop is None:
                raise HeadgateError("the server of the page did not start")
        return self.url

    def close(self) -> None:
        """Stop listening, and end requests in progress. Without effect if it does not run."""
        with self._lock:
            thread, loop, stop = self._thread, self._loop, self._stop
            if thread is None or loop is None or stop is None:
                return
            self._loop = None
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        if self._views is not None:
            self._views.join(_CALLS_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listener(self) -> socket.socket:
        family = socket.AF_INET6 if self._address.version == 6 else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((str(self._address), self._requested_port))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the page cannot listen on port {self._requested_port} of {self._address}: {reason}. Choose "
                "another, or 0 for a free one"
            ) from None
        return listener

    def _run(self, listener: socket.socket, secrets: PageSecrets, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(listener, secrets, ready))
        finally:
            listener.close()
            ready.set()

    async def _serve(self, listener: socket.socket, secrets: PageSecrets, ready: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        views = self._views = Views(self._jobs)
        stop = self._stop = asyncio.Event()
        remote = not self._address.is_loopback
        names = [str(self._address), *([socket.gethostname()] if remote else [])]
        guard = Guard(
            Api(views, allow_control=self.allow_control).app,
            secrets,
            known_hosts(self._port, *names),
            any_address=remote,
        )
        server = uvicorn.Server(_config(guard))
        self._connections = server.server_state.connections
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        self._loop = loop
        ready.set()
        await asyncio.wait({serving, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        views.stop()
        server.should_exit = True
        await asyncio.wait({serving}, timeout=_GRACE_S)
        for connection in list(self._connections):
            connection.transport.abort()
        await serving


def _config(app: Guard) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,  # the user configures the logging of the process
        access_log=True,  # False would change a logger of the whole process; see `BoundedProtocol`
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
    )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ConfigError(f"the page listens on an address such as 127.0.0.1, not on {host!r}") from None
