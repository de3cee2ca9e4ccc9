"""The socket that answers requests of other processes of the same user about the jobs of this process.

Created by `publishing`, whose thread accepts connections. Each connection has one request and a thread of its own, as
some answers take seconds.

Invariants: only processes of this user are answered; there are at most `MAX_CONNECTIONS` at once, each with a time
limit for the request and for reading the answer; invalid bytes end their connection and nothing else; the name of the
socket exists only while it listens, so a socket that refuses connections belongs to a process that was killed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.attach.protocol import (
    MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES,
    JobAnswer,
    JobLine,
    JobRequest,
    peer_uid,
    receive,
    send,
)
from headgate.errors import HeadgateError
from headgate.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.attach.directories import PrivateDirectory
    from headgate.observe.view import ObservedJob

__all__ = ["MAX_CONNECTIONS", "JobServer", "host_prefix"]

_log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""Requests at once; further connections are closed."""

_REQUEST_S: Final = 5.0  # for receiving a request
_ANSWER_S: Final = 10.0  # for sending an answer
_CLOSE_S: Final = 5.0  # for answers in progress when the last job is over


def host_prefix() -> str:
    """Return the beginning of the names of this machine's sockets: several machines may share the directory.

    >>> host_prefix().endswith("-")
    True
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "_", socket.gethostname())[:64] + "-"


class JobServer:
    """Answers requests about jobs.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from headgate.attach.directories import PrivateDirectory
    >>> with tempfile.TemporaryDirectory() as folder, PrivateDirectory("run", root=Path(folder), create=True) as run:
    ...     server = JobServer(dict, run)
    ...     names = run.names(); server.close()
    ...     names == [server.name], run.names()
    (True, [])

    Raises:
        OSError: the socket cannot be created in that directory.
    """

    def __init__(self, jobs: Callable[[], Mapping[str, ObservedJob]], directory: PrivateDirectory) -> None:
        self._jobs = jobs
        self._directory = directory
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self.name = f"{host_prefix()}{os.getpid()}-{secrets.token_hex(4)}.sock"
        beginning = f".{self.name}"  # clients skip this name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            os.fchmod(self._listener.fileno(), 0o600)  # the mode of the file
            self._listener.bind(directory.via(beginning))
            self._listener.listen(MAX_CONNECTIONS)
            os.rename(beginning, self.name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        except BaseException:
            self._listener.close()
            directory.remove(beginning)
            raise

    def fileno(self) -> int:
        """Return the descriptor to poll: when it is readable, `accept` takes a connection."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Accept a connection, if there is one. Does not block.

        Raises:
            OSError: there are no more descriptors, for example.
        """
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        with self._lock:
            full = len(self._connections) >= MAX_CONNECTIONS
            if full or peer_uid(sock) != os.geteuid():
                sock.close()
                _log.debug("a request is refused: %s", "too many at once" if full else "it is of another user")
                return
            thread = threading.Thread(target=self._serve, args=(sock,), name="headgate-answer", daemon=True)
            self._connections[sock] = thread
        thread.start()

    def is_answering(self) -> bool:
        """Return True if the current thread answers a request."""
        with self._lock:
            return threading.current_thread() in self._connections.values()

    def close(self) -> None:
        """Accept no more requests, and finish those in progress within a time limit. May be repeated."""
        self._directory.remove(self.name)
        self._listener.close()
        until_s = time.monotonic() + _CLOSE_S
        with self._lock:
            left = dict(self._connections)
        for sock in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RD)  # a request that has not been received is dropped
        for thread in left.values():
            thread.join(max(0.0, until_s - time.monotonic()))
        for sock in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close everything in a forked process: the socket and its name belong to the parent."""
        self._listener.close()
        self._directory.close()
        for sock in self._connections:
            sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if data := receive(sock, max_bytes=MAX_REQUEST_BYTES, timeout_s=_REQUEST_S):
                send(sock, self._answer(data), timeout_s=_ANSWER_S)
        except (HeadgateError, OSError) as error:
            _log.debug("a request failed: %s", error)
        except Exception:  # noqa: BLE001 - a thread's end
            _log.exception("a request about a job failed: a bug in headgate")
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # for the peer, even if a forked child still has the descriptor
            sock.close()  # before it is removed: a process forked in between must close it, too
            with self._lock:
                self._connections.pop(sock, None)

    def _answer(self, data: bytes) -> bytes:
        try:
            request, jobs = msgspec.json.decode(data, type=JobRequest), self._jobs()
            if request.what == "jobs":
                answer = msgspec.json.encode([_line(one) for one in jobs.values()])
            elif request.job not in jobs:
                text = f"process {os.getpid()} has no job {request.job!r}, or no longer"
                return msgspec.json.encode(JobAnswer(error=text, gone=True))
            else:
                answer = _result(jobs[request.job], request)
            if len(answer) > MAX_ANSWER_BYTES - 100:
                return msgspec.json.encode(JobAnswer(error=f"the answer has {len(answer)} bytes: that is too much"))
        except (HeadgateError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return msgspec.json.encode(JobAnswer(error=str(error)[:2000]))
        except Exception as error:  # noqa: BLE001 - the client gets the error
            _log.exception("a request about a job failed: a bug in headgate")
            return msgspec.json.encode(JobAnswer(error=f"a bug in headgate: {type(error).__name__}: {error}"[:2000]))
        return msgspec.json.encode(JobAnswer(answer=msgspec.Raw(answer)))


def _result(job: ObservedJob, request: JobRequest) -> bytes:
    answer: object = None
    match request.what:
        case "view":
            return job.view(timeline=request.timeline).to_json()
        case "timeline":
            answer = job.timeline(seconds=request.seconds, points=request.points, vertex=request.vertex)
        case "pressure":
            answer = job.pressure(refresh=request.refresh)
        case "why":
            answer = job.why(refresh=request.refresh)
        case "cancel":
            answer = job.cancel()
    return msgspec.json.encode(answer)


def _line(job: ObservedJob) -> JobLine:
    view = job.view()
    progress = view.progress
    return JobLine(
        id=progress.job,
        name=progress.name,
        status=str(progress.status),
        started_ms=view.at_ms - int(progress.uptime_s * 1000),
        uptime_s=progress.uptime_s,
        pid=os.getpid(),
        headgate=__version__,
    )
