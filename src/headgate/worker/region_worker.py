"""One worker's part of a BATCH job: regions in, one after another, and finished partitions out.

Everything here is called by the thread that serves the control connection (`worker.run`); what the tasks of a run say
comes on their threads, and only notes it. `ended` lets that thread come by when the last task of a run is over.

Invariants: one run at a time; each is answered once, by `RegionOver`, when all its tasks are over and everything was
given back, unless the worker was told to leave meanwhile; what a run that did not finish has written is gone by then;
`Done` is told once, when no task is left, and no file either unless they are to be kept.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headgate.buffer import preflight
from headgate.errors import Cancelled, HeadgateError, StorageError
from headgate.graph.plan import Partition
from headgate.worker.messages import Done, Failed, RegionOver
from headgate.worker.reports import reports_of
from headgate.worker.setup import wall_ms
from headgate.worker.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headgate.graph.plan import Plan
    from headgate.worker.messages import DeployRegion, FromWorker, Report
    from headgate.worker.running import RunningTask
    from headgate.worker.setup import WorkerPart

__all__ = ["RegionWorker"]

_log = logging.getLogger("headgate.worker")

_JOIN_S: Final = 4.0  # threads whose tasks have said that they are over are about to end


@dataclass(slots=True)
class _Run:
    """A region that is being run."""

    message: DeployRegion
    group: TaskGroup = field(init=False)
    failure: HeadgateError | None = None  # the first


class RegionWorker:
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
    ...     worker = RegionWorker(part, print, ended=lambda: None)
    ...     worker.cancel("the job has finished", keep=False)
    Done()
    """

    def __init__(
        self,
        part: WorkerPart,
        tell: Callable[[FromWorker], object],
        *,
        ended: Callable[[], object],
        fresh: Callable[[], Plan] | None = None,
    ) -> None:
        self.keep = True
        """Whether files stay when the worker leaves: as the coordinator says, and if it says nothing, they do."""
        self.over = False
        """Whether it has said `Done`."""
        self._part = part
        self._tell = tell
        self._ended = ended
        self._fresh = fresh  # a plan with function objects that no task has used
        self._used: set[int] = set()  # vertices whose functions were used
        self._served: set[Partition] = set()  # that others can read here
        self._run: _Run | None = None
        self._leaving = False

    @property
    def tasks(self) -> Sequence[RunningTask]:
        """Those of the region that is running."""
        return () if self._run is None else self._run.group.tasks

    def deploy(self, message: DeployRegion) -> None:
        """Set up the tasks of a region, connect them with their inputs, and start them."""
        if self._leaving:
            return
        assert self._run is None, "one region at a time"
        run = self._run = _Run(message)
        run.group = TaskGroup(
            self._part_of(message), self._tell, failed=lambda error: self._failed(run, error), over=self._ended
        )
        try:
            self._start(run)
        except Exception as error:
            if run.group.started:
                raise  # some of its threads run, and some do not: nothing that could be made good
            if not isinstance(error, HeadgateError):  # the user's, too: operators are made here
                _log.exception("the tasks of a region could not be set up")
            run.group.undo(error)
            self._run = None
            self._tell(RegionOver(message.stage, message.subtask, message.run, failure=Failed.of(error)))

    def _part_of(self, message: DeployRegion) -> WorkerPart:
        """What its tasks are made of. The user's objects may remember an earlier run: then they are new ones."""
        part, vertices = self._part, set(message.vertices)
        if self._fresh is not None and vertices & self._used:
            part = replace(part, plan=self._fresh())
        self._used |= vertices
        return part

    def _start(self, run: _Run) -> None:
        part, message = self._part, run.message
        memory = part.environment.memory
        preflight(
            part.plan.demands_of(part.index),
            segments=memory.statistics().total,
            segment_size=memory.segment_size,
            limits=part.environment.limits,
            read_ahead=True,
        )
        group = run.group
        vertices = [group.part.plan.vertex(number) for number in message.vertices]
        places = {wire.partition: wire.worker for wire in message.inputs}
        group.set_up([(vertex, message.subtask) for vertex in vertices], places, told=False)
        for wire in message.inputs:
            group.connect(wire)
        group.connect_rest()
        group.start()

    def _outputs(self, message: DeployRegion) -> list[Partition]:
        """What the region writes for others."""
        return [
            Partition(vertex, exchange.output, message.subtask)
            for vertex in message.vertices
            for exchange in self._part.plan.outputs(vertex)
            if exchange.blocking
        ]

    @staticmethod
    def _failed(run: _Run, error: HeadgateError) -> None:
        """A task fails; called on its thread, before others can learn of it."""
        if run.failure is None:
            run.failure = error

    def region_ended(self) -> None:
        """All tasks of the run are over: answer."""
        run, self._run = self._run, None
        assert run is not None, "there was one, and it ends once"
        message, group = run.message, run.group
        group.join(_JOIN_S)
        for report in group.reports():
            self._tell(report)
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
            self._tell(RegionOver(message.stage, message.subtask, message.run, failure=Failed.of(failure)))
        else:
            self._tell(RegionOver(message.stage, message.subtask, message.run, consumable=outputs))

    def found(self) -> list[Partition]:
        """The partitions of earlier attempts on this machine's disks."""
        storage = self._part.environment.storage
        return [] if storage is None or self._part.attempt == 1 else sorted(storage.finished())

    def adopt(self, partitions: Iterable[Partition]) -> None:
        """Let others read partitions that were found."""
        for one in partitions:
            try:
                self._part.environment.adopt(self._part.id(one), subpartitions=self._subpartitions(one))
                self._served.add(one)
            except HeadgateError as error:
                self.give_up(one, error)

    def give_up(self, partition: Partition, error: HeadgateError) -> None:
        """A finished partition cannot be read: it is removed, and the attempt has failed.

        The next attempt does not find it, so what has written it is run again.
        """
        if not self._leaving:
            self.release([partition])
            self._tell(Failed.of(error))

    def _subpartitions(self, partition: Partition) -> int:
        plan = self._part.plan
        exchange = plan.outputs(partition.vertex)[partition.output]
        producers, consumers = (plan.vertex(one).parallelism for one in (exchange.producer, exchange.consumer))
        return len(exchange.consumers_of(partition.subtask, producers, consumers))

    def release(self, partitions: Iterable[Partition]) -> None:
        """Remove partitions, whoever has written them."""
        environment = self._part.environment
        for one in partitions:
            if one in self._served:
                self._served.remove(one)
                environment.registry.release(self._part.id(one))  # its file goes when nobody reads from it
            elif environment.storage is not None:
                try:
                    environment.storage.remove(one)
                except StorageError as error:  # it stays until the end of the job, or longer: nothing that matters now
                    _log.warning("%s", error)

    def cancel(self, reason: str, *, keep: bool) -> None:
        """End all tasks, and say so: the worker has nothing more to do. May be repeated, with another `keep`."""
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
        self._tell(Done())

    def join(self, timeout_s: float) -> list[str]:
        """Wait for the ends of all tasks; the names of those that are still running after `timeout_s`."""
        return [] if self._run is None else self._run.group.join(timeout_s)

    def look(self) -> None:
        """Take the states of all tasks in the moments that are over."""
        if self._run is not None:
            self._run.group.look()

    def reports(self) -> list[Report]:
        """The meters of the worker and of the tasks that are running."""
        if self._run is None:
            return reports_of(self._part.environment, [], wall_ms())
        return self._run.group.reports()
