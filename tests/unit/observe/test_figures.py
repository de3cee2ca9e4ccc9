"""Channels, latencies, hot keys, processors, connections and watermarks: from hand-made reports to what is shown."""

import json

import pytest
from tests.support_control import plan_of

from headgate.config import load_settings
from headgate.observe import (
    ChannelProgress,
    ConnectionProgress,
    HotKey,
    JobStatus,
    LatencyProgress,
    Tracker,
)
from headgate.worker.messages import (
    ChannelReport,
    ConnectionReport,
    KeyReport,
    LatencyReport,
    Register,
    Report,
    State,
    SubtaskReport,
    TaskState,
)

SECOND = 10**9
NO_TIME = 2**63 - 1


def one(vertex=0, subtask=0, *, went=0, busy_s=0.0, **more):
    return SubtaskReport(vertex, subtask, 0, went, 0, 0, 0, 0, int(busy_s * SECOND), 0, 0, **more)


def shown(tracker, vertex=0, status=JobStatus.RUNNING):
    return tracker.snapshot(status, 1.0).vertices[vertex]


def worker_of(tracker, number=0, status=JobStatus.RUNNING):
    return tracker.snapshot(status, 1.0).workers[number]


@pytest.mark.spec("B2")
def test_channels_are_shown_as_they_were_reported_and_not_when_the_job_is_over():
    tracker = Tracker(plan_of(2))
    channels = [ChannelReport(0, 0, True, 3, 2, 0, 0, 0, 500), ChannelReport(0, 1, False, 9, 1, 2, 4, 5, 700)]
    tracker.report(1, Report(1000, [one(1, 1, channels=channels)]))
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
    tracker.report(0, Report(1000, [one(1, 0, latencies=[LatencyReport(0, 10, 500, 1500, 9000)])]))
    tracker.report(
        1, Report(1000, [one(1, 1, latencies=[LatencyReport(7, 1, 1, 2, 3), LatencyReport(0, 2, 900, 1000, 1001)])])
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
def test_hot_keys_of_all_tasks_count_by_what_each_has_sent():
    tracker = Tracker(plan_of(3))
    keys = [
        [KeyReport(0, "'london'", 600), KeyReport(0, "'paris'", 100)],
        [KeyReport(0, "'london'", 200), KeyReport(1, "'london'", 900)],
        [KeyReport(0, "'rome'", 60)],
    ]
    for worker, (some, went) in enumerate(zip(keys, [3000, 1000, 0], strict=True)):
        tracker.report(worker, Report(1000, [one(0, worker, went=went, hot_keys=some)]))
    vertex = shown(tracker)
    assert vertex.subtasks[1].hot_keys == (
        HotKey(exchange=0, key="'london'", share=0.2),
        HotKey(exchange=1, key="'london'", share=0.9),
    )
    assert [(key.exchange, key.key, round(key.share, 3)) for key in vertex.hot_keys] == [
        (0, "'london'", 0.5),
        (1, "'london'", 0.225),
        (0, "'paris'", 0.075),
    ], "the third has sent nothing yet"
    over = shown(tracker, 0, JobStatus.FINISHED)
    assert (over.hot_keys, over.subtasks[1].hot_keys) == (vertex.hot_keys, vertex.subtasks[1].hot_keys)


def test_of_many_hot_keys_the_hottest_ten_are_shown_and_before_any_records_all_tasks_count_alike():
    tracker = Tracker(plan_of(2))
    keys = [KeyReport(0, str(n), 50 + n) for n in range(19)]
    tracker.report(0, Report(1000, [one(0, 0, hot_keys=keys[:10])]))
    tracker.report(1, Report(1000, [one(0, 1, hot_keys=[*keys[10:], KeyReport(0, "x", 10)])]))
    found = shown(tracker).hot_keys
    assert [key.key for key in found] == [str(n) for n in range(18, 8, -1)]
    assert found[0].share == pytest.approx(0.034)


@pytest.mark.spec("B2")
def test_the_share_of_a_processor_is_of_the_time_between_two_reports():
    tracker = Tracker(plan_of(1))
    tracker.moved(0, 0, 0, TaskState.RUNNING)
    tracker.report(0, Report(10_000, [one(busy_s=4, cpu_ns=SECOND, run_queue_ns=2 * SECOND)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (0.25, 0.5), "since its start"
    tracker.report(0, Report(12_000, [one(busy_s=6, cpu_ns=2 * SECOND, run_queue_ns=2 * SECOND)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (0.5, 0.0)
    tracker.report(0, Report(13_000, [one(busy_s=7, cpu_ns=4 * SECOND, run_queue_ns=-1)]))
    task = shown(tracker).subtasks[0]
    assert (task.cpu, task.run_queue) == (1.0, None), "no more than one; and not said"
    assert shown(tracker, status=JobStatus.FINISHED).subtasks[0].cpu is None
    tracker.report(0, Report(14_000, [one(busy_s=8, cpu_ns=-1, run_queue_ns=5)]))
    assert (shown(tracker).subtasks[0].cpu, shown(tracker).subtasks[0].run_queue) == (None, None)
    tracker.moved(0, 0, 0, TaskState.FINISHED)
    assert shown(tracker).subtasks[0].cpu is None


@pytest.mark.spec("B2")
def test_the_lag_of_a_watermark_is_that_at_the_time_of_the_report():
    tracker = Tracker(plan_of(3))
    tracker.report(0, Report(10_000, [one(0, 0, watermark_ms=9_400)]))
    tracker.report(1, Report(20_000, [one(0, 1, watermark_ms=18_000)]))
    assert [task.watermark_lag_ms for task in shown(tracker).subtasks] == [600, 2000, None]
    assert (shown(tracker).watermark_ms, shown(tracker).watermark_lag_ms) == (None, 2000)
    tracker.report(1, Report(21_000, [one(0, 1, watermark_ms=NO_TIME)]))
    tracker.report(2, Report(21_000, [one(0, 2, watermark_ms=-(2**63))]))
    assert [task.watermark_lag_ms for task in shown(tracker).subtasks] == [600, None, None], (
        "the ends of time have none"
    )
    assert shown(tracker, status=JobStatus.FINISHED).watermark_lag_ms is None


@pytest.mark.spec("B2")
def test_a_worker_shows_its_processors_memory_and_connections():
    tracker = Tracker(plan_of(2))
    tracker.registered(0, Register("10.0.0.7", 7077, 4711, "1"))

    def report(at_ms, cpu_s, *connections, free=3):
        said = Report(
            at_ms,
            [],
            99,
            cpu_ns=int(cpu_s * SECOND),
            segments_total=8,
            segments_free=free,
            connections=list(connections),
        )
        tracker.report(0, said)

    report(1000, 5, ConnectionReport(1, 10_000, 0, 0))
    first = worker_of(tracker)
    assert (first.host, first.pid, first.memory_bytes) == ("10.0.0.7", 4711, 99)
    assert (first.cpu, first.segments_total, first.segments_free) == (None, 8, 3)
    assert first.connections == (ConnectionProgress(peer=1, bytes_out=10_000),)
    report(3000, 8, ConnectionReport(1, 50_000, 700, SECOND // 2, 80, 1234), ConnectionReport(2, 600, 0, 0))
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
    report(3000, 8, ConnectionReport(1, 50_000, 700, SECOND // 2, 80, 1234))  # another part of the same report
    assert worker_of(tracker) == second
    report(4000, 8, ConnectionReport(1, 40_000, 0, 0))  # a new connection
    assert worker_of(tracker).connections == (ConnectionProgress(peer=1, bytes_out=40_000),)
    over = worker_of(tracker, status=JobStatus.FINISHED)
    assert (over.cpu, over.segments_free, over.connections, over.pid) == (None, 8, (), 4711)


def test_a_processor_of_which_nothing_is_said_is_none():
    tracker = Tracker(plan_of(1))
    tracker.report(0, Report(1000, []))
    tracker.report(0, Report(2000, [], cpu_ns=5))
    assert worker_of(tracker).cpu is None


@pytest.mark.spec("B2")
def test_a_worker_whose_report_comes_in_parts_has_the_rates_of_one():
    tracker = Tracker(plan_of(1))
    for second in (1, 2, 3):
        for vertex in (0, 1):
            part = [one(vertex, 0, went=100 * second, busy_s=second)]
            tracker.report(0, Report(second * 1000, part, cpu_ns=second * SECOND))
    assert [shown(tracker, vertex).records_out_per_s for vertex in (0, 1)] == [100.0, 100.0]
    assert worker_of(tracker).cpu == 1.0


def test_what_was_shown_stays_the_same_until_there_is_news():
    tracker = Tracker(plan_of(2))
    tracker.report(0, Report(1000, [one(went=5)]))
    before = shown(tracker).subtasks
    tracker.report(1, Report(1000, [one(0, 1, went=7)]))
    after = shown(tracker).subtasks
    assert after[0] is before[0], "it was not made again"
    assert after[1].records_out == 7


def past(tracker, at_ms, *states, vertex=0, subtask=0):
    tracker.report(subtask, Report(at_ms, [one(vertex, subtask, states=list(states), states_at_ms=at_ms)]))


@pytest.mark.spec("B2")
def test_the_past_is_kept_and_shown():
    now = [20_000]
    tracker = Tracker(plan_of(2), now_ms=lambda: now[0])
    for subtask in (0, 1):
        past(tracker, 20_000, State(900, 0, 100, 5, 5, 1, 2), State(800, 0, 200, 7, 7, 1, 2), subtask=subtask)
    found = tracker.timeline(seconds=10, points=100, vertex=0)
    assert (found.start_ms, found.step_ms, found.steps) == (19_800, 100, 2)
    assert [(line.subtask, line.busy) for line in found.tasks] == [(n, (900, 800)) for n in (-1, 0, 1)]
    assert [line.vertex for line in tracker.timeline().tasks] == [0, 1]
    assert tracker.timeline(seconds=10, points=1, vertex=1).tasks[0].busy == (-1,), "nobody speaks of it"
    assert [(line.vertex, line.subtask) for line in tracker.full_timeline().tasks] == [
        (vertex, subtask) for vertex in (0, 1) for subtask in (-1, 0, 1)
    ]
    with pytest.raises(ValueError, match="no vertex 9"):
        tracker.timeline(vertex=9)


def test_states_are_not_kept_twice():
    tracker = Tracker(plan_of(1))
    past(tracker, 20_000, *[State(900, 0, 100, 5, 5, 1, 2)] * 10)
    assert tracker._tasks[0][0].seen.last.states == []


def test_without_an_interval_there_is_no_past():
    tracker = Tracker(plan_of(1, settings=load_settings(code={"metrics.interval": "0"})))
    past(tracker, 20_000, State(900, 0, 100, 5, 5, 1, 2))
    assert (tracker.timeline().steps, tracker.timeline().tasks) == (0, ())
    assert tracker.full_timeline().steps == 0
    assert tracker.timeline(vertex=0).step_ms > 0


@pytest.mark.parametrize("text", ["plain", "with\0 nothing", "\ud83d".encode("utf-8", "backslashreplace").decode()])
def test_all_of_it_can_be_said_in_json(text):
    tracker = Tracker(plan_of(1))
    report = one(
        hot_keys=[KeyReport(0, text, 999)],
        latencies=[LatencyReport(0, 1, 2, 3, 4)],
        channels=[ChannelReport(0, 0, False, 1, 2, 3, 4, 5, 6)],
        cpu_ns=5,
        busy_s=1.0,
    )
    tracker.report(0, Report(1000, [report], connections=[ConnectionReport(1, 2, 3, 4)]))
    said = json.loads(json.dumps(tracker.snapshot(JobStatus.RUNNING, 1.0).to_dict(), allow_nan=False))
    assert said["vertices"][0]["subtasks"][0]["hot_keys"][0]["key"] == text
    assert said["workers"][0]["connections"][0]["bytes_out"] == 2
