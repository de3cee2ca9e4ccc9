"""A worker and its tasks without a coordinator: what it tells, what it takes, and what it gives back."""

import pytest
from tests.support.pipelines import Gathered, Silent, small_env
from tests.support.worker import Site

from headgate.control.messages import Done, Failed, PartitionConsumable, TaskState, TaskStateChanged
from headgate.control.reports import WorkerReport
from headgate.errors import Cancelled, InsufficientBuffers, TransportError, UserCodeError
from headgate.graph.plan import Partition, Ship, ShipKind
from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rebalance, Rescale, Shuffle
from headgate.task.runtime.task import Task
from headgate.worker import Environment
from headgate.worker.setup import TaskSetUp, make_selector
from headgate.worker.task_group import TaskGroup


def set_up(site, vertex, subtask):
    """The setting up of a task that nobody hears of."""
    silent = dict.fromkeys(("consumable", "running", "failed", "ended"), lambda *_: None)
    return TaskSetUp(site.part, vertex, subtask, **silent)


def words(env, sink):
    env.from_collection(["to be", "or not"], parallel=True).flat_map(str.split).rebalance().map(str.upper).sink_to(sink)
    return env


@pytest.mark.spec("K5", "P6", "M9")
def test_a_worker_reports_task_states_and_done():
    sink = Gathered()
    with Site(words(small_env(1), sink)) as site:
        site.worker.deploy()
        site.wait_done()
        assert sorted(sink.values) == ["BE", "NOT", "OR", "TO"]
        for vertex in (0, 1):
            assert site.states(vertex) == [TaskState.DEPLOYED, TaskState.RUNNING, TaskState.FINISHED]
        assert [one.partition for one in site.told if isinstance(one, PartitionConsumable)] == [Partition(0, 0, 0)]
        deployed = [
            n for n, one in enumerate(site.told) if isinstance(one, TaskStateChanged) and one.state == "deployed"
        ]
        running = [n for n, one in enumerate(site.told) if isinstance(one, TaskStateChanged) and one.state == "running"]
        assert max(deployed) < min(running), "all are set up before the first starts"
        assert site.told[-1] == Done()
        assert site.told.count(Done()) == 1
        assert isinstance(site.told[-2], WorkerReport), "the last figures come before the end"
        assert [one.records_in for one in site.told[-2].subtasks] == [2, 4]
        assert site.worker.over
        site.environment.release_job(site.plan.job)
        assert site.used == 0


@pytest.mark.spec("P6", "G3")
def test_nothing_is_read_before_it_is_wired():
    sink = Gathered()
    with Site(words(small_env(1), sink), connects=False) as site:
        site.worker.deploy()
        site.wait(lambda: TaskState.FINISHED in site.states(0), "the end of the source")
        assert site.states(1) in ([TaskState.DEPLOYED], [TaskState.DEPLOYED, TaskState.RUNNING])
        assert sink.values == []
        site.worker.connect(site.location(Partition(0, 0, 0)))
        site.worker.connect(site.location(Partition(0, 0, 0)))  # again: nothing waits for it any more
        site.worker.connect(site.location(Partition(7, 7, 7)))  # nor for this
        site.wait_done()
        assert len(sink.values) == 4


