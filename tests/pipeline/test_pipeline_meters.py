"""The meters of whole jobs: a slow consumer, bottlenecks that take turns, channels and connections (B2)."""

import sys
import threading
import time
from itertools import pairwise

import pytest
from tests.support.pipelines import Endless, Gathered, run, running, small_env, wait_progress
from tests.support.waiting import wait_until

import headgate as hg
from headgate.control.messages import TaskState
from headgate.observe import TaskLine


def slow(over, seconds=0.005):
    """A function that takes its time, until the test is over."""

    def take(value):
        over.wait(seconds)
        return value

    return take


def the_line(job, vertex, **asked):
    """What is known of a vertex's last seconds."""
    tasks = job.timeline(vertex=vertex, **{"seconds": 60.0, "points": 600, **asked}).tasks
    return tasks[0] if tasks else TaskLine(vertex=vertex, subtask=-1)


def known(figures):
    return [one for one in figures if one >= 0]


def held_back(progress):
    """Whether all tasks of the source wait for those that read it."""
    source, consumer = progress.vertices
    waits, works = [one.back_pressured for one in source.subtasks], [one.busy for one in consumer.subtasks]
    return min(waits) > 0.9 and min(works) > 0.9 and all(one.cpu is not None for one in progress.workers)


@pytest.mark.spec("B2")
@pytest.mark.timing
def test_a_slow_consumer_is_busy_and_its_producer_back_pressured_in_the_past_too():
    env, over = small_env(2), threading.Event()
    env.from_source(Endless(batch=50)).rebalance().map(slow(over)).name("slow").for_each(lambda _: None)
    with running(env) as job:
        try:
            wait_progress(job, held_back)
            found = job.timeline(seconds=60, points=600, vertex=0)
            busy, progress = the_line(job, 1).busy, job.last_progress
        finally:
            over.set()
    assert found.step_ms == 100
    assert found.start_ms % 100 == 0
    assert abs(found.start_ms - time.time() * 1000) < 60_000
    assert [one.subtask for one in found.tasks] == [-1, 0, 1]
    assert {len(one.busy) for one in found.tasks} == {found.steps}
    for line in found.tasks[1:]:
        shares = zip(line.busy, line.idle, line.back_pressured, strict=True)
        assert {sum(one) for one in shares} <= {-3, 1000}
        assert sum(one > 900 for one in line.back_pressured) >= 5
    assert sum(one > 900 for one in busy) >= 5
    consumer = progress.vertices[1]
    assert max(known(found.tasks[0].out_pool)) > 500
    tasks = [one for vertex in progress.vertices for one in vertex.subtasks]
    if sys.platform == "linux":
        assert all(0 <= one.cpu < 0.9 and one.run_queue >= 0 for one in tasks), "all of them wait"
    check_channels(consumer)
    check_workers(progress.workers)


def check_channels(consumer):
    """Each task has a local and a remote channel, and both are full."""
    for task in consumer.subtasks:
        assert [(one.exchange, one.producer, one.local) for one in task.channels] == [
            (0, 0, task.subtask == 0),
            (0, 1, task.subtask == 1),
        ]
        (local,) = [one for one in task.channels if one.local]
        (remote,) = [one for one in task.channels if not one.local]
        assert (local.credit, local.exclusive, local.floating) == (0, 0, 0)
        assert local.backlog > 0
        assert remote.backlog > 0
        assert remote.queued > 0
        assert 0 <= remote.credit <= remote.exclusive + remote.floating
        assert min(local.bytes_in, remote.bytes_in) > 0
        assert local.bytes_in + remote.bytes_in == task.bytes_in
        assert min(task.backlog, task.in_queued) > 0


def check_workers(workers):
    for one in workers:
        (connection,) = one.connections
        assert connection.peer == 1 - one.number
        assert connection.bytes_out > 0
        assert 0 <= connection.blocked <= 1
        if sys.platform == "linux":
            assert connection.round_trip_ms >= 0
            assert connection.unsent_bytes >= 0
        assert one.cpu is None or one.cpu >= 0
        assert 0 < one.segments_free < one.segments_total == 512


TURN_MS = 300


def in_turns(over, turn):
    """A function that takes its time in every second turn, as the clock says; two of these take turns."""

    def take(value):
        if time.time_ns() // 1_000_000 // TURN_MS % 2 == turn:
            over.wait(0.01)
        return value

    return take


