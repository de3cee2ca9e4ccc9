"""The user's handle of a job: its status, its figures, and how to wait for it or cancel it.

Any thread may call its methods; callbacks must not call those that block. The coordinator updates it by `begin`,
`changed`, `ending` and `end`, and gives it a `JobMonitor`.

Invariants: a job ends once; its exception is set before it ends; callbacks are called without a lock; its last figures
can be read when it is over.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.interrupts import wait_until
from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.coordinator.monitor import JobMonitor
    from headgate.ids import JobId
    from headgate.observe.pressure import Pressure
    from headgate.observe.progress import Progress
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobEvent, JobView
    from headgate.observe.why.diagnosis import Diagnosis

__all__ = ["Job", "JobStatus"]

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """The default of `wind_up`."""


class Job:
    """The handle of a job, made by the coordinator, which passes `cancel`, `progress` and `monitor`.

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
        self,
        job: JobId,
        name: str,
        *,
        progress: Callable[[], Progress],
        cancel: Callable[[str], object],
        monitor: JobMonitor | None = None,
    ) -> None:
        self.id = job
        self.name = name
        self._progress = progress
        self._cancel = cancel
        self._observed_by = monitor
        self._calling: int | None = None  # the thread that is calling callbacks
        self._changed = threading.Condition()
        self._status = JobStatus.CREATED
        self._exception: HeadgateError | None = None
        self._stopping = False
        self._callbacks: dict[object, Callable[[Job], object]] = {}
        self.wind_up: Callable[[], object] = _nothing
        """Set by the host: blocks, for a limited time, until everything of an ended job is released."""

    @property
    def status(self) -> JobStatus:
        """Its status."""
        return self._status

    @property
    def exception(self) -> HeadgateError | None:
        """Why it failed; set as soon as it fails, before its workers have ended."""
        return self._exception

    @property
    def stopping(self) -> bool:
        """Return True if it has failed or was cancelled; its workers end or have ended."""
        return self._stopping

    @property
    def last_progress(self) -> Progress:
        """The last reported figures of all its tasks."""
        return self._progress()

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """Its last few hundred events, the oldest first."""
        return self._monitor.events

    def view(self, *, timeline: bool = False) -> JobView:
        """Return all that is known now: graph, figures, events, settings, the last samples and the last diagnosis.

        When the job is over, with its last figures. `view().to_json()` is the file that is kept of a job.

        Args:
            timeline: Include its history, `metrics.history` long.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> ended = env.from_collection(["to", "be"]).map(str.upper).for_each(lambda word: None)
        >>> view = env.execute("words").view()
        >>> view.progress.vertices[0].records_out, view.graph.vertices[0].operators
        (0, ('collection', 'map(upper)', 'for_each'))
        >>> view.events[-1].text
        'the job has finished'
        """
        return self._monitor.view(self._exception, timeline=timeline)

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """Return what its tasks did lately, in equal steps: busy, idle, back-pressured, records, queues.

        Args:
            seconds: The length of the history.
            points: The greatest number of steps.
            vertex: A line for each task of this vertex. None: a line for each vertex.

        Raises:
            HeadgateError: `seconds` or `points` is too small, or there is no such vertex.
        """
        return self._monitor.timeline(seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Sample the stacks of its tasks. Return how much they are back-pressured, and where in the code (B1).

        Blocks for `backpressure.samples` x `backpressure.delay`, which is 5 s, unless the last result is younger than
        `backpressure.refresh`. Nothing is sampled without a call. If the job is over, returns the last result.

        Args:
            refresh: Sample now, even if the last result is recent.

        Raises:
            HeadgateError: it has not begun, or is over without a result; or no worker answers.
        """
        self._refuse_in_callback()
        return self._monitor.pressure(refresh=refresh)

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """Return what limits the job, why, and one thing to try. Samples like `pressure` if the cause is in the code.

        Args:
            refresh: If samples are needed, take new ones.
        """
        self._refuse_in_callback()
        return self._monitor.why(refresh=refresh)

    @property
    def _monitor(self) -> JobMonitor:
        if self._observed_by is None:
            raise HeadgateError(f"{self!r} has no figures: it has no coordinator")
        return self._observed_by

    def _refuse_in_callback(self) -> None:
        if self._calling == threading.get_ident():
            raise HeadgateError("a callback of `on_change` must not block: call it from another thread")

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Block until the job is over. Return True if it is, False after `timeout_s`. Ctrl-C interrupts the wait only.

        Raises:
            HeadgateError: why the job failed; a UserCodeError if a user's function raised.
        """
        if not self.wait(timeout_s):
            return False
        self.wind_up()
        if self._status is JobStatus.FAILED:
            assert self._exception is not None, "a failed job has an exception"
            raise self._exception
        return True

    def cancel(self, *, wait: bool = True, timeout_s: float | None = 30.0) -> bool:
        """Cancel all tasks. Return True if the job is over; without `wait`, probably not yet."""
        if not self._status.over:
            self._cancel("cancelled by its user")
        over = self.wait(timeout_s if wait else 0)
        if over and wait:
            self.wind_up()
        return over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the job has ended in any way, or `timeout_s` have passed. Return True if it is over."""
        with self._changed:
            return wait_until(self._changed, lambda: self._status.over, timeout_s)

    def on_change(self, callback: Callable[[Job], object]) -> Callable[[], None]:
        """Call a function whenever status or figures change. Return a function that stops the calls.

        It is called on the coordinator's network thread, and must not block.
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
        """Set RUNNING: all tasks are deployed."""
        self._move(JobStatus.RUNNING)

    def ending(self, cause: HeadgateError | None) -> None:
        """Set the cause of its failure, or None if cancelled. May be called again with a better cause."""
        with self._changed:
            if self._status.over:
                return
            self._stopping = True
            self._exception = cause
        self.changed()

    def end(self, status: JobStatus) -> None:
        """Set the final status."""
        self._move(status)

    def changed(self) -> None:
        """Call the callbacks."""
        self._calling = threading.get_ident()
        for callback in list(self._callbacks.values()):
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - a callback must not end the job
                _log.exception("callback %r of %r failed", callback, self)
        self._calling = None

    def _move(self, status: JobStatus) -> None:
        with self._changed:
            if self._status.over:
                return
            assert (status is JobStatus.FAILED) == (status.over and self._exception is not None), (
                "only a failed job has an exception"
            )
            self._status = status
            self._changed.notify_all()
        self.changed()
