"""Order, back pressure, and what the progress of a job says about both."""

import threading

import pytest
from tests.support.pipelines import END_S, Batches, Endless, Gathered, cut, run, running, small_env, wait_progress

import headgate as hg
from headgate.control.messages import TaskState
from headgate.control.reports import SubtaskReport, WorkerReport
from headgate.coordinator import JobStatus
from headgate.observe.tracker import Tracker

SHIPS = {
    "rebalance": lambda s: s.rebalance(),
    "rescale": lambda s: s.rescale(),
    "shuffle": lambda s: s.shuffle(),
    "hash": lambda s: s.key_by(lambda pair: pair[1] % 11),
    "broadcast": lambda s: s.broadcast(),
    "global": lambda s: s.global_(),
    "custom": lambda s: s.partition_custom(lambda pair, channels: pair[1] % channels),
    "forward": lambda s: s.forward(),
}


@pytest.mark.spec("T5")
@pytest.mark.parametrize("ship", SHIPS)
@pytest.mark.parametrize("timeout", ["auto", "0", "1 ms", "-1"])
def test_the_order_of_each_channel_is_kept(ship, timeout):
    """Records of very different sizes, watermarks between them: what a subtask got of another is in order."""
    env, sink = small_env(3, execution__buffer_timeout=timeout), Gathered()
    splits = [cut([(n, i, "x" * (i * i % 1000)) for i in range(200)], 1 + 6 * n) for n in range(3)]
    strategy = hg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record: record[1])
    stream = env.from_source(Batches(*splits)).assign_timestamps_and_watermarks(strategy)
    SHIPS[ship](stream).map(lambda record: record[:2]).disable_chaining().sink_to(sink)
    run(env)
    copies = 3 if ship == "broadcast" else 1
    assert sorted(sink.values) == sorted([(n, i) for n in range(3) for i in range(200)] * copies)
    for values in sink.by_subtask.values():
        for producer in range(3):
            numbers = [i for n, i in values if n == producer]
            assert numbers == sorted(numbers)


@pytest.mark.spec("T5")
def test_one_subtask_all_the_way_keeps_the_whole_order():
    env, sink = small_env(1), Gathered()
    stream = env.from_collection(range(2000), parallel=True)
    for _ in range(3):
        stream = stream.rebalance().map(lambda n: n)
    stream.sink_to(sink)
    run(env)
    assert sink.values == list(range(2000))


class Held:
    """A sink's function that holds everything until it is let go, and looks at what is under way."""

    def __init__(self, source):
        self.source, self.go, self.consumed, self.most = source, threading.Event(), 0, 0

    def __deepcopy__(self, memo):
        return self

    def see(self, _):
        assert self.go.wait(END_S)
        self.most = max(self.most, self.source.produced - self.consumed)
        self.consumed += 1


