"""One worker of a BATCH job without a coordinator: what it tells, what it keeps on disk, and what it gives back."""

import queue
from dataclasses import replace

import pytest
from tests.support.batch_jobs import Watched, batch_env, files_of
from tests.support.pipelines import END_S, Gathered
from tests.support.waiting import PATIENCE_S

from headgate.control.messages import (
    DeployRegion,
    Done,
    Failed,
    PartitionConsumable,
    PartitionLocation,
    RegionOver,
    TaskState,
    TaskStateChanged,
)
from headgate.control.reports import WorkerReport
from headgate.errors import Cancelled, InsufficientBuffers, StorageError, UserCodeError
from headgate.graph.plan import Partition
from headgate.ids import AttemptId
from headgate.net import Identity
from headgate.record import AuthenticatedPeer, SerializerRegistry
from headgate.worker import Environment
from headgate.worker.batch import BatchWorker
from headgate.worker.setup import WorkerPart
from headgate.worker.storage import open_job_storage

NUMBERS = list(range(100))
SOURCE = Partition(0, 0, 0)


class RegionSite:
    """Worker 0 of a plan; the test is its coordinator, and its thread the one that serves it."""

    def __init__(self, env, *, attempt=1, memory_bytes=2**18, fresh=None):
        self.plan = env._plan(env._graph.nodes(), None)
        self.environment = Environment(self.plan.settings, memory_bytes=memory_bytes)
        self.environment.storage = open_job_storage(self.plan, AttemptId(attempt))
        identity = Identity(self.plan.job, AttemptId(attempt), 0, bytes(32))
        self.address = self.environment.join(identity)
        peer = AuthenticatedPeer.this_process()
        part = WorkerPart(self.plan, 0, AttemptId(attempt), self.environment, peer, SerializerRegistry())
        self.told, self.ends = [], queue.SimpleQueue()
        self.worker = BatchWorker(part, self.told.append, ended=lambda: self.ends.put(None), fresh=fresh)

    def location(self, partition):
        return PartitionLocation(partition, 0, self.address.host, self.address.port)

    def deploy(self, stage, run=1, inputs=(), vertices=None):
        inputs = [self.location(one) for one in inputs]
        self.worker.deploy(DeployRegion(stage, 0, run, [stage] if vertices is None else vertices, inputs))

    def run(self, stage, **options):
        """Deploy a region, and its answer."""
        self.deploy(stage, **options)
        return self.end()

    def end(self):
        self.ends.get(timeout=PATIENCE_S)
        self.worker.region_ended()
        return self.answers[-1]

    @property
    def answers(self):
        return [one for one in self.told if isinstance(one, RegionOver)]

    def states(self, vertex):
        return [one.state for one in self.told if isinstance(one, TaskStateChanged) and one.vertex == vertex]

    @property
    def used(self):
        statistics = self.environment.memory.statistics()
        return statistics.total - statistics.free

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.worker.cancel("the test is over", keep=self.worker.keep)
        assert self.worker.join(END_S) == []
        self.environment.close(keep=self.worker.keep)


def two_stages(directory, sink=None, function=str, **settings):
    """source | map -> sink."""
    env = batch_env(directory, parallelism=1, **settings)
    mapped = env.from_collection(NUMBERS).rebalance().map(function)
    mapped.sink_to(Gathered() if sink is None else sink)
    return env


