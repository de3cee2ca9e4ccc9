"""Jobs of other processes of this user: finding them, and sending requests about them.

Used by commands, on any thread. Every request has a connection of its own.

Invariants: an answer is accepted only from a socket in this user's directory with a process of this user at its other
end; a socket without a listening process is removed; when a job ends, its `AttachedJob` continues with its file.
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

from headgate.attach.directories import PrivateDirectory, state_directory
from headgate.attach.kept_jobs import KeptJob, kept
from headgate.attach.protocol import MAX_ANSWER_BYTES, JobAnswer, JobLine, JobRequest, peer_uid, receive, send
from headgate.attach.publishing import RUN
from headgate.attach.server import host_prefix
from headgate.config import SETTINGS, Duration
from headgate.errors import AuthError, ConfigError, HeadgateError, RemoteProtocolError, RequestTimeout
from headgate.observe.pressure import Pressure
from headgate.observe.timeline import Timeline
from headgate.observe.view import JobView
from headgate.observe.why.diagnosis import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headgate.attach.kept_jobs import KeptLine

__all__ = ["AttachedJob", "find", "running"]

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0  # for an answer without sampling
_LIST_S: Final = 3.0  # for the list of its jobs
_CANCEL_S: Final = 60.0
_SAMPLING_S: Final = 20.0  # for an answer with sampling, in addition to the time of the samples
_RETRY_S: Final = 0.02
_SHOWN: Final = 10  # jobs named in an error

_T = TypeVar("_T")
_U = TypeVar("_U")


class _Gone(HeadgateError):
    """The process has ended, or does not have the job any more."""


def running(root: Path | None = None) -> list[AttachedJob]:
    """Return the running jobs of all processes of this user on this machine, the newest first."""
    try:
        directory = PrivateDirectory(RUN, root=root)
    except FileNotFoundError:
        return []
    found: list[AttachedJob] = []
    with directory:
        for name in directory.names():
            if name.startswith(host_prefix()) and name.endswith(".sock"):
                try:
                    lines = _request(directory, name, JobRequest(what="jobs"), list[JobLine], _LIST_S)
                except _Gone:
                    continue
                except HeadgateError as error:
                    _log.warning("%s: %s", directory.path / name, error)
                    continue
                found += [AttachedJob(line, name, root) for line in lines]
    return sorted(found, key=lambda one: one.line.started_ms, reverse=True)


class AttachedJob:
    """A job of another process; after its end, its file.

    >>> line = JobLine(id="job-1", name="etl", status="running", started_ms=0, uptime_s=1, pid=7, headgate="0.1.0")
    >>> AttachedJob(line, "host-7.sock", Path("/nonesuch")).view()
    Traceback (most recent call last):
    headgate.errors.HeadgateError: etl (job-1) is over, or its process 7 is, and it has no file
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
        """Return the job now; with its whole history if `timeline`."""
        request = JobRequest(what="view", job=self.id, timeline=timeline)
        found = self._ask(request, msgspec.Raw, _ANSWER_S, lambda job: job.view(timeline=timeline))
        return found if isinstance(found, JobView) else JobView.from_json(bytes(found))

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """Return the last seconds in at most `points` steps."""
        return self._ask(
            JobRequest(what="timeline", job=self.id, seconds=seconds, points=points, vertex=vertex),
            Timeline,
            _ANSWER_S,
            lambda job: job.timeline(seconds=seconds, points=points, vertex=vertex),
        )

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Sample stacks, which takes seconds; without `refresh`, an earlier answer may be returned."""
        request = JobRequest(what="pressure", job=self.id, refresh=refresh)
        return self._ask(request, Pressure, self._sampling_s(), lambda job: job.pressure(refresh=refresh))

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """Return what limits the job, and why."""
        request = JobRequest(what="why", job=self.id, refresh=refresh)
        return self._ask(request, Diagnosis, self._sampling_s(), lambda job: job.why(refresh=refresh))

    def cancel(self) -> bool:
        """Cancel the job. Return True if it is over."""
        return self._ask(JobRequest(what="cancel", job=self.id), bool, _CANCEL_S, lambda job: True)  # noqa: ARG005

    def _sampling_s(self) -> float:
        """Return the time limit for an answer with sampling, from the job's settings."""
        if self._kept is not None:
            return _ANSWER_S
        values = {one.key: one.value for one in self.view().settings}
        samples, delay = _setting(values, "backpressure.samples"), _setting(values, "backpressure.delay")
        assert isinstance(samples, int), "it is a count"
        assert isinstance(delay, Duration), "it is a duration"
        return samples * delay.seconds + _SAMPLING_S

    def _ask(
        self, request: JobRequest, kind: type[_T], timeout_s: float, otherwise: Callable[[KeptJob], _U]
    ) -> _T | _U:
        """Send a request to the process; after the end of the process or the job, use the file."""
        if self._kept is None:
            try:
                with PrivateDirectory(RUN, root=self._root) as directory:
                    return _request(directory, self._socket_name, request, kind, timeout_s)
            except (FileNotFoundError, _Gone):
                self._kept = self._find_kept()
        return otherwise(self._kept)

    def _find_kept(self) -> KeptJob:
        with suppress(ConfigError):  # the file may be removed meanwhile
            for line in kept(self._root):
                if line.id == self.id:
                    return KeptJob.from_file(line.path)
        where = f"{self.name} ({self.id})"
        raise HeadgateError(f"{where} is over, or its process {self.line.pid} is, and it has no file")