@pytest.mark.spec("B2")
@pytest.mark.timing
def test_alternating_bottlenecks_are_visible_in_intervals_but_not_in_means_of_a_second():
    env, over = small_env(1, chaining=False, network__max_buffers_per_channel=2), threading.Event()
    stream = env.from_source(Endless(batch=1)).map(
        lambda n: bytes(480)
    )  # a record fills a buffer: few are on their way
    stream.map(in_turns(over, 0)).name("first").map(in_turns(over, 1)).name("second").for_each(lambda _: None)
    with running(env) as job:
        try:
            wait_until(lambda: len(the_line(job, 2).busy) >= 35, "3.5 seconds")
            first, second = the_line(job, 2), the_line(job, 3)
            even = [the_line(job, vertex, seconds=3, points=3).busy for vertex in (2, 3)]
        finally:
            over.set()
    for line in (first, second):
        assert changes(line.busy) >= 6, line
        assert sum(one >= 900 for one in line.busy) >= 6, line
        assert sum(0 <= one <= 300 for one in line.busy) >= 6, line
    assert sum(one >= 700 for one in first.back_pressured) >= 6, "while the second has its turn"
    assert sum(one >= 700 for one in second.idle) >= 6, "while the first has"
    assert all(200 <= one <= 800 for busy in even for one in busy), "a second shows neither"


def changes(figures, high=800, low=400):
    """How often it goes from one side to the other."""
    sides = [one >= high for one in known(figures) if one >= high or one <= low]
    return sum(before is not after for before, after in pairwise(sides))


@pytest.mark.spec("B2")
def test_the_past_of_a_job_that_is_over_is_all_of_it():
    env = small_env(2)
    env.from_collection(range(5000)).rebalance().map(lambda n: n).key_by(lambda n: n % 9).reduce(max).sink_to(
        Gathered()
    )
    job = run(env)
    whole = job.view(timeline=True).timeline
    lines = {(one.vertex, one.subtask): one for one in whole.tasks}
    assert sum(known(lines[0, -1].records_in)) == 5000
    assert sum(known(lines[1, -1].records_in)) == 5000
    assert sum(known(lines[1, 0].records_in)) + sum(known(lines[1, 1].records_in)) == 5000
    assert job.timeline().tasks != ()
    over = job.last_progress
    assert {vertex.state for vertex in over.vertices} == {TaskState.FINISHED}
    assert all(one.channels == () and one.cpu is None for vertex in over.vertices for one in vertex.subtasks)
    assert all(one.connections == () and one.segments_free == one.segments_total for one in over.workers)


@pytest.mark.spec("B2")
def test_a_job_without_an_interval_has_no_past_but_figures():
    env, over = small_env(2, metrics__interval="0"), threading.Event()
    env.from_source(Endless()).rebalance().map(slow(over)).for_each(lambda _: None)
    with running(env) as job:
        try:
            wait_progress(job, lambda progress: all(vertex.records_in for vertex in progress.vertices))
            assert job.timeline().steps == 0
        finally:
            over.set()


@pytest.mark.spec("K1", "B2")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_every_chained_operator_counts_records_in_and_out_and_side_outputs_too(mode):
    class Sort(hg.ProcessFunction):
        def process_element(self, value, ctx):
            yield (hg.OutputTag("odd"), value) if value % 2 else value
            if value > 90:
                yield hg.OutputTag("late"), value

    env = small_env(2, execution__runtime_mode=mode)
    even = env.from_collection(range(100)).flat_map(lambda n: [n, n]).name("twice").process(Sort()).name("sort")
    even.map(str).name("text").rebalance().map(str.strip).name("strip").sink_to(Gathered()).name("kept")
    even.get_side_output(hg.OutputTag("odd")).filter(lambda n: n > 50).name("large").sink_to(Gathered()).name("odd")
    view = run(env).view()
    found = {}
    for graph, progress in zip(view.graph.vertices, view.progress.vertices, strict=True):
        for name, one in zip(graph.operators, progress.operators, strict=True):
            found[name] = (one.records_in, one.records_out, one.side_outputs)
        for task in progress.subtasks:
            assert len(task.operators) == len(graph.operators)
    assert found == {
        "collection": (100, 100, {}),
        "twice": (100, 200, {}),
        "sort": (200, 100, {"odd": 100, "late": 18}),
        "text": (100, 100, {}),
        "strip": (100, 100, {}),
        "kept": (100, 0, {}),
        "large": (100, 50, {}),
        "odd": (50, 0, {}),
    }
