"""A server of the page, and a client that sends exactly the requests of the test."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tests.support.job_views import FakeWatched, synthetic_view
from tests.support.waiting import PATIENCE_S

from headgate.observe import ObservedJob
from headgate.ui.server import UiServer


@dataclass
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A client of one server. By itself it only sends the header `Host`, unless the test gives another."""

    def __init__(self, server: UiServer) -> None:
        self.server = server
        self.port = server.port
        self.host = f"127.0.0.1:{server.port}"

    def ask(self, path: str = "/", method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Send a request; a header's name is written with '_' for '-'."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": self.host, **given}.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "Content-Length" not in given and "Transfer-Encoding" not in given:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """Send a request with the token, as a program does."""
        return self.ask(path, Authorization=f"Bearer {self.server.token}", **headers)

    def post(self, path: str, **headers: str) -> Answer:
        return self.ask(path, "POST", b"", Authorization=f"Bearer {self.server.token}", **headers)

    def cookie(self) -> str:
        """Return the response to the printed address, as a browser gets it."""
        answer = self.ask(f"/?token={self.server.token}")
        assert answer.status == 303
        return answer.headers["Set-Cookie"].partition(";")[0]

    def settle(self) -> None:
        """Block until the server has no connection left."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.server.connections:
            assert time.monotonic() < deadline_s, "a connection is left"
            time.sleep(0.002)
        loop = self.server._loop
        if loop is not None:  # their sockets are closed by the end of the loop's present turn
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE_S)

    def raw(self, data: bytes) -> bytes:
        """Send bytes. Return all bytes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def serving(jobs: Mapping[str, ObservedJob] | None = None, **options: Any) -> Iterator[Client]:
    """Run a server of some jobs, by default of one small job."""
    shown = {"job-5eed": FakeWatched(synthetic_view())} if jobs is None else jobs
    with UiServer(lambda: shown, **options) as server:
        yield Client(server)
