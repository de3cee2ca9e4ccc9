"""Sources that are empty, few, slow or without end; and jobs that are cancelled."""

import threading

import pytest
from tests.support.pipelines import (
    END_S,
    NEVER,
    Batches,
    Endless,
    Gathered,
    Silent,
    collected,
    cut,
    run,
    running,
    small_env,
    states,
    wait_progress,
)
from tests.support.threads import Thread

from headgate.control.messages import TaskState
from headgate.coordinator import JobStatus


@pytest.mark.spec("P4", "P6")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_empty_source_ends(parallelism):
    env = small_env(parallelism)
    sink = Gathered()
    stream = env.from_collection([]).rebalance().map(str).key_by(len).reduce(max)
    stream.sink_to(sink)
    assert run(env).status is JobStatus.FINISHED
    assert sink.values == []
    assert sorted(sink.calls) == sorted((what, n) for n in range(parallelism) for what in ("open", "finish", "close"))


def test_a_source_without_splits_ends():
    assert collected(small_env(2).from_source(Batches()).rebalance().map(str)) == []


@pytest.mark.parametrize("splits", [1, 2, 5, 7])
def test_splits_are_shared_out_whatever_their_number(splits):
    source = Batches(*[cut(list(range(n * 10, n * 10 + 10)), 4) for n in range(splits)])
    sink = Gathered()
    env = small_env(3)
    env.from_source(source).sink_to(sink)
    run(env)
    assert sorted(sink.values) == list(range(splits * 10))
    assert sink.by_subtask == {
        subtask: [n for split in range(subtask, splits, 3) for n in range(split * 10, split * 10 + 10)]
        for subtask in range(min(3, splits))
    }, "a split goes to one subtask, and bounded splits are read one after the other"


def test_empty_batches_are_nothing():
    assert collected(small_env(1).from_source(Batches([[], [1], [], [], [2, 3], []])).rebalance().map(int)) == [1, 2, 3]


@pytest.mark.spec("W4")
def test_records_before_a_wait_of_the_source_are_sent_at_once():
    """The source waits for much longer than the test: its first records must not wait with it, even unflushed."""
    env, sink = small_env(2, execution__buffer_timeout="auto"), Gathered()
    env.from_source(Batches([[1, 2], NEVER], [[4], NEVER])).rebalance().map(int).sink_to(sink)
    with running(env) as job:
        sink.wait_for(3)
        assert sorted(sink.values) == [1, 2, 4]
    assert job.status is JobStatus.CANCELLED


def test_a_source_that_waits_ends_all_the_same():
    env = small_env(2)
    stream = env.from_source(Batches([0.001, [1], 0.001, 0.0, [2], 0.001], [0.001], [[3]]))
    assert sorted(collected(stream.rebalance().map(int))) == [1, 2, 3]


def test_unbounded_splits_are_read_round_robin():
    env, sink = small_env(1), Gathered()
    source = Batches([[1], NEVER], [[2], 0.001, [3], 0.001, [4], NEVER], bounded=False)
    env.from_source(source).sink_to(sink)
    with running(env):
        sink.wait_for(4)
        assert sink.values == [1, 2, 3, 4]


@pytest.mark.spec("M9")
@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("pause_s", [None, 0.001])
def test_a_job_without_end_is_cancelled_from_another_thread(parallelism, pause_s):
    env, sink, source = small_env(parallelism), Gathered(), Endless(pause_s=pause_s)
    stream = env.from_source(source).rebalance().map(lambda n: n).key_by(lambda n: n % 10)
    stream.reduce(max).sink_to(sink)
    job = env.execute_async()
    sink.wait_for(100)
    waiting = Thread(lambda: job.await_termination(END_S))
    cancelling = [Thread(lambda: job.cancel(timeout_s=END_S)) for _ in range(3)]
    assert [one.end() for one in cancelling] == [True] * 3
    assert waiting.end() is True
    assert job.status is JobStatus.CANCELLED
    assert job.exception is None
    assert states(job.last_progress) == {TaskState.CANCELLED}
    assert source.closed == list(range(parallelism)), "generators are closed"
    assert ("finish", 0) not in sink.calls
    assert sorted(sink.calls) == sorted((what, n) for n in range(parallelism) for what in ("open", "close"))
    assert job.cancel(timeout_s=END_S), "again"


@pytest.mark.spec("M9")
def test_a_job_without_data_can_be_cancelled():
    """Its partitions were never announced, so its consumers are not wired: their own buffers must come back, too."""
    env = small_env(2)
    env.from_source(Silent()).rebalance().map(str).for_each(print)
    with running(env) as job:
        wait_progress(job, lambda progress: states(progress) == {TaskState.RUNNING})
    assert job.status is JobStatus.CANCELLED


@pytest.mark.spec("M9")
def test_a_job_can_be_cancelled_while_its_writers_are_held_back():
    env, go = small_env(2), threading.Event()
    sink = Gathered(each=lambda _: go.wait(END_S))
    env.from_source(Endless()).rebalance().map(lambda n: n).rebalance().sink_to(sink)
    job = env.execute_async()
    wait_progress(job, lambda progress: progress.vertices[0].max_back_pressured > 0)
    job.cancel(wait=False)
    go.set()
    assert job.wait(END_S)
    assert job.cancel(timeout_s=END_S)
    assert job.status is JobStatus.CANCELLED


@pytest.mark.spec("M9")
@pytest.mark.parametrize("number", range(5))
def test_a_job_can_be_cancelled_at_any_point_of_its_start(number):
    env = small_env(3)
    env.from_source(Endless()).rebalance().map(lambda n: n).key_by(lambda n: n).reduce(max).for_each(lambda _: None)
    changes = threading.Semaphore(0)
    job = env.execute_async()
    job.on_change(lambda _: changes.release())
    for _ in range(number * 3):
        assert changes.acquire(timeout=END_S)
    assert job.cancel(timeout_s=END_S)
    assert job.status is JobStatus.CANCELLED


def test_cancelling_a_finished_job_changes_nothing():
    env = small_env(2)
    env.from_collection(range(3)).for_each(lambda _: None)
    job = run(env)
    assert job.cancel(timeout_s=END_S)
    assert job.status is JobStatus.FINISHED