def ceiling(*, batch, record_bytes, remote):
    """The most records that fit between a source and a sink, one exchange apart; each takes a whole batch in hand."""
    pool = 1 * 2 + 8  # buffers_per_channel and floating: M4
    segments = pool + 5  # overdraft
    if remote:
        segments += 2 + 8  # exclusive, and floating ones of the gate
    lanes = 10  # record.batch_size: not serialized yet
    in_pieces = 10  # a batch of which the reader has gathered a part
    return segments * (512 // record_bytes + 1) + lanes + in_pieces + 2 * batch + 10


@pytest.mark.spec("M4", "P1", "B2")
@pytest.mark.parametrize("remote", [False, True], ids=["in one worker", "between workers"])
def test_a_slow_sink_holds_a_fast_source_back(remote):
    env, source = small_env(1, record__batch_size=10), Endless(batch=10)
    held = Held(source)
    sink = Gathered(each=held.see)
    stream = env.from_source(source).map(lambda n: b"%090d" % n, output_type=bytes).rebalance()
    ended = stream.sink_to(sink)
    if remote:
        ended.slot_sharing_group("elsewhere")
    most = ceiling(batch=10, record_bytes=90, remote=remote)
    with running(env) as job:
        try:
            wait_progress(job, lambda progress: progress.vertices[0].max_back_pressured > 0.5)
            assert held.consumed == 0
            assert 0 < source.produced <= most
            stopped_at = source.produced
            assert job.last_progress.vertices[0].subtasks[0].out_pool_usage >= 1, "it has used up its buffers"
        finally:
            held.go.set()
        sink.wait_for(stopped_at + 500)  # and it goes on
    assert held.most <= most
    assert [int(value) for value in sink.values] == list(range(len(sink.values))), "and nothing is lost meanwhile"


@pytest.mark.spec("M6")
def test_a_task_waits_for_its_readers_as_long_as_they_take():
    """`network.buffers_request_timeout` does not end a job: a consumer may be slow, or stand still, for hours."""
    env, go = small_env(1, network__buffers_request_timeout="1 ms"), threading.Event()
    sink, values = Gathered(each=lambda _: go.wait(END_S)), [b"%090d" % n for n in range(2_000)]
    env.from_source(Batches(cut(values, 10))).rebalance().sink_to(sink)
    job = env.execute_async()
    try:
        # A report is of the last second: the source has then blocked for far more than 1 ms.
        wait_progress(job, lambda progress: job.status.over or progress.vertices[0].max_back_pressured > 0.9)
        go.set()
        assert job.await_termination(END_S)
    finally:
        go.set()
        job.cancel(timeout_s=END_S)
    assert sink.values == values


@pytest.mark.spec("M4")
def test_a_slow_branch_does_not_stop_another_before_its_share_is_full():
    env, go = small_env(2), threading.Event()
    stuck, free = Gathered(each=lambda _: go.wait(END_S)), Gathered()
    stream = env.from_source(Batches(cut([0] + [1] * 300, 10))).set_parallelism(1)
    stream.filter(lambda n: n == 0).set_parallelism(1).rebalance().sink_to(stuck)
    stream.filter(lambda n: n == 1).set_parallelism(1).rebalance().sink_to(free)
    job = env.execute_async()
    try:
        free.wait_for(300)
        assert stuck.values == []
    finally:
        go.set()
        assert job.await_termination(END_S)
    assert stuck.values == [0]


@pytest.mark.spec("B2")
def test_shares_of_running_tasks_add_up_and_show_the_slow_vertex():
    env, never = small_env(2), threading.Event()
    sink = Gathered(each=lambda _: never.wait(0.002))
    env.from_source(Endless()).map(lambda n: "x" * 90).rebalance().map(str).rebalance().sink_to(sink)
    with running(env) as job:
        wait_progress(job, lambda progress: all(one.back_pressured for one in progress.vertices[0].subtasks))
        wait_progress(job, lambda progress: all(one.busy for vertex in progress.vertices for one in vertex.subtasks))
        progress = job.last_progress
        never.set()
    for vertex in progress.vertices:
        assert vertex.state is TaskState.RUNNING
        for one in vertex.subtasks:
            assert one.busy + one.idle + one.back_pressured == pytest.approx(1.0)
            assert min(one.busy, one.idle, one.back_pressured) >= 0
            assert 0 <= one.out_pool_usage <= 1
            assert 0 <= one.in_pool_usage <= 1
    first, _, last = progress.vertices
    assert first.records_out > last.records_in > 0
    assert first.records_out_per_s > 0
    assert last.back_pressured == 0, "no task is downstream of it"
    assert last.busy > last.idle
    assert progress.to_dict()["vertices"][0]["name"] == first.name


@pytest.mark.spec("B2", "W6")
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("chaining", [True, False])
def test_final_counts_of_producers_and_consumers_agree(parallelism, chaining):
    env, sink = small_env(parallelism, chaining=chaining), Gathered()
    stream = (
        env.from_collection(range(1000), parallel=True).filter(lambda n: n % 2).rebalance().flat_map(lambda n: [n, n])
    )
    stream.key_by(lambda n: n % 9).reduce(max).sink_to(sink)
    progress = run(env).last_progress
    counts = [(vertex.records_in, vertex.records_out) for vertex in progress.vertices]
    if chaining:
        assert counts == [(1000, 500), (500, 1000), (1000, 0)]
    else:
        assert counts == [(1000, 1000), (1000, 500), (500, 1000), (1000, 1000), (1000, 0)]
    for before, after in zip(progress.vertices, progress.vertices[1:], strict=False):
        assert before.bytes_out == after.bytes_in > 0
    assert {vertex.state for vertex in progress.vertices} == {TaskState.FINISHED}
    assert all(
        one.busy == one.idle == one.back_pressured == 0 for vertex in progress.vertices for one in vertex.subtasks
    )
    assert len(progress.workers) == parallelism
    assert all(worker.pid > 0 and worker.memory_bytes > 0 for worker in progress.workers)


@pytest.mark.spec("B2")
def test_a_job_that_is_over_holds_nothing():
    """A worker's last report may come before others have read all of it; while the job runs, that is worth knowing."""
    env = small_env(1)
    env.from_collection(range(3), parallel=True).for_each(print)
    tracker = Tracker(env._plan(env._graph.nodes(), None))
    held = SubtaskReport(
        vertex=0, subtask=0, records_out=9, busy_ns=1, out_pool_used=2, out_pool_size=4, in_queued=1, backlog=2
    )
    tracker.report(0, WorkerReport(1000, [held]))
    tracker.moved(0, 0, 0, TaskState.FINISHED)

    def shown(status):
        (one,) = tracker.snapshot(status, 1.0).vertices[0].subtasks
        return one.records_out, one.backlog, one.in_queued, one.out_pool_usage

    assert shown(JobStatus.RUNNING) == (9, 2, 1, 0.5)
    assert shown(JobStatus.FINISHED) == (9, 0, 0, 0.0)
