"""The server of the page: one thread of the driver with an event loop of its own, behind the guard.

`start` and `close` are for any thread but that one. It only reads jobs, through `Watched`, unless it was told that they
may be cancelled from it.

Invariants: it listens on loopback unless an option that begins with `insecure_` says otherwise; after `close` the port,
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
from headgate.ui.guard import Guard, Keys, known_hosts
from headgate.ui.views import Views

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.observe.view import Watched

__all__ = ["UiServer"]

_START_S: Final = 20.0
_GRACE_S: Final = 1.0  # for answers that are being written when it is closed
_CALLS_S: Final = 2.0  # for calls of jobs that are under way then
_HEAD_BYTES: Final = 16 * 1024  # of a request


class UiServer:
    """Serves the page, the JSON interface and the metrics of some jobs.

    Args:
        jobs: The jobs that can be looked at, by id. It is called for every request and must not wait.
        host: The address to listen on.
        port: The port; 0: one that is free.
        allow_control: Whether jobs can be cancelled from the page.
        insecure_remote: Needed for any address but loopback. There is no TLS: whoever can listen in on the network can
            read the token, and with it all that the page shows.

    Raises:
        ConfigError: the address is not loopback, and `insecure_remote` was not given.

    >>> from urllib.request import Request, urlopen
    >>> with UiServer(lambda: {}) as server:
    ...     asked = Request(f"http://127.0.0.1:{server.port}/api/jobs")
    ...     asked.add_header("Authorization", f"Bearer {server.token}")
    ...     with urlopen(asked) as answer:
    ...         answer.read()
    b'[]'
    """

    def __init__(
        self,
        jobs: Callable[[], Mapping[str, Watched]],
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
                f"the page is served on {host} without TLS: whoever can listen in on the network can read its token",
                RuntimeWarning,
                stacklevel=2,
            )
        self._jobs = jobs
        self._asked_port = port
        self.allow_control = allow_control
        self._keys: Keys | None = None
        self._port = 0
        self._views: Views | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._connections: set[Any] = set()  # uvicorn's

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port it listens on; 0 before `start`."""
        return self._port

    @property
    def token(self) -> str:
        """What programs send as `Authorization: Bearer`. Known once it is started."""
        return "" if self._keys is None else self._keys.token

    @property
    def url(self) -> str:
        """The address to open, with the token in it. Known once it is started."""
        host = f"[{self._address}]" if self._address.version == 6 else str(self._address)
        return f"http://{host}:{self._port}/?token={self.token}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}:{self._port}>"

    def start(self) -> str:
        """Listen, and return the address to open.

        Raises:
            ConfigError: the port is in use, or may not be used.
        """
        with self._lock:
            if self._thread is not None:
                raise HeadgateError("the page's server was started before")
            listener = self._listener()
            self._port = listener.getsockname()[1]
            self._keys = Keys(f"headgate_{self._port}")
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(listener, self._keys, ready), name="headgate-ui", daemon=True
            )
            self._thread.start()
            if not ready.wait(_START_S) or self._loop is None:
                raise HeadgateError("the page's server did not start")
        return self.url

    def close(self) -> None:
        """Stop listening, and end what is under way. Without effect on one that is not running."""
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
            listener.bind((str(self._address), self._asked_port))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"the page cannot have port {self._asked_port} of {self._address}: {reason}. Choose another, or 0 for "
                "any that is free"
            ) from None
        return listener

    def _run(self, listener: socket.socket, keys: Keys, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(listener, keys, ready))
        finally:
            listener.close()
            ready.set()

    async def _serve(self, listener: socket.socket, keys: Keys, ready: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        views = self._views = Views(self._jobs)
        stop = self._stop = asyncio.Event()
        remote = not self._address.is_loopback
        names = [str(self._address), *([socket.gethostname()] if remote else [])]
        guard = Guard(
            Api(views, allow_control=self.allow_control).app,
            keys,
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
        log_config=None,  # the process's logging is its user's
        access_log=True,  # False would change a logger of the whole process; connections do without by themselves
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
