"""One worker's part of a BATCH job: it runs one region after another and serves the finished partitions.

The control thread calls everything here (`worker.run`). Task threads only record failures; `ended` posts an event for
the control thread when the last task of a run has ended.

Invariants: one run at a time; each is answered once, by `RegionOver`, when all its tasks have ended and released
everything, unless the worker was cancelled meanwhile; by then the output of a run that did not finish is removed;
`Done` is sent once, when no task is left, and no file either unless they are kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headgate.clock import wall_ms
from headgate.control.messages import Done, Failed, RegionOver
from headgate.errors import Cancelled, HeadgateError, StorageError
from headgate.graph.plan import Partition
from headgate.worker.reporting import reports_of
from headgate.worker.task_group import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headgate.control.messages import DeployRegion, FromWorker
    from headgate.control.reports import WorkerReport
    from headgate.graph.plan import Plan
    from headgate.worker.reporting import DeployedTask
    from headgate.worker.setup import WorkerPart

__all__ = ["BatchWorker"]

_log = logging.getLogger("headgate.worker")

_JOIN_S: Final = 4.0  # for threads whose tasks have ended


@dataclass(slots=True)
class _Run:
    """The run of a region."""

    message: DeployRegion
    group: TaskGroup = field(init=False)
    failure: HeadgateError | None = None  # the first


class BatchWorker:
    """Runs the regions that the coordinator deploys.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> from headgate.ids import AttemptId, JobId
    >>> from headgate.record import AuthenticatedPeer, SerializerRegistry
    >>> from headgate.worker import Environment
    >>> from headgate.worker.setup import WorkerPart
    >>> nothing = Plan(JobId("1"), "nothing", (), (), workers=1, settings=Settings(), batch=True)
    >>> with Environment(memory_bytes=2**20) as environment:
    ...     peer = AuthenticatedPeer.this_process()
    ...     part = WorkerPart(nothing, 0, AttemptId(1), environment, peer, SerializerRegistry())
    ...     worker = BatchWorker(part, print, ended=lambda: None)
    ...     worker.cancel("the job has finished", keep=False)
    Done()
    """

    def __init__(
        self,
        part: WorkerPart,
        send: Callable[[FromWorker], object],
        *,
        ended: Callable[[], object],
        fresh: Callable[[], Plan] | None = None,
    ) -> None:
        self.keep = True
        """True if files stay when the worker leaves; the coordinator's `Cancel` decides."""
        self.over = False
        """True once `Done` was sent."""
        self._part = part
        self._send = send
        self._ended = ended
        self._fresh = fresh  # a plan with function objects that no task has used
        self._used: set[int] = set()  # vertices whose function objects were used
        self._served: set[Partition] = set()  # registered here for readers
        self._run: _Run | None = None
        self._leaving = False

    @property
    def tasks(self) -> Sequence[DeployedTask]:
        """The tasks of the running region."""
        return () if self._run is None else self._run.group.tasks

    def deploy(self, message: DeployRegion) -> None:
        """Set up the tasks of a region, connect them with their inputs, and start them."""
        if self._leaving:
            return
        assert self._run is None, "one region at a time"
        run = self._run = _Run(message)
        run.group = TaskGroup(
            self._part_of(message), self._send, failed=lambda error: self._failed(run, error), over=self._ended
        )
        try:
            self._start(run)
        except Exception as error:
            if run.group.started:
                raise  # some of its threads run and some do not: that cannot be undone
            if not isinstance(error, HeadgateError):  # operators are made here, by user code
                _log.exception("the tasks of a region could not be set up")
            run.group.undo(error)
            self._run = None
            self._send(RegionOver(message.stage, message.subtask, message.run, failure=Failed.of(error)))

    def _part_of(self, message: DeployRegion) -> WorkerPart:
        """Return what its tasks are set up with: new function objects if an earlier run has used the old ones."""
        part, vertices = self._part, set(message.vertices)
        if self._fresh is not None and vertices & self._used:
            part = replace(part, plan=self._fresh())
        self._used |= vertices
        return part

    def _start(self, run: _Run) -> None:
        message, group = run.message, run.group
        vertices = [group.part.plan.vertex(number) for number in message.vertices]
        locations = {location.partition: location.worker for location in message.inputs}
        group.set_up([(vertex, message.subtask) for vertex in vertices], locations, announced=False)
        for location in message.inputs:
            group.connect(location)
        group.connect_rest()
        group.start()

    def _outputs(self, message: DeployRegion) -> list[Partition]:
        """Return the partitions that the region writes for other regions."""
        return [
            Partition(vertex, exchange.output, message.subtask)
            for vertex in message.vertices
            for exchange in self._part.plan.outputs(vertex)
            if exchange.blocking
        ]

    @staticmethod
    def _failed(run: _Run, error: HeadgateError) -> None:
        """Record the first failure; on the task's thread, before its readers are notified."""
        if run.failure is None:
            run.failure = error

    def region_ended(self) -> None:
        """Answer with `RegionOver`: all tasks of the run have ended."""
        run, self._run = self._run, None
        assert run is not None, "a run ends once"
        message, group = run.message, run.group
        group.join(_JOIN_S)
        for report in group.reports():
            self._send(report)
        failure = run.failure or next(iter(group.errors), None)
        outputs = self._outputs(message)
        if failure is not None or self._leaving:
            group.release(failure or Cancelled("the worker leaves"))
        else:
            group.release(None, but={self._part.id(one) for one in outputs})
            self._served.update(outputs)
        if self._leaving:
            self._leave()
        elif failure is not None:
            self._send(RegionOver(message.stage, message.subtask, message.run, failure=Failed.of(failure)))
        else:
            self._send(RegionOver(message.stage, message.subtask, message.run, consumable=outputs))

    def found(self) -> list[Partition]:
        """Return the partitions of earlier attempts on this machine's disks."""
        storage = self._part.environment.storage
        return [] if storage is None or self._part.attempt == 1 else sorted(storage.finished())

    def adopt(self, partitions: Iterable[Partition]) -> None:
        """Register partitions of earlier attempts for readers."""
        for one in partitions:
            try:
                self._part.environment.adopt(self._part.id(one), subpartitions=self._subpartitions(one))
                self._served.add(one)
            except HeadgateError as error:
                self.drop_partition(one, error)

    def drop_partition(self, partition: Partition, error: HeadgateError) -> None:
        """Remove a finished partition that cannot be read, and fail the attempt.

        The next attempt does not find the partition, so its producer runs again.
        """
        if not self._leaving:
            self.release([partition])
            self._send(Failed.of(error))

    def _subpartitions(self, partition: Partition) -> int:
        plan = self._part.plan
        exchange = plan.outputs(partition.vertex)[partition.output]
        producers, consumers = (plan.vertex(one).parallelism for one in (exchange.producer, exchange.consumer))
        return len(exchange.consumers_of(partition.subtask, producers, consumers))

    def release(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions, of this worker and of earlier attempts."""
        environment = self._part.environment
        for one in partitions:
            if one in self._served:
                self._served.remove(one)
                environment.registry.release(self._part.id(one))  # the file is removed with its last reader
            elif environment.storage is not None:
                try:
                    environment.storage.remove(one)
                except StorageError as error:  # the file stays until the job's end, or a later sweep
                    _log.warning("%s", error)

    def cancel(self, reason: str, *, keep: bool) -> None:
        """Cancel all tasks, then send `Done`. May be repeated, with another `keep`."""
        self.keep = keep
        first, self._leaving = not self._leaving, True
        if self._run is not None:
            self._run.group.cancel(reason)
        elif first:
            self._leave()

    def _leave(self) -> None:
        environment = self._part.environment
        environment.release_job(self._part.plan.job, Cancelled("the worker leaves"), keep=self.keep)
        if not self.keep:
            environment.disk.close(keep=False)  # when nothing is being read any more
        self.over = True
        self._send(Done())

    def join(self, timeout_s: float) -> list[str]:
        """Block until all tasks have ended. Return the names of those that still run after `timeout_s`."""
        return [] if self._run is None else self._run.group.join(timeout_s)

    def measure(self) -> None:
        """Measure all tasks for the intervals that have ended."""
        if self._run is not None:
            self._run.group.measure()

    def reports(self) -> list[WorkerReport]:
        """Return the reports of the worker and of the running tasks."""
        if self._run is None:
            return reports_of(self._part.environment, [], wall_ms())
        return self._run.group.reports()

    def report(self) -> None:
        """Send the reports of the worker and of the running tasks. Only the control thread does."""
        for report in self.reports():
            self._send(report)
