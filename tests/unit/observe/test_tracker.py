"""Figures from reports made by hand."""

import json

import pytest
from tests.support.coordinator import plan_of

from headgate.control.messages import Register, TaskState
from headgate.control.reports import OperatorMeters, ProcessMeters, SubtaskReport, WorkerReport
from headgate.coordinator import JobStatus
from headgate.errors import RemoteProtocolError
from headgate.observe.tracker import Tracker

SECOND = 10**9


def one(vertex=0, subtask=0, *, records=0, size=0, busy=0.0, idle=0.0, held=0.0, waiting=0.0, **more):
    """A report of a subtask; times in seconds."""
    spent = {"busy_ns": busy, "idle_ns": idle, "back_pressured_ns": held, "waiting_ns": waiting}
    return SubtaskReport(
        vertex=vertex,
        subtask=subtask,
        records_in=records,
        records_out=2 * records,
        bytes_in=size,
        bytes_out=2 * size,
        **{key: int(value * SECOND) for key, value in spent.items()},
        **more,
    )


def operator(records_in, records_out, side_outputs=None):
    return OperatorMeters(records_in=records_in, records_out=records_out, side_outputs=side_outputs or {})


def vertex_of(tracker, number=0):
    return tracker.snapshot(JobStatus.RUNNING, 1.0).vertices[number]


def subtask_of(tracker, vertex=0, subtask=0):
    return vertex_of(tracker, vertex).subtasks[subtask]


def test_before_the_first_report_all_figures_are_zero():
    progress = Tracker(plan_of(2, sink_in_driver=True)).snapshot(JobStatus.CREATED, 0.0)
    assert [(one.name, one.parallelism, one.state) for one in progress.vertices] == [
        ("words", 2, TaskState.CREATED),
        ("count", 2, TaskState.CREATED),
        ("print", 1, TaskState.CREATED),
    ]
    assert [one.worker for one in progress.vertices[1].subtasks] == [0, 1]
    assert progress.vertices[2].subtasks[0].worker == 2
    assert [one.number for one in progress.workers] == [0, 1, 2]
    assert {one.records_in_per_s for one in progress.vertices} == {0.0}


def test_the_four_shares_add_up_to_one():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(1_000, [one(busy=1, idle=2, held=1, waiting=4)]))
    tracker.report(0, WorkerReport(2_000, [one(busy=1.1, idle=2.2, held=1.3, waiting=4.4)]))
    for seen in (subtask_of(tracker), vertex_of(tracker)):
        shares = seen.busy, seen.idle, seen.back_pressured, seen.waiting
        assert shares == pytest.approx((0.1, 0.2, 0.3, 0.4))


def test_rates_of_the_first_report_are_since_the_tasks_start():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(123_456, [one(records=300, size=600, busy=1, idle=1.5, held=0.5)]))
    task = subtask_of(tracker)
    assert (task.records_in, task.records_out, task.bytes_in, task.bytes_out) == (300, 600, 600, 1200)
    assert (task.records_in_per_s, task.records_out_per_s) == (100.0, 200.0)
    assert (task.bytes_in_per_s, task.bytes_out_per_s) == (200.0, 400.0)
    assert (task.busy, task.idle, task.back_pressured) == pytest.approx((1 / 3, 1 / 2, 1 / 6))


def test_rates_of_later_reports_are_since_the_report_before():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(10_000, [one(records=300, busy=1, idle=8, held=1)]))
    tracker.report(0, WorkerReport(12_000, [one(records=400, busy=1.5, idle=8, held=2.5)]))
    task = subtask_of(tracker)
    assert task.records_in == 400
    assert task.records_in_per_s == 50.0
    assert (task.busy, task.idle, task.back_pressured) == (0.25, 0.0, 0.75)


@pytest.mark.parametrize("at_ms", [10_000, 9_000], ids=["the same time", "an earlier time"])
def test_rates_stay_if_the_clock_does_not_advance(at_ms):
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(10_000, [one(records=300, busy=3)]))
    tracker.report(0, WorkerReport(at_ms, [one(records=301, busy=3)]))
    assert (subtask_of(tracker).records_in, subtask_of(tracker).records_in_per_s) == (301, 100.0)


def test_decreasing_counters_and_zero_times_have_rate_zero():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(1_000, [one(records=300)]))
    assert subtask_of(tracker).records_in_per_s == 0.0
    tracker.report(0, WorkerReport(2_000, [one(records=200, in_pool_used=1)]))
    task = subtask_of(tracker)
    assert (task.records_in, task.records_in_per_s, task.busy, task.in_pool_usage) == (200, 0.0, 0.0, 0.0)


