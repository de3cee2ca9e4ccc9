"""Which regions of a BATCH job run next: which have finished, where their partitions are, and what a failure causes.

A state machine without threads, clocks or messages: the coordinator reports events to it, on its network thread, and
carries out its answers. There is one `RegionSchedule` per attempt; `renew` makes that of the next.

Invariants: a worker runs one region at a time; a region runs only when all its inputs exist, and a sink in the driver
only when everything else has finished; a partition is released only when all its readers have finished; reports of a
run that is not its region's current one change nothing; of each partition one version counts, and regions that have
read another version run again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from headgate.graph.plan import Partition  # noqa: TC001 - a field's type
from headgate.graph.regions import PartitionGroup, Region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.graph.regions import Regions

__all__ = ["FailureResponse", "RegionSchedule", "RegionStart"]


class FailureResponse(Enum):
    """What the coordinator does after a failure."""

    IGNORE = "it has no effect"
    RETRY = "the region runs again in the same worker"
    NEW_ATTEMPT = "all workers leave, and new ones continue from the finished regions"
    FAIL_JOB = "the job fails"


class RegionStart(NamedTuple):
    """A region to deploy now.

    >>> RegionStart(Region(1, 0), run=1, worker=0, places={}).run
    1
    """

    region: Region
    run: int  # counted from 1, through all attempts
    worker: int
    places: dict[Partition, int]  # its inputs, and the workers that have them


class _State(Enum):
    WAITING = "must run"
    RUNNING = "runs"
    FINISHED = "its partitions are valid"


@dataclass(slots=True)
class _RegionRecord:
    """What is known of a region."""

    state: _State = _State.WAITING
    runs: int = 0  # runs that were started
    failures: int = 0
    host: str = ""  # if FINISHED: the machine that has its partitions


class RegionSchedule:
    """The regions of one attempt at a job.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> from headgate.graph.regions import Regions
    >>> vertices = Vertex(0, "words", 1, 128, (), inputs=0), Vertex(1, "count", 1, 128, ())
    >>> by_word = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH), blocking=True)
    >>> plan = Plan("1", "word count", vertices, (by_word,), workers=1, settings=Settings(), batch=True)
    >>> schedule = RegionSchedule(Regions(plan), attempts=3)
    >>> schedule.begin()
    []
    >>> schedule.starts()
    [RegionStart(region=Region(stage=0, subtask=0), run=1, worker=0, places={})]
    >>> schedule.failed(Region(0, 0), 1), schedule.starts()[0].run
    (<FailureResponse.RETRY: 'the region runs again in the same worker'>, 2)
    >>> schedule.finished(Region(0, 0), 2)
    []
    >>> [(start.region.stage, start.places) for start in schedule.starts()]
    [(1, {Partition(vertex=0, output=0, subtask=0): 0})]
    >>> schedule.finished(Region(1, 0), 1), schedule.over
    ([(0, Partition(vertex=0, output=0, subtask=0))], True)
    """

    def __init__(self, regions: Regions, *, attempts: int) -> None:
        self._regions = regions
        self._attempts = attempts
        self._records = {region: _RegionRecord() for region in regions.all()}
        # Attempts since the last finished region that ended with the loss of an idle worker while others ran.
        self._futile = 0
        # The fields below belong to one attempt.
        self._hosts: dict[int, str] = {}
        self._found: dict[Partition, list[int]] = {}
        self._lost: set[int] = set()
        self._begun = False
        self.ran = False
        """True once a region was started in this attempt."""
        self._ended = False  # a worker was lost, or the job fails: nothing more is started
        self._busy: dict[int, Region] = {}  # by worker
        self._ready: defaultdict[int, set[Region]] = defaultdict(set)  # by worker: regions with all inputs
        self._places: dict[Partition, int] = {}
        self._absent: dict[PartitionGroup, int] = {}  # partitions that do not exist yet
        self._unread: dict[PartitionGroup, int] = {}  # readers that have not finished
        self._waits: dict[Region, int] = {}  # incomplete groups of partitions that it reads
        self._unfinished = set(self._records)
        self._left = 0  # unfinished regions except sinks in the driver
        self._again: tuple[Region, ...] = ()
        self._exhausted: Region | None = None

    # The start of an attempt.

    def found(self, worker: int, partitions: Iterable[Partition], *, host: str = "") -> None:
        """Add a worker and the partitions of earlier attempts that are on its disks. Before `begin`.

        Workers on one machine share its disks and find the same partitions. `host` identifies the machine.
        """
        assert not self._begun, "workers are added before begin()"
        self._hosts[worker] = host
        for partition in partitions:
            if self._regions.knows(partition):
                self._found.setdefault(partition, []).append(worker)

    def begin(self) -> list[tuple[int, Partition]]:
        """Decide which regions must run: all workers are registered.

        Returns:
            Workers and the invalid partitions that each must remove before anything is started there.
        """
        assert not self._begun, "begin() is called once"
        self._begun = True
        again = self._unfinished = self._to_run()
        self._again = tuple(sorted(region for region in again if self._records[region].runs))
        self._left = sum(not self._is_last(region) for region in again)
        for region, one in self._records.items():
            groups = self._regions.input_groups(region)
            self._waits[region] = len(groups)
            for group in groups:
                self._absent[group] = len(group.partitions)
                self._unread[group] = self._unread.get(group, 0) + (region in again)
            if region in again:
                one.state = _State.WAITING
                if not groups:
                    self._ready[self._regions.worker(region)].add(region)
        return self._place_found()

    def _to_run(self) -> set[Region]:
        """Return the unfinished regions, the producers of lost inputs, and the readers of partitions written again."""
        regions = self._regions
        again, ahead = set(self._unfinished), deque(self._unfinished)
        visited, replaced = set[PartitionGroup](), set[PartitionGroup]()
        while ahead:
            region = ahead.popleft()
            wanted: list[Region] = []
            for group in set(regions.input_groups(region)) - visited:
                visited.add(group)
                wanted += [regions.producer(one) for one in group.partitions if not self._workers_with(one)]
            if self._records[region].state is _State.FINISHED:  # a second run may distribute records differently
                for group in {regions.group_of(output) for output in regions.outputs(region)} - replaced:
                    replaced.add(group)
                    # A task in the driver has read one version of all partitions: its result is valid.
                    wanted += [one for one in group.readers if not regions.stages[one.stage].in_driver]
            if regions.has_feed(region.stage):  # the host distributes its records differently to new workers
                wanted += regions.of_stage(region.stage)
            for one in wanted:
                if one not in again:
                    again.add(one)
                    ahead.append(one)
        return again

    def _workers_with(self, partition: Partition) -> list[int]:
        """Return the workers that have the valid version of a partition; other machines may have an older one."""
        made = self._records[self._regions.producer(partition)]
        if made.state is not _State.FINISHED:
            return []
        return [worker for worker in self._found.get(partition, ()) if self._hosts[worker] == made.host]

    def _place_found(self) -> list[tuple[int, Partition]]:
        """Record the locations of valid partitions. Return the invalid ones with the workers that must remove them."""
        removed: list[tuple[int, Partition]] = []
        for partition, finders in sorted(self._found.items()):
            own, keepers = self._regions.worker(self._regions.producer(partition)), self._workers_with(partition)
            if keepers and self._unread[self._regions.group_of(partition)]:
                self._place(partition, own if own in keepers else keepers[0])
            elif self._records[self._regions.producer(partition)].state is _State.FINISHED:
                removed += [(worker, partition) for worker in finders]
            elif own in finders:
                # Only the own worker: another could remove the file after this run has written it again.
                removed.append((own, partition))
        return removed

    @property
    def again(self) -> tuple[Region, ...]:
        """The regions that run again in this attempt; for the event log."""
        return self._again

    @property
    def places(self) -> dict[Partition, int]:
        """The partitions that are still to be read, and the worker of each."""
        return dict(self._places)

    # Starting regions.

    def starts(self) -> list[RegionStart]:
        """Return the regions to deploy now, and count them as running."""
        assert self._begun, "begin() was called"
        if self._ended:
            return []
        starts = []
        for worker, regions in sorted(self._ready.items()):
            allowed = [one for one in regions if not (self._left and self._is_last(one))]
            if allowed and worker not in self._busy:
                starts.append(self._start(worker, min(allowed, key=self._rank)))
        return starts

    def _rank(self, region: Region) -> tuple[int, int]:
        """Return the sort key: late stages first, so partitions are soon removed; sources last, in their order.

        Sources of one worker that read from the host share one stream, with the records of the first source first.
        """
        return (1, region.stage) if self._regions.is_source(region.stage) else (0, -region.stage)

    def _start(self, worker: int, region: Region) -> RegionStart:
        one = self._records[region]
        one.state, one.runs = _State.RUNNING, one.runs + 1
        self.ran = True
        self._busy[worker] = region
        self._ready[worker].discard(region)
        return RegionStart(
            region, one.runs, worker, {part: self._places[part] for part in self._regions.inputs(region)}
        )

    @property
    def running(self) -> dict[Region, int]:
        """The running regions, with the number of their run."""
        return {region: self._records[region].runs for region in self._busy.values()}

    @property
    def unfinished(self) -> frozenset[Region]:
        """The regions that run or must run."""
        return frozenset(self._unfinished)

    @property
    def over(self) -> bool:
        """Return True if all regions have finished."""
        return not self._unfinished

    def needs(self, worker: int) -> bool:
        """Return True if a worker still has a region to run, or a partition to be read."""
        return worker in self._places.values() or worker in map(self._regions.worker, self._unfinished)

    @property
    def exhausted(self) -> Region | None:
        """The region that has failed too often, if that is why the job fails."""
        return self._exhausted

    # Events.

    def finished(self, region: Region, run: int) -> list[tuple[int, Partition]]:
        """Record that a run has finished, with all its partitions readable.

        Returns:
            Workers and their partitions that have no reader any more.
        """
        if not self._is_current(region, run):
            return []
        worker, one = self._regions.worker(region), self._records[region]
        del self._busy[worker]
        one.state, one.host = _State.FINISHED, self._hosts.get(worker, "")
        self._futile = 0
        self._unfinished.discard(region)
        self._left -= not self._is_last(region)
        groups = self._regions.input_groups(region)
        for group in groups:
            self._unread[group] -= 1
        outputs = self._regions.outputs(region)
        for partition in outputs:
            self._place(partition, worker)
        read = [part for group in groups if not self._unread[group] for part in group.partitions]
        unwanted = [part for part in outputs if not self._unread[self._regions.group_of(part)]]
        return [(self._places.pop(part), part) for part in (*read, *unwanted)]

    def failed(self, region: Region, run: int) -> FailureResponse:
        """Record that a run has failed, with nothing of it left in its worker, which is still connected.

        Ignored after the loss of a worker: the attempt ends, and this run was cancelled with it.
        """
        if not self._is_current(region, run) or self._ended:
            return FailureResponse.IGNORE
        del self._busy[self._regions.worker(region)]
        again = FailureResponse.NEW_ATTEMPT if self._regions.has_feed(region.stage) else FailureResponse.RETRY
        response = again if self._count_failure(region) else FailureResponse.FAIL_JOB
        self._ended = response is not FailureResponse.RETRY
        return response

    def lost(self, worker: int) -> FailureResponse:
        """Record the loss of a worker and of the region that it ran. Another worker may find its finished partitions.

        An attempt in which nothing was started does not count: probably the host had too few slots. The caller limits
        the time of such attempts.
        """
        if worker in self._lost or not self.needs(worker):
            return FailureResponse.IGNORE
        self._lost.add(worker)
        region = self._busy.pop(worker, None)
        if region is not None:
            may_continue = self._count_failure(region)
        else:
            self._futile += self.ran and not self._ended
            may_continue = self._futile < self._attempts
        self._ended = True
        return FailureResponse.NEW_ATTEMPT if may_continue else FailureResponse.FAIL_JOB

    def renew(self) -> RegionSchedule:
        """Return the schedule of the next attempt, with the finished regions and the number of failures of each.

        Running regions do not count as failed. The locations of partitions are added by `found` again.
        """
        renewed = RegionSchedule(self._regions, attempts=self._attempts)
        renewed._futile, renewed._unfinished = self._futile, set(self._unfinished)
        for region, one in self._records.items():
            state = _State.WAITING if region in self._unfinished else _State.FINISHED
            renewed._records[region] = replace(one, state=state)
        return renewed

    def _is_current(self, region: Region, run: int) -> bool:
        one = self._records.get(region)
        return one is not None and one.state is _State.RUNNING and one.runs == run

    def _count_failure(self, region: Region) -> bool:
        """Count a failure. Return True if the region may run again; a sink in the driver runs only once."""
        one = self._records[region]
        one.state, one.failures = _State.WAITING, one.failures + 1
        if one.failures < self._attempts and not self._is_last(region):
            self._ready[self._regions.worker(region)].add(region)
            return True
        self._exhausted = region
        return False

    def _place(self, partition: Partition, worker: int) -> None:
        self._places[partition] = worker
        group = self._regions.group_of(partition)
        self._absent[group] -= 1
        for reader in group.readers if not self._absent[group] else ():
            self._waits[reader] -= 1
            if not self._waits[reader] and reader in self._unfinished:
                self._ready[self._regions.worker(reader)].add(reader)

    def _is_last(self, region: Region) -> bool:
        return self._regions.stages[region.stage].sink_in_driver
