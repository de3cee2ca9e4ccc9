"""Channels, latencies, hot keys, CPU times, connections and watermarks: from reports to the figures of a view."""

import json

import pytest
from tests.support.coordinator import plan_of

from headgate.config import load_settings
from headgate.control.messages import Register, TaskState
from headgate.control.reports import (
    ChannelReport,
    ConnectionReport,
    ProcessMeters,
    SubtaskInterval,
    SubtaskReport,
    WorkerReport,
)
from headgate.observe import (
    ChannelProgress,
    ConnectionProgress,
    HotKey,
    JobStatus,
    LatencyProgress,
    Tracker,
)

SECOND = 10**9
NO_TIME = 2**63 - 1


def one(vertex=0, subtask=0, *, went=0, busy_s=0.0, **more):
    return SubtaskReport(vertex=vertex, subtask=subtask, records_out=went, busy_ns=int(busy_s * SECOND), **more)


def latency(source, count, p50_us, p99_us, max_us):
    return LatencyProgress(source=source, count=count, p50_ms=p50_us / 1000, p99_ms=p99_us / 1000, max_ms=max_us / 1000)


def key(exchange, text, permille):
    return HotKey(exchange=exchange, key=text, share=permille / 1000)


def connection(peer, bytes_out, waiting_bytes=0, blocked_ns=0, round_trip_us=None, unsent_bytes=None):
    return ConnectionReport(
        peer=peer,
        bytes_out=bytes_out,
        waiting_bytes=waiting_bytes,
        blocked_ns=blocked_ns,
        round_trip_ms=None if round_trip_us is None else round_trip_us / 1000,
        unsent_bytes=unsent_bytes,
    )


def shown(tracker, vertex=0, status=JobStatus.RUNNING):
    return tracker.snapshot(status, 1.0).vertices[vertex]


def worker_of(tracker, number=0, status=JobStatus.RUNNING):
    return tracker.snapshot(status, 1.0).workers[number]


@pytest.mark.spec("B2")
def test_channels_are_shown_as_reported_until_the_job_is_over():
    tracker = Tracker(plan_of(2))
    channels = [ChannelReport(0, 0, True, 3, 2, 0, 0, 0, 500), ChannelReport(0, 1, False, 9, 1, 2, 4, 5, 700)]
    tracker.report(1, WorkerReport(1000, [one(1, 1, channels=channels)]))
    task = shown(tracker, 1).subtasks[1]
    assert task.channels == (
        ChannelProgress(exchange=0, producer=0, local=True, backlog=3, queued=2, bytes_in=500),
        ChannelProgress(exchange=0, producer=1, backlog=9, queued=1, exclusive=2, floating=4, credit=5, bytes_in=700),
    )
    assert shown(tracker, 1).subtasks[0].channels == ()
    assert shown(tracker, 1, JobStatus.FINISHED).subtasks[1].channels == ()


@pytest.mark.spec("B2")
def test_latencies_are_in_milliseconds_and_a_vertex_has_the_worst():
    tracker = Tracker(plan_of(2))
    tracker.report(0, WorkerReport(1000, [one(1, 0, latencies=(latency(0, 10, 500, 1500, 9000),))]))
    tracker.report(
        1,
        WorkerReport(1000, [one(1, 1, latencies=(latency(7, 1, 1, 2, 3), latency(0, 2, 900, 1000, 1001)))]),
    )
    first = LatencyProgress(source=0, count=10, p50_ms=0.5, p99_ms=1.5, max_ms=9.0)
    assert shown(tracker, 1).subtasks[0].latencies == (first,)
    assert shown(tracker, 1).latencies == (
        LatencyProgress(source=0, count=12, p50_ms=0.9, p99_ms=1.5, max_ms=9.0),
        LatencyProgress(source=7, count=1, p50_ms=0.001, p99_ms=0.002, max_ms=0.003),
    )
    over = shown(tracker, 1, JobStatus.CANCELLED)
    assert (over.latencies, over.subtasks[0].latencies) == (shown(tracker, 1).latencies, (first,))


@pytest.mark.spec("B2")
def test_hot_keys_of_tasks_are_weighted_by_the_records_they_sent():
    tracker = Tracker(plan_of(3))
    keys = [
        [key(0, "'london'", 600), key(0, "'paris'", 100)],
        [key(0, "'london'", 200), key(1, "'london'", 900)],
        [key(0, "'rome'", 60)],
    ]
    for worker, (some, went) in enumerate(zip(keys, [3000, 1000, 0], strict=True)):
        tracker.report(worker, WorkerReport(1000, [one(0, worker, went=went, hot_keys=tuple(some))]))
    vertex = shown(tracker)
    assert vertex.subtasks[1].hot_keys == (
        HotKey(exchange=0, key="'london'", share=0.2),
        HotKey(exchange=1, key="'london'", share=0.9),
    )
    assert [(one.exchange, one.key, round(one.share, 3)) for one in vertex.hot_keys] == [
        (0, "'london'", 0.5),
        (1, "'london'", 0.225),
        (0, "'paris'", 0.075),
    ], "the third has sent nothing yet"
    over = shown(tracker, 0, JobStatus.FINISHED)
    assert (over.hot_keys, over.subtasks[1].hot_keys) == (vertex.hot_keys, vertex.subtasks[1].hot_keys)


