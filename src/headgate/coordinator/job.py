"""A job, as whoever started it sees it: its state, its figures, and how to wait for it or stop it.

Every method is for any thread. The coordinator moves it on by `begin`, `changed`, `ending` and `end`.

Invariants: a job ends once; what it failed of is set before it ends; callbacks are called without a lock held.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.errors import HeadgateError
    from headgate.ids import JobId
    from headgate.observe.progress import Progress

__all__ = ["Job", "JobStatus"]

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """What `wind_up` does until a host says otherwise."""


class Job:
    """The handle of a job. Made by the coordinator; `cancel` and `progress` are how it asks that.

    >>> from headgate.ids import JobId
    >>> job = Job(JobId("1"), "word count", progress=lambda: None, cancel=lambda reason: job.end(JobStatus.CANCELLED))
    >>> _ = job.on_change(lambda job: print(job.status))
    >>> job.begin()
    running
    >>> job.cancel()
    cancelled
    True
    >>> job
    Job('word count', id='1', cancelled)
    """

    def __init__(
        self, job: JobId, name: str, *, progress: Callable[[], Progress], cancel: Callable[[str], object]
    ) -> None:
        self.id = job
        self.name = name
        self._progress = progress
        self._cancel = cancel
        self._changed = threading.Condition()
        self._status = JobStatus.CREATED
        self._exception: HeadgateError | None = None
        self._stopping = False
        self._callbacks: dict[object, Callable[[Job], object]] = {}
        self.wind_up: Callable[[], object] = _nothing
        """Set by the host: waits until nothing of a job that is over is left, for a bounded time."""

    @property
    def status(self) -> JobStatus:
        """Where it is in its life."""
        return self._status

    @property
    def exception(self) -> HeadgateError | None:
        """What it failed of; known as soon as it fails, a moment before its workers have ended."""
        return self._exception

    @property
    def stopping(self) -> bool:
        """Whether it has failed or is cancelled, so that its workers are ending or have ended."""
        return self._stopping

    @property
    def last_progress(self) -> Progress:
        """The figures of all its tasks, as last reported."""
        return self._progress()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the job is over; whether it is. Ctrl-C interrupts the wait, not the job.

        Raises:
            HeadgateError: it has failed, and this is why: a UserCodeError if a function of the user's raised.
        """
        if not self.wait(timeout_s):
            return False
        self.wind_up()
        if self._status is JobStatus.FAILED:
            assert self._exception is not None, "nothing fails without a reason"
            raise self._exception
        return True

    def cancel(self, *, wait: bool = True, timeout_s: float | None = 30.0) -> bool:
        """Stop all tasks. Whether the job is over: if not `wait`, probably not yet. Without effect on one that is."""
        if not self._status.over:
            self._cancel("cancelled by its user")
        over = self.wait(timeout_s if wait else 0)
        if over and wait:
            self.wind_up()
        return over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the job is over, whatever its end; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._status.over, timeout_s)

    def on_change(self, callback: Callable[[Job], object]) -> Callable[[], None]:
        """Call a function whenever status or figures change; what is returned stops that.

        It is called on the coordinator's thread, and must not wait there.
        """
        token = object()
        self._callbacks[token] = callback
        return lambda: self._forget(token)

    def _forget(self, token: object) -> None:
        self._callbacks.pop(token, None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, id={self.id!r}, {self._status})"

    # For the coordinator.

    def begin(self) -> None:
        """All workers are there."""
        self._move(JobStatus.RUNNING)

    def ending(self, cause: HeadgateError | None) -> None:
        """It fails of this, or is cancelled; its workers are told. A better cause may follow."""
        with self._changed:
            if self._status.over:
                return
            self._stopping = True
            self._exception = cause
        self.changed()

    def end(self, status: JobStatus) -> None:
        """It is over."""
        self._move(status)

    def changed(self) -> None:
        """There is something new to see."""
        for callback in list(self._callbacks.values()):
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - one who looks must not end the job
                _log.exception("%r failed: it was to be called when %r changes", callback, self)

    def _move(self, status: JobStatus) -> None:
        with self._changed:
            if self._status.over:
                return
            assert (status is JobStatus.FAILED) == (status.over and self._exception is not None), "failed of something"
            self._status = status
            self._changed.notify_all()
        self.changed()
