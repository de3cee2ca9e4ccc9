"""What `execute_and_collect` returns: the records of a stream, as they arrive in the driver.

A sink in the driver puts batches into an `Inbox`; whoever iterates takes them out. The inbox is bounded: who does not
iterate holds the job back.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.running import shows_progress, stop, watching
from headgate.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from headgate.coordinator.job import Job

__all__ = ["Inbox", "Results"]

T = TypeVar("T")

_MOST_VALUES = 10_000  # that wait to be taken


class Inbox:
    """Batches on their way from the sink to whoever iterates.

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
        """The job that fills it: nobody waits any longer when that is over."""
        self._job = job
        job.on_change(self._on_change)

    def put_batch(self, values: list[Any]) -> None:
        """Add a batch; waits while there is much to take, and drops it when nobody is going to."""
        with self._changed:
            while (
                self._values >= _MOST_VALUES and not self._ended and not (self._job is not None and self._job.stopping)
            ):
                self._changed.wait()
            if not self._ended:
                self._batches.append(values)
                self._values += len(values)
                self._changed.notify_all()

    def take(self) -> list[Any] | None:
        """The next batch; None: there is no more."""
        with self._changed:
            while not self._batches:
                if self._ended or (self._job is not None and self._job.status.over):
                    return None
                self._changed.wait()
            batch = self._batches.popleft()
            self._values -= len(batch)
            self._changed.notify_all()
            return batch

    @property
    def ended(self) -> bool:
        """Whether nothing more is put, or wanted."""
        return self._ended

    def end(self) -> None:
        """Nothing more is put, or wanted."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _on_change(self, job: Job) -> None:
        if job.stopping or job.status.over:
            with self._changed:
                self._changed.notify_all()


class Results(Generic[T]):
    """An iterator over the records of a stream; the job runs meanwhile.

    When it comes to its end without an error the job has finished; what the job fails with is raised. `close`, or the
    end of a `with` block, cancels a job that is not over.

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
        """None: the job has finished. Ctrl-C cancels it and is raised again."""
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
        """The same, while a terminal shows how the job goes. Who stops in the middle can go on with another loop."""
        with watching(self.job, self._progress):
            for value in self._values:  # noqa: UP028 - `yield from` would close it with this one
                yield value

    def __next__(self) -> T:
        return next(self._values)

    def close(self) -> None:
        """No more is wanted: cancel the job unless it is over."""
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
