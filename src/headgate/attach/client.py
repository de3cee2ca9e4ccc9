"""Jobs of other processes of this user: who has any, which one is meant, and how to ask about it.

Used by commands, on any thread. Every question is a connection of its own.

Invariants: only a socket in this user's own directory, at whose other end is this user's process, is believed; one that
nobody listens to any more is removed; a job that ends while it is looked at goes on as what was kept of it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from headgate.attach.kept import KeptJob, kept
from headgate.attach.offers import RUN
from headgate.attach.places import PrivateDirectory, state_directory
from headgate.attach.protocol import MAX_ANSWER_BYTES, Answer, JobLine, Question, peer_uid, receive, send
from headgate.attach.server import host_prefix
from headgate.config import SETTINGS, Duration
from headgate.errors import AuthError, ConfigError, HeadgateError, RemoteProtocolError, RequestTimeout
from headgate.observe.diagnosis import Diagnosis
from headgate.observe.pressure import Pressure
from headgate.observe.timeline import Timeline
from headgate.observe.view import JobView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headgate.attach.kept import KeptLine

__all__ = ["AttachedJob", "find", "running"]

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0  # for what a process knows
_LIST_S: Final = 3.0  # for the list of its jobs
_CANCEL_S: Final = 60.0
_SAMPLING_S: Final = 20.0  # for what it has to find out, beyond the time that sampling takes
_RETRY_S: Final = 0.02
_SHOWN: Final = 10  # jobs that an error names

_T = TypeVar("_T")
_U = TypeVar("_U")


class _Gone(HeadgateError):
    """The process has ended, or has no such job any more."""


def running(root: Path | None = None) -> list[AttachedJob]:
    """The jobs of all processes of this user on this machine that are not over, the newest first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     running(Path(place))
    []
    """
    try:
        directory = PrivateDirectory(RUN, root=root)
    except FileNotFoundError:
        return []
    found: list[AttachedJob] = []
    with directory:
        for name in directory.names():
            if name.startswith(host_prefix()) and name.endswith(".sock"):
                try:
                    lines = _asked(directory, name, Question(what="jobs"), list[JobLine], _LIST_S)
                except _Gone:
                    continue
                except HeadgateError as error:
                    _log.warning("%s: %s", directory.path / name, error)
                    continue
                found += [AttachedJob(line, name, root) for line in lines]
    return sorted(found, key=lambda one: one.line.started_ms, reverse=True)


class AttachedJob:
    """A job of another process; or, when it is over, what was kept of it.

    >>> line = JobLine(id="job-1", name="etl", status="running", started_ms=0, uptime_s=1, pid=7, headgate="0.1.0")
    >>> AttachedJob(line, "host-7.sock", Path("/nonesuch")).view()
    Traceback (most recent call last):
    headgate.errors.HeadgateError: etl (job-1) is over, or its process 7 is, and nothing was kept of it
    """

    def __init__(self, line: JobLine, socket_name: str, root: Path | None = None) -> None:
        self.line = line
        self.id = line.id
        self.name = line.name
        self._socket_name = socket_name
        self._root = root
        self._kept: KeptJob | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, id={self.id!r}, process {self.line.pid})"

    def view(self, *, timeline: bool = False) -> JobView:
        """All of it now; with the past only if asked for."""
        question = Question(what="view", job=self.id, timeline=timeline)

        found = self._ask(question, msgspec.Raw, _ANSWER_S, lambda job: job.view(timeline=timeline))
        return found if isinstance(found, JobView) else JobView.from_json(bytes(found))

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """The last stretch of its past."""
        return self._ask(
            Question(what="timeline", job=self.id, seconds=seconds, points=points, vertex=vertex),
            Timeline,
            _ANSWER_S,
            lambda job: job.timeline(seconds=seconds, points=points, vertex=vertex),
        )

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Sample stacks, which takes seconds; an earlier answer is given again for a while."""
        question = Question(what="pressure", job=self.id, refresh=refresh)
        return self._ask(question, Pressure, self._sampling_s(), lambda job: job.pressure(refresh=refresh))

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """What holds the job back, and why."""
        question = Question(what="why", job=self.id, refresh=refresh)
        return self._ask(question, Diagnosis, self._sampling_s(), lambda job: job.why(refresh=refresh))

    def cancel(self) -> bool:
        """Stop the job; whether it is over."""
        return self._ask(Question(what="cancel", job=self.id), bool, _CANCEL_S, lambda job: True)  # noqa: ARG005

    def _sampling_s(self) -> float:
        """How long an answer may take that needs samples: the job's own settings say how many there are."""
        if self._kept is not None:
            return _ANSWER_S
        given = {one.key: one.value for one in self.view().settings}
        samples, delay = _setting(given, "backpressure.samples"), _setting(given, "backpressure.delay")
        assert isinstance(samples, int), "a count is one"
        assert isinstance(delay, Duration), "a time is one"
        return samples * delay.seconds + _SAMPLING_S

    def _ask(self, question: Question, kind: type[_T], timeout_s: float, otherwise: Callable[[KeptJob], _U]) -> _T | _U:
        """Ask the process; if that or the job is over, ask the file."""
        if self._kept is None:
            try:
                with PrivateDirectory(RUN, root=self._root) as directory:
                    return _asked(directory, self._socket_name, question, kind, timeout_s)
            except (FileNotFoundError, _Gone):
                self._kept = self._find_kept()
        return otherwise(self._kept)

    def _find_kept(self) -> KeptJob:
        with suppress(ConfigError):  # the file may go at any moment
            for line in kept(self._root):
                if line.id == self.id:
                    return KeptJob.from_file(line.path)
        where = f"{self.name} ({self.id})"
        raise HeadgateError(f"{where} is over, or its process {self.line.pid} is, and nothing was kept of it")


