"""Files of finished jobs: the last view of each, with its whole history.

`keep` is called by `publishing` on its thread when a job of this process ends, the rest by commands on any thread.

Invariants: a file is complete or not there, and only this user can read it; there are at most as many as `metrics.keep`
of the job that was kept last; a file is only data: reading it returns a view or raises a `HeadgateError`.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - the examples use it
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.attach.directories import PrivateDirectory
from headgate.attach.timeline_excerpt import excerpt
from headgate.errors import ConfigError, HeadgateError
from headgate.observe.timeline import Timeline
from headgate.observe.view import JobView

if TYPE_CHECKING:
    from headgate.observe.pressure import Pressure
    from headgate.observe.why.diagnosis import Diagnosis

__all__ = ["DIRECTORY", "KeptJob", "KeptLine", "keep", "kept"]

DIRECTORY: Final = "jobs"
"""The name of the directory within the state directory."""

_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}-(?P<job>[A-Za-z0-9_.-]+)\.json")
_UNFINISHED: Final = ".new-"  # the beginning of the name of a file that is being written
_ABANDONED_S: Final = 3600.0  # after which its writer has ended
_MAX_BYTES: Final = 64 * 2**20
_FORMAT: Final = next(one.default for one in fields(JobView) if one.name == "format")
_WHOLE_S: Final = 86_400.0  # longer than any history


def keep(view: JobView, directory: PrivateDirectory, count: int) -> Path:
    """Write the file of a job, remove all but the newest `count` files, and return its path.

    >>> import tempfile
    >>> from headgate.observe import GraphView, JobStatus, Progress
    >>> progress = Progress(job="job-1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> view = JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress)
    >>> with tempfile.TemporaryDirectory() as folder, PrivateDirectory("jobs", root=Path(folder), create=True) as jobs:
    ...     file = keep(view, jobs, 20)
    ...     file.name, KeptJob.from_file(file).view() == view
    ('19700101T000000.000-job-1.json', True)

    Raises:
        OSError: the disk is full, for example.
        HeadgateError: the view is too large.
    """
    data = view.to_json()
    if len(data) > _MAX_BYTES:  # `_read` would refuse it
        raise HeadgateError(f"its view has {len(data)} bytes; at most {_MAX_BYTES} are kept")
    at = datetime.fromtimestamp(view.at_ms / 1000, UTC)
    job = _file_part(view.progress.job)
    name = f"{at:%Y%m%dT%H%M%S}.{view.at_ms % 1000:03}-{job}.json"
    beginning = f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(beginning, flags, 0o600, dir_fd=directory.fd), "wb") as file:
            file.write(data)
        os.replace(beginning, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    except BaseException:
        with suppress(OSError):
            directory.remove(beginning)
        raise
    _remove_old(directory, name, job, count)
    return directory.path / name


def _remove_old(directory: PrivateDirectory, newest: str, job: str, count: int) -> None:
    """Remove files beyond `count`, and abandoned ones; another process may do the same."""
    names = directory.names()
    files = [one for one in names if (match := _NAME.fullmatch(one)) and one != newest and match["job"] != job]
    again = [one for one in names if (match := _NAME.fullmatch(one)) and one != newest and match["job"] == job]
    for name in (*files[: max(0, len(files) - (count - 1))], *again):
        directory.remove(name)
    for name in names:
        if name.startswith(_UNFINISHED):
            with suppress(FileNotFoundError):
                changed_s = os.stat(name, dir_fd=directory.fd, follow_symlinks=False).st_mtime
                if changed_s < time.time() - _ABANDONED_S:
                    directory.remove(name)


def _file_part(job: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", job)[:100] or "_"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLine:
    """A file, and a summary of its job."""

    path: Path
    id: str
    name: str
    status: str  # 'running' if its process ended before the job
    at_ms: int  # when the file was written
    uptime_s: float
    problem: str | None = None  # the reason why it cannot be read


class _HeadProgress(msgspec.Struct):
    job: str
    name: str
    status: str
    uptime_s: float


class _Head(msgspec.Struct):
    """The fields of a view that are decoded; the rest, which is much larger, is skipped."""

    at_ms: int
    progress: _HeadProgress
    format: int


def kept(root: Path | None = None) -> list[KeptLine]:
    """Return all files, the newest first."""
    try:
        directory = PrivateDirectory(DIRECTORY, root=root)
    except FileNotFoundError:
        return []
    with directory:
        found = ((one, _NAME.fullmatch(one)) for one in reversed(directory.names()))
        lines = [_line(directory, name, match["job"]) for name, match in found if match]
    return [one for one in lines if one is not None]


def _line(directory: PrivateDirectory, name: str, job: str) -> KeptLine | None:
    path = directory.path / name
    try:
        head = msgspec.json.decode(_read(name, directory.fd), type=_Head)
        if head.format != _FORMAT:
            raise HeadgateError(f"it has format {head.format}, and this headgate reads format {_FORMAT}")  # noqa: TRY301
    except FileNotFoundError:  # it was removed meanwhile
        return None
    except (OSError, UnicodeDecodeError, RecursionError, HeadgateError, msgspec.MsgspecError) as error:
        text = str(error)[:200]
        return KeptLine(path=path, id=job, name="", status="unreadable", at_ms=0, uptime_s=0.0, problem=text)
    one = head.progress
    return KeptLine(path=path, id=one.job, name=one.name, status=one.status, at_ms=head.at_ms, uptime_s=one.uptime_s)


def _read(name: str | Path, outer: int | None = None) -> bytes:
    """Return a file's bytes. Links in the state directory and files that would block are not opened."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if outer is None else os.O_NOFOLLOW)
    with open(os.open(name, flags, dir_fd=outer), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise HeadgateError("it is not a regular file")
        if found.st_size > _MAX_BYTES:
            raise HeadgateError(f"it has {found.st_size} bytes, and a file of a job has at most {_MAX_BYTES}")
        return file.read(_MAX_BYTES)


class KeptJob:
    """A job that is over, read from its file.

    >>> from headgate.observe import GraphView, JobStatus, Progress
    >>> progress = Progress(job="job-1", name="etl", status=JobStatus.FINISHED, uptime_s=2.5, workers=(), vertices=())
    >>> job = KeptJob(JobView(at_ms=0, graph=GraphView(vertices=(), edges=()), progress=progress), Path("etl.json"))
    >>> job.cancel(), job.timeline().steps
    (False, 0)
    >>> job.pressure()
    Traceback (most recent call last):
    headgate.errors.HeadgateError: no stacks were sampled while etl ran
    """

    def __init__(self, view: JobView, path: Path) -> None:
        self._view = view
        self.path = path
        self.id = view.progress.job
        self.name = view.progress.name

    @classmethod
    def from_file(cls, path: Path) -> KeptJob:
        """Return the job of a file.

        Raises:
            ConfigError: the file cannot be read.
            HeadgateError: it is not the file of a job.
        """
        try:
            return cls(JobView.from_json(_read(path)), path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
        except HeadgateError as error:
            raise HeadgateError(f"{path}: {error}") from None

    def view(self, *, timeline: bool = False) -> JobView:
        """Return the last view of the job; with its whole history if `timeline`."""
        return self._view if timeline else replace(self._view, timeline=None)

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """Return the last seconds of the job in at most `points` steps.

        Raises:
            HeadgateError: there is no such vertex.
        """
        past = self._view.timeline
        if vertex is not None and all(one.id != vertex for one in self._view.graph.vertices):
            raise HeadgateError(f"there is no vertex {vertex}: the job has {len(self._view.graph.vertices)}, from 0")
        if past is None:
            return Timeline(start_ms=self._view.at_ms, step_ms=100, steps=0, tasks=())
        return excerpt(past, seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Return the last round of sampling while it ran.

        Raises:
            HeadgateError: there was none, or `refresh` is set.
        """
        if refresh:
            raise HeadgateError(f"{self.name} is over: its stacks cannot be sampled any more")
        if self._view.pressure is None:
            raise HeadgateError(f"no stacks were sampled while {self.name} ran")
        return self._view.pressure

    def why(self, *, refresh: bool = False) -> Diagnosis:  # noqa: ARG002 - a file does not change
        """Return the last diagnosis while it ran, or one from its history."""
        found = self._view.diagnosis
        if found is None:
            from headgate.observe.why import diagnose  # noqa: PLC0415 - rarely needed

            pasts = [self.timeline(seconds=_WHOLE_S, vertex=one.id) for one in self._view.graph.vertices]
            found = diagnose(self._view, pasts, self._view.pressure)
            self._view = replace(self._view, diagnosis=found)
        return found

    def cancel(self) -> bool:
        """Return False: the job is over already."""
        return False
