"""The coordinator's side of a BATCH job: deploys regions, removes partitions, and says what a failure means.

`Schedule` knows what can be run; this tells the workers, checks what they say, and lets people know. On the
coordinator's network thread only, which owns the members and decides how the job goes on (`Outcome`).

Invariants: what is stale in a worker is released there before anything is deployed to it; a run counts as finished only
when its worker has said so, and named all its results; what is said of a run that is not its region's current one
changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from typing import TYPE_CHECKING, Final

from headgate.coordinator.schedule import Schedule, Verdict
from headgate.errors import ConfigError, HeadgateError, InsufficientBuffers, RemoteProtocolError
from headgate.graph.regions import Region, Regions
from headgate.worker.messages import Adopt, DeployRegion, Release, Wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.coordinator.events import EventLog
    from headgate.coordinator.members import Member
    from headgate.coordinator.schedule import Start
    from headgate.graph.plan import Plan
    from headgate.worker.messages import Partition, RegionOver

__all__ = ["Batch", "Outcome"]

_HOPELESS: Final = (ConfigError, InsufficientBuffers)  # what is the same whenever it is tried
_MANY: Final = 8  # regions, above which they are not named one by one
_MOST: Final = 5000  # partitions in one message


class Outcome(Enum):
    """How the job goes on.

    >>> Outcome.FINISHED.value
    'everything was run'
    """

    GOES_ON = "with what runs, or was just deployed"
    FINISHED = "everything was run"
    NEW_ATTEMPT = "with other workers"
    FAILS = "it has been tried often enough"


_OUTCOMES: Final = {
    Verdict.NOTHING: Outcome.GOES_ON,
    Verdict.AGAIN: Outcome.GOES_ON,
    Verdict.NEW_ATTEMPT: Outcome.NEW_ATTEMPT,
    Verdict.GIVE_UP: Outcome.FAILS,
}


class Batch:
    """The regions of one job, through all its attempts.

    >>> from headgate.config import Settings
    >>> from headgate.coordinator.events import EventLog
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> Batch(plan, EventLog(plan), attempts=3).begin([])
    <Outcome.FINISHED: 'everything was run'>
    """

    def __init__(self, plan: Plan, log: EventLog, *, attempts: int) -> None:
        self._plan = plan
        self._log = log
        self._attempts = attempts
        self._regions = Regions(plan)
        self._schedule = Schedule(self._regions, attempts=attempts)
        self._consumable: set[Partition] = set()
        self._members: Sequence[Member] = ()

    def begin(self, members: Sequence[Member]) -> Outcome:
        """All workers of an attempt are there: what they have found is used or removed, and what can run is deployed.

        Raises:
            RemoteProtocolError: one has found what there cannot be.
        """
        self._members, schedule = members, self._schedule
        for member in members:
            assert member.register is not None, "all have registered"
            schedule.found(member.number, member.register.found, host=member.register.host)
        self._tell(Release, schedule.begin())
        self._tell(Adopt, ((worker, partition) for partition, worker in schedule.places.items()))
        if schedule.again:
            self._log.note(f"run again: {self._names(schedule.again)}", "warning")
        return self._go_on()

    def over(self, member: Member, message: RegionOver) -> Outcome:
        """A worker has run a region to its end.

        Raises:
            RemoteProtocolError: it was not asked to, or says that of other results than the region has.
        """
        region = self._region(member, message)
        if self._schedule.running.get(region) != message.run:
            return Outcome.GOES_ON
        outputs = self._regions.outputs(region)
        if sorted(message.consumable) != sorted(outputs):
            raise RemoteProtocolError(f"worker {member.number} names other results than {self._name(region)} has")
        released = self._schedule.finished(region, message.run)
        if not self._consumable.issuperset(outputs):
            self._consumable.update(outputs)
            self._log.consumable(len(self._consumable))
        self._tell(Release, released)
        return self._go_on()

    def failed(self, member: Member, message: RegionOver, error: HeadgateError) -> Outcome:
        """A run has failed of this, and nothing is left of it. Not at once if its producers may be to blame.

        Raises:
            RemoteProtocolError: that worker has no such region.
        """
        region = self._region(member, message)
        if self._schedule.running.get(region) != message.run:
            return Outcome.GOES_ON
        verdict = self._schedule.failed(region, message.run)
        if isinstance(error, _HOPELESS) or verdict is Verdict.GIVE_UP:
            if self._attempts > 1 and not isinstance(error, _HOPELESS):
                error.add_note(f"{self._name(region)} was run {message.run} times")
            return Outcome.FAILS
        if verdict is not Verdict.NOTHING:
            how = "with new workers" if verdict is Verdict.NEW_ATTEMPT else "where it was"
            self._log.note(f"{self._name(region)} is run again, {how}: {error}", "warning")
        return self._go_on() if verdict is Verdict.AGAIN else _OUTCOMES[verdict]

    def lost(self, worker: int) -> Outcome:
        """A worker is gone; or something of it that cannot be mended."""
        return _OUTCOMES[self._schedule.lost(worker)]

    def renew(self) -> None:
        """The attempt is over, and another follows."""
        self._schedule = self._schedule.renew()
        self._members = ()

    def _region(self, member: Member, message: RegionOver) -> Region:
        region = Region(message.stage, message.subtask)
        stages = self._regions.stages
        if not (0 <= region.stage < len(stages) and 0 <= region.subtask < stages[region.stage].parallelism):
            raise RemoteProtocolError(f"worker {member.number} speaks of {region}: there is none")
        if self._regions.worker(region) != member.number:
            raise RemoteProtocolError(f"worker {member.number} speaks of {self._name(region)}: it is another's")
        return region

    def _go_on(self) -> Outcome:
        """Deploy what can be run now."""
        for start in self._schedule.starts():
            self._deploy(start)
        return Outcome.FINISHED if self._schedule.over else Outcome.GOES_ON

    def _deploy(self, start: Start) -> None:
        wires = []
        for partition, worker in start.places.items():
            register = self._members[worker].register
            assert register is not None, "who has a partition has registered"
            wires.append(Wire(partition, worker, register.host, register.port))
        region, vertices = start.region, list(self._regions.vertices(start.region))
        self._members[start.worker].send(DeployRegion(region.stage, region.subtask, start.run, vertices, wires))

    def _tell(self, message: type[Adopt | Release], what: Iterable[tuple[int, Partition]]) -> None:
        by_worker: dict[int, list[Partition]] = defaultdict(list)
        for worker, partition in what:
            by_worker[worker].append(partition)
        for worker, partitions in sorted(by_worker.items()):
            for begin in range(0, len(partitions), _MOST):
                self._members[worker].send(message(partitions[begin : begin + _MOST]))

    def _name(self, region: Region) -> str:
        names = ", ".join(self._plan.vertex(one).name for one in self._regions.vertices(region))
        return f"{names}, subtask {region.subtask}"

    def _names(self, regions: Sequence[Region]) -> str:
        if len(regions) > _MANY:
            return f"{len(regions)} of {len(self._regions.all())} parts of the job"
        return "; ".join(map(self._name, regions))