def test_a_task_that_is_over_has_totals_but_no_rates():
    tracker = Tracker(plan_of(1))
    tracker.moved(0, 0, 0, TaskState.RUNNING)
    tracker.report(0, WorkerReport(1_000, [one(records=300, busy=3)]))
    tracker.moved(0, 0, 0, TaskState.FINISHED)
    task = subtask_of(tracker)
    assert (task.state, task.records_in, task.records_in_per_s, task.busy) == (TaskState.FINISHED, 300, 0.0, 0.0)
    tracker.report(0, WorkerReport(2_000, [one(records=310, busy=4)]))
    task = subtask_of(tracker)
    assert (task.state, task.records_in, task.records_in_per_s, task.busy) == (TaskState.FINISHED, 310, 0.0, 0.0)


def test_a_change_of_state_keeps_the_figures():
    tracker = Tracker(plan_of(1))
    tracker.report(0, WorkerReport(1_000, [one(records=300, busy=3, watermark_ms=7)]))
    tracker.moved(0, 0, 0, TaskState.RUNNING)
    task = subtask_of(tracker)
    assert (task.state, task.records_in, task.records_in_per_s, task.busy) == (TaskState.RUNNING, 300, 100.0, 1.0)
    assert task.watermark_ms == 7


def test_a_vertex_has_sums_of_counts_and_means_of_shares():
    tracker = Tracker(plan_of(2))
    for number in range(2):
        tracker.moved(number, 0, number, TaskState.RUNNING)
    tracker.report(0, WorkerReport(1_000, [one(records=300, busy=1, watermark_ms=5, counters={"late": 1, "a": 1})]))
    tracker.report(
        1, WorkerReport(9_000, [one(0, 1, records=100, busy=1, held=3, watermark_ms=3, counters={"late": 2})])
    )
    vertex = vertex_of(tracker)
    assert (vertex.records_in, vertex.records_out) == (400, 800)
    assert (vertex.records_in_per_s, vertex.records_out_per_s) == (325.0, 650.0)
    assert (vertex.busy, vertex.back_pressured) == (0.625, 0.375)
    assert (vertex.max_busy, vertex.max_back_pressured) == (1.0, 0.75)
    assert vertex.watermark_ms == 3
    assert vertex.counters == {"late": 3, "a": 1}
    tracker.moved(0, 0, 0, TaskState.FINISHED)
    assert vertex_of(tracker).back_pressured == 0.75, "of those that run"


def test_a_vertex_has_a_watermark_when_all_its_tasks_have_one():
    tracker = Tracker(plan_of(2))
    tracker.report(0, WorkerReport(1_000, [one(watermark_ms=5)]))
    assert vertex_of(tracker).watermark_ms is None
    tracker.report(1, WorkerReport(1_000, [one(0, 1, watermark_ms=9)]))
    assert vertex_of(tracker).watermark_ms == 5


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ("created deployed", "created"),
        ("deployed deployed", "deployed"),
        ("running deployed", "running"),
        ("running finished", "running"),
        ("finished finished", "finished"),
        ("created finished", "running"),
        ("finished cancelled", "cancelled"),
        ("cancelled failed", "failed"),
    ],
)
def test_the_state_of_a_vertex_is_the_worst_or_the_earliest(states, state):
    tracker = Tracker(plan_of(2))
    for number, each in enumerate(states.split()):
        tracker.moved(number, 0, number, TaskState(each))
    assert vertex_of(tracker).state is TaskState(state)


def test_a_report_about_tasks_of_another_worker_is_rejected_as_a_whole():
    tracker = Tracker(plan_of(2))
    with pytest.raises(RemoteProtocolError, match="worker 0 reports subtask 1 of vertex 0"):
        tracker.report(0, WorkerReport(1_000, [one(records=1), one(0, 1)]))
    assert subtask_of(tracker).records_in == 0


def test_progress_has_a_json_form():
    tracker = Tracker(plan_of(1))
    tracker.registered(0, Register("10.0.0.7", 7077, 4711, "1"))
    tracker.report(
        0,
        WorkerReport(
            1_000, [one(records=3, busy=3, in_pool_used=1, in_pool_size=4)], process=ProcessMeters(memory_bytes=99)
        ),
    )
    said = json.loads(json.dumps(tracker.snapshot(JobStatus.RUNNING, 2.5).to_dict(), allow_nan=False))
    assert (said["status"], said["uptime_s"], said["name"]) == ("running", 2.5, "word count")
    (worker,) = said["workers"]
    assert worker.items() >= {"number": 0, "host": "10.0.0.7", "pid": 4711, "memory_bytes": 99}.items()
    task = said["vertices"][0]["subtasks"][0]
    assert (task["state"], task["records_in_per_s"], task["in_pool_usage"]) == ("created", 1.0, 0.25)
    plain = tracker.snapshot(JobStatus.RUNNING, 0.0).to_dict()
    assert type(plain["status"]) is str
    assert type(plain["vertices"][0]["state"]) is str


