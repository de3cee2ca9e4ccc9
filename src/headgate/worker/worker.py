"""One worker's part of a STREAMING job: plan in, running tasks out. `region_worker` has that of a BATCH job.

`deploy`, `wire`, `cancel`, `look` and `reports` are called by the thread that serves the control connection
(`worker.run`); `tell` may be called from any thread.

Invariants: all tasks are set up before the first is started; every task tells its last state once; `Done` is told once,
after the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.buffer import preflight
from headgate.worker.messages import Done, Failed
from headgate.worker.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.errors import HeadgateError
    from headgate.worker.messages import FromWorker, Report, Wire
    from headgate.worker.running import RunningTask
    from headgate.worker.setup import WorkerPart

__all__ = ["Worker"]


class Worker:
    """All tasks of one worker.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.record import AuthenticatedPeer, SerializerRegistry
    >>> from headgate.worker import Environment
    >>> from headgate.worker.setup import WorkerPart
    >>> nothing = Plan(JobId("1"), "nothing", (), (), workers=1, settings=Settings())
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     peer = AuthenticatedPeer.this_process()
    ...     worker = Worker(WorkerPart(nothing, 0, AttemptId(1), environment, peer, SerializerRegistry()), print)
    ...     worker.deploy()
    Done()
    >>> worker.over
    True
    """

    keep = False
    """Whether files stay when it leaves: it has none."""

    def __init__(self, part: WorkerPart, tell: Callable[[FromWorker], object]) -> None:
        self._part = part
        self._tell = tell
        self._group = TaskGroup(part, tell, failed=self._on_failure, over=self._on_over)

    @property
    def over(self) -> bool:
        """Whether all tasks were started and have ended."""
        return self._group.ended

    @property
    def tasks(self) -> Sequence[RunningTask]:
        """All of them, once they are set up."""
        return self._group.tasks

    def deploy(self) -> None:
        """Set up all tasks, then start them.

        Raises:
            InsufficientBuffers: they need more memory than there is.
        """
        part = self._part
        memory = part.environment.memory
        preflight(
            part.plan.demands_of(part.index),
            segments=memory.statistics().total,
            segment_size=memory.segment_size,
            limits=part.environment.limits,
        )
        self._group.set_up(part.plan.tasks_of(part.index))
        self._group.start()

    def wire(self, message: Wire) -> None:
        """A partition can be read: connect the channels that wait for it (G3)."""
        self._group.connect(message)

    def cancel(self, reason: str) -> None:
        """End all tasks. May be repeated."""
        self._group.cancel(reason)

    def join(self, timeout_s: float) -> list[str]:
        """Wait for the ends of all tasks; the names of those that are still running after `timeout_s`."""
        return self._group.join(timeout_s)

    def look(self) -> None:
        """Take the states of all tasks in the moments that are over."""
        self._group.look()

    def reports(self) -> list[Report]:
        """The meters of all tasks, and their states since the last call; in one message unless that is too large."""
        return self._group.reports()

    def _on_failure(self, error: HeadgateError) -> None:
        self._tell(Failed.of(error))

    def _on_over(self) -> None:
        if self._group.tasks:
            for report in self.reports():
                self._tell(report)
        self._tell(Done())
