"""The log of a job: what is said of it, how many tasks are one event, and that it stays small."""

import pytest
from tests.support.coordinator import plan_of

from headgate.control.messages import Register, TaskState
from headgate.coordinator.events import MAX_EVENTS, EventLog
from headgate.observe import JobStatus


def log_of(workers=2):
    return EventLog(plan_of(workers), now_ms=iter(range(10_000)).__next__)


def texts(log):
    return [one.text for one in log.events()]


def moved(log, state, *subtasks, vertex=0):
    for subtask in subtasks:
        log.moved(vertex, subtask, state)


def test_tasks_that_do_the_same_are_one_event():
    log = log_of(3)
    moved(log, TaskState.DEPLOYED, 0, 1, 2)
    moved(log, TaskState.RUNNING, 0, 2, 2)
    assert texts(log) == []
    moved(log, TaskState.RUNNING, 1)
    moved(log, TaskState.FINISHED, 0, 1, 2, 2)
    assert texts(log) == ["words: all 3 tasks run", "words: all 3 tasks have finished"]


def test_a_single_task_is_called_that():
    log = log_of(1)
    moved(log, TaskState.RUNNING, 0, vertex=1)
    moved(log, TaskState.CANCELLED, 0, vertex=1)
    assert texts(log) == ["count: its task runs", "count: its task has been cancelled"]


def test_a_task_that_fails_is_named_once():
    log = log_of(3)
    moved(log, TaskState.FAILED, 1, 1)
    moved(log, TaskState.FINISHED, 0)
    moved(log, TaskState.CANCELLED, 2)
    assert [(one.text, one.level) for one in log.events()] == [
        ("words: subtask 1 has failed", "error"),
        ("words: of 3 tasks 1 has been cancelled, 1 has failed, 1 has finished", "info"),
    ]


def test_a_few_workers_are_named_and_many_are_counted():
    log = log_of(2)
    log.registered(1, Register("10.0.0.7", 4040, 4711, "0.1"), missing=1)
    assert texts(log) == ["worker 1 is there: 10.0.0.7, process 4711"]
    many = log_of(40)
    for number in range(40):
        many.registered(number, Register("10.0.0.7", 4040, 4711, "0.1"), missing=39 - number)
    assert texts(many) == ["all 40 workers are there"]


def test_partitions_are_a_count():
    log = log_of(3)
    for count in (1, 2, 3):
        log.consumable(count)
    assert texts(log) == ["1 of 3 partitions can be read", "3 of 3 partitions can be read"]


@pytest.mark.parametrize(
    ("status", "text", "level"),
    [
        (JobStatus.FINISHED, "the job has finished", "info"),
        (JobStatus.CANCELLED, "the job has been cancelled", "info"),
        (JobStatus.FAILED, "the job has failed", "error"),
    ],
)
def test_the_end_of_the_job_is_the_last_event(status, text, level):
    log = log_of()
    log.over(status)
    (event,) = log.events()
    assert (event.text, event.level) == (text, level)
    moved(log, TaskState.CANCELLED, 0, 1)
    assert log.events() == (event,), "what comes later is no news"


def test_only_the_last_events_are_kept_and_each_is_a_line():
    log = log_of()
    for number in range(MAX_EVENTS + 7):
        log.note(f"event {number}\nwith more\nlines")
    assert len(log.events()) == MAX_EVENTS
    assert texts(log)[0] == "event 7"
    assert [one.at_ms for one in log.events()][-1] == MAX_EVENTS + 6
    log.note("x" * 100_000)
    assert len(texts(log)[-1]) == 500
    log.note("")
    log.note("\ud800")
    assert texts(log)[-2:] == ["", "\\ud800"]


def test_a_large_job_fits_in():
    """Two hundred vertices of a hundred tasks: what its beginning was is still there at its end."""
    log = EventLog(plan_of(100), now_ms=lambda: 0)
    for vertex in (0, 1):
        moved(log, TaskState.RUNNING, *range(100), vertex=vertex)
        moved(log, TaskState.FINISHED, *range(100), vertex=vertex)
    assert len(log.events()) == 4


def test_tasks_that_are_run_again_have_new_events():
    log = log_of(2)
    moved(log, TaskState.RUNNING, 0, 1)
    moved(log, TaskState.FINISHED, 0)
    moved(log, TaskState.FAILED, 1)
    moved(log, TaskState.DEPLOYED, 1)
    moved(log, TaskState.RUNNING, 1)
    moved(log, TaskState.FINISHED, 1)
    assert texts(log) == [
        "words: all 2 tasks run",
        "words: subtask 1 has failed",
        "words: of 2 tasks 1 has failed, 1 has finished",
        "words: all 2 tasks run",
        "words: all 2 tasks have finished",
    ]


def test_tasks_run_by_new_workers_have_new_events():
    log = log_of(2)
    moved(log, TaskState.RUNNING, 0, 1)
    moved(log, TaskState.FINISHED, 0)
    log.renewed()
    moved(log, TaskState.DEPLOYED, 1)
    moved(log, TaskState.RUNNING, 1)
    moved(log, TaskState.FINISHED, 1)
    assert texts(log) == ["words: all 2 tasks run", "words: all 2 tasks run", "words: all 2 tasks have finished"]