def test_the_ten_hottest_keys_are_shown_and_without_records_tasks_have_equal_weight():
    tracker = Tracker(plan_of(2))
    keys = [key(0, str(n), 50 + n) for n in range(19)]
    tracker.report(0, WorkerReport(1000, [one(0, 0, hot_keys=tuple(keys[:10]))]))
    tracker.report(1, WorkerReport(1000, [one(0, 1, hot_keys=(*keys[10:], key(0, "x", 10)))]))
    found = shown(tracker).hot_keys
    assert [one.key for one in found] == [str(n) for n in range(18, 8, -1)]
    assert found[0].share == pytest.approx(0.034)


@pytest.mark.spec("B2")
def test_cpu_shares_are_of_the_time_between_two_reports():
    tracker = Tracker(plan_of(1))
    tracker.moved(0, 0, 0, TaskState.RUNNING)
    tracker.report(0, WorkerReport(10_000, [one(busy_s=4, cpu_ns=SECOND, run_queue_ns=2 * SECOND)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (0.25, 0.5), "since its start"
    tracker.report(0, WorkerReport(12_000, [one(busy_s=6, cpu_ns=2 * SECOND, run_queue_ns=2 * SECOND)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (0.5, 0.0)
    tracker.report(0, WorkerReport(13_000, [one(busy_s=7, cpu_ns=4 * SECOND, run_queue_ns=-1)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (1.0, None), "no more than one; and not said"
    assert shown(tracker, status=JobStatus.FINISHED).subtasks[0].cpu is None
    tracker.report(0, WorkerReport(14_000, [one(busy_s=8, cpu_ns=-1, run_queue_ns=5)]))
    assert (shown(tracker).subtasks[0].cpu, shown(tracker).subtasks[0].run_queue) == (None, None)
    tracker.moved(0, 0, 0, TaskState.FINISHED)
    assert shown(tracker).subtasks[0].cpu is None


@pytest.mark.spec("B2")
def test_the_lag_of_a_watermark_is_that_at_the_time_of_the_report():
    tracker = Tracker(plan_of(3))
    tracker.report(0, WorkerReport(10_000, [one(0, 0, watermark_ms=9_400)]))
    tracker.report(1, WorkerReport(20_000, [one(0, 1, watermark_ms=18_000)]))
    assert [task.watermark_lag_ms for task in shown(tracker).subtasks] == [600, 2000, None]
    assert (shown(tracker).watermark_ms, shown(tracker).watermark_lag_ms) == (None, 2000)
    tracker.report(1, WorkerReport(21_000, [one(0, 1, watermark_ms=NO_TIME)]))
    tracker.report(2, WorkerReport(21_000, [one(0, 2, watermark_ms=-(2**63))]))
    assert [task.watermark_lag_ms for task in shown(tracker).subtasks] == [600, None, None], (
        "the ends of time have none"
    )
    assert shown(tracker, status=JobStatus.FINISHED).watermark_lag_ms is None


@pytest.mark.spec("B2")
def test_a_worker_has_cpu_memory_and_connections():
    tracker = Tracker(plan_of(2))
    tracker.registered(0, Register("10.0.0.7", 7077, 4711, "1"))

    def report(at_ms, cpu_s, *connections, free=3):
        said = WorkerReport(
            at_ms,
            [],
            ProcessMeters(memory_bytes=99, segments_total=8, segments_free=free),
            cpu_ns=int(cpu_s * SECOND),
            connections=list(connections),
        )
        tracker.report(0, said)

    report(1000, 5, connection(1, 10_000, 0, 0))
    first = worker_of(tracker)
    assert (first.host, first.pid, first.memory_bytes) == ("10.0.0.7", 4711, 99)
    assert (first.cpu, first.segments_total, first.segments_free) == (None, 8, 3)
    assert first.connections == (ConnectionProgress(peer=1, bytes_out=10_000),)
    report(3000, 8, connection(1, 50_000, 700, SECOND // 2, 80, 1234), connection(2, 600, 0, 0))
    second = worker_of(tracker)
    assert second.cpu == 1.5
    assert second.connections == (
        ConnectionProgress(
            peer=1,
            bytes_out=50_000,
            bytes_out_per_s=20_000.0,
            waiting_bytes=700,
            blocked=0.25,
            round_trip_ms=0.08,
            unsent_bytes=1234,
        ),
        ConnectionProgress(peer=2, bytes_out=600, bytes_out_per_s=300.0),
    )
    report(3000, 8, connection(1, 50_000, 700, SECOND // 2, 80, 1234))  # another part of the same report
    assert worker_of(tracker) == second
    report(4000, 8, connection(1, 40_000, 0, 0))  # a new connection
    assert worker_of(tracker).connections == (ConnectionProgress(peer=1, bytes_out=40_000),)
    over = worker_of(tracker, status=JobStatus.FINISHED)
    assert (over.cpu, over.segments_free, over.connections, over.pid) == (None, 8, (), 4711)


def test_an_unreported_cpu_time_is_none():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(1000, []))
    tracker.report(0, WorkerReport(2000, [], cpu_ns=5))
    assert worker_of(tracker).cpu is None


@pytest.mark.spec("B2")
def test_a_report_in_parts_has_the_rates_of_one():
    tracker = Tracker(plan_of(1))
    for second in (1, 2, 3):
        for vertex in (0, 1):
            part = [one(vertex, 0, went=100 * second, busy_s=second)]
            tracker.report(0, WorkerReport(second * 1000, part, cpu_ns=second * SECOND))
    assert [shown(tracker, vertex).records_out_per_s for vertex in (0, 1)] == [100.0, 100.0]
    assert worker_of(tracker).cpu == 1.0


def test_figures_are_not_computed_again_without_a_new_report():
    tracker = Tracker(plan_of(2))
    tracker.report(0, WorkerReport(1000, [one(went=5)]))
    before = shown(tracker).subtasks
    tracker.report(1, WorkerReport(1000, [one(0, 1, went=7)]))
    after = shown(tracker).subtasks
    assert after[0] is before[0], "it was not made again"
    assert after[1].records_out == 7


def past(tracker, at_ms, *states, vertex=0, subtask=0):
    tracker.report(subtask, WorkerReport(at_ms, [one(vertex, subtask, intervals=list(states), intervals_end_ms=at_ms)]))


@pytest.mark.spec("B2")
def test_timelines_have_the_reported_intervals():
    now = [20_000]
    tracker = Tracker(plan_of(2), now_ms=lambda: now[0])
    for subtask in (0, 1):
        past(
            tracker,
            20_000,
            SubtaskInterval(900, 0, 100, 5, 5, 1, 2),
            SubtaskInterval(800, 0, 200, 7, 7, 1, 2),
            subtask=subtask,
        )
    found = tracker.timeline(seconds=10, points=100, vertex=0)
    assert (found.start_ms, found.step_ms, found.steps) == (19_800, 100, 2)
    assert [(line.subtask, line.busy) for line in found.tasks] == [(n, (900, 800)) for n in (-1, 0, 1)]
    assert [line.vertex for line in tracker.timeline().tasks] == [0, 1]
    assert tracker.timeline(seconds=10, points=1, vertex=1).tasks[0].busy == (-1,), "it has no reports"
    assert [(line.vertex, line.subtask) for line in tracker.full_timeline().tasks] == [
        (vertex, subtask) for vertex in (0, 1) for subtask in (-1, 0, 1)
    ]
    with pytest.raises(ValueError, match="no vertex 9"):
        tracker.timeline(vertex=9)


def test_intervals_are_not_stored_twice():
    tracker = Tracker(plan_of(1))
    past(tracker, 20_000, *[SubtaskInterval(900, 0, 100, 5, 5, 1, 2)] * 10)
    assert tracker._tasks[0][0].known.last.intervals == []


def test_without_an_interval_there_is_no_history():
    tracker = Tracker(plan_of(1, settings=load_settings(code={"metrics.interval": "0"})))
    past(tracker, 20_000, SubtaskInterval(900, 0, 100, 5, 5, 1, 2))
    assert (tracker.timeline().steps, tracker.timeline().tasks) == (0, ())
    assert tracker.full_timeline().steps == 0
    assert tracker.timeline(vertex=0).step_ms > 0


@pytest.mark.parametrize("text", ["plain", "with\0 nothing", "\ud83d".encode("utf-8", "backslashreplace").decode()])
def test_all_figures_have_a_json_form(text):
    tracker = Tracker(plan_of(1))
    report = one(
        hot_keys=(key(0, text, 999),),
        latencies=(latency(0, 1, 2, 3, 4),),
        channels=[ChannelReport(0, 0, False, 1, 2, 3, 4, 5, 6)],
        cpu_ns=5,
        busy_s=1.0,
    )
    tracker.report(0, WorkerReport(1000, [report], connections=[connection(1, 2, 3, 4)]))
    said = json.loads(json.dumps(tracker.snapshot(JobStatus.RUNNING, 1.0).to_dict(), allow_nan=False))
    assert said["vertices"][0]["subtasks"][0]["hot_keys"][0]["key"] == text
    assert said["workers"][0]["connections"][0]["bytes_out"] == 2
