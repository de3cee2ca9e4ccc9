"""The coordinator of a BATCH job: it runs regions one after another, in several attempts if workers are lost.

`BatchCoordinator` adds to `Coordinator`: it deploys regions instead of everything, dismisses the workers when all
regions have finished, and after the loss of a worker dismisses the others and waits for those of another attempt, which
the host starts when `next_attempt` returns. `RegionRunner` sends regions and partitions to workers, and checks their
answers; `RegionSchedule` decides which region runs next. Everything runs on the network thread, except `next_attempt`.

Invariants: an attempt begins when all workers of the one before have left, or their time to leave is over; messages of
an earlier attempt change nothing; the files of finished partitions are kept from one attempt to the next, and removed
at the job's end by every worker that leaves in time; stale files of a worker are released before anything is deployed
to it; a run has finished only when its worker has reported so and named all its results; reports of a run that is not
its region's current one change nothing.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from headgate.control.messages import Adopt, Cancel, DeployRegion, PartitionLocation, Release
from headgate.coordinator.coordinator import Coordinator, FailureWeight, JobPhase
from headgate.coordinator.membership import Presence
from headgate.coordinator.schedule import FailureResponse, RegionSchedule
from headgate.errors import ConfigError, HeadgateError, InsufficientBuffers, RemoteProtocolError, TransportError
from headgate.graph.regions import Region, Regions
from headgate.ids import AttemptId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headgate.control.messages import RegionOver
    from headgate.coordinator.events import EventLog
    from headgate.coordinator.membership import Member
    from headgate.coordinator.schedule import RegionStart
    from headgate.errors import HeadgateError
    from headgate.graph.plan import Partition, Plan

__all__ = ["BatchCoordinator", "BatchDecision", "RegionRunner", "coordinator_for"]

_PERMANENT: Final = (ConfigError, InsufficientBuffers)  # errors that another run would repeat
_MAX_NAMED: Final = 8  # regions in one event; more are only counted
_MAX_PARTITIONS: Final = 5000  # in one message


class BatchDecision(Enum):
    """How the job continues.

    >>> BatchDecision.FINISHED.value
    'all regions have finished'
    """

    CONTINUE = "regions run"
    FINISHED = "all regions have finished"
    NEW_ATTEMPT = "new workers continue"
    FAIL = "the job fails"


_DECISIONS: Final = {
    FailureResponse.IGNORE: BatchDecision.CONTINUE,
    FailureResponse.RETRY: BatchDecision.CONTINUE,
    FailureResponse.NEW_ATTEMPT: BatchDecision.NEW_ATTEMPT,
    FailureResponse.FAIL_JOB: BatchDecision.FAIL,
}


class RegionRunner:
    """The regions of one job, through all its attempts.

    >>> from headgate.config import Settings
    >>> from headgate.coordinator.events import EventLog
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> RegionRunner(plan, EventLog(plan), attempts=3).begin([])
    <BatchDecision.FINISHED: 'all regions have finished'>
    """

    def __init__(self, plan: Plan, log: EventLog, *, attempts: int) -> None:
        self._plan = plan
        self._log = log
        self._attempts = attempts
        self._regions = Regions(plan)
        self._schedule = RegionSchedule(self._regions, attempts=attempts)
        self._consumable: set[Partition] = set()
        self._members: Sequence[Member] = ()

    def begin(self, members: Sequence[Member]) -> BatchDecision:
        """Begin an attempt: use or remove the partitions that its workers have found, and deploy what can run.

        Raises:
            RemoteProtocolError: a worker has found a partition that the job does not have.
        """
        self._members, schedule = members, self._schedule
        for member in members:
            assert member.register is not None, "all workers have registered"
            schedule.found(member.number, member.register.found, host=member.register.host)
        self._send_partitions(Release, schedule.begin())
        self._send_partitions(Adopt, ((worker, partition) for partition, worker in schedule.places.items()))
        if schedule.again:
            self._log.note(f"run again: {self._names(schedule.again)}", "warning")
        return self._deploy_ready()

    def over(self, member: Member, message: RegionOver) -> BatchDecision:
        """Handle the report of a finished region.

        Raises:
            RemoteProtocolError: the worker does not have this region, or names other results than the region has.
        """
        region = self._region(member, message)
        if self._schedule.running.get(region) != message.run:
            return BatchDecision.CONTINUE
        outputs = self._regions.outputs(region)
        if sorted(message.consumable) != sorted(outputs):
            raise RemoteProtocolError(f"worker {member.number} names other results than {self._name(region)} has")
        released = self._schedule.finished(region, message.run)
        if not self._consumable.issuperset(outputs):
            self._consumable.update(outputs)
            self._log.consumable(len(self._consumable))
        self._send_partitions(Release, released)
        return self._deploy_ready()

    def failed(self, member: Member, message: RegionOver, error: HeadgateError) -> BatchDecision:
        """Handle the report of a failed region, of which nothing is left in its worker.

        Raises:
            RemoteProtocolError: the worker does not have this region.
        """
        region = self._region(member, message)
        if self._schedule.running.get(region) != message.run:
            return BatchDecision.CONTINUE
        response = self._schedule.failed(region, message.run)
        if isinstance(error, _PERMANENT) or response is FailureResponse.FAIL_JOB:
            if self._attempts > 1 and not isinstance(error, _PERMANENT):
                error.add_note(f"{self._name(region)} was run {message.run} times")
            return BatchDecision.FAIL
        if response is not FailureResponse.IGNORE:
            how = "with new workers" if response is FailureResponse.NEW_ATTEMPT else "where it was"
            self._log.note(f"{self._name(region)} is run again, {how}: {error}", "warning")
        return self._deploy_ready() if response is FailureResponse.RETRY else _DECISIONS[response]

    def lost(self, worker: int) -> BatchDecision:
        """Handle the loss of a worker, or of a partition of it."""
        return _DECISIONS[self._schedule.lost(worker)]

    @property
    def ran(self) -> bool:
        """True once a region was started in this attempt."""
        return self._schedule.ran

    def renew(self) -> None:
        """Prepare for another attempt: this one is over."""
        self._schedule = self._schedule.renew()
        self._members = ()

    def _region(self, member: Member, message: RegionOver) -> Region:
        region = Region(message.stage, message.subtask)
        stages = self._regions.stages
        if not (0 <= region.stage < len(stages) and 0 <= region.subtask < stages[region.stage].parallelism):
            raise RemoteProtocolError(f"worker {member.number} reports {region}: the job has no such region")
        if self._regions.worker(region) != member.number:
            raise RemoteProtocolError(f"worker {member.number} reports {self._name(region)}: that is another worker's")
        return region

    def _deploy_ready(self) -> BatchDecision:
        """Deploy all regions that can run now."""
        for start in self._schedule.starts():
            self._deploy(start)
        return BatchDecision.FINISHED if self._schedule.over else BatchDecision.CONTINUE

    def _deploy(self, start: RegionStart) -> None:
        locations = []
        for partition, worker in start.places.items():
            register = self._members[worker].register
            assert register is not None, "a worker with a partition has registered"
            locations.append(PartitionLocation(partition, worker, register.host, register.port))
        region, vertices = start.region, list(self._regions.vertices(start.region))
        self._members[start.worker].send(DeployRegion(region.stage, region.subtask, start.run, vertices, locations))

    def _send_partitions(self, message: type[Adopt | Release], what: Iterable[tuple[int, Partition]]) -> None:
        by_worker: dict[int, list[Partition]] = defaultdict(list)
        for worker, partition in what:
            by_worker[worker].append(partition)
        for worker, partitions in sorted(by_worker.items()):
            for begin in range(0, len(partitions), _MAX_PARTITIONS):
                self._members[worker].send(message(partitions[begin : begin + _MAX_PARTITIONS]))

    def _name(self, region: Region) -> str:
        names = ", ".join(self._plan.vertex(one).name for one in self._regions.vertices(region))
        return f"{names}, subtask {region.subtask}"

    def _names(self, regions: Sequence[Region]) -> str:
        if len(regions) > _MAX_NAMED:
            return f"{len(regions)} of {len(self._regions.all())} parts of the job"
        return "; ".join(map(self._name, regions))


_LOSS_NOTICED_S: Final = 1.0  # after a reader has failed, the loss of its producer's worker is noticed in this time
_PAUSE_S: Final = 1.0  # before an attempt, if nothing ran in the one before
_MAX_REASON: Final = 1000  # characters
_GONE: Final = (Presence.DONE, Presence.LOST)


def coordinator_for(
    plan: Plan, secret: bytes, attempt: AttemptId, *, renews: bool, attempts: int | None = None, **options: Any
) -> Coordinator:
    """Return the coordinator of a STREAMING or BATCH job.

    Args:
        plan: The job.
        secret: The job's; its workers prove that they have it.
        attempt: The number of the first attempt.
        renews: True if the host starts workers for another attempt when `next_attempt` returns; for BATCH jobs.
        attempts: How often a region runs before the job fails; None: `batch.attempts`.
        options: See `Coordinator`.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> with coordinator_for(plan, bytes(32), AttemptId(1), renews=True) as coordinator:
    ...     coordinator.job.await_termination(10), coordinator.job.status
    (True, <JobStatus.FINISHED: 'finished'>)
    """
    if not plan.batch:
        return Coordinator(plan, secret, attempt, **options)
    return BatchCoordinator(plan, secret, attempt, renews=renews, attempts=attempts, **options)


class BatchCoordinator(Coordinator):
    """Runs the regions of a job, in one or several attempts.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> with BatchCoordinator(plan, bytes(32), AttemptId(1), renews=True) as coordinator:
    ...     coordinator.next_attempt(AttemptId(1)) is None  # it is over
    True
    """

    def __init__(
        self,
        plan: Plan,
        secret: bytes,
        attempt: AttemptId,
        *,
        renews: bool = False,
        attempts: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(plan, secret, attempt, **options)
        tries = plan.settings.batch.attempts if attempts is None else attempts
        self._runner = RegionRunner(plan, self._monitor.log, attempts=tries)
        self._renews = renews
        self._attempt = attempt
        self._attempt_changed = threading.Condition()  # also notified at the end
        self._slots_timeout = plan.settings.batch.slots_timeout
        self._stalled_ns = self._transport.now_ns()  # the end of the last attempt in which a task ran
        self._stalled = False  # nothing ran in the attempt before this one

    def next_attempt(self, after: AttemptId) -> AttemptId | None:
        """Block until an attempt after this one needs workers, and return its number. None: the job is over.

        After an attempt in which nothing ran, it blocks for one second more: free slots may appear meanwhile.
        """
        with self._attempt_changed:
            self._attempt_changed.wait_for(lambda: self.job.status.over or self._attempt > after)
            stalled = self._stalled
        over = self.job.wait(_PAUSE_S if stalled else 0)
        return None if over else self._attempt

    def _wanted(self, worker: int) -> bool:
        return self._state is not JobPhase.RENEWING and super()._wanted(worker)

    # Regions.

    def _start(self) -> None:
        self._proceed(self._runner.begin(self._members))

    def _announce_partition(self, member: Member, partition: Partition) -> None:
        raise RemoteProtocolError(f"worker {member.number} announces {partition} alone, in a BATCH job")

    def _on_region_over(self, member: Member, message: RegionOver) -> None:
        if self._state not in (JobPhase.RUNNING, JobPhase.RENEWING):  # in RENEWING, finished regions still count
            return
        if message.failure is None:
            self._proceed(self._runner.over(member, message))
            return
        error = message.failure.error()
        if FailureWeight.of(error) is FailureWeight.OWN:
            self._region_failed(member, message, error)
        else:  # perhaps the producer's worker is lost: then this failure does not count against the reader
            at_ns = self._transport.now_ns() + int(_LOSS_NOTICED_S * 1e9)
            self._transport.call_at(at_ns, lambda: self._region_failed(member, message, error))

    def _region_failed(self, member: Member, message: RegionOver, error: HeadgateError) -> None:
        if self._state is JobPhase.RUNNING:  # a later attempt ignores it: the run is not the current one there
            self._proceed(self._runner.failed(member, message, error), error)

    def _on_failed(self, member: Member, error: HeadgateError) -> None:
        """Handle a failure of the worker itself, outside of a region."""
        self._on_worker_lost(member, error)

    def _on_done(self, member: Member) -> None:
        if self._state is JobPhase.RUNNING:
            raise RemoteProtocolError("Done from a worker that was not cancelled")
        super()._on_done(member)

    def _proceed(
        self, how: BatchDecision, error: HeadgateError | None = None, weight: FailureWeight = FailureWeight.OWN
    ) -> None:
        """Carry out a decision; `error` is its reason."""
        if how is BatchDecision.FINISHED:
            self._dismiss(JobPhase.LEAVING, Cancel("the job has finished"), self._finish)
        elif how is not BatchDecision.CONTINUE:
            assert error is not None, "there is a reason"
            if how is BatchDecision.NEW_ATTEMPT and self._renews:
                self._stalled, now_ns = not self._runner.ran, self._transport.now_ns()
                if not self._stalled:
                    self._stalled_ns = now_ns
                elif now_ns - self._stalled_ns >= self._slots_timeout.ns:
                    limit = f"no task has run for more than {self._slots_timeout} (batch.slots_timeout)"
                    self._fail(TransportError(f"{limit}: {error}", peer="all workers"), weight)
                    return
                self._monitor.log.note(f"the job goes on with new workers: {error}", "warning")
                self._dismiss(JobPhase.RENEWING, Cancel(str(error)[:_MAX_REASON], keep=True), self._renew)
            else:
                self._fail(error, weight)

    # Attempts.

    def _on_worker_lost(self, member: Member, error: HeadgateError) -> None:
        if self._state in (JobPhase.GATHERING, JobPhase.RUNNING):
            self._proceed(self._runner.lost(member.number), error, FailureWeight.LOST)
        elif self._state is JobPhase.STOPPING:
            self._fail(error, FailureWeight.LOST)

    def _host_failed(self, error: HeadgateError, attempt: AttemptId | None, workers: Sequence[int] | None) -> None:
        if attempt not in {None, self._attempt}:
            return
        own = (
            FailureWeight.of(error) is FailureWeight.OWN and self._state is not JobPhase.RENEWING
        )  # there, workers end anyway
        if workers is None or own:
            self._fail(error, FailureWeight.of(error))
            return
        gone = [one for one in self._members if one.number in workers and one.presence not in _GONE]
        before = self._attempt
        for member in gone:  # those that still run are dismissed with the others
            if self._state in (JobPhase.GATHERING, JobPhase.RUNNING) and before == self._attempt:
                self._on_worker_lost(member, error if len(workers) > 1 else _lost_error(member, error))

    def _dismiss(self, state: JobPhase, message: Cancel, then: Callable[[], object]) -> None:
        """Cancel all workers, and call `then` when they have left, or after the time limit for leaving."""
        self._state = state
        for member in self._members:
            _send_to_connected(member, message)
        self._call_in(self._goodbye_timeout_s, then)
        self._check_over()

    def _renew(self) -> None:
        """Begin the next attempt: the workers of the last one have left."""
        for member in self._members:
            member.dismiss()
        self._members, self._deployed = self._new_members(), False
        self._runner.renew()
        self._monitor.renewed()
        self._state = JobPhase.GATHERING
        self._call_in(self._registration_timeout_s, self._on_missing)
        self._port.renew(replace(self._identity, attempt=AttemptId(self._attempt + 1)))
        with self._attempt_changed:
            self._attempt = AttemptId(self._attempt + 1)
            self._attempt_changed.notify_all()
        self.job.changed()

    # Ending.

    def _send_cancel(self, member: Member) -> None:
        _send_to_connected(member, Cancel(self._reason))

    def _check_over(self) -> None:
        connected = any(one.here for one in self._members)
        if self._state is JobPhase.LEAVING and not connected:
            self._finish()
        elif self._state is JobPhase.RENEWING and not connected:
            self._renew()
        elif self._state is JobPhase.STOPPING and not (self._deployed and connected):
            self._finish()

    def _finish(self) -> None:
        super()._finish()
        with self._attempt_changed:
            self._attempt_changed.notify_all()


def _lost_error(member: Member, error: HeadgateError) -> TransportError:
    return TransportError(f"worker {member.number} was lost before it was done: {error}", peer=member.place)


def _send_to_connected(member: Member, message: Cancel) -> None:
    """Send `Cancel` also to a worker that is done: it may keep files that it must remove now."""
    if member.link is not None:
        member.link.send(message)
