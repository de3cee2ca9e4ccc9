"""The jobs of this process, as others may see them: offered at a socket while they run, kept in a file when they end.

`offer` is called by whoever starts a job, and returns at once. Everything else happens on one thread, which begins with
the first job and ends with the last; it alone opens, accepts and writes, so that it may wait where a job's threads must
not.

Invariants: a job that was offered is either at the socket or in a file, never in neither in between (unless nothing is
kept); a job that nobody has any more is not kept alive by this, unless it is over and has no file yet; no trouble here
reaches a job: there is one warning; a forked child has nothing of this.
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

from headgate.attach.final import files_wanted, final_view
from headgate.attach.kept import DIRECTORY, keep
from headgate.attach.places import PrivateDirectory
from headgate.attach.server import JobServer
from headgate.errors import HeadgateError
from headgate.observe.view import Watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headgate.observe.status import JobStatus
    from headgate.observe.view import JobView

__all__ = ["RUN", "Offered", "Offers", "offer", "settle"]

_log = logging.getLogger(__name__)

RUN: Final = "run"
"""The name of the sockets' directory within the state directory."""

_SETTLE_S: Final = 3.0  # that whoever waits for the end of a job waits for its file
_EXIT_S: Final = 5.0  # that the end of the interpreter waits for files to be written
_PAUSE_S: Final = 0.2  # before connections are accepted again after that has failed
_LOOK_S: Final = 5.0  # between two looks at jobs while they run, for `why` when they are over
_FIRST_LOOK_S: Final = 2.0  # until one was seen at all
_YOUNG_S: Final = 1.5  # before that, figures say nothing
_LOOK_COST: Final = 100  # looks take at most a hundredth of the time


class Offered(Watched, Protocol):
    """A job of this process."""

    @property
    def id(self) -> str:
        """Which."""
        ...

    @property
    def status(self) -> JobStatus:
        """Where it is in its life."""
        ...

    def on_change(self, callback: Callable[[Any], object]) -> Callable[[], None]:
        """Call a function whenever its status changes; what is returned stops that."""
        ...


