"""One subtask of a vertex: its thread, its life, and what is left when it is over.

Made by the worker with everything it needs; `start` runs it, `cancel` and `join` come from the worker's thread.

Invariants: whatever happens, operators are closed and what the task held is given back before its last state is told;
that is told once.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from headgate.errors import Cancelled, HeadgateError, InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.input import RecordReader
    from headgate.output import RecordWriter
    from headgate.slices import Slices
    from headgate.task.chain import Chain
    from headgate.task.loop import Loop

__all__ = ["Task"]

_log = logging.getLogger(__name__)


class Task:
    """A running subtask.

    On its thread, `failed` is called with what went wrong before the readers of its partitions learn of it, and `ended`
    at last, with that, Cancelled or None.

    >>> from headgate.task.basic import PassOn
    >>> from headgate.task.chain import Chain
    >>> class NoLoop:
    ...     def run(self): print("reading")
    >>> chain = Chain([PassOn()], [None], object_reuse=False)
    >>> told = {"running": lambda: print("running"), "failed": print, "ended": print}
    >>> task = Task("words (1/1)", chain, NoLoop(), [], None, **told)
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
        loop: Loop,
        writers: Sequence[RecordWriter[Any]],
        reader: RecordReader[Any] | None,
        *,
        running: Callable[[], object],
        failed: Callable[[HeadgateError], object],
        ended: Callable[[HeadgateError | None], object],
        slices: Slices | None = None,
    ) -> None:
        self.name = name
        self.chain = chain
        self.loop = loop
        self.writers = list(writers)
        self.reader = reader
        self._running = running
        self._failed = failed
        self._ended = ended
        self._slices = slices
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def cancel(self) -> None:
        """End as soon as possible; its partitions and gate are released by the worker."""
        self.loop.cancel()
        for operator in self.chain.operators:
            operator.cancel()

    @property
    def ident(self) -> int | None:
        """The identity of its thread, while that runs; for any thread."""
        return self._thread.ident if self._thread.is_alive() else None

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end of its thread. Whether it has ended, or never begun."""
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._slices is not None:
            self._slices.begin()
        error = self._outcome(self._work)
        closing = self._outcome(self.chain.close)
        if error is not None and closing is not None:
            _log.info("%s: closing it failed as well: %s", self.name, closing)
        error = error or closing
        try:
            if error is not None:
                self._failed(error)
            self.let_go(error)
        finally:
            self._ended(error)

    def _outcome(self, work: Callable[[], object]) -> HeadgateError | None:
        """What something ended with: nothing, or an error."""
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the job must learn of it
            error = self.chain.name_of(raised)
            if isinstance(error, HeadgateError):
                return error
            _log.exception("%s: a bug in headgate", self.name)
            bug = InvariantViolated(f"{self.name}: {type(raised).__name__}: {raised}")
            bug.__cause__ = raised
            return bug
        return None

    def _work(self) -> None:
        self.chain.open()
        self._running()
        self.loop.run()
        self.chain.finish(watermark=True)
        for writer in self.writers:
            writer.finish()

    def let_go(self, error: HeadgateError | None) -> None:
        """Give back what the task holds; also for one that was never started."""
        for writer in self.writers:
            writer.close()
            if error is not None and not isinstance(error, Cancelled):
                writer.partition.release(error)  # its readers learn the cause
        if self.reader is not None:
            self.reader.close()