def _setting(values: Mapping[str, str], key: str) -> object:
    """Return a setting of a job; its default if the value is missing or not valid."""
    setting = next(one for one in SETTINGS if one.key == key)
    try:
        return setting.kind.read(values[key])
    except (KeyError, ConfigError):
        return setting.default


def _request(directory: PrivateDirectory, name: str, request: JobRequest, kind: type[_T], timeout_s: float) -> _T:
    """Send one request to one process, and return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            _connect(sock, directory, name, timeout_s)
            if (uid := peer_uid(sock)) != os.geteuid():
                raise AuthError(f"its process is not yours, but that of user {uid}")
            send(sock, msgspec.json.encode(request), timeout_s=timeout_s)
            data = receive(sock, max_bytes=MAX_ANSWER_BYTES, timeout_s=timeout_s)
        except RequestTimeout:
            raise RequestTimeout(f"its process does not answer within {timeout_s:g} s: is it stopped?") from None
        except (ConnectionError, FileNotFoundError) as error:
            raise _Gone(str(error)) from None
        except OSError as error:
            raise HeadgateError(f"its process cannot be reached: {error.strerror or error}") from None
    if not data:
        raise HeadgateError("its process does not answer: it has too many requests at once, or it is ending")
    try:
        answer = msgspec.json.decode(data, type=JobAnswer)
        if answer.error is None:
            return msgspec.json.decode(answer.answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"its process, which may have another version of headgate, sends an answer that is not valid: {error}"
        raise RemoteProtocolError(text[:500]) from None
    raise _Gone(answer.error) if answer.gone else HeadgateError(answer.error)


def _connect(sock: socket.socket, directory: PrivateDirectory, name: str, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    sock.settimeout(timeout_s)
    before = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    while True:
        try:
            sock.connect(directory.via(name))
        except BlockingIOError:  # the queue of the listening socket is full
            if time.monotonic() > until_s:
                raise RequestTimeout(name) from None
            time.sleep(_RETRY_S)
        except ConnectionRefusedError:  # no process listens: the one that created it was killed
            now = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
            if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
                directory.remove(name)
            raise
        else:
            return


def find(text: str | None = None, *, root: Path | None = None) -> AttachedJob | KeptJob:
    """Return a job by its id or the beginning of that, by its name, or by its file.

    None: the newest running job, else the newest kept one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     find("etl", root=Path(folder))
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
            raise ConfigError(f"there is no job: none runs, and none was kept in {_where(root)}")
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
            raise ConfigError(f"{text!r} may be any of {_names_text(matches)}: give an id")
        if matches:
            one = matches[0]
            return one if isinstance(one, AttachedJob) else KeptJob.from_file(one.path)
    if os.path.isfile(text):
        return KeptJob.from_file(Path(text))
    known: list[AttachedJob | KeptLine] = [*live, *files]
    there = f"there are {_names_text(known)}" if known else f"none runs, and none was kept in {_where(root)}"
    raise ConfigError(f"there is no job {text!r}: {there}")


def _where(root: Path | None) -> Path:
    return state_directory() if root is None else root


def _names_text(jobs: Sequence[AttachedJob | KeptLine]) -> str:
    names = [f"{one.id} ({one.name})" for one in jobs]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
