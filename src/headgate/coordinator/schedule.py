"""What a job in BATCH runs next: which regions have finished, where their partitions are, and what a failure costs.

A state machine without threads, clocks or messages: the coordinator tells it what has happened, on its network thread,
and does what it answers. One `Schedule` per attempt; the next attempt's is made of it by `renew`.

Invariants: a worker runs one region at a time; a region runs only when all its inputs are there, and a sink in the
driver only when everything else has finished; a partition is given up only when all its readers have finished; what a
run says that is not its region's current one changes nothing; of each partition there is one version that counts, and
all who have read another are run again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from headgate.graph.plan import Partition  # noqa: TC001 - a field's type
from headgate.graph.regions import Lane, Region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.graph.regions import Regions

__all__ = ["Schedule", "Start", "Verdict"]


class Verdict(Enum):
    """What is to be done about a failure.

    >>> Verdict.AGAIN.value
    'the region is run again where it was'
    """

    NOTHING = "it matters to nobody"
    AGAIN = "the region is run again where it was"
    NEW_ATTEMPT = "everybody leaves, and new workers go on from what has finished"
    GIVE_UP = "the job fails"


class Start(NamedTuple):
    """A region that is to be deployed now.

    >>> Start(Region(1, 0), run=1, worker=0, places={}).run
    1
    """

    region: Region
    run: int  # counted from 1, through all attempts
    worker: int
    places: dict[Partition, int]  # its inputs, and the workers that have them


class _State(Enum):
    WAITING = "has to be run"
    RUNNING = "is being run"
    FINISHED = "what it wrote counts"


@dataclass(slots=True)
class _Standing:
    """What is known of a region."""

    state: _State = _State.WAITING
    runs: int = 0  # that were begun
    failures: int = 0
    host: str = ""  # of FINISHED: the machine that has its outputs


class Schedule:
    """The regions of one attempt at a job.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> from headgate.graph.regions import Regions
    >>> vertices = Vertex(0, "words", 1, 128, (), inputs=0), Vertex(1, "count", 1, 128, ())
    >>> by_word = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH), blocking=True)
    >>> plan = Plan("1", "word count", vertices, (by_word,), workers=1, settings=Settings(), batch=True)
    >>> schedule = Schedule(Regions(plan), attempts=3)
    >>> schedule.begin()
    []
    >>> schedule.starts()
    [Start(region=Region(stage=0, subtask=0), run=1, worker=0, places={})]
    >>> schedule.failed(Region(0, 0), 1), schedule.starts()[0].run
    (<Verdict.AGAIN: 'the region is run again where it was'>, 2)
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
        self._standing = {region: _Standing() for region in regions.all()}
        self._vain = 0  # attempts that ended with the loss of an idle worker, since a region has finished
        # From here on, what belongs to one attempt.
        self._hosts: dict[int, str] = {}
        self._found: dict[Partition, list[int]] = {}
        self._lost: set[int] = set()
        self._begun = False
        self._ended = False  # somebody was lost, or the job fails: nothing more is started
        self._busy: dict[int, Region] = {}  # by worker
        self._ready: defaultdict[int, set[Region]] = defaultdict(set)  # by worker: inputs are there, it is not running
        self._places: dict[Partition, int] = {}
        self._absent: dict[Lane, int] = {}  # partitions that are not there
        self._unread: dict[Lane, int] = {}  # readers that have not finished
        self._waits: dict[Region, int] = {}  # lanes that it reads and that are not complete
        self._unfinished = set(self._standing)
        self._left = 0  # of these, all but sinks in the driver
        self._again: tuple[Region, ...] = ()
        self._exhausted: Region | None = None

    # An attempt begins.

    def found(self, worker: int, partitions: Iterable[Partition], *, host: str = "") -> None:
        """A worker is there, and has these partitions of earlier attempts on its disks. Before `begin`.

        Several may find the same: those on one machine share its disks. `host` is what tells machines apart.
        """
        assert not self._begun, "workers come before it begins"
        self._hosts[worker] = host
        for partition in partitions:
            if self._regions.knows(partition):
                self._found.setdefault(partition, []).append(worker)

    def begin(self) -> list[tuple[int, Partition]]:
        """All workers are there: decide what has to be run.

        Returns:
            What is on disks and does not count, and who has to remove it, before anything is started there.
        """
        assert not self._begun, "it begins once"
        self._begun = True
        again = self._unfinished = self._to_run()
        self._again = tuple(sorted(region for region in again if self._standing[region].runs))
        self._left = sum(not self._is_last(region) for region in again)
        for region, one in self._standing.items():
            lanes = self._regions.lanes(region)
            self._waits[region] = len(lanes)
            for lane in lanes:
                self._absent[lane] = len(lane.partitions)
                self._unread[lane] = self._unread.get(lane, 0) + (region in again)
            if region in again:
                one.state = _State.WAITING
                if not lanes:
                    self._ready[self._regions.worker(region)].add(region)
        return self._take_stock()

    def _to_run(self) -> set[Region]:
        """What has not finished, what that needs and is lost, and what has read a version that is then replaced."""
        regions = self._regions
        again, ahead = set(self._unfinished), deque(self._unfinished)
        looked_at, replaced = set[Lane](), set[Lane]()
        while ahead:
            region = ahead.popleft()
            wanted: list[Region] = []
            for lane in set(regions.lanes(region)) - looked_at:
                looked_at.add(lane)
                wanted += [regions.producer(one) for one in lane.partitions if not self._keepers(one)]
            if self._standing[region].state is _State.FINISHED:  # what a second run writes may be distributed otherwise
                for lane in {regions.lane(output) for output in regions.outputs(region)} - replaced:
                    replaced.add(lane)
                    # What was fetched to the driver was read by one task from one version of everything: it is right.
                    wanted += [one for one in lane.readers if not regions.stages[one.stage].in_driver]
            if regions.has_feed(region.stage):  # new workers get the host's records in other portions
                wanted += regions.of_stage(region.stage)
            for one in wanted:
                if one not in again:
                    again.add(one)
                    ahead.append(one)
        return again

    def _keepers(self, partition: Partition) -> list[int]:
        """Who has the version of a partition that counts: other machines may have kept an older one."""
        made = self._standing[self._regions.producer(partition)]
        if made.state is not _State.FINISHED:
            return []
        return [worker for worker in self._found.get(partition, ()) if self._hosts[worker] == made.host]

    def _take_stock(self) -> list[tuple[int, Partition]]:
        """Place what counts; returns what does not."""
        removed: list[tuple[int, Partition]] = []
        for partition, finders in sorted(self._found.items()):
            own, keepers = self._regions.worker(self._regions.producer(partition)), self._keepers(partition)
            if keepers and self._unread[self._regions.lane(partition)]:
                self._place(partition, own if own in keepers else keepers[0])
            elif self._standing[self._regions.producer(partition)].state is _State.FINISHED:
                removed += [(worker, partition) for worker in finders]
            elif own in finders:
                # Nobody else: it could remove what its own worker has written by then. What others keep never counts.
                removed.append((own, partition))
        return removed

    @property
    def again(self) -> tuple[Region, ...]:
        """What is run in this attempt although it was begun before: for people."""
        return self._again

    @property
    def places(self) -> dict[Partition, int]:
        """What is there and still to be read, and who has it."""
        return dict(self._places)

    # What can be started.

    def starts(self) -> list[Start]:
        """The regions that are to be deployed now; they count as running from here on."""
        assert self._begun, "it has begun"
        if self._ended:
            return []
        starts = []
        for worker, regions in sorted(self._ready.items()):
            allowed = [one for one in regions if not (self._left and self._is_last(one))]
            if allowed and worker not in self._busy:
                starts.append(self._start(worker, min(allowed, key=self._rank)))
        return starts

    def _rank(self, region: Region) -> tuple[int, int]:
        """What goes first: late stages, so that partitions can soon be removed; sources last, in their order.

        Fed sources of a worker share one stream, which has the records of the first source first.
        """
        return (1, region.stage) if self._regions.is_source(region.stage) else (0, -region.stage)

    def _start(self, worker: int, region: Region) -> Start:
        one = self._standing[region]
        one.state, one.runs = _State.RUNNING, one.runs + 1
        self._busy[worker] = region
        self._ready[worker].discard(region)
        return Start(region, one.runs, worker, {part: self._places[part] for part in self._regions.inputs(region)})

    @property
    def running(self) -> dict[Region, int]:
        """What is running, with the number of its run."""
        return {region: self._standing[region].runs for region in self._busy.values()}

    @property
    def unfinished(self) -> frozenset[Region]:
        """What is running or has to be run."""
        return frozenset(self._unfinished)

    @property
    def over(self) -> bool:
        """Whether everything has finished."""
        return not self._unfinished

    def needs(self, worker: int) -> bool:
        """Whether a worker has something to run still, or has what others are going to read."""
        return worker in self._places.values() or worker in map(self._regions.worker, self._unfinished)

    @property
    def exhausted(self) -> Region | None:
        """The region that has failed too often, if that is why the job fails."""
        return self._exhausted

    # What has happened.

    def finished(self, region: Region, run: int) -> list[tuple[int, Partition]]:
        """A run is over and everything it wrote can be read.

        Returns:
            Partitions that nobody is going to read any more, and who has them.
        """
        if not self._is_current(region, run):
            return []
        worker, one = self._regions.worker(region), self._standing[region]
        del self._busy[worker]
        one.state, one.host = _State.FINISHED, self._hosts.get(worker, "")
        self._vain = 0
        self._unfinished.discard(region)
        self._left -= not self._is_last(region)
        lanes = self._regions.lanes(region)
        for lane in lanes:
            self._unread[lane] -= 1
        outputs = self._regions.outputs(region)
        for partition in outputs:
            self._place(partition, worker)
        read = [part for lane in lanes if not self._unread[lane] for part in lane.partitions]
        unwanted = [part for part in outputs if not self._unread[self._regions.lane(part)]]
        return [(self._places.pop(part), part) for part in (*read, *unwanted)]

    def failed(self, region: Region, run: int) -> Verdict:
        """A run has failed, and nothing of it is left in its worker, which is still there.

        After somebody was lost, and everybody was told to leave, nobody is blamed for not having finished.
        """
        if not self._is_current(region, run) or self._ended:
            return Verdict.NOTHING
        del self._busy[self._regions.worker(region)]
        again = Verdict.NEW_ATTEMPT if self._regions.has_feed(region.stage) else Verdict.AGAIN
        verdict = again if self._count_failure(region) else Verdict.GIVE_UP
        self._ended = verdict is not Verdict.AGAIN
        return verdict

    def lost(self, worker: int) -> Verdict:
        """A worker is gone, with whatever it was running; what it has finished may be found again by others."""
        if worker in self._lost or not self.needs(worker):
            return Verdict.NOTHING
        self._lost.add(worker)
        region = self._busy.pop(worker, None)
        if region is not None:
            may_go_on = self._count_failure(region)
        else:
            self._vain += not self._ended
            may_go_on = self._vain < self._attempts
        self._ended = True
        return Verdict.NEW_ATTEMPT if may_go_on else Verdict.GIVE_UP

    def renew(self) -> Schedule:
        """The schedule of the next attempt: it knows what has finished and how often each region has failed.

        What is running is not held to have failed. Where partitions are is learnt anew, by `found`.
        """
        renewed = Schedule(self._regions, attempts=self._attempts)
        renewed._vain, renewed._unfinished = self._vain, set(self._unfinished)
        for region, one in self._standing.items():
            state = _State.WAITING if region in self._unfinished else _State.FINISHED
            renewed._standing[region] = replace(one, state=state)
        return renewed

    def _is_current(self, region: Region, run: int) -> bool:
        one = self._standing.get(region)
        return one is not None and one.state is _State.RUNNING and one.runs == run

    def _count_failure(self, region: Region) -> bool:
        """Whether it may be tried again. What a sink in the driver has done cannot be undone: it is tried once."""
        one = self._standing[region]
        one.state, one.failures = _State.WAITING, one.failures + 1
        if one.failures < self._attempts and not self._is_last(region):
            self._ready[self._regions.worker(region)].add(region)
            return True
        self._exhausted = region
        return False

    def _place(self, partition: Partition, worker: int) -> None:
        self._places[partition] = worker
        lane = self._regions.lane(partition)
        self._absent[lane] -= 1
        for reader in lane.readers if not self._absent[lane] else ():
            self._waits[reader] -= 1
            if not self._waits[reader] and reader in self._unfinished:
                self._ready[self._regions.worker(reader)].add(reader)

    def _is_last(self, region: Region) -> bool:
        return self._regions.stages[region.stage].sink_in_driver
