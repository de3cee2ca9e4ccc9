"""Tasks that are set up, started and ended together: all tasks of a STREAMING job's worker, or those of one region.

The control thread calls `set_up`, `start`, `connect`, `measure` and `reports`; `cancel` is also called by a task that
fails. The callbacks `send`, `failed` and `over` run on task threads.

Invariants: all tasks are set up before the first one starts; a set-up that fails leaves nothing behind; every task
reports its last state once; `over` is called once, after the last task; one thread at a time reads the meters.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from headgate.clock import wall_ms
from headgate.control.messages import PartitionConsumable, TaskState, TaskStateChanged
from headgate.errors import Cancelled, HeadgateError, ProducerFailed, UserCodeError
from headgate.net import Address
from headgate.worker.reporting import reports_of
from headgate.worker.setup import TaskSetUp

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from headgate.control.messages import FromWorker, PartitionLocation
    from headgate.control.reports import WorkerReport
    from headgate.graph.plan import Partition, Vertex
    from headgate.ids import PartitionId
    from headgate.worker.reporting import DeployedTask
    from headgate.worker.setup import PendingChannel, WorkerPart

__all__ = ["TaskGroup"]


class TaskGroup:
    """Some tasks of a worker. `failed` gets the first error, and later errors of user code.

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
    ...     group = TaskGroup(part, print, failed=print, over=lambda: print("over"))
    ...     group.set_up([])
    ...     group.start()
    over
    """

    def __init__(
        self,
        part: WorkerPart,
        send: Callable[[FromWorker], object],
        *,
        failed: Callable[[HeadgateError], object],
        over: Callable[[], object],
    ) -> None:
        self.part = part
        self.tasks: list[DeployedTask] = []
        self.errors: list[HeadgateError] = []
        """The errors of all tasks that did not finish, also Cancelled."""
        self.started = False
        self.cancelled = False
        self._send = send
        self._failed = failed
        self._over = over
        self._pending: dict[Partition, list[PendingChannel]] = {}
        self._mutex = threading.Lock()
        self._meter_lock = threading.Lock()  # held while the tasks' meters are used
        self._left = 0  # tasks that have not ended

    @property
    def ended(self) -> bool:
        """Return True if all were started and have ended."""
        return self.started and self._left == 0

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that they write."""
        return [writer.partition.id for running in self.tasks for writer in running.task.writers]

    def set_up(
        self,
        tasks: Iterable[tuple[Vertex, int]],
        locations: Mapping[Partition, int] | None = None,
        *,
        announced: bool = True,
    ) -> None:
        """Make tasks, without starting them.

        Args:
            tasks: Vertices and subtasks.
            locations: The workers that have their input partitions, where these differ from the plan.
            announced: True if the coordinator is notified when a partition of theirs can be read.
        """
        try:
            for vertex, subtask in tasks:
                self._set_up(vertex, subtask, locations or {}, announced=announced)
        except BaseException as error:
            self.undo(error)
            raise

    def undo(self, error: BaseException) -> None:
        """Release what the tasks hold that were set up: another one failed, and none was started. May be repeated."""
        for running in self.tasks:
            running.task.release(error if isinstance(error, HeadgateError) else None)
        self.release(error)
        self._abandon_pending()
        self.tasks.clear()

    def _set_up(self, vertex: Vertex, subtask: int, locations: Mapping[Partition, int], *, announced: bool) -> None:
        setup = TaskSetUp(
            self.part,
            vertex,
            subtask,
            consumable=lambda name: self._send(PartitionConsumable(name)) if announced else None,
            running=lambda: self._on_start(running),
            failed=lambda error: self._on_failure(running, error),
            ended=lambda error: self._on_end(running, error),
            locations=locations,
        )
        running = setup.set_up()
        self.tasks.append(running)
        for channel in setup.pending:
            self._pending.setdefault(channel.partition, []).append(channel)
        self._send(TaskStateChanged(vertex.id, subtask, TaskState.DEPLOYED))

    def start(self) -> None:
        """Start all tasks; once."""
        self._left = len(self.tasks)
        self.started = True
        now_ms = wall_ms()
        for running in self.tasks:
            running.meter.begin(now_ms)
        for running in self.tasks:
            running.task.start()
        if not self.tasks:
            self._over()

    def connect(self, location: PartitionLocation) -> None:
        """Connect the channels that wait for this partition (G3)."""
        environment = self.part.environment
        with self._mutex:
            pending = self._pending.pop(location.partition, [])
        for channel in pending:
            if channel.remote is None:
                self._connect_locally(channel)
            else:
                environment.know(location.worker, Address(location.host, location.port))
                channel.gate.connect(channel.channel, channel.remote)

    def connect_rest(self) -> None:
        """Connect the channels that read partitions of the group's own tasks."""
        with self._mutex:
            pending = [channel for some in self._pending.values() for channel in some]
            assert all(channel.remote is None for channel in pending), "remote channels are connected by `connect`"
            self._pending.clear()
        for channel in pending:
            self._connect_locally(channel)

    def _connect_locally(self, channel: PendingChannel) -> None:
        local = self.part.environment.local_source(self.part.id(channel.partition), channel.subpartition)
        channel.gate.connect(channel.channel, local)

    def cancel(self, reason: str) -> None:
        """Cancel all tasks. May be repeated."""
        with self._mutex:
            if self.cancelled:
                return
            self.cancelled = True
        self.release(Cancelled(reason))
        for running in self.tasks:
            running.task.cancel()
        self._abandon_pending()

    def release(self, cause: BaseException | None, *, but: Container[PartitionId] = ()) -> None:
        """Release the partitions of the tasks, except those in `but`. Their readers get the cause."""
        for one in self.partitions:
            if one not in but:
                self.part.environment.registry.release(one, cause)

    def _abandon_pending(self) -> None:
        with self._mutex:
            pending = [channel for some in self._pending.values() for channel in some]
            self._pending.clear()
        for channel in pending:
            channel.abandon()

    def join(self, timeout_s: float) -> list[str]:
        """Block until all tasks have ended. Return the names of those that still run after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        tasks = [running.task for running in self.tasks]
        return [task.name for task in tasks if not task.join(max(0.0, deadline - time.monotonic()))]

    def measure(self) -> None:
        """Measure all tasks for the intervals that have ended."""
        with self._meter_lock:
            self._measure(wall_ms())

    def reports(self) -> list[WorkerReport]:
        """Return the reports of all tasks: one message, or several if it would be too large."""
        with self._meter_lock:
            now_ms = wall_ms()
            self._measure(now_ms)
            subtasks = [running.report() for running in self.tasks]
        return reports_of(self.part.environment, subtasks, now_ms)

    def _measure(self, now_ms: int) -> None:
        for running in self.tasks:
            running.meter.measure(now_ms)

    def _on_failure(self, running: DeployedTask, error: HeadgateError) -> None:
        """Handle a task's error; on its thread, before the readers of its partitions are notified.

        Its last state is decided here: a notified reader may end first and cancel the group. While the group is being
        cancelled, only an error of user code is reported.
        """
        running.last_state = self._state_after(running, error)
        if isinstance(error, UserCodeError) or not (self.cancelled or isinstance(error, Cancelled)):
            self._failed(error)

    def _state_after(self, running: DeployedTask, error: HeadgateError) -> TaskState:
        """Return FAILED if the task failed by itself, CANCELLED if another task or the job ended it."""
        if self.cancelled or isinstance(error, Cancelled):
            return TaskState.CANCELLED
        # The producers of a blocking exchange have finished: there the error means that the file cannot be read.
        blocking = any(exchange.blocking for exchange in self.part.plan.inputs(running.vertex.id))
        if isinstance(error, ProducerFailed) and not blocking:
            return TaskState.CANCELLED
        return TaskState.FAILED

    def _on_start(self, running: DeployedTask) -> None:
        """Report RUNNING: the task's operators are open; on its thread."""
        running.began()
        self._send(TaskStateChanged(running.vertex.id, running.subtask, TaskState.RUNNING))

    def _on_end(self, running: DeployedTask, error: HeadgateError | None) -> None:
        """Report the task's last state, and cancel the group if it failed; on its thread."""
        vertex, subtask = running.vertex, running.subtask
        with self._meter_lock:
            running.ended(wall_ms())
        if error is not None:
            self.errors.append(error)
            if not isinstance(error, Cancelled):
                self.cancel(f"{vertex.name}, subtask {subtask} has failed")
        try:
            self._send(TaskStateChanged(vertex.id, subtask, running.last_state))
        finally:
            with self._mutex:
                self._left -= 1
                last = self._left == 0
            if last:
                self._over()
