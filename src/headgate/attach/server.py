"""The socket at which other processes of the same user ask about the jobs of this one.

Made and driven by `offers` on its thread, which accepts; each connection then has a thread of its own, as some answers
take seconds, and asks one question.

Invariants: only processes of this user are listened to; at most `MAX_CONNECTIONS` at once, each with so many seconds to
ask and to take the answer; whatever one sends, it costs that connection and nothing else; the socket's name appears
once it is listened to and is gone when it is not, so that one which refuses is a dead process's.
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
    MAX_QUESTION_BYTES,
    Answer,
    JobLine,
    Question,
    peer_uid,
    receive,
    send,
)
from headgate.errors import HeadgateError
from headgate.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headgate.attach.places import PrivateDirectory
    from headgate.observe.view import Watched

__all__ = ["MAX_CONNECTIONS", "JobServer", "host_prefix"]

_log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
"""Questions at once; whoever asks one more is hung up on."""

_QUESTION_S: Final = 5.0  # to ask
_ANSWER_S: Final = 10.0  # to take the answer
_CLOSE_S: Final = 5.0  # that answers which were begun have when the last job is over


def host_prefix() -> str:
    """How the names of this machine's sockets begin: others may share the directory, and only theirs can reach them.

    >>> host_prefix().endswith("-")
    True
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "_", socket.gethostname())[:64] + "-"


class JobServer:
    """Answers questions about jobs.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from headgate.attach.places import PrivateDirectory
    >>> with tempfile.TemporaryDirectory() as place, PrivateDirectory("run", root=Path(place), create=True) as run:
    ...     server = JobServer(dict, run)
    ...     names = run.names(); server.close()
    ...     names == [server.name], run.names()
    (True, [])

    Raises:
        OSError: there can be no socket in that directory.
    """

    def __init__(self, jobs: Callable[[], Mapping[str, Watched]], directory: PrivateDirectory) -> None:
        self._jobs = jobs
        self._directory = directory
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self.name = f"{host_prefix()}{os.getpid()}-{secrets.token_hex(4)}.sock"
        beginning = f".{self.name}"  # a name that nobody looks for
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            os.fchmod(self._listener.fileno(), 0o600)  # what the file gets
            self._listener.bind(directory.via(beginning))
            self._listener.listen(MAX_CONNECTIONS)
            os.rename(beginning, self.name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
        except BaseException:
            self._listener.close()
            directory.remove(beginning)
            raise

    def fileno(self) -> int:
        """For polling: `accept` has something to do when it can be read."""
        return self._listener.fileno()

    def accept(self) -> None:
        """Take a connection that waits. Does not wait itself.

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
                _log.debug("a question is refused: %s", "too many at once" if full else "it is another user's")
                return
            thread = threading.Thread(target=self._serve, args=(sock,), name="headgate-answer", daemon=True)
            self._connections[sock] = thread
        thread.start()

    def is_answering(self) -> bool:
        """Whether the thread that asks this answers a question."""
        with self._lock:
            return threading.current_thread() in self._connections.values()

    def close(self) -> None:
        """Take no more questions; those that were asked are answered, within a time. May be repeated."""
        self._directory.remove(self.name)
        self._listener.close()
        until_s = time.monotonic() + _CLOSE_S
        with self._lock:
            left = dict(self._connections)
        for sock in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RD)  # who has not asked yet does not any more
        for thread in left.values():
            thread.join(max(0.0, until_s - time.monotonic()))
        for sock in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Let go of everything, in a process that was forked: the socket and its name are the parent's."""
        self._listener.close()
        self._directory.close()
        for sock in self._connections:
            sock.close()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if data := receive(sock, max_bytes=MAX_QUESTION_BYTES, timeout_s=_QUESTION_S):
                send(sock, self._answer(data), timeout_s=_ANSWER_S)
        except (HeadgateError, OSError) as error:
            _log.debug("a question came to nothing: %s", error)
        except Exception:  # noqa: BLE001 - a thread's end
            _log.exception("a question about a job: a bug in headgate")
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # for the other side, even if a child of ours still has it
            sock.close()  # before it is forgotten: what is forked in between must know of it
            with self._lock:
                self._connections.pop(sock, None)

    def _answer(self, data: bytes) -> bytes:
        try:
            question, jobs = msgspec.json.decode(data, type=Question), self._jobs()
            if question.what == "jobs":
                answer = msgspec.json.encode([_line(one) for one in jobs.values()])
            elif question.job not in jobs:
                text = f"process {os.getpid()} has no job {question.job!r}, or not any more"
                return msgspec.json.encode(Answer(error=text, gone=True))
            else:
                answer = _found(jobs[question.job], question)
            if len(answer) > MAX_ANSWER_BYTES - 100:
                return msgspec.json.encode(Answer(error=f"the answer has {len(answer)} bytes, which is too much"))
        except (HeadgateError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return msgspec.json.encode(Answer(error=str(error)[:2000]))
        except Exception as error:  # noqa: BLE001 - who asks is told
            _log.exception("a question about a job: a bug in headgate")
            return msgspec.json.encode(Answer(error=f"a bug in headgate: {type(error).__name__}: {error}"[:2000]))
        return msgspec.json.encode(Answer(answer=msgspec.Raw(answer)))


def _found(job: Watched, question: Question) -> bytes:
    answer: object = None
    match question.what:
        case "view":
            return job.view(timeline=question.timeline).to_json()
        case "timeline":
            answer = job.timeline(seconds=question.seconds, points=question.points, vertex=question.vertex)
        case "pressure":
            answer = job.pressure(refresh=question.refresh)
        case "why":
            answer = job.why(refresh=question.refresh)
        case "cancel":
            answer = job.cancel()
    return msgspec.json.encode(answer)


def _line(job: Watched) -> JobLine:
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
