"""Any pipeline in BATCH on a cluster whose runs fail, whose workers and files get lost, whose messages come late."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.schedule import Cluster, Numbers, planned

from headgate.coordinator.schedule import FailureResponse
from headgate.graph import Edge, Ship, ShipKind, StreamGraph
from headgate.graph.regions import Regions
from headgate.task.operators.basic import PassOn

SEEDS = st.integers(0, 2**32)
SHIPS = (None, ShipKind.REBALANCE, ShipKind.RESCALE, ShipKind.HASH, ShipKind.BROADCAST, ShipKind.GLOBAL)


@st.composite
def plans(draw, fed=True):
    graph = StreamGraph()
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        several = draw(st.integers(0, 2)) if nodes else 0
        before = draw(st.lists(st.sampled_from(nodes), min_size=several, max_size=several)) if nodes else []
        if not before:
            node = graph.add(f"source {number}", PassOn, source=Numbers(fed=fed and draw(st.booleans())))
        else:
            inputs = [Edge(one, _ship(draw(st.sampled_from(SHIPS))), input=i % 2) for i, one in enumerate(before)]
            in_driver = draw(st.integers(0, 3)) == 0
            node = graph.add(f"node {number}", PassOn, inputs=inputs, in_driver=in_driver)
            if in_driver:
                continue
        node.parallelism = draw(st.integers(1, 3))
        nodes.append(node)
    return planned(graph)


def _ship(kind):
    return None if kind is None else Ship(kind, key=hash)


class Story:
    """What happens to a cluster, until its job is over or fails."""

    def __init__(self, plan, seed, *, faults, machines, files_get_lost):
        self.cluster = Cluster(Regions(plan))
        self.random = Random(seed)
        self.faults = faults  # how many things go wrong
        self.machines = machines
        self.files_get_lost = files_get_lost

    def run(self) -> bool:
        """Whether the job has finished; if not, it was right to give up."""
        self.gather()
        while not self.cluster.schedule.over:
            self.cluster.start()
            assert self.cluster.running, "something can always be run"
            self.disturb()
            verdict = self.step()
            if verdict is FailureResponse.FAIL_JOB:
                self.check_surrender()
                return False
            if verdict is FailureResponse.NEW_ATTEMPT:
                assert not self.cluster.start(), "nothing is started any more"
                self.leave()
        self.cluster.check_result()
        return True

    def gather(self):
        self.cluster.gather([self.random.choice(self.machines) for _ in range(self.cluster.members)])

    def step(self) -> FailureResponse:
        """The next thing that happens to a run."""
        worker = self.random.choice(sorted(self.cluster.running))
        fault = self.random.randrange(8) if self.faults else 0
        if fault not in (1, 2, 3):
            self.cluster.finish(worker)
            return FailureResponse.IGNORE
        self.faults -= 1
        if fault == 1:
            return self.cluster.fail(worker)
        if fault == 2:
            self.cluster.write(worker)  # it has finished, but nobody hears of it
        if self.random.randrange(2):
            worker = self.random.randrange(self.cluster.members)  # perhaps one that does nothing
        needed = self.cluster.schedule.needs(worker)
        verdict = self.cluster.lose(worker)
        assert needed is (verdict is not FailureResponse.IGNORE)
        if verdict is FailureResponse.IGNORE:
            # Nobody needs it: a new one in its place is as good as none.
            assert worker not in {self.cluster.regions.worker(one) for one in self.cluster.schedule.unfinished}
            assert fault != 2 or not self.cluster.running or self.undo_writing()
        return verdict

    def undo_writing(self):
        """A run that has written all its files goes on after all: they are written again when it finishes."""
        for run in self.cluster.running.values():
            for partition in self.cluster.regions.outputs(run.region):
                if self.cluster.disks[run.host].get(partition) is run:
                    del self.cluster.disks[run.host][partition]
        return True

    def leave(self):
        """The end of an attempt: some are lost later than others, some still finish, some files get lost."""
        cluster = self.cluster
        for worker in sorted(cluster.running):
            written = any(
                cluster.disks[cluster.running[worker].host].get(one) is cluster.running[worker]
                for one in cluster.regions.outputs(cluster.running[worker].region)
            )
            if not written and self.random.randrange(2):
                cluster.finish(worker, removing=False)
        cluster.leave()
        if self.files_get_lost:
            for disk in cluster.disks.values():
                for partition in sorted(disk):
                    if not self.random.randrange(4):
                        del disk[partition]
        self.gather()

    def disturb(self):
        """What runs that are over say once more changes nothing."""
        schedule = self.cluster.schedule
        if self.cluster.past:
            region, run = self.random.choice(self.cluster.past)
            before = repr(vars(schedule))
            assert schedule.finished(region, run) == []
            assert schedule.failed(region, run) is FailureResponse.IGNORE
            assert repr(vars(schedule)) == before

    def check_surrender(self):
        """Something has failed as often as it may; or was a sink in the driver; or workers were lost in vain."""
        region = self.cluster.schedule.exhausted
        if region is None:
            assert self.cluster.schedule._futile >= self.cluster.attempts
        elif not self.cluster.regions.stages[region.stage].sink_in_driver:
            assert self.cluster.failures[region] >= self.cluster.attempts


@pytest.mark.spec("T4", "P6")
@settings(deadline=None, max_examples=400)
@given(plans(), SEEDS, st.integers(0, 8), st.booleans())
def test_whatever_happens_the_result_comes_from_one_version_of_everything(plan, seed, faults, files_get_lost):
    Story(plan, seed, faults=faults, machines=["a", "b"], files_get_lost=files_get_lost).run()


@settings(deadline=None)
@given(plans(fed=False), SEEDS, st.integers(0, 6))
def test_finished_regions_are_not_run_again_while_their_files_exist(plan, seed, faults):
    story = Story(plan, seed, faults=faults, machines=["one"], files_get_lost=False)
    finished = story.run()
    assert set(story.cluster.finishes.values()) <= {0, 1}
    assert not finished or not story.cluster.disks["one"], "nothing stays on disk"


@settings(deadline=None, max_examples=50)
@given(plans(), SEEDS)
def test_without_faults_everything_runs_once_and_nothing_stays_on_disk(plan, seed):
    story = Story(plan, seed, faults=0, machines=["a", "b"], files_get_lost=False)
    assert story.run()
    assert set(story.cluster.finishes.values()) == {1}
    assert not any(story.cluster.disks.values())