@pytest.mark.spec("P3", "P6", "M9")
def test_a_region_is_answered_when_its_results_can_be_read(tmp_path):
    sink = Gathered()
    with RegionSite(two_stages(tmp_path, sink)) as site:
        assert site.run(0) == RegionOver(0, 0, 1, consumable=[SOURCE])
        assert site.used == 0
        assert site.states(0) == [TaskState.DEPLOYED, TaskState.RUNNING, TaskState.FINISHED]
        assert isinstance(site.told[-2], WorkerReport), "the last figures come before the answer"
        assert not [one for one in site.told if isinstance(one, PartitionConsumable)]
        assert site.worker.tasks == ()
        assert site.run(1, inputs=[SOURCE]) == RegionOver(1, 0, 1)
        assert sink.values == list(map(str, NUMBERS))
        site.worker.release([SOURCE])
        site.worker.release([SOURCE])  # which is gone
        assert [one for one in files_of(tmp_path) if one.endswith(".partition")] == []
        site.worker.cancel("the job has finished", keep=False)
        assert site.told[-1] == Done()
        assert files_of(tmp_path) == [], "before it is said"
        site.worker.cancel("again", keep=False)
        assert site.told.count(Done()) == 1


@pytest.mark.spec("P3")
def test_a_partition_can_be_read_again(tmp_path):
    sink = Gathered()
    with RegionSite(two_stages(tmp_path, sink)) as site:
        site.run(0)
        for run in (1, 2):
            assert site.run(1, run=run, inputs=[SOURCE]).failure is None
        assert sink.values == [*map(str, NUMBERS)] * 2


@pytest.mark.parametrize("method", ["open", "map", "close"])
def test_partitions_of_a_failed_run_are_removed(tmp_path, method):
    env = batch_env(tmp_path, parallelism=1)
    flaky = Watched(fails=1, method=method)
    env.from_collection(NUMBERS).map(flaky).rebalance().for_each(print)
    with RegionSite(env) as site:
        failed = site.run(0)
        error = failed.failure.error()
        assert isinstance(error, UserCodeError)
        assert "made to fail in run 1" in str(error)
        assert failed.consumable == []
        assert files_of(tmp_path)[-1].endswith("lock"), files_of(tmp_path)
        assert site.used == 0
        assert site.states(0)[-1] is TaskState.FAILED
        assert site.run(0, run=2) == RegionOver(0, 0, 2, consumable=[SOURCE])


def test_tasks_of_a_region_are_connected_and_end_together(tmp_path):
    env = batch_env(tmp_path, parallelism=1, chaining=False)
    flaky, sink = Watched(fails=1), Gathered()
    env.from_collection(NUMBERS).map(flaky).map(str).sink_to(sink)
    with RegionSite(env) as site:
        failed = site.run(0, vertices=[0, 1, 2, 3])
        assert "made to fail" in failed.failure.text, "and not what others say who read from it"
        assert {site.states(vertex)[-1] for vertex in (2, 3)} <= {TaskState.CANCELLED, TaskState.FAILED}
        assert (site.used, site.environment.statistics().partitions) == (0, ())
        assert site.run(0, run=2, vertices=[0, 1, 2, 3]).failure is None
        assert sink.values[-len(NUMBERS) :] == list(map(str, NUMBERS))
        assert (site.used, site.environment.statistics().partitions) == (0, ())


def test_a_task_that_ends_as_if_it_were_cancelled_has_not_finished(tmp_path):
    def leaves(value):
        raise Cancelled("by itself")

    env = batch_env(tmp_path, parallelism=1)
    env.from_collection(NUMBERS).map(leaves).rebalance().for_each(print)
    with RegionSite(env) as site:
        failed = site.run(0)
        assert "by itself" in failed.failure.text
        assert failed.consumable == []
        assert not [one for one in files_of(tmp_path) if one.endswith(".partition")]