def test_a_task_that_is_deployed_again_counts_from_the_beginning():
    tracker = Tracker(plan_of(1))
    for state in (TaskState.DEPLOYED, TaskState.RUNNING):
        tracker.moved(0, 0, 0, state)
    tracker.report(0, WorkerReport(1_000, [one(records=100, busy=1.0)]))
    tracker.moved(0, 0, 0, TaskState.FAILED)
    assert (vertex_of(tracker).state, vertex_of(tracker).records_in) == (TaskState.FAILED, 100)
    tracker.moved(0, 0, 0, TaskState.DEPLOYED)
    assert (vertex_of(tracker).state, vertex_of(tracker).records_in) == (TaskState.DEPLOYED, 0)
    tracker.moved(0, 0, 0, TaskState.RUNNING)
    tracker.report(0, WorkerReport(2_000, [one(records=10, busy=1.0)]))
    assert (vertex_of(tracker).records_in, vertex_of(tracker).records_in_per_s) == (10, 10.0)


def test_a_new_attempt_resets_tasks_that_have_not_finished():
    tracker = Tracker(plan_of(2))
    for number in range(2):
        tracker.registered(number, Register("10.0.0.7", 4040, 4711 + number, "0.1"))
        tracker.report(number, WorkerReport(1_000, [one(0, number, records=10, busy=1.0)], cpu_ns=5 * SECOND))
    tracker.moved(0, 0, 0, TaskState.FINISHED)
    tracker.moved(1, 0, 1, TaskState.RUNNING)
    tracker.renewed()
    found = tracker.snapshot(JobStatus.RUNNING, 2.0)
    assert [(one.state, one.records_in) for one in found.vertices[0].subtasks] == [("finished", 10), ("created", 0)]
    assert [one.pid for one in found.workers] == [0, 0]
    tracker.registered(0, Register("10.0.0.7", 4040, 99, "0.1"))
    tracker.report(0, WorkerReport(2_000, [], cpu_ns=SECOND // 100))
    assert tracker.snapshot(JobStatus.RUNNING, 2.0).workers[0].pid == 99
    assert (tracker.snapshot(JobStatus.RUNNING, 2.0).workers[0].cpu or 0.0) >= 0.0


@pytest.mark.spec("K1", "B2")
def test_operators_have_sums_and_rates_of_all_tasks():
    tracker = Tracker(plan_of(2))
    first, second = operator(10, 20), operator(20, 5, {"late": 3})
    tracker.report(0, WorkerReport(1_000, [one(busy=1, operators=(first, second))]))
    tracker.report(1, WorkerReport(1_000, [one(0, 1, busy=1, operators=(first, operator(20, 5, {"odd": 4})))]))
    tracker.report(0, WorkerReport(3_000, [one(busy=3, operators=(operator(30, 60), second))]))
    found = vertex_of(tracker)
    assert [(op.records_in, op.records_out, op.side_outputs) for op in found.operators] == [
        (40, 80, {}),
        (40, 10, {"late": 3, "odd": 4}),
    ]
    assert found.subtasks[0].operators[0].records_in_per_s == 10.0
    assert found.subtasks[0].operators[0].records_out_per_s == 20.0
    assert found.operators[0].records_in_per_s == 20.0, "and ten in the other's first second"
    for subtask in (0, 1):
        tracker.moved(subtask, 0, subtask, TaskState.FINISHED)
    found = tracker.snapshot(JobStatus.FINISHED, 1.0).vertices[0]
    assert (found.operators[0].records_in, found.operators[0].records_in_per_s) == (40, 0.0)


def test_reports_with_different_numbers_of_operators():
    tracker = Tracker(plan_of(2))
    tracker.report(0, WorkerReport(1_000, [one(busy=1, operators=(operator(1, 1),) * 3)]))
    tracker.report(0, WorkerReport(2_000, [one(busy=2, operators=(operator(1, 1),))]))
    tracker.report(1, WorkerReport(1_000, [one(0, 1, busy=1, operators=(operator(1, 1),) * 2)]))
    assert len(tracker.snapshot(JobStatus.RUNNING, 1.0).vertices[0].operators) == 1