class Offers:
    """All jobs of a process that are not over.

    >>> Offers().jobs()
    {}
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root
        # Held for moments only: a job's threads take it too. Again by one that has it, if that drops a job meanwhile.
        self._lock = threading.RLock()
        self._jobs: dict[str, weakref.ref[Offered]] = {}
        self._over: dict[str, Offered] = {}  # of these, those that have no file yet
        self._waiting: dict[str, threading.Event] = {}  # set when they are done with
        self._wake: int | None = None  # an eventfd, while there is a thread
        self._thread: threading.Thread | None = None  # the last that was started
        self._servers: set[JobServer] = set()  # more than one while the last thread ends and the next begins
        self._leaving = False
        self._warned = False
        self._seen: dict[str, JobView] = {}  # how jobs were while they ran: in the end all figures are 0
        self._next_look_s = 0.0

    def jobs(self) -> dict[str, Offered]:
        """By id."""
        with self._lock:
            found = {name: one() for name, one in self._jobs.items()}
        return {name: job for name, job in found.items() if job is not None}

    def add(self, job: Offered) -> None:
        """Offer a job until it is over. Returns at once."""
        with self._lock:
            if self._leaving:
                return
            if self._wake is None:
                self._start_locked()
            self._jobs[job.id] = weakref.ref(job, self._dropped)
            self._waiting[job.id] = threading.Event()
            self._wake_locked()
        job.on_change(self._changed)
        self._changed(job)  # it may be over already

    def _start_locked(self) -> None:
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        thread = threading.Thread(target=self._run, args=(wake,), name="headgate-attach", daemon=True)
        try:
            thread.start()  # it looks for jobs when it has the lock
        except BaseException:
            os.close(wake)
            raise
        self._wake, self._thread = wake, thread

    def leave(self, timeout_s: float) -> bool:
        """Keep what there is now of all jobs, and end; whether that was done in time."""
        with self._lock:
            self._leaving = True
            thread = self._thread
            self._wake_locked()
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def settle(self, job: str, timeout_s: float) -> bool:
        """Wait until a job that is over has its file, and nothing else is left of it here; whether that is so."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            done = self._waiting.get(job)
        if done is not None and not done.wait(timeout_s):
            return False
        with self._lock:
            thread = None if self._jobs else self._thread
            asked = any(one.is_answering() for one in self._servers)  # then the thread waits for this one
        if thread is not None and not asked and thread is not threading.current_thread():
            thread.join(max(0.0, until_s - time.monotonic()))
            return not thread.is_alive()
        return True

    def abandon(self) -> None:
        """Let go of what is the parent's, in a process that was forked."""
        for server in self._servers:
            server.abandon()
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None

    def _changed(self, job: Offered) -> None:
        """On a thread of the job's: look at it, on ours, if it is over."""
        if job.status.over:
            with self._lock:
                if job.id in self._jobs:
                    self._over[job.id] = job
                self._wake_locked()

    def _dropped(self, _: object) -> None:
        """On any thread, whatever that does: nobody has a job any more."""
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
            self._warn("other processes cannot look at its jobs", error)
        self._next_look_s = time.monotonic() + _FIRST_LOOK_S
        try:
            while not self._look(wake):
                self._wait(wake, server)
                if time.monotonic() >= self._next_look_s:
                    self._see()
        finally:
            if server is not None:
                server.close()
                with self._lock:
                    self._servers.discard(server)
            if directory is not None:
                directory.close()

    def _wait(self, wake: int, server: JobServer | None) -> None:
        """Wait for a question, or until there is something to look at, or it is time to."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if server is not None:
            poll.register(server, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, self._next_look_s - time.monotonic()) * 1000)}
        if wake in ready:
            os.eventfd_read(wake)
        elif server is not None and ready:
            try:
                server.accept()
            except OSError as error:
                self._warn("a question about its jobs could not be answered", error)
                poll.unregister(server)
                poll.poll(_PAUSE_S * 1000)

    def _see(self) -> None:
        """Look at jobs that run, so that something can be said of them when they do not any more."""
        began_s = time.monotonic()
        jobs = self.jobs()
        for job in jobs.values():
            try:
                view = job.view()
            except Exception:  # noqa: BLE001 - another time
                _log.debug("a look at job %s", job.id, exc_info=True)
                continue
            if view.progress.uptime_s >= _YOUNG_S and not view.progress.status.over:
                self._seen[job.id] = view
        now_s = time.monotonic()
        pause_s = _LOOK_S if jobs.keys() <= self._seen.keys() else _FIRST_LOOK_S
        self._next_look_s = now_s + max(pause_s, _LOOK_COST * (now_s - began_s))

    def _look(self, wake: int) -> bool:
        """Keep the jobs that are over; whether none is left, so that this thread ends."""
        with self._lock:
            over = dict(self._over)
        for job in (self.jobs() if self._leaving else over).values():
            self._keep(job)
            self._forget(job.id)
        with self._lock:
            self._jobs = {name: one for name, one in self._jobs.items() if one() is not None}
            if self._jobs:
                return False
            self._wake = None  # the next job has a thread of its own
            self._seen.clear()
            for done in self._waiting.values():  # of jobs that nobody has any more
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

    def _keep(self, job: Offered) -> None:
        try:
            view = final_view(job, self._seen.pop(job.id, None))
            if (count := files_wanted(view)) > 0:
                with PrivateDirectory(DIRECTORY, root=self._root, create=True) as directory:
                    keep(view, directory, count)
        except Exception as error:  # noqa: BLE001 - a file less
            self._warn(f"nothing is kept of job {job.id}", error)

    def _warn(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        _log.log(level, "%s: %s", what, error if isinstance(error, OSError | HeadgateError) else repr(error))


_offers: Offers | None = None
_offers_lock = threading.Lock()


def offer(job: Offered) -> None:
    """Let other processes of this user see a job until it is over, and keep its last view then. Raises nothing.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> ended = env.rate(10).for_each(lambda n: None)
    >>> job = env.execute_async("for ever")  # which calls it
    >>> job.cancel()
    True
    """
    global _offers  # noqa: PLW0603 - one for the process
    try:
        with _offers_lock:
            if _offers is None:
                _offers = Offers()
                atexit.register(_leave, _offers)
            offers = _offers
        offers.add(job)
    except Exception as error:  # noqa: BLE001 - the job goes on
        _log.warning("other processes cannot look at job %r: %r", job, error)


def settle(job: str) -> None:
    """Wait, for a bounded time, until a job that is over is kept and nobody is answered about it any more.

    >>> settle("nonesuch")
    """
    with _offers_lock:
        offers = _offers
    if offers is not None and not offers.settle(job, _SETTLE_S):
        _log.debug("job %s is not kept within %g s", job, _SETTLE_S)


def _leave(offers: Offers) -> None:
    """At the end of the interpreter; a child of this process has others."""
    with suppress(KeyboardInterrupt):  # who is in a hurry
        if offers is _offers and not offers.leave(_EXIT_S):
            _log.warning("not everything could be kept of the jobs of this process within %g s", _EXIT_S)


def _forked() -> None:
    global _offers, _offers_lock
    if _offers is not None:
        _offers.abandon()
    _offers, _offers_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
