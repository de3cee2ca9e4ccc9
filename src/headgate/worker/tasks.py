"""Tasks of a worker that are set up, started and ended together: all of a STREAMING job's, or those of one region.

`set_up`, `start`, `connect`, `look` and `reports` are called by the thread that serves the control connection; `cancel`
also by a task that fails. What is heard of them (`tell`, `failed`, `over`) is called on the tasks' threads.

Invariants: all are set up before the first is started; a set-up that fails leaves nothing behind; every task tells its
last state once; `over` is called once, after the last of them; one thread at a time looks at the meters.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from headgate.errors import Cancelled, HeadgateError, UserCodeError
from headgate.net import Address
from headgate.worker.messages import PartitionConsumable, TaskState, TaskStateChanged
from headgate.worker.moments import wall_ms
from headgate.worker.reports import reports_of
from headgate.worker.setup import TaskSetUp

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from headgate.graph.plan import Vertex
    from headgate.ids import PartitionId
    from headgate.worker.messages import FromWorker, Partition, Report, Wire
    from headgate.worker.running import RunningTask
    from headgate.worker.setup import Opening, WorkerPart

__all__ = ["TaskGroup"]


class TaskGroup:
    """Some tasks of a worker. `failed` hears why the first fails, and what the user's code does in others meanwhile.

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
        tell: Callable[[FromWorker], object],
        *,
        failed: Callable[[HeadgateError], object],
        over: Callable[[], object],
    ) -> None:
        self.part = part
        self.tasks: list[RunningTask] = []
        self.errors: list[HeadgateError] = []
        """What tasks have ended with, that have not finished; Cancelled among it."""
        self.started = False
        self.cancelled = False
        self._tell = tell
        self._failed = failed
        self._over = over
        self._openings: dict[Partition, list[Opening]] = {}
        self._mutex = threading.Lock()
        self._metering = threading.Lock()  # of what the tasks' meters have seen
        self._left = 0  # tasks that are not over

    @property
    def ended(self) -> bool:
        """Whether all were started and have ended."""
        return self.started and self._left == 0

    @property
    def partitions(self) -> list[PartitionId]:
        """What they write."""
        return [writer.partition.id for running in self.tasks for writer in running.task.writers]

    def set_up(
        self, tasks: Iterable[tuple[Vertex, int]], places: Mapping[Partition, int] | None = None, *, told: bool = True
    ) -> None:
        """Make these tasks: vertices and subtasks.

        Args:
            tasks: Which.
            places: The workers that have the partitions they read, where those are not where the plan says.
            told: Whether the coordinator hears of partitions that can be read.
        """
        try:
            for vertex, subtask in tasks:
                self._set_up(vertex, subtask, places or {}, told=told)
        except BaseException as error:
            self.undo(error)
            raise

    def undo(self, error: BaseException) -> None:
        """Not all could be set up: give back what those hold that were. None was started. May be repeated."""
        for running in self.tasks:
            running.task.let_go(error if isinstance(error, HeadgateError) else None)
        self.release(error)
        self._give_up_openings()
        self.tasks.clear()

    def _set_up(self, vertex: Vertex, subtask: int, places: Mapping[Partition, int], *, told: bool) -> None:
        setup = TaskSetUp(
            self.part,
            vertex,
            subtask,
            consumable=lambda name: self._tell(PartitionConsumable(name)) if told else None,
            running=lambda: self._on_start(running),
            failed=self._on_failure,
            ended=lambda error: self._on_end(running, error),
            places=places,
        )
        running = setup.set_up()
        self.tasks.append(running)
        for opening in setup.openings:
            self._openings.setdefault(opening.partition, []).append(opening)
        self._tell(TaskStateChanged(vertex.id, subtask, TaskState.DEPLOYED))

    def start(self) -> None:
        """Begin; once."""
        self._left = len(self.tasks)
        self.started = True
        now_ms = wall_ms()
        for running in self.tasks:
            running.meter.begin(now_ms)
        for running in self.tasks:
            running.task.start()
        if not self.tasks:
            self._over()

    def connect(self, wire: Wire) -> None:
        """A partition can be read: connect the channels that wait for it (G3)."""
        environment = self.part.environment
        with self._mutex:
            openings = self._openings.pop(wire.partition, [])
        for opening in openings:
            if opening.remote is None:
                self._connect_here(opening)
            else:
                environment.know(wire.worker, Address(wire.host, wire.port))
                opening.gate.connect(opening.channel, opening.remote)

    def connect_rest(self) -> None:
        """Connect the channels that wait for partitions of this worker: those of the group's own tasks."""
        with self._mutex:
            openings = [opening for some in self._openings.values() for opening in some]
            assert all(opening.remote is None for opening in openings), "others were connected by what was told"
            self._openings.clear()
        for opening in openings:
            self._connect_here(opening)

    def _connect_here(self, opening: Opening) -> None:
        local = self.part.environment.local_source(self.part.id(opening.partition), opening.subpartition)
        opening.gate.connect(opening.channel, local)

    def cancel(self, reason: str) -> None:
        """End all tasks. May be repeated."""
        with self._mutex:
            if self.cancelled:
                return
            self.cancelled = True
        self.release(Cancelled(reason))
        for running in self.tasks:
            running.task.cancel()
        self._give_up_openings()

    def release(self, cause: BaseException | None, *, but: Container[PartitionId] = ()) -> None:
        """Release what the tasks write, finished or not, but for these; their readers learn the cause."""
        for one in self.partitions:
            if one not in but:
                self.part.environment.registry.release(one, cause)

    def _give_up_openings(self) -> None:
        with self._mutex:
            openings = [opening for some in self._openings.values() for opening in some]
            self._openings.clear()
        for opening in openings:
            opening.give_up()

    def join(self, timeout_s: float) -> list[str]:
        """Wait for the ends of all tasks; the names of those that are still running after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        tasks = [running.task for running in self.tasks]
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
            subtasks = [running.report() for running in self.tasks]
        return reports_of(self.part.environment, subtasks, now_ms)

    def _take(self, now_ms: int) -> None:
        for running in self.tasks:
            running.meter.take(now_ms)

    def _on_failure(self, error: HeadgateError) -> None:
        """A task fails; called on its thread. While all are being stopped, only what the user's code did is news."""
        if isinstance(error, UserCodeError) or not (self.cancelled or isinstance(error, Cancelled)):
            self._failed(error)

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
        elif isinstance(error, Cancelled) or self.cancelled:
            state = TaskState.CANCELLED
        else:
            state = TaskState.FAILED
            self.cancel(f"{vertex.name}, subtask {subtask} has failed")
        if error is not None:
            self.errors.append(error)
        try:
            self._tell(TaskStateChanged(vertex.id, subtask, state))
        finally:
            with self._mutex:
                self._left -= 1
                last = self._left == 0
            if last:
                self._over()