def test_an_operator_that_cannot_be_made_is_a_failed_run(tmp_path):
    env = two_stages(tmp_path)
    with RegionSite(env) as site:
        site.run(0)
        object.__setattr__(site.plan.vertices[1].operators[0], "make", lambda: 1 // 0)
        site.deploy(1, inputs=[SOURCE])
        assert "ZeroDivisionError" in site.answers[-1].failure.text
        assert site.used == 0
        assert site.worker.tasks == ()


def test_too_little_memory_is_a_failed_run(tmp_path):
    with RegionSite(two_stages(tmp_path), memory_bytes=512) as site:
        site.deploy(0)
        assert isinstance(site.answers[-1].failure.error(), InsufficientBuffers)


def test_function_objects_are_new_ones_in_a_second_run(tmp_path):
    made = []

    def fresh():
        made.append(True)
        return site.plan

    with RegionSite(two_stages(tmp_path), fresh=fresh) as site:
        site.run(0)
        site.run(1, inputs=[SOURCE])
        assert not made
        site.run(1, run=2, inputs=[SOURCE])
        assert made == [True]


# Leaving.


@pytest.mark.parametrize("keep", [True, False])
def test_a_worker_cancelled_during_a_region_ends_when_its_task_ends(tmp_path, keep):
    slow = Watched(waits=True)
    with RegionSite(two_stages(tmp_path, function=slow)) as site:
        site.run(0)
        site.deploy(1, inputs=[SOURCE])
        assert slow.seen.reached.wait(END_S)
        answers = len(site.answers)
        site.worker.cancel("enough", keep=keep)
        assert Done() not in site.told, "it is in the user's code"
        slow.seen.go_on.set()
        site.end()
        assert site.told[-1] == Done()
        assert len(site.answers) == answers
        assert site.worker.over
        names = [one.rpartition("/")[2] for one in files_of(tmp_path)]
        assert ("v0.0-0.partition" in names) is keep
        site.deploy(0, run=2)  # too late
        assert site.worker.tasks == ()


def test_files_that_were_to_be_kept_are_removed_if_the_job_ends(tmp_path):
    with RegionSite(two_stages(tmp_path)) as site:
        site.run(0)
        site.worker.cancel("another attempt follows", keep=True)
        assert site.told[-1] == Done()
        site.worker.cancel("cancelled", keep=False)
    assert files_of(tmp_path) == []


# Another attempt.


@pytest.mark.spec("P3")
def test_partitions_of_an_earlier_attempt_are_found_and_read(tmp_path):
    sink = Gathered()
    env = two_stages(tmp_path, sink)
    with RegionSite(env) as first:
        assert first.worker.found() == []
        first.run(0)
        job = first.plan.job  # which is not told that it is over
    with again(env, job) as site:
        assert site.worker.found() == [SOURCE]
        site.worker.adopt([SOURCE])
        assert site.told == []
        assert site.run(1, inputs=[SOURCE]).failure is None
        assert sink.values == list(map(str, NUMBERS))
        site.worker.release([SOURCE])
        assert site.worker.found() == []
        site.worker.keep = False
    assert files_of(tmp_path) == []


def again(env, job):
    """The second attempt at a job."""
    made = env._plan

    def plan(*args, **kwargs):
        return replace(made(*args, **kwargs), job=job)

    env._plan = plan
    try:
        return RegionSite(env, attempt=2)
    finally:
        env._plan = made


def test_a_file_that_cannot_be_adopted_is_removed_and_reported(tmp_path):
    env = two_stages(tmp_path)
    with RegionSite(env) as first:
        first.run(0)
        job = first.plan.job
    [path] = [one for one in files_of(tmp_path) if one.endswith(".partition")]
    with open(path, "r+b") as file:
        file.truncate(10)
    with again(env, job) as site:
        site.worker.adopt([SOURCE])
        [failed] = [one for one in site.told if isinstance(one, Failed)]
        assert isinstance(failed.error(), StorageError)
        assert path in failed.text
        assert site.worker.found() == []
        site.worker.keep = False


def test_a_region_that_is_run_again_replaces_its_partitions(tmp_path):
    env = two_stages(tmp_path)
    with RegionSite(env) as first:
        first.run(0)
        job = first.plan.job
    with again(env, job) as site:
        assert site.run(0, run=2) == RegionOver(0, 0, 2, consumable=[SOURCE])
        site.worker.keep = False
    assert files_of(tmp_path) == []
