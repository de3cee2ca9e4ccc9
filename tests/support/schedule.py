"""A model of a cluster: workers on machines with disks, on which a schedule is run.

It knows nothing of how the schedule decides. It keeps what real workers would: which files are on which machine, and
for every file which run wrote it and what that run had read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.config import load_settings
from headgate.coordinator.schedule import RegionSchedule
from headgate.functions.source import Source
from headgate.graph import Edge, Ship, ShipKind, StreamGraph, make_plan
from headgate.ids import JobId
from headgate.task.operators.basic import PassOn

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.coordinator.schedule import FailureResponse, RegionStart
    from headgate.graph.plan import Partition, Plan
    from headgate.graph.regions import Region, Regions

BATCH = load_settings(code={"execution.runtime_mode": "BATCH"}, environ={})


class Numbers(Source[int]):
    """A bounded source with a split for each subtask."""

    def __init__(self, *, fed: bool = False, bounded: bool | None = True) -> None:
        self.fed = fed
        self.bounded = bounded

    def splits(self, parallelism):
        return list(range(parallelism))

    def read(self, split, offset, place):
        yield [split]


def planned(graph: StreamGraph, parallelism: int = 2, settings: Settings = BATCH, **options: object) -> Plan:
    return make_plan(
        graph.take(), job=JobId("1"), name="job", parallelism=parallelism, settings=settings, chaining=False, **options
    )


def word_count(parallelism: int = 2, *, fed: bool = False, printed: bool = False) -> Plan:
    """Return the plan words -> count, whose result is kept in the workers or printed in the driver."""
    graph = StreamGraph()
    words = graph.add("words", PassOn, source=Numbers(fed=fed))
    count = graph.add("count", PassOn, inputs=[Edge(words, Ship(ShipKind.HASH, key=hash))])
    graph.add("end", PassOn, inputs=[Edge(count, None if printed else Ship(ShipKind.REBALANCE))], in_driver=printed)
    return planned(graph, parallelism)


@dataclass(eq=False)
class Run:
    """One run of a region, and the runs that it has read."""

    region: Region
    number: int
    attempt: int
    host: str
    read: dict[Partition, Run] = field(default_factory=dict)

    def ancestry(self) -> dict[Region, set[Run]]:
        """Return every run that its result depends on, by region."""
        found: dict[Region, set[Run]] = {self.region: {self}}
        for one in set(self.read.values()):
            for region, runs in one.ancestry().items():
                found.setdefault(region, set()).update(runs)
        return found


class Cluster:
    """Executes the actions of the schedule, and checks that each is possible."""

    def __init__(self, regions: Regions, *, attempts: int = 3) -> None:
        self.regions = regions
        self.schedule = RegionSchedule(regions, attempts=attempts)
        self.attempts = attempts
        self.attempt = 1
        self.disks: dict[str, dict[Partition, Run]] = {}
        self.hosts: list[str] = []  # of workers, the driver last if it takes part
        self.running: dict[int, Run] = {}  # by worker
        self.finished: dict[Region, Run] = {}  # the last one that the driver has heard of
        self.finishes: dict[Region, int] = dict.fromkeys(regions.all(), 0)
        self.failures: dict[Region, int] = dict.fromkeys(regions.all(), 0)
        self.past: list[tuple[Region, int]] = []  # runs that are over
        self.fed: set[tuple[Region, int]] = set()  # regions with a feed, and the attempts in which they have read it
        self.members = regions.plan.workers + regions.plan.uses_driver
        self.driver = regions.plan.workers

    def gather(self, hosts: list[str]) -> None:
        """Start workers on these machines, and remove the files that are not used."""
        assert len(hosts) == self.members
        self.hosts = hosts
        for worker, host in enumerate(hosts):
            disk = self.disks.setdefault(host, {})
            self.schedule.found(worker, sorted(disk), host=host)
        self._remove(self.schedule.begin())

    def _remove(self, removed: list[tuple[int, Partition]]) -> None:
        for worker, partition in removed:
            written = self.disks[self.hosts[worker]].pop(partition, None)
            current = self.finished.get(self.regions.producer(partition))
            readers = [one for one in self.regions.consumers(partition) if not self._is_settled(one)]
            planned_again = self.regions.producer(partition) in self.schedule.unfinished
            assert written is None or written is not current or not readers or planned_again, (
                f"{partition} was removed before {readers} have read it"
            )

    def _is_settled(self, region: Region) -> bool:
        return region in self.finished and region not in self.schedule.unfinished

    def start(self) -> list[RegionStart]:
        """Start all runs that can start."""
        starts = self.schedule.starts()
        for start in starts:
            self._begin(start)
        return starts

    def _begin(self, start: RegionStart) -> None:
        region, stage = start.region, self.regions.stages[start.region.stage]
        assert start.worker == self.regions.worker(region)
        assert start.worker not in self.running, "a worker runs one region at a time"
        assert set(start.places) == set(self.regions.inputs(region))
        run = Run(region, start.run, self.attempt, self.hosts[start.worker])
        if self.regions.has_feed(region.stage):
            assert (region, self.attempt) not in self.fed, "what comes from the host can be read once"
            self.fed.add((region, self.attempt))
        for partition, holder in start.places.items():
            disk = self.disks[self.hosts[holder]]
            assert partition in disk, f"{region} is told to read {partition} where it is not"
            run.read[partition] = disk[partition]
            assert disk[partition] is self.finished[self.regions.producer(partition)], "an old version"
        if stage.sink_in_driver:
            assert not self.finishes[region], "a sink in the driver delivers once"
            others = [one for one in self.regions.all() if not self.regions.stages[one.stage].sink_in_driver]
            assert not set(others) & self.schedule.unfinished, "a sink in the driver is last"
        self.running[start.worker] = run

    def write(self, worker: int) -> None:
        """Commit the files of a run; it is not reported to the driver yet."""
        run = self.running[worker]
        for partition in self.regions.outputs(run.region):
            disk = self.disks[run.host]
            assert partition not in disk, f"{partition} is there already, and a link does not overwrite"
            disk[partition] = run

    def finish(self, worker: int, *, removing: bool = True) -> None:
        """Report a finished run to the driver; workers that are about to leave remove nothing."""
        self.write(worker)
        run = self.running.pop(worker)
        self.past.append((run.region, run.number))
        self.finished[run.region] = run
        self.finishes[run.region] += 1
        removed = self.schedule.finished(run.region, run.number)
        self._remove(removed if removing else [])

    def fail(self, worker: int) -> FailureResponse:
        """Fail a run; its worker keeps running."""
        run = self.running.pop(worker)
        self.past.append((run.region, run.number))
        self.failures[run.region] += 1
        return self.schedule.failed(run.region, run.number)

    def lose(self, worker: int) -> FailureResponse:
        """Remove a worker."""
        run = self.running.pop(worker, None)
        if run is not None:
            self.past.append((run.region, run.number))
            self.failures[run.region] += 1
        return self.schedule.lost(worker)

    def leave(self) -> None:
        """Let all other workers leave in order, before those of the next attempt start."""
        for run in self.running.values():
            self.past.append((run.region, run.number))
        self.running = {}
        self.attempt += 1
        self.schedule = self.schedule.renew()

    def check_result(self) -> None:
        """Check that the result depends on one run of each region."""
        assert self.schedule.over
        assert not self.running
        for region, failures in self.failures.items():
            assert failures < (1 if self.regions.stages[region.stage].sink_in_driver else self.attempts)
        for stage in self.regions.stages:
            runs = [self.finished[region] for region in self.regions.of_stage(stage.id)]
            assert not self.regions.has_feed(stage.id) or len({run.attempt for run in runs}) == 1
        for region, run in self.finished.items():
            for ancestor, runs in run.ancestry().items():
                assert len(runs) == 1, f"{region} comes from several versions of {ancestor}"
                if not self.regions.stages[region.stage].in_driver:
                    assert runs == {self.finished[ancestor]}, f"{region} comes from an old version of {ancestor}"
