"""Task: one subtask of a vertex, with its thread.

Made by the worker, whose thread calls `start`, `cancel` and `join`.

Invariants: also after a failure, operators are closed and the task's resources are released before `ended` is called;
it is called once.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from headgate import forks
from headgate.errors import Cancelled, HeadgateError, InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.input import RecordReader
    from headgate.output import RecordWriter
    from headgate.task.runtime.chain import Chain
    from headgate.task.runtime.loop import TaskLoop

__all__ = ["Task"]

_log = logging.getLogger(__name__)


class Task:
    """A running subtask.

    On its thread it calls `running` after all operators are open, `failed` with an error before the readers of its
    partitions receive the error, and at last `ended` with the error, Cancelled or None.

    >>> from headgate.task.operators.basic import PassOn
    >>> from headgate.task.runtime.chain import Chain
    >>> class NoLoop:
    ...     def run(self): print("reading")
    ...     def abandon(self): pass
    >>> chain = Chain([PassOn()], [None])
    >>> callbacks = {"running": lambda: print("running"), "failed": print, "ended": print}
    >>> task = Task("words (1/1)", chain, NoLoop(), [], None, **callbacks)
    >>> task.start(); task.join(timeout_s=10)
    running
    reading
    None
    True
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        loop: TaskLoop,
        writers: Sequence[RecordWriter[Any]],
        reader: RecordReader[Any] | None,
        *,
        running: Callable[[], object],
        failed: Callable[[HeadgateError], object],
        ended: Callable[[HeadgateError | None], object],
    ) -> None:
        self.name = name
        self.chain = chain
        self.loop = loop
        self.writers = list(writers)
        self.reader = reader
        self._running = running
        self._failed = failed
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._abandoned = False  # True in a child process that user code has forked
        forks.register(self)

    def start(self) -> None:
        """Start the thread. Called once."""
        self._thread.start()

    def cancel(self) -> None:
        """End as soon as possible. The worker releases the task's partitions and gate."""
        self.loop.cancel()
        for operator in self.chain.operators:
            operator.cancel()

    def abandon(self) -> None:
        """See `forks`: in a child, the task ends the process as soon as the user's function returns."""
        self._abandoned = True
        self.loop.abandon()
        for writer in self.writers:
            writer.end_in_child()

    @property
    def ident(self) -> int | None:
        """The identifier of the task's thread while it runs, else None. Read by any thread."""
        return self._thread.ident if self._thread.is_alive() else None

    def join(self, timeout_s: float | None) -> bool:
        """Block until the thread has ended. Return True if it has, or was never started."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error = self._error_of(self._work)
        closing = self._error_of(self.chain.close)
        if error is not None and closing is not None:
            _log.info("%s: closing it failed as well: %s", self.name, closing)
        error = error or closing
        try:
            if error is not None:
                self._failed(error)
            self.release(error)
        finally:
            self._ended(error)

    def _error_of(self, work: Callable[[], object]) -> HeadgateError | None:
        """Call `work` and return its error, or None."""
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - any error fails the job
            if self._abandoned:
                forks.end_child(None if isinstance(raised, Cancelled) else raised)
            error = self.chain.with_operator(raised)
            if isinstance(error, HeadgateError):
                return error
            _log.exception("%s: a bug in headgate", self.name)
            bug = InvariantViolated(f"{self.name}: {type(raised).__name__}: {raised}")
            bug.__cause__ = raised
            return bug
        if self._abandoned:
            forks.end_child(None)
        return None

    def _work(self) -> None:
        self.chain.open()
        self._running()
        self.loop.run()
        self.chain.finish(watermark=True)
        for writer in self.writers:
            writer.finish()

    def release(self, error: HeadgateError | None) -> None:
        """Release the task's writers and reader; also for a task that was never started."""
        for writer in self.writers:
            writer.close()
            if error is not None and not isinstance(error, Cancelled):
                writer.partition.release(error)  # the readers of the partition receive the error
        if self.reader is not None:
            self.reader.close()
