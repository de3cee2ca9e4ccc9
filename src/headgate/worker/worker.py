"""One worker's part of a job: plan in, running tasks out.

`deploy`, `wire`, `cancel`, `look` and `reports` are called by the thread that serves the control connection
(`worker.run`); `tell` may be called from any thread.

Invariants: all tasks are set up before the first is started; every task tells its last state once; `Done` is told once,
after the last of them; one thread at a time looks at the meters.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from headgate.buffer import preflight
from headgate.errors import Cancelled, HeadgateError, UserCodeError
from headgate.net import Address
from headgate.worker.messages import Done, Failed, PartitionConsumable, TaskState, TaskStateChanged
from headgate.worker.moments import wall_ms
from headgate.worker.reports import reports_of
from headgate.worker.setup import Opening, RunningTask, TaskSetUp, WorkerPart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.graph.plan import Vertex
    from headgate.worker.messages import FromWorker, Partition, Report, Wire

__all__ = ["Worker"]


class Worker:
    """All tasks of one worker.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.record import AuthenticatedPeer, SerializerRegistry
    >>> from headgate.worker import Environment
    >>> nothing = Plan(JobId("1"), "nothing", (), (), workers=1, settings=Settings())
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     peer = AuthenticatedPeer.this_process()
    ...     worker = Worker(WorkerPart(nothing, 0, AttemptId(1), environment, peer, SerializerRegistry()), print)
    ...     worker.deploy()
    Done()
    >>> worker.over
    True
    """

    def __init__(self, part: WorkerPart, tell: Callable[[FromWorker], object]) -> None:
        self._part = part
        self._tell = tell
        self._openings: dict[Partition, list[Opening]] = {}
        self._running: list[RunningTask] = []
        self._mutex = threading.Lock()
        self._metering = threading.Lock()  # of what the tasks' meters have seen
        self._left = 0  # tasks that are not over
        self._deployed = False
        self._cancelled = False

    @property
    def over(self) -> bool:
        """Whether all tasks were started and have ended."""
        return self._deployed and self._left == 0

    @property
    def tasks(self) -> Sequence[RunningTask]:
        """All of them, once they are set up."""
        return self._running

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
        try:
            for vertex, subtask in part.plan.tasks_of(part.index):
                self._set_up(vertex, subtask)
        except BaseException as error:
            self._undo(error)
            raise
        self._left = len(self._running)
        self._deployed = True
        now_ms = wall_ms()
        for running in self._running:
            running.meter.begin(now_ms)
        for running in self._running:
            running.task.start()
        if not self._running:
            self._tell(Done())

    def _undo(self, error: BaseException) -> None:
        """Not all tasks could be set up: give back what those hold that were."""
        for running in self._running:
            running.task.let_go(error if isinstance(error, HeadgateError) else None)
        self._part.environment.release_job(self._part.plan.job, error)
        self._give_up_openings()
        self._running.clear()

    def _set_up(self, vertex: Vertex, subtask: int) -> None:
        setup = TaskSetUp(
            self._part,
            vertex,
            subtask,
            consumable=lambda name: self._tell(PartitionConsumable(name)),
            running=lambda: self._on_start(running),
            failed=self._on_failure,
            ended=lambda error: self._on_end(running, error),
        )
        running = setup.set_up()
        self._running.append(running)
        for opening in setup.openings:
            self._openings.setdefault(opening.partition, []).append(opening)
        self._tell(TaskStateChanged(vertex.id, subtask, TaskState.DEPLOYED))

    def wire(self, message: Wire) -> None:
        """A partition can be read: connect the channels that wait for it (G3)."""
        environment = self._part.environment
        with self._mutex:
            openings = self._openings.pop(message.partition, [])
        for opening in openings:
            if opening.remote is None:
                local = environment.local_source(self._part.id(message.partition), opening.subpartition)
                opening.gate.connect(opening.channel, local)
            else:
                environment.know(message.worker, Address(message.host, message.port))
                opening.gate.connect(opening.channel, opening.remote)

    def cancel(self, reason: str) -> None:
        """End all tasks. May be repeated."""
        with self._mutex:
            if self._cancelled:
                return
            self._cancelled = True
        self._part.environment.release_job(self._part.plan.job, Cancelled(reason))
        for running in self._running:
            running.task.cancel()
        self._give_up_openings()

    def _give_up_openings(self) -> None:
        with self._mutex:
            openings = [opening for some in self._openings.values() for opening in some]
            self._openings.clear()
        for opening in openings:
            opening.give_up()

    def join(self, timeout_s: float) -> list[str]:
        """Wait for the ends of all tasks; the names of those that are still running after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        tasks = [running.task for running in self._running]
        return [task.name for task in tasks if not task.join(max(0.0, deadline - time.monotonic()))]

    def look(self) -> None:
        """Take the states of all tasks in the moments that are over."""
        with self._metering:
            self._take(wall_ms())

    def reports(self) -> list[Report]:
        """The meters of all tasks, and their states since the last call; in one message unless that is too large."""
        with self._metering:
            now_ms = wall_ms()
            self._take(now_ms)
            subtasks = [running.report() for running in self._running]
        return reports_of(self._part.environment, subtasks, now_ms)

    def _take(self, now_ms: int) -> None:
        for running in self._running:
            running.meter.take(now_ms)

    def _on_failure(self, error: HeadgateError) -> None:
        """A task fails; called on its thread. While the job is being stopped, only what the user's code did is news."""
        if isinstance(error, UserCodeError) or not (self._cancelled or isinstance(error, Cancelled)):
            self._tell(Failed.of(error))

    def _on_start(self, running: RunningTask) -> None:
        """A task's operators are open; called on its thread."""
        running.began()
        self._tell(TaskStateChanged(running.vertex.id, running.subtask, TaskState.RUNNING))

    def _on_end(self, running: RunningTask, error: HeadgateError | None) -> None:
        """A task is over; called on its thread."""
        vertex, subtask = running.vertex, running.subtask
        with self._metering:
            running.ended(wall_ms())
        if error is None:
            state = TaskState.FINISHED
        elif isinstance(error, Cancelled) or self._cancelled:
            state = TaskState.CANCELLED
        else:
            state = TaskState.FAILED
            self.cancel(f"{vertex.name}, subtask {subtask} has failed")
        try:
            self._tell(TaskStateChanged(vertex.id, subtask, state))
        finally:
            with self._mutex:
                self._left -= 1
                last = self._left == 0
            if last:
                for report in self.reports():
                    self._tell(report)
                self._tell(Done())
