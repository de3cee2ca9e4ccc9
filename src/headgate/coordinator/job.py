"""A job, as whoever started it sees it: its state, its figures, and how to wait for it or stop it.

Every method is for any thread; those that wait not for callbacks. The coordinator moves it on by `begin`, `changed`,
`ending` and `end`, and knows how to look at it (`watching`).

Invariants: a job ends once; what it failed of is set before it ends; callbacks are called without a lock held; what
was known of it can still be looked at when it is over.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from headgate.errors import HeadgateError
from headgate.observe.status import JobStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.coordinator.watching import JobWatch
    from headgate.ids import JobId
    from headgate.observe.diagnosis import Diagnosis
    from headgate.observe.pressure import Pressure
    from headgate.observe.progress import Progress
    from headgate.observe.timeline import Timeline
    from headgate.observe.view import JobEvent, JobView

__all__ = ["Job", "JobStatus"]

_log = logging.getLogger(__name__)


def _nothing() -> None:
    """What `wind_up` does until a host says otherwise."""


class Job:
    """The handle of a job. Made by the coordinator; `cancel`, `progress` and `watch` are how it asks that.

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
        watch: JobWatch | None = None,
    ) -> None:
        self.id = job
        self.name = name
        self._progress = progress
        self._cancel = cancel
        self._seen_by = watch
        self._calling: int | None = None  # the thread that calls callbacks at this moment
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

    @property
    def events(self) -> tuple[JobEvent, ...]:
        """What happened to it: the last few hundred events, the oldest first."""
        return self._watch.events

    def view(self, *, timeline: bool = False) -> JobView:
        """All that is known of it now: graph, figures, events, settings, and what was last sampled and found out.

        Also when it is over: then with the last figures. `view().to_json()` is what is kept of a job.

        Args:
            timeline: With its past, as far back as `metrics.history` goes.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=1)
        >>> ended = env.from_collection(["to", "be"]).map(str.upper).for_each(lambda word: None)
        >>> view = env.execute("words").view()
        >>> view.progress.vertices[0].records_out, view.graph.vertices[0].operators
        (0, ('collection', 'map(upper)', 'for_each'))
        >>> view.events[-1].text
        'the job has finished'
        """
        return self._watch.view(self._exception, timeline=timeline)

    def timeline(self, *, seconds: float = 60.0, points: int = 300, vertex: int | None = None) -> Timeline:
        """What its tasks did lately, in equal steps: busy, idle, back-pressured, records, queues.

        Args:
            seconds: How far back.
            points: The most steps.
            vertex: Of which vertex, with a line for each of its tasks. None: a line for each vertex.

        Raises:
            HeadgateError: no time, no steps, or no such vertex.
        """
        return self._watch.timeline(seconds=seconds, points=points, vertex=vertex)

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """How much its tasks are held back, and where in the code they are: their stacks are sampled meanwhile (B1).

        Takes `backpressure.samples` x `backpressure.delay`, which is 5 s, unless there is an answer that is younger
        than `backpressure.refresh`. Nothing is sampled without being asked for. Of a job that is over: the last answer.

        Args:
            refresh: Sample now, however young the last answer is.

        Raises:
            HeadgateError: it has not begun, or is over and nobody had asked before; or no worker answers.
        """
        self._refuse_in_callback()
        return self._watch.pressure(refresh=refresh)

    def why(self, *, refresh: bool = False) -> Diagnosis:
        """What holds the job back, why, and one thing to try. Samples as `pressure` does, where that is needed to tell.

        Args:
            refresh: If samples are needed, take them now.
        """
        self._refuse_in_callback()
        return self._watch.why(refresh=refresh)

    @property
    def _watch(self) -> JobWatch:
        if self._seen_by is None:
            raise HeadgateError(f"{self!r} has nothing to look at: it has no coordinator")
        return self._seen_by

    def _refuse_in_callback(self) -> None:
        if self._calling == threading.get_ident():
            raise HeadgateError("a callback of `on_change` must not wait: ask from another thread")

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
        self._calling = threading.get_ident()
        for callback in list(self._callbacks.values()):
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - one who looks must not end the job
                _log.exception("%r failed: it was to be called when %r changes", callback, self)
        self._calling = None

    def _move(self, status: JobStatus) -> None:
        with self._changed:
            if self._status.over:
                return
            assert (status is JobStatus.FAILED) == (status.over and self._exception is not None), "failed of something"
            self._status = status
            self._changed.notify_all()
        self.changed()
