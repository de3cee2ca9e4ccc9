"""The jobs of this process for other processes: at a socket while they run, in a file when they are over.

`publish` is called when a job starts, and returns at once. Everything else runs on one thread, which starts with the
first job and ends with the last. Only that thread opens, accepts and writes: it may block, a job's threads may not.

Invariants: a published job is at the socket or in a file at any time (unless no files are kept); this module holds no
reference to a job, unless the job is over and has no file yet; an error here does not affect a job, and is logged as a
warning once; a forked child publishes nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from headgate.attach.directories import PrivateDirectory
from headgate.attach.kept_jobs import DIRECTORY, keep
from headgate.attach.last_view import files_wanted, last_view
from headgate.attach.server import JobServer
from headgate.errors import HeadgateError
from headgate.observe.view import ObservedJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headgate.observe.status import JobStatus
    from headgate.observe.view import JobView

__all__ = ["RUN", "PublishedJob", "PublishedJobs", "publish", "wait_kept"]

_log = logging.getLogger(__name__)

RUN: Final = "run"
"""The name of the sockets' directory within the state directory."""

_KEPT_S: Final = 3.0  # for the file of a job, at the end of the job
_EXIT_S: Final = 5.0  # for all files, at the end of the interpreter
_PAUSE_S: Final = 0.2  # before connections are accepted again after that has failed
_VIEW_S: Final = 5.0  # between two views of running jobs, for the diagnosis when they are over
_FIRST_VIEW_S: Final = 2.0  # until there is a view of each
_YOUNG_S: Final = 1.5  # before that, a job has no figures
_VIEW_COST: Final = 100  # views take at most a hundredth of the time