def _setting(given: Mapping[str, str], key: str) -> object:
    """A setting as a job runs with it; the default, if what it says is not understood."""
    setting = next(one for one in SETTINGS if one.key == key)
    try:
        return setting.kind.read(given[key])
    except (KeyError, ConfigError):
        return setting.default


def _asked(directory: PrivateDirectory, name: str, question: Question, kind: type[_T], timeout_s: float) -> _T:
    """One question to one process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            _connect(sock, directory, name, timeout_s)
            if (uid := peer_uid(sock)) != os.geteuid():
                raise AuthError(f"its process is not yours, but that of user {uid}")
            send(sock, msgspec.json.encode(question), timeout_s=timeout_s)
            data = receive(sock, max_bytes=MAX_ANSWER_BYTES, timeout_s=timeout_s)
        except RequestTimeout:
            raise RequestTimeout(f"its process does not answer within {timeout_s:g} s: is it stopped?") from None
        except (ConnectionError, FileNotFoundError) as error:
            raise _Gone(str(error)) from None
        except OSError as error:
            raise HeadgateError(f"its process cannot be asked: {error.strerror or error}") from None
    if not data:
        raise HeadgateError("its process answers no more: too many ask it at once, or it is ending")
    try:
        answer = msgspec.json.decode(data, type=Answer)
        if answer.error is None:
            return msgspec.json.decode(answer.answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"its process, which may have another version of headgate, answers what is not understood: {error}"
        raise RemoteProtocolError(text[:500]) from None
    raise _Gone(answer.error) if answer.gone else HeadgateError(answer.error)


def _connect(sock: socket.socket, directory: PrivateDirectory, name: str, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    sock.settimeout(timeout_s)
    before = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    while True:
        try:
            sock.connect(directory.via(name))
        except BlockingIOError:  # many have asked before
            if time.monotonic() > until_s:
                raise RequestTimeout(name) from None
            time.sleep(_RETRY_S)
        except ConnectionRefusedError:  # nobody listens: it was left by a process that was killed
            now = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
                directory.remove(name)
            raise
        else:
            return


def find(text: str | None = None, *, root: Path | None = None) -> AttachedJob | KeptJob:
    """The job that is meant: by its id or the beginning of that, its name, or its file.

    None: the only one that runs, else the newest of those that do, else the newest that was kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     find("etl", root=Path(place))
    Traceback (most recent call last):
    headgate.errors.ConfigError: there is no job 'etl': none runs, and none was kept in ...

    Raises:
        ConfigError: there is none, or more than one.
        HeadgateError: its file cannot be read.
    """
    if text is not None and (os.sep in text or text.endswith(".json")):
        return KeptJob.from_file(Path(text))
    live = running(root)
    files = [one for one in kept(root) if one.id not in {job.id for job in live}]
    if text is None:
        if live:
            return live[0]
        readable = [one for one in files if one.problem is None]
        if not readable:
            raise ConfigError(f"there is no job to look at: none runs, and none was kept in {_where(root)}")
        return KeptJob.from_file(readable[0].path)
    choices: tuple[Sequence[AttachedJob | KeptLine], ...] = (
        [one for one in live if one.id == text],
        [one for one in files if one.id == text],
        [one for one in live if one.name == text],
        [one for one in live if one.id.startswith(text)],
        [one for one in files if one.name == text][:1],  # the newest
        [one for one in files if one.id.startswith(text)],
    )
    for matches in choices:
        if len(matches) > 1:
            raise ConfigError(f"{text!r} may be any of {_named(matches)}: give an id")
        if matches:
            one = matches[0]
            return one if isinstance(one, AttachedJob) else KeptJob.from_file(one.path)
    if os.path.isfile(text):
        return KeptJob.from_file(Path(text))
    known: list[AttachedJob | KeptLine] = [*live, *files]
    there = f"there are {_named(known)}" if known else f"none runs, and none was kept in {_where(root)}"
    raise ConfigError(f"there is no job {text!r}: {there}")


def _where(root: Path | None) -> Path:
    return state_directory() if root is None else root


def _named(jobs: Sequence[AttachedJob | KeptLine]) -> str:
    names = [f"{one.id} ({one.name})" for one in jobs]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
