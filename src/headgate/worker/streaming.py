"""One worker's part of a STREAMING job. `worker.batch` has that of a BATCH job.

The control thread calls everything here (`worker.run`); `send` may be called by any thread.

Invariants: all tasks are set up before the first one starts; every task reports its last state once; `Done` is sent
once, after that of the last task; reports are sent in the order in which they were made.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headgate.control.messages import Done, Failed
from headgate.worker.task_group import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.control.messages import FromWorker, PartitionLocation
    from headgate.control.reports import WorkerReport
    from headgate.errors import HeadgateError
    from headgate.worker.reporting import DeployedTask
    from headgate.worker.setup import WorkerPart

__all__ = ["StreamingWorker"]


class StreamingWorker:
    """Deploys, connects and cancels all tasks of one worker.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.record import AuthenticatedPeer, SerializerRegistry
    >>> from headgate.worker import Environment
    >>> from headgate.worker.setup import WorkerPart
    >>> nothing = Plan(JobId("1"), "nothing", (), (), workers=1, settings=Settings())
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     peer = AuthenticatedPeer.this_process()
    ...     part = WorkerPart(nothing, 0, AttemptId(1), environment, peer, SerializerRegistry())
    ...     worker = StreamingWorker(part, print)
    ...     worker.deploy()
    Done()
    >>> worker.over
    True
    """

    keep = False
    """False: a STREAMING job has no files."""

    def __init__(self, part: WorkerPart, send: Callable[[FromWorker], object]) -> None:
        self._part = part
        self._send = send
        self._report_lock = threading.Lock()
        self._group = TaskGroup(part, send, failed=self._on_failure, over=self._on_all_ended)

    @property
    def over(self) -> bool:
        """Return True if all tasks were started and have ended."""
        return self._group.ended

    @property
    def tasks(self) -> Sequence[DeployedTask]:
        """All tasks, once they are set up."""
        return self._group.tasks

    def deploy(self) -> None:
        """Set up all tasks, then start them.

        Raises:
            InsufficientBuffers: too little memory. The coordinator checks it before, so this is a bug.
        """
        self._group.set_up(self._part.plan.tasks_of(self._part.index))
        self._group.start()

    def connect(self, message: PartitionLocation) -> None:
        """Connect the channels that wait for this partition (G3)."""
        self._group.connect(message)

    def cancel(self, reason: str) -> None:
        """Cancel all tasks. May be repeated."""
        self._group.cancel(reason)

    def join(self, timeout_s: float) -> list[str]:
        """Block until all tasks have ended. Return the names of those that still run after `timeout_s`."""
        return self._group.join(timeout_s)

    def measure(self) -> None:
        """Measure all tasks for the intervals that have ended."""
        self._group.measure()

    def reports(self) -> list[WorkerReport]:
        """Return the reports of all tasks: one message, or several if it would be too large."""
        return self._group.reports()

    def report(self) -> None:
        """Send the reports of all tasks. From the control thread, and from the thread of the task that ends last.

        The lock is held until they are sent: a report that was made before the last one, and sent after it, would set
        the counters back at the coordinator.
        """
        with self._report_lock:
            for report in self.reports():
                self._send(report)

    def _on_failure(self, error: HeadgateError) -> None:
        self._send(Failed.of(error))

    def _on_all_ended(self) -> None:
        if self._group.tasks:
            self.report()
        self._send(Done())
