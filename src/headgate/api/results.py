"""Results: the records of a stream in the driver, returned by `execute_and_collect`.

A sink in the driver puts batches into an `Inbox`; the thread that iterates takes them out. The inbox is bounded: an
iteration that stops holds the job back.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.running import showing_progress, shows_progress, stop
from headgate.errors import Cancelled
from headgate.interrupts import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from headgate.coordinator.job import Job

__all__ = ["Inbox", "Results"]

T = TypeVar("T")

_MAX_VALUES = 10_000  # in the inbox


class Inbox:
    """A bounded queue of batches between the sink and the iteration.

    >>> inbox = Inbox()
    >>> inbox.put_batch([1, 2]); inbox.end()
    >>> inbox.take(), inbox.take()
    ([1, 2], None)
    """

    def __init__(self) -> None:
        self._job: Job | None = None
        self._changed = threading.Condition()
        self._batches: deque[list[Any]] = deque()
        self._values = 0
        self._ended = False

    def watch(self, job: Job) -> None:
        """Set the job that fills the inbox; blocked calls return when it is over."""
        self._job = job
        job.on_change(self._on_change)

    def put_batch(self, values: list[Any]) -> None:
        """Add a batch; block while the inbox is full, and drop the batch after its end or that of the job."""
        with self._changed:
            wait_until(
                self._changed,
                lambda: self._values < _MAX_VALUES or self._ended or (self._job is not None and self._job.stopping),
            )
            if not self._ended:
                self._batches.append(values)
                self._values += len(values)
                self._changed.notify_all()

    def take(self) -> list[Any] | None:
        """Remove and return the next batch; block until there is one. Return None at the end."""
        with self._changed:
            wait_until(
                self._changed,
                lambda: bool(
                    self._batches or self._ended or (self._job is not None and self._job.status.over),
                ),
            )
            if not self._batches:
                return None
            batch = self._batches.popleft()
            self._values -= len(batch)
            self._changed.notify_all()
            return batch

    @property
    def ended(self) -> bool:
        """True if no further batch is added or needed."""
        return self._ended

    def end(self) -> None:
        """End the inbox: no further batch is added or needed."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _on_change(self, job: Job) -> None:
        if job.stopping or job.status.over:
            with self._changed:
                self._changed.notify_all()


class Results(Generic[T]):
    """An iterator over the records of a stream while the job runs.

    At the end of the iteration the job has finished; its failure is raised by the iteration. `close`, or the end of a
    `with` block, cancels a job that is not over.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> with env.from_collection([1, 2, 3]).execute_and_collect() as results:
    ...     next(results)
    1
    """

    def __init__(self, inbox: Inbox, job: Job, limit: int | None = None, *, progress: bool | None = None) -> None:
        inbox.watch(job)
        self.job = job
        self._progress = progress
        self._inbox = inbox
        self._values = self._iterate(limit)

    def _iterate(self, limit: int | None) -> Iterator[T]:
        left = limit
        while left is None or left > 0:
            batch = self._next_batch()
            if batch is None:
                return
            if left is not None:
                batch = batch[:left]
                left -= len(batch)
            yield from batch
        self.close()

    def _next_batch(self) -> list[T] | None:
        """Return the next batch, or None if the job has finished. Ctrl-C cancels it and is raised again."""
        try:
            batch = self._inbox.take()
            if batch is None:
                self.job.await_termination()
                if self.job.stopping and not self._inbox.ended:
                    raise Cancelled(f"{self.job.name} was cancelled before all its results were there")
                self._inbox.end()
        except KeyboardInterrupt:
            self._inbox.end()
            stop(self.job)
            raise
        return batch

    def __iter__(self) -> Iterator[T]:
        if not shows_progress(self._progress):
            return self._values
        return self._watched()

    def _watched(self) -> Iterator[T]:
        """Iterate while a terminal shows the progress. A second loop continues where the first one stopped."""
        with showing_progress(self.job, self._progress):
            for value in self._values:  # noqa: UP028 - `yield from` would close `_values` with this generator
                yield value

    def __next__(self) -> T:
        return next(self._values)

    def close(self) -> None:
        """Cancel the job unless it is over."""
        self._inbox.end()
        self.job.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._inbox.end()
        self.job.cancel(wait=False)