@pytest.mark.spec("K6")
def test_a_failure_is_reported_once_and_cancels_the_other_tasks():
    env = small_env(1)
    env.from_source(Silent()).rebalance().for_each(lambda _: None)
    env.from_collection([0], parallel=True).map(lambda n: 1 // n).name("culprit").for_each(lambda _: None)
    with Site(env) as site:
        site.worker.deploy()
        site.wait_done()
        failed = [one for one in site.told if isinstance(one, Failed)]
        assert [one.operator for one in failed] == ["culprit"]
        assert sorted(site.states(n)[-1] for n in range(3)) == ["cancelled", "cancelled", "failed"]
        assert site.used == 0


@pytest.mark.spec("K6")
def test_the_task_that_raised_has_failed_though_its_reader_ends_first(monkeypatch):
    """The culprit's thread stands still between the release of its partitions and its end."""
    env = small_env(1)
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("culprit").rebalance().for_each(lambda _: None)
    with Site(env) as site:
        release = Task.release

        def and_wait(task, error):
            release(task, error)
            if "culprit" in task.name:
                site.wait(lambda: site.states(1)[-1].over, "the end of the reader")

        monkeypatch.setattr(Task, "release", and_wait)
        site.worker.deploy()
        site.wait_done()
        assert [site.states(n)[-1] for n in range(2)] == [TaskState.FAILED, TaskState.CANCELLED]
        assert next(one.code for one in site.told if isinstance(one, Failed)) == UserCodeError.code


@pytest.mark.spec("M9")
def test_a_worker_is_cancelled_once_and_for_all():
    env = small_env(2)
    env.from_source(Silent()).rebalance().map(str).for_each(lambda _: None)
    with Site(env) as site:
        site.worker.deploy()
        assert site.used > 0
        site.worker.cancel("no more")
        site.worker.cancel("really")
        site.wait_done()
        assert [site.states(n)[-1] for n in range(2)] == [TaskState.CANCELLED] * 2
        assert site.used == 0, "also what was set aside for channels that were never wired"
        site.worker.connect(site.location(Partition(0, 0, 0)))  # too late, and harmless
        assert site.used == 0
        assert not [one for one in site.told if isinstance(one, Failed)]


def test_a_worker_without_tasks_is_done_at_once():
    env = small_env(1)
    env.from_collection([1], parallel=True).for_each(lambda _: None)
    with Site(env, index=5) as site:
        site.worker.deploy()
        assert site.told == [Done()]


@pytest.mark.spec("K5")
def test_a_worker_with_too_few_buffers_takes_none():
    """The coordinator deploys nothing to it; if it does all the same, nothing is left of what was set up."""
    env = small_env(2)
    words(env, Gathered())
    with Site(env, memory_bytes=512 * 4) as site:
        with pytest.raises(InsufficientBuffers, match="needs 2 network buffers, but only 1 of 4"):
            site.worker.deploy()
        assert site.used == 0


@pytest.mark.spec("M4", "M5")
@pytest.mark.parametrize("flow_control", ["credit", "tcp"])
@pytest.mark.parametrize("ship", ["rebalance", "broadcast", "rescale", "global_"])
def test_the_computed_demand_equals_the_segments_tasks_take(flow_control, ship):
    """It is neither too high, which would refuse what could run, nor too low."""
    env = small_env(3, network__flow_control=flow_control)
    stream = getattr(env.from_collection(range(5), parallel=True), ship)().map(str).set_parallelism(2)
    stream.union(getattr(env.from_collection(range(5), parallel=True), ship)().map(str)).rebalance().for_each(
        lambda _: None
    )
    with Site(env, connects=False) as site:
        limits = site.environment.limits
        needed = sum(one.required(limits) for one in site.plan.demands_of(0))
        setups = [set_up(site, vertex, subtask) for vertex, subtask in site.plan.tasks_of(0)]
        for setup in setups:
            setup.set_up()
        statistics = site.environment.memory.statistics()
        for setup in setups:
            setup._undo()
        assert statistics.required + statistics.exclusive == needed


@pytest.mark.spec("K5", "M9")
def test_a_group_of_which_one_task_cannot_be_set_up_leaves_nothing_of_the_others(monkeypatch):
    env = words(small_env(1), Gathered())
    with Site(env, connects=False) as site:
        real, calls = Environment.gate, []

        def fails(self, *args, **kwargs):
            calls.append(args)
            raise TransportError("made to fail")

        monkeypatch.setattr(Environment, "gate", fails)  # only the second task has one
        group = TaskGroup(site.part, lambda _: None, failed=lambda _: None, over=lambda: None)
        with pytest.raises(TransportError, match="made to fail"):
            group.set_up([(vertex, 0) for vertex in site.plan.vertices])
        monkeypatch.setattr(Environment, "gate", real)
        assert calls, "the set-up stopped half-way"
        assert site.environment.statistics().partitions == (), "what the first task had registered is gone"
        assert site.environment.memory.statistics().pools == 0
        assert group.tasks == []


@pytest.mark.spec("K5", "M9")
@pytest.mark.parametrize("method", ["partition", "writer", "gate", "union", "remote_source", "reader"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_task_that_cannot_be_set_up_leaves_nothing(method, nth, monkeypatch):
    env = small_env(2)
    first, second = (env.from_collection(range(5), parallel=True).rebalance().map(str) for _ in range(2))
    joined = first.union(second).rebalance().map(str)
    joined.rebalance().for_each(lambda _: None)
    joined.broadcast().for_each(lambda _: None)
    with Site(env, connects=False) as site:
        vertex = next(one for one in site.plan.vertices if len(site.plan.inputs(one.id)) == 2)
        real, calls = getattr(Environment, method), []

        def fails(self, *args, **kwargs):
            calls.append(method)
            if len(calls) == nth:
                raise TransportError("made to fail")
            return real(self, *args, **kwargs)

        monkeypatch.setattr(Environment, method, fails)
        setup = set_up(site, vertex, 0)
        if method in {"union", "reader"} and nth == 2:  # there is one only; then the worker changes its mind
            setup.set_up()
            setup._undo()
        else:
            with pytest.raises(TransportError, match="made to fail"):
                setup.set_up()
        statistics = site.environment.memory.statistics()
        assert statistics.free == statistics.total
        assert (statistics.required, statistics.exclusive, statistics.pools) == (0, 0, 0)
        assert site.environment.statistics().partitions == ()


@pytest.mark.spec("W1")
def test_every_way_of_shipping_has_its_selector():
    expected = {
        ShipKind.FORWARD: Forward,
        ShipKind.REBALANCE: Rebalance,
        ShipKind.RESCALE: Rescale,
        ShipKind.SHUFFLE: Shuffle,
        ShipKind.HASH: Hash,
        ShipKind.BROADCAST: Broadcast,
        ShipKind.GLOBAL: Global,
        ShipKind.CUSTOM: Custom,
    }
    for kind, selector in expected.items():
        assert type(make_selector(Ship(kind, key=len, function=max), 128, lambda n: 0)) is selector
    columns = make_selector(Ship(ShipKind.HASH_COLUMNS, columns=("word",)), 128, lambda n: 0)
    assert type(columns).__name__ == "HashColumns"
    assert {*expected, ShipKind.HASH_COLUMNS} == set(ShipKind)


def test_a_closed_environment_sets_nothing_up():
    sink = Gathered()
    with Site(words(small_env(1), sink)) as site:
        site.environment.close()
        with pytest.raises(Cancelled):
            site.worker.deploy()


@pytest.mark.spec("P6", "P4")
def test_a_partition_that_only_ends_is_announced_once():
    env = small_env(1)
    env.from_collection([1], parallel=True).rebalance().for_each(lambda _: None)
    with Site(env, connects=False) as site:
        partition = site.environment.partition(site.part.id(Partition(0, 0, 0)), subpartitions=2)
        announced = []
        partition.on_consumable = lambda: announced.append(True)
        partition.finish()
        assert announced == [True]