class PublishedJob(ObservedJob, Protocol):
    """A job of this process."""

    @property
    def id(self) -> str:
        """Return the job's id."""
        ...

    @property
    def status(self) -> JobStatus:
        """Return the job's status."""
        ...

    def on_change(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call `callback` whenever the status changes. Return a function that ends this."""
        ...


class PublishedJobs:
    """All jobs of a process that are not over."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        # Held for microseconds: a job's threads take it, too. Reentrant: its owner may drop a job's last reference.
        self._lock = threading.RLock()
        self._jobs: dict[str, weakref.ref[PublishedJob]] = {}
        self._over: dict[str, PublishedJob] = {}  # of these, those that are over and have no file yet
        self._waiting: dict[str, threading.Event] = {}  # set when their file is written
        self._wake: int | None = None  # an eventfd, while there is a thread
        self._thread: threading.Thread | None = None  # the one started last
        self._servers: set[JobServer] = set()  # two while the last thread ends and the next starts
        self._exiting = False
        self._warned = False
        self._seen: dict[str, JobView] = {}  # the last views of running jobs: after their end, rates are 0
        self._next_view_s = 0.0

    def jobs(self) -> dict[str, PublishedJob]:
        """Return the jobs by id."""
        with self._lock:
            found = {name: one() for name, one in self._jobs.items()}
        return {name: job for name, job in found.items() if job is not None}

    def add(self, job: PublishedJob) -> None:
        """Publish a job until it is over. Returns at once."""
        with self._lock:
            if self._exiting:
                return
            if self._wake is None:
                self._start_locked()
            self._jobs[job.id] = weakref.ref(job, self._job_dropped)
            self._waiting[job.id] = threading.Event()
            self._wake_locked()
        job.on_change(self._status_changed)
        self._status_changed(job)  # it may be over already

    def _start_locked(self) -> None:
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        thread = threading.Thread(target=self._run, args=(wake,), name="headgate-attach", daemon=True)
        try:
            thread.start()  # it reads the jobs when it has the lock
        except BaseException:
            os.close(wake)
            raise
        self._wake, self._thread = wake, thread

    def exit(self, timeout_s: float) -> bool:
        """Write the files of all jobs as they are now, and end the thread. Return True if that was in time."""
        with self._lock:
            self._exiting = True
            thread = self._thread
            self._wake_locked()
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def wait_kept(self, job: str, timeout_s: float) -> bool:
        """Block until a job that is over has its file. Return True if that was in time.

        If it was the last job, the thread has ended as well.
        """
        until_s = time.monotonic() + timeout_s
        with self._lock:
            done = self._waiting.get(job)
        if done is not None and not done.wait(timeout_s):
            return False
        with self._lock:
            thread = None if self._jobs else self._thread
            answering = any(one.is_answering() for one in self._servers)  # then the thread waits for this one
        if thread is not None and not answering and thread is not threading.current_thread():
            thread.join(max(0.0, until_s - time.monotonic()))
            return not thread.is_alive()
        return True

    def abandon(self) -> None:
        """Close the parent's descriptors in a forked process."""
        for server in self._servers:
            server.abandon()
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None

    def _status_changed(self, job: PublishedJob) -> None:
        """Wake the thread if the job is over; called on a thread of the job."""
        if job.status.over:
            with self._lock:
                if job.id in self._jobs:
                    self._over[job.id] = job
                self._wake_locked()

    def _job_dropped(self, _: object) -> None:
        """Wake the thread: a job has no reference any more; called on any thread, by the garbage collector."""
        with self._lock:
            self._wake_locked()

    def _wake_locked(self) -> None:
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    # On the thread.

    def _run(self, wake: int) -> None:
        server = directory = None
        try:
            directory = PrivateDirectory(RUN, root=self._root, create=True)
            server = JobServer(self.jobs, directory)
            with self._lock:
                self._servers.add(server)
        except (OSError, HeadgateError) as error:
            self._warn("other processes cannot see its jobs", error)
        self._next_view_s = time.monotonic() + _FIRST_VIEW_S
        try:
            while not self._keep_ended(wake):
                self._wait(wake, server)
                if time.monotonic() >= self._next_view_s:
                    self._view_running()
        finally:
            if server is not None:
                server.close()
                with self._lock:
                    self._servers.discard(server)
            if directory is not None:
                directory.close()

    def _wait(self, wake: int, server: JobServer | None) -> None:
        """Block until there is a request, a job has changed, or it is time for a view."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if server is not None:
            poll.register(server, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, self._next_view_s - time.monotonic()) * 1000)}
        if wake in ready:
            os.eventfd_read(wake)
        elif server is not None and ready:
            try:
                server.accept()
            except OSError as error:
                self._warn("a request about its jobs could not be answered", error)
                poll.unregister(server)
                poll.poll(_PAUSE_S * 1000)

    def _view_running(self) -> None:
        """Store a view of each running job, for the diagnosis when it is over."""
        began_s = time.monotonic()
        jobs = self.jobs()
        for job in jobs.values():
            try:
                view = job.view()
            except Exception:  # noqa: BLE001 - the next view may succeed
                _log.debug("no view of job %s", job.id, exc_info=True)
                continue
            if view.progress.uptime_s >= _YOUNG_S and not view.progress.status.over:
                self._seen[job.id] = view
        now_s = time.monotonic()
        pause_s = _VIEW_S if jobs.keys() <= self._seen.keys() else _FIRST_VIEW_S
        self._next_view_s = now_s + max(pause_s, _VIEW_COST * (now_s - began_s))

    def _keep_ended(self, wake: int) -> bool:
        """Write the files of jobs that are over. Return True if no job is left, which ends the thread."""
        with self._lock:
            over = dict(self._over)
        for job in (self.jobs() if self._exiting else over).values():
            self._keep(job)
            self._forget(job.id)
        with self._lock:
            self._jobs = {name: one for name, one in self._jobs.items() if one() is not None}
            if self._jobs:
                return False
            self._wake = None  # the next job has a thread of its own
            self._seen.clear()
            for done in self._waiting.values():  # of jobs without a reference
                done.set()
            self._waiting.clear()
        os.close(wake)
        return True

    def _forget(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)
            self._over.pop(job, None)
            if (done := self._waiting.pop(job, None)) is not None:
                done.set()

    def _keep(self, job: PublishedJob) -> None:
        try:
            view = last_view(job, self._seen.pop(job.id, None))
            if (count := files_wanted(view)) > 0:
                with PrivateDirectory(DIRECTORY, root=self._root, create=True) as directory:
                    keep(view, directory, count)
        except Exception as error:  # noqa: BLE001 - there is no file
            self._warn(f"job {job.id} has no file", error)

    def _warn(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        _log.log(level, "%s: %s", what, error if isinstance(error, OSError | HeadgateError) else repr(error))


_published: PublishedJobs | None = None
_published_lock = threading.Lock()


def publish(job: PublishedJob) -> None:
    """Publish a job for other processes of this user until it is over, then write its file. Raises nothing.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.rate(10).for_each(lambda n: None)
    >>> job = env.execute_async("for ever")  # which calls it
    >>> job.cancel()
    True
    """
    global _published  # noqa: PLW0603 - there is one per process
    try:
        with _published_lock:
            if _published is None:
                _published = PublishedJobs()
                atexit.register(_exit, _published)
            published = _published
        published.add(job)
    except Exception as error:  # noqa: BLE001 - the job runs without it
        _log.warning("other processes cannot see job %r: %r", job, error)


def wait_kept(job: str) -> None:
    """Block, for a limited time, until a job that is over has its file and no request about it is answered."""
    with _published_lock:
        published = _published
    if published is not None and not published.wait_kept(job, _KEPT_S):
        _log.debug("job %s has no file after %g s", job, _KEPT_S)


def _exit(published: PublishedJobs) -> None:
    """Write all files at the end of the interpreter; not in a forked child."""
    with suppress(KeyboardInterrupt):  # the user does not want to wait
        if published is _published and not published.exit(_EXIT_S):
            _log.warning("not all jobs of this process have a file after %g s", _EXIT_S)


def _after_fork() -> None:
    global _published, _published_lock
    if _published is not None:
        _published.abandon()
    _published, _published_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
