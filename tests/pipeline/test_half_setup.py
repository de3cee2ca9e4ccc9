"""Setting up and wiring: what is refused before it starts, undone when it fails half-way, connected when it is due."""

import threading

import pytest
from tests.support.marks import Marking, MarkingSource
from tests.support.pipelines import NEVER, Batches, Gathered, failure, run, running, small_env, wait_progress

import headgate as hg
from headgate.config import NetworkMemory
from headgate.coordinator import Coordinator
from headgate.errors import InsufficientBuffers, TransportError
from headgate.input import InputGate
from headgate.worker.environment import Environment
from headgate.worker.streaming import StreamingWorker


def pipeline(env):
    """Three vertices, two exchanges: two gates and two partitions in each worker."""
    source = Batches(*[[list(range(first, 100, 3))] for first in range(3)])
    stream = env.from_source(source).rebalance().map(lambda n: n).key_by(lambda n: n % 5).reduce(max)
    sink = Gathered()
    stream.sink_to(sink)
    return sink


@pytest.mark.spec("K5", "M9")
@pytest.mark.parametrize("method", ["partition", "writer", "gate", "remote_source", "reader"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("kind", [InsufficientBuffers, ValueError])
def test_a_set_up_that_fails_half_way_is_undone(method, nth, kind, monkeypatch, caplog):
    real, calls = getattr(Environment, method), []

    def fails(self, *args, **kwargs):
        calls.append(method)
        if len(calls) == nth:
            raise kind("made to fail")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Environment, method, fails)
    env = small_env(2)
    pipeline(env)
    error = failure(env)
    assert "made to fail" in str(error)
    assert "did not leave in time" not in caplog.text
    if kind is ValueError:
        caplog.clear()  # that was a bug in headgate, as far as it can know


@pytest.mark.spec("K5", "K6", "M9")
def test_an_operator_that_cannot_be_made_fails_the_job(caplog):
    env = small_env(2)
    env.from_collection(range(5), parallel=True).rebalance().for_each(lambda _: None)
    node = env._graph.pending[-1]

    def make():
        raise TypeError("cannot be made")

    node.make = make
    assert "cannot be made" in str(failure(env))
    caplog.clear()


@pytest.mark.spec("M5", "K5", "M9")
def test_too_few_buffers_are_refused_before_anything_starts(caplog):
    env = small_env(3, memory__network__min="5 KiB", memory__network__max="5 KiB")
    sink = pipeline(env)
    with pytest.raises(InsufficientBuffers) as caught:
        env.execute_async()
    # In each worker: partitions of 3 (3 + 1 each), gates of 3 channels, 2 of them remote with 2 buffers each.
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(
        "the job needs 16 network buffers on worker 0, which has 10 (also too few on worker 1, worker 2)"
    )
    assert [line.rpartition(" ")[2] for line in lines[1:-1]] == ["4", "4", "4", "4"]
    assert "Batches (0)" in lines[1]
    assert "memory.network.min = 8KiB" in lines[-1]
    assert sink.calls == [], "nothing was opened"
    assert "did not leave in time" not in caplog.text


@pytest.mark.spec("M5")
def test_exactly_the_computed_number_of_buffers_is_enough():
    env = small_env(3, memory__network__min="8 KiB", memory__network__max="8 KiB")
    sink = pipeline(env)
    run(env)
    assert len(sink.values) == 100


def leaves_marks(env, marks, mode="STREAMING"):
    """A job that leaves files wherever its code runs; where each worker has 10 buffers, only the last has too few."""
    env.set_runtime_mode(mode)
    stream = env.from_source(MarkingSource(marks)).global_().map(Marking(marks)).set_parallelism(1)
    if mode == "STREAMING":
        stream = stream.slot_sharing_group("alone")
    for _ in range(4):
        stream.broadcast().map(Marking(marks)).set_parallelism(1).for_each(lambda _: None)


@pytest.mark.spec("M5", "K5")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_no_user_code_runs_in_a_refused_job(tmp_path, mode):
    """Not even where there is memory enough: the sum is made before any worker starts."""
    marks, disks = tmp_path / "marks", tmp_path / "disks"
    marks.mkdir()
    disks.mkdir()
    env = small_env(4, memory__network__min="5 KiB", memory__network__max="5 KiB", batch__directories=str(disks))
    leaves_marks(env, marks, mode)
    with pytest.raises(InsufficientBuffers, match="which has 10"):
        env.execute_async()
    assert list(marks.iterdir()) == []
    assert list(disks.iterdir()) == []


@pytest.mark.spec("M5", "K5", "M9")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_a_worker_with_less_memory_than_the_driver_expects_is_refused(tmp_path, monkeypatch, mode):
    """Workers on other machines may have less: what they register with is what counts, and nothing is deployed."""
    marks, disks = tmp_path / "marks", tmp_path / "disks"
    marks.mkdir()
    disks.mkdir()
    monkeypatch.setattr("headgate.worker.run.network_memory", lambda plan: NetworkMemory(10 * 512, None))
    env = small_env(4, batch__directories=str(disks))
    leaves_marks(env, marks, mode)
    error = failure(env, InsufficientBuffers)
    assert "which has 10" in str(error)
    assert [one.name for one in marks.iterdir() if one.name != "splits"] == [], (
        "the driver has asked for splits, no more"
    )


@pytest.fixture
def notices(monkeypatch):
    """What is told to and done by workers, in order."""
    seen, lock = [], threading.Lock()

    def note(*what):
        with lock:
            seen.append(what)

    locate, told = StreamingWorker.connect, Coordinator._announce_partition

    def noting_location(self, message):
        note("location", self._part.index, message.partition)
        locate(self, message)

    def noting_told(self, member, partition):
        note("told", member.number, partition)
        told(self, member, partition)

    connect = InputGate.connect

    def noting_connect(self, index, source):
        note("connect", self.name, index)
        connect(self, index, source)

    monkeypatch.setattr(StreamingWorker, "connect", noting_location)
    monkeypatch.setattr(Coordinator, "_announce_partition", noting_told)
    monkeypatch.setattr(InputGate, "connect", noting_connect)
    return seen


@pytest.mark.spec("P6", "G3")
@pytest.mark.parametrize("values", [100, 0])
def test_a_consumer_is_connected_after_the_producers_notice(values, notices):
    env, sink = small_env(2), Gathered()
    env.from_collection(range(values), parallel=True).rebalance().map(lambda n: n).sink_to(sink)
    run(env)
    assert len(sink.values) == values
    told = [what[2] for what in notices if what[0] == "told"]
    assert len(told) == len(set(told)) == 2, "each partition is announced once, also one that only ends"
    for partition in told:
        wired = [number for number, what in enumerate(notices) if what[0] == "location" and what[2] == partition]
        assert len(wired) == 2, "by both workers"
        assert notices.index(next(what for what in notices if what[0] == "told" and what[2] == partition)) < min(wired)
    assert sum(what[0] == "connect" for what in notices) == 4


@pytest.mark.spec("P6", "G3")
def test_a_partition_without_data_is_not_connected_until_it_ends(notices):
    """Split 1 has nothing for as long as the test likes, not even markers; records of split 0 pass meanwhile."""
    env, sink = small_env(2, metrics__latency_interval=0), Gathered()
    env.from_source(Batches([[1, 2], NEVER], [NEVER])).rebalance().map(lambda n: n).sink_to(sink)
    with running(env):
        sink.wait_for(2)
        assert {what[2].subtask for what in notices if what[0] == "told"} == {0}
        assert {what[2].subtask for what in notices if what[0] == "location"} == {0}


@pytest.mark.spec("P6")
def test_a_watermark_is_something_to_read(notices):
    env, sink = small_env(2), Gathered()
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n).with_idleness(1)
    stream = env.from_source(Batches([[1], NEVER], [NEVER], bounded=False)).assign_timestamps_and_watermarks(strategy)
    stream.rebalance().map(lambda n: n).sink_to(sink)
    with running(env) as job:  # split 1 says that it is idle, and nothing else
        wait_progress(job, lambda _: {what[2].subtask for what in list(notices) if what[0] == "told"} == {0, 1})
        sink.wait_for(1)


def test_a_worker_that_cannot_begin_fails_the_job(monkeypatch):
    def fails(self, identity):
        raise TransportError("no port left")

    monkeypatch.setattr(Environment, "join", fails)
    env = small_env(2)
    env.from_collection(range(5), parallel=True).for_each(lambda _: None)
    assert "no port left" in str(failure(env))
