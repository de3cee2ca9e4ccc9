"""The protocol between processes of one user: one request and one answer per connection, both JSON.

Used by the server's and the client's threads, on blocking sockets. A message is its length, four bytes, and that many
bytes of JSON.

Invariants: a length is checked before memory is allocated for it; every wait has a time limit; any received bytes are a
message or an error of this module.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Annotated, Any, Final, Literal

import msgspec

from headgate.errors import RemoteProtocolError, RequestTimeout

__all__ = ["MAX_ANSWER_BYTES", "MAX_REQUEST_BYTES", "JobAnswer", "JobLine", "JobRequest", "peer_uid", "receive", "send"]

MAX_REQUEST_BYTES: Final = 4096
"""The limit of a request."""
MAX_ANSWER_BYTES: Final = 64 * 2**20
"""The limit of an answer: a view of a very large job, with its history."""

_LENGTH: Final = struct.Struct("!I")
_CREDENTIALS: Final = struct.Struct("3i")  # of a process: its pid, user and group
_CHUNK: Final = 1 << 18

_What = Literal["jobs", "view", "timeline", "pressure", "why", "cancel"]


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request about a job.

    >>> msgspec.json.encode(JobRequest(what="view", job="job-1"))
    b'{"what":"view","job":"job-1"}'
    """

    what: _What
    job: Annotated[str, msgspec.Meta(max_length=256)] = ""  # its id; empty: all jobs
    timeline: bool = False  # of view
    refresh: bool = False  # of pressure and why
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0  # of timeline
    points: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 300
    vertex: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a request, or an error; `gone` if the process does not have the job."""

    error: str | None = None
    gone: bool = False
    answer: msgspec.Raw = msgspec.Raw(b"null")


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the answer to `jobs`."""

    id: str
    name: str
    status: str
    started_ms: int
    uptime_s: float
    pid: int  # of its driver
    headgate: str


def send(sock: socket.socket, message: bytes, *, timeout_s: float) -> None:
    """Send a message, in full.

    >>> one, other = socket.socketpair()
    >>> send(one, b"{}", timeout_s=1)
    >>> receive(other, max_bytes=100, timeout_s=1)
    b'{}'
    >>> one.close(); other.close()

    Raises:
        RequestTimeout: the peer does not read it in time.
        OSError: the connection is gone.
    """
    sock.settimeout(timeout_s)
    try:
        sock.sendall(_LENGTH.pack(len(message)) + message)
    except TimeoutError:
        raise RequestTimeout(
            f"the peer did not read a message of {len(message)} bytes within {timeout_s:g} s"
        ) from None


def receive(sock: socket.socket, *, max_bytes: int, timeout_s: float) -> bytes:
    """Return a message; b"" if the peer has closed the connection.

    >>> one, other = socket.socketpair()
    >>> one.sendall(b"GET / HTTP/1.1"); receive(other, max_bytes=4096, timeout_s=1)
    Traceback (most recent call last):
    headgate.errors.RemoteProtocolError: a message of 1195725856 bytes was announced: at most 4096 are accepted
    >>> one.close(); other.close()

    Raises:
        RemoteProtocolError: it is too long, or incomplete.
        RequestTimeout: it does not arrive in time.
        OSError: the connection is gone.
    """
    until_s = time.monotonic() + timeout_s
    try:
        header = _read(sock, _LENGTH.size, until_s)
        if not header:
            return b""
        (size,) = _LENGTH.unpack(header) if len(header) == _LENGTH.size else (-1,)
        if size > max_bytes:
            raise RemoteProtocolError(f"a message of {size} bytes was announced: at most {max_bytes} are accepted")
        body = b"" if size < 0 else _read(sock, size, until_s)
    except TimeoutError:
        raise RequestTimeout(f"no complete message arrived within {timeout_s:g} s") from None
    if size <= 0 or len(body) < size:
        raise RemoteProtocolError("a message is incomplete, or empty")
    return body


def _read(sock: socket.socket, size: int, until_s: float) -> bytes:
    """Return `size` bytes, or fewer if the connection ends."""
    data = bytearray()
    while len(data) < size:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        some = sock.recv(min(_CHUNK, size - len(data)))
        if not some:
            break
        data += some
    return bytes(data)


def peer_uid(sock: socket.socket) -> int:
    """Return the user of the process at the other end, as the kernel reports it.

    >>> import os
    >>> one, other = socket.socketpair()
    >>> peer_uid(one) == os.geteuid()
    True
    >>> one.close(); other.close()
    """
    found: tuple[Any, ...] = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(found[1])
