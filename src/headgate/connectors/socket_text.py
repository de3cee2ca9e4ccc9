"""SocketTextSource: lines of text from a socket, such as `nc -lk 9999`. For experiments: lines cannot be read twice.

Called on the task's thread. The socket does not block: without data the source yields `Wait`, so that a cancelled job
ends at once. The socket is closed with the iterator.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING

from headgate.connectors.files.lines import check_encoding
from headgate.connectors.generators import BATCH_RECORDS, skip
from headgate.errors import ConfigError, TransportError
from headgate.functions.source import Source, Wait

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from headgate.functions.place import Place

__all__ = ["SocketTextSource"]

_CHUNK_BYTES = 2**16
_MIN_WAIT_S = 0.001
_MAX_WAIT_S = 0.016


class SocketTextSource(Source[str]):
    r"""Lines that a server sends, read by one subtask. The source ends when the server closes the connection.

    After an error, the source connects again, up to `retries` times, `retry_seconds` apart; -1: without limit. An
    incomplete line before the error is lost. An offset skips that many lines that the server sends.

    >>> import socket
    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     source = SocketTextSource("127.0.0.1", server.getsockname()[1])
    ...     lines = source.read(source.splits(1)[0], 0, None)
    ...     first = next(lines)  # connects, and yields Wait
    ...     with server.accept()[0] as connection:
    ...         connection.sendall(b"to be\nor not")
    ...     [line for batch in lines if not isinstance(batch, Wait) for line in batch]
    ['to be', 'or not']
    """

    bounded = False
    fresh = True
    hint = str
    default_parallelism = 1  # one subtask connects

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

    def splits(self, parallelism: int) -> Sequence[tuple[str, int]]:  # noqa: ARG002 - one connection
        """Return the address as the only split."""
        return [self._address]

    def read(self, split: tuple[str, int], offset: int, place: Place) -> Iterator[list[str] | Wait]:  # noqa: ARG002
        """Yield lines as they arrive."""
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
            while (left_s := again_s - time.monotonic()) > 0:  # the task may resume before the end of a wait
                yield Wait(left_s)

    def _connect(self, address: tuple[str, int]) -> Generator[Wait, None, socket.socket]:
        """Return a connection to the first of the host's addresses that accepts one."""
        failure: OSError = OSError(f"{address[0]} has no address")
        for family, kind, protocol, _, target in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            opened = socket.socket(family, kind, protocol)
            try:
                yield from self._connect_to(opened, target)
            except OSError as error:
                opened.close()
                failure = error
            except BaseException:  # for example GeneratorExit, when the iterator is closed
                opened.close()
                raise
            else:
                return opened
        raise failure

    def _connect_to(self, opened: socket.socket, target: tuple[object, ...]) -> Generator[Wait, None, None]:
        opened.setblocking(False)
        code = opened.connect_ex(target)
        until_s, wait_s = time.monotonic() + self._connect_seconds, _MIN_WAIT_S
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(opened, select.POLLOUT)
            while not poll.poll(0):
                if time.monotonic() > until_s:
                    raise TimeoutError(f"no answer within {self._connect_seconds:g} s")
                yield Wait(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
            code = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))

    def _receive(self, connection: socket.socket, peer: str, count: int) -> Iterator[list[str] | Wait]:
        """Yield the lines of one connection until it ends; `count` lines were received before."""
        delimiter, held, wait_s = self._delimiter, bytearray(), _MIN_WAIT_S
        while True:
            try:
                chunk = connection.recv(_CHUNK_BYTES)
            except BlockingIOError:
                yield Wait(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
                continue
            wait_s = _MIN_WAIT_S
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
        if held:  # the last line, without a delimiter
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
