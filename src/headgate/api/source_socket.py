"""Lines of text from a socket, as `nc -lk 9999` gives them: for trying things out, since nothing can be read twice.

On the task's thread; the socket never blocks: where nothing has come yet the source yields `Wait`, so a cancelled job
ends at once. The socket is closed when the iterator is, however that comes about.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from headgate.api.source_lines import check_encoding
from headgate.api.sources import BATCH_RECORDS, skip
from headgate.errors import ConfigError, TransportError
from headgate.task.source import Source, Wait

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from headgate.task.operator import Place

__all__ = ["SocketTextSource"]

_CHUNK_BYTES = 2**16
_SHORTEST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.016


class SocketTextSource(Source[str]):
    r"""Lines that a server sends; one subtask reads them. It ends when the server closes the connection.

    Connecting, and a connection that breaks, is tried again `retries` times, `retry_seconds` apart; -1: for ever. What
    came of a line before the break is lost. An offset skips so many lines of what the server sends.

    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     source = SocketTextSource("127.0.0.1", server.getsockname()[1])
    ...     lines = source.read(source.splits(1)[0], 0, None)
    ...     first = next(lines)  # it connects, and has nothing yet
    ...     with server.accept()[0] as connection:
    ...         connection.sendall(b"to be\nor not")
    ...     [line for batch in lines if not isinstance(batch, Wait) for line in batch]
    ['to be', 'or not']
    """

    bounded = False
    hint = str

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        max_line_bytes: int = 2**20,
        retries: int = 0,
        *,
        retry_seconds: float = 0.5,
        connect_seconds: float = 10.0,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> None:
        if not delimiter:
            raise ConfigError("delimiter is empty: lines end with something")
        if not 0 < port < 2**16:
            raise ConfigError(f"port {port}: it is from 1 to 65535")
        self._address = (host, port)
        self._encoding = check_encoding(encoding)
        self._delimiter = delimiter.encode(self._encoding)
        self._max_line_bytes = max_line_bytes
        self._retries = retries
        self._retry_seconds = retry_seconds
        self._connect_seconds = connect_seconds
        self._errors = errors

    def splits(self, parallelism: int) -> Sequence[tuple[str, int]]:  # noqa: ARG002 - it cannot be cut
        """The one connection."""
        return [self._address]

    def read(self, split: tuple[str, int], offset: int, place: Place) -> Iterator[list[str] | Wait]:  # noqa: ARG002
        """Lines as they come."""
        return skip(self._lines(split), offset)

    def _lines(self, address: tuple[str, int]) -> Iterator[list[str] | Wait]:
        peer = f"{address[0]}:{address[1]}"
        failures, count = 0, 0
        while True:
            connection: socket.socket | None = None
            try:
                connection = yield from self._connect(address)
                for batch in self._receive(connection, peer, count):
                    if not isinstance(batch, Wait):
                        failures = 0
                        count += len(batch)
                    yield batch
            except OSError as error:
                failures += 1
                if 0 <= self._retries < failures:
                    tries = f" after {failures} tries" if failures > 1 else ""
                    raise TransportError(f"no lines from the socket{tries}: {error}", peer=peer) from error
            else:
                return
            finally:
                if connection is not None:
                    connection.close()
            again_s = time.monotonic() + self._retry_seconds
            while (left_s := again_s - time.monotonic()) > 0:  # a wait may be cut short
                yield Wait(left_s)

    def _connect(self, address: tuple[str, int]) -> Generator[Wait, None, socket.socket]:
        """A connection to the first of the host's addresses that answers."""
        failure: OSError = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            opened = socket.socket(family, kind, protocol)
            try:
                yield from self._connect_to(opened, target)
            except OSError as error:
                opened.close()
                failure = error
            except BaseException:  # the iterator is closed
                opened.close()
                raise
            else:
                return opened
        raise failure

    def _connect_to(self, opened: socket.socket, target: tuple[object, ...]) -> Generator[Wait, None, None]:
        opened.setblocking(False)
        code = opened.connect_ex(target)
        until_s, wait_s = time.monotonic() + self._connect_seconds, _SHORTEST_WAIT_S
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(opened, select.POLLOUT)
            while not poll.poll(0):
                if time.monotonic() > until_s:
                    raise TimeoutError(f"no answer within {self._connect_seconds:g} s")
                yield Wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _receive(self, connection: socket.socket, peer: str, count: int) -> Iterator[list[str] | Wait]:
        """Lines of one connection, until it ends; `count` lines came before."""
        delimiter, held, wait_s = self._delimiter, bytearray(), _SHORTEST_WAIT_S
        while True:
            try:
                chunk = connection.recv(_CHUNK_BYTES)
            except BlockingIOError:
                yield Wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            wait_s = _SHORTEST_WAIT_S
            if not chunk:
                break
            searched = max(0, len(held) - len(delimiter) + 1)
            held += chunk
            if held.find(delimiter, searched) >= 0:
                lines = held.split(delimiter)
                held = lines.pop()
                for first in range(0, len(lines), BATCH_RECORDS):
                    batch = self._decoded(lines[first : first + BATCH_RECORDS], peer, count)
                    count += len(batch)
                    yield batch
            if len(held) > self._max_line_bytes:
                raise self._too_long(peer, count)
        if held:  # the last line, without its end
            yield self._decoded([held], peer, count)

    def _decoded(self, lines: list[bytearray], peer: str, count: int) -> list[str]:
        if max(map(len, lines)) > self._max_line_bytes:
            raise self._too_long(peer, count + next(i for i, x in enumerate(lines) if len(x) > self._max_line_bytes))
        texts: list[str] = []
        try:
            texts.extend(line.decode(self._encoding, self._errors) for line in lines)
        except UnicodeDecodeError as error:
            raise ValueError(f"{peer}, line {count + len(texts) + 1}: {error}") from error
        return [text.removesuffix("\r") for text in texts] if self._delimiter == b"\n" else texts

    def _too_long(self, peer: str, line: int) -> ValueError:
        return ValueError(f"{peer}, line {line + 1}: longer than {self._max_line_bytes} bytes (max_line_bytes)")
