"""Samples of a running job: tasks in back pressure, the functions of the others, and no samples without a request."""

import inspect
import threading
import time

import pytest
from tests.support.pipelines import END_S, Endless, Gathered, run, running, small_env
from tests.support.threads import Thread
from tests.support.waiting import wait_until

from headgate.coordinator import JobStatus
from headgate.errors import HeadgateError
from headgate.observe import Flame, JobView, PressureLevel, flames_of

QUICK = {"backpressure__samples": 20, "backpressure__delay": "5 ms"}
NOBODY = Flame(name="nobody", value=0)
FOR_EVER = {"backpressure__samples": 10_000, "backpressure__delay": "1 s"}


def samplers():
    return [one for one in threading.enumerate() if one.name == "headgate-sampler"]


def pressure_when(job, condition):
    """What is found as soon as it is as wanted: a job needs a moment to fill its buffers."""
    wait_until(lambda: job.status is JobStatus.RUNNING, "its beginning")
    deadline = time.monotonic() + END_S
    while True:
        found = job.pressure(refresh=True)
        if condition(found):
            return found
        assert time.monotonic() < deadline, found


def answer(asking):
    """Return the samples of a request; None: the job has ended before."""
    try:
        return asking.end()
    except HeadgateError as error:
        if "ended before its samples came" not in str(error):
            raise
        return None


def frames_of(vertex):
    return {(stack.operator, frame) for task in vertex.subtasks for stack in task.stacks for frame in stack.frames}


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return found


@pytest.mark.spec("B1")
def test_a_producer_of_a_stuck_consumer_is_back_pressured_and_the_consumer_is_not():
    stuck = threading.Event()

    def wait_for_it(value):
        stuck.wait(END_S)  # here

    env = small_env(2, **QUICK)
    env.from_source(Endless()).rebalance().for_each(wait_for_it).name("stuck")
    with running(env) as job:
        try:
            found = pressure_when(job, lambda found: found.vertices[0].ratio == 1.0)
        finally:
            stuck.set()
        source, sink = found.vertices
        assert source.level is PressureLevel.HIGH
        assert (sink.ratio, sink.level) == (0.0, PressureLevel.OK)
        assert len(source.subtasks) == len(sink.subtasks) == 2, "two workers have answered"
        assert {task.taken for task in sink.subtasks} == {20}
        assert ("stuck", f"wait_for_it (test_pressure.py:{line_of(wait_for_it, '# here')})") in frames_of(sink)
        assert {frame for _, frame in frames_of(source)} >= {"waits for a buffer (headgate)"}
        flames = flames_of(source)
        assert flames.back_pressured.value > 0


@pytest.mark.spec("B1")
@pytest.mark.timing
def test_a_producer_without_back_pressure_has_level_ok():
    env = small_env(1, **QUICK)
    env.from_source(Endless(pause_s=0.002)).rebalance().sink_to(Gathered())
    with running(env) as job:
        found = pressure_when(job, lambda found: len(found.vertices) == 2)
        assert [one.level for one in found.vertices] == [PressureLevel.OK, PressureLevel.OK]
        assert found.vertices[1].subtasks[0].idle > 0


@pytest.mark.timing
def test_the_slow_function_of_a_chain_is_named_with_its_line():
    def quick(value):
        return value

    def slow(value):
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            value += 1  # here
        return value

    env = small_env(1, **QUICK)
    env.from_source(Endless()).map(quick).map(slow).map(quick).sink_to(Gathered())
    with running(env) as job:

        def hot(found):
            """The operator that was busy most often."""
            return max(flames_of(found.vertices[0]).busy.children, key=lambda one: one.value, default=NOBODY)

        found = pressure_when(job, lambda found: found.vertices and hot(found).value >= 15)
        operators = job.view().graph.vertices[0].operators
        assert hot(found).name == next(one for one in operators if "slow" in one)
        lines = range(line_of(slow, "while"), line_of(slow, "# here") + 1)
        assert hot(found).children[0].name in {f"slow (test_pressure.py:{number})" for number in lines}


def test_a_source_and_a_key_function_are_the_users_too():
    entered = threading.Event()

    def key(value):
        entered.set()
        time.sleep(0.05)  # here
        return value % 3

    env = small_env(1, **QUICK)
    env.from_source(Endless()).key_by(key).reduce(lambda a, b: b).sink_to(Gathered())
    with running(env) as job:
        assert entered.wait(END_S)
        wanted = f"key (test_pressure.py:{line_of(key, '# here')})"
        found = pressure_when(job, lambda found: wanted in {frame for _, frame in frames_of(found.vertices[0])})
        assert found.vertices[0].vertex == 0


@pytest.mark.spec("B1")
def test_nothing_is_sampled_without_a_request_and_an_answer_is_kept(monkeypatch):
    started, start = [], threading.Thread.start

    def count(thread):
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", count)
    env, sink = small_env(2, **QUICK), Gathered()
    env.from_source(Endless()).rebalance().sink_to(sink)
    with running(env) as job:
        sink.wait_for(1000)
        job.view(timeline=True)
        job.timeline()
        assert job.last_progress.status is JobStatus.RUNNING
        assert "headgate-sampler" not in started
        found = job.pressure()
        assert started.count("headgate-sampler") == 2, "one in each worker"
        wait_until(lambda: not samplers(), "the end of the samplers")
        assert job.pressure() is found
        assert started.count("headgate-sampler") == 2
        job.pressure(refresh=True)
        assert started.count("headgate-sampler") == 4
    assert job.pressure(refresh=True).at_ms >= found.at_ms, "it is over: what was found last"


def test_a_job_that_is_cancelled_while_it_is_sampled_ends_at_once_and_leaves_nothing():
    env = small_env(2, **FOR_EVER)
    env.from_source(Endless()).rebalance().sink_to(Gathered())
    with running(env) as job:
        wait_until(lambda: job.status is JobStatus.RUNNING, "its beginning")
        asking = Thread(job.pressure)
        wait_until(lambda: len(samplers()) == 2, "the samplers")
    assert answer(asking) is None or answer(asking).vertices
    wait_until(lambda: not samplers(), "the end of the samplers")
    assert job.status is JobStatus.CANCELLED


def test_a_job_that_finishes_while_it_is_sampled_ends_the_round():
    last = threading.Event()

    def wait_for_it(value):
        last.wait(END_S)
        return value

    env = small_env(1, **FOR_EVER)
    env.from_collection([1]).map(wait_for_it).sink_to(Gathered())
    job = env.execute_async()
    try:
        wait_until(lambda: job.status is JobStatus.RUNNING, "its beginning")
        asking = Thread(job.pressure)
        wait_until(samplers, "the sampler")
    finally:
        last.set()
        assert job.await_termination(END_S)
    assert answer(asking) is None or answer(asking).vertices
    wait_until(lambda: not samplers(), "the end of the sampler")


def test_a_finished_job_can_be_looked_at_and_kept():
    env = small_env(2)
    env.from_collection(range(100)).rebalance().sink_to(Gathered())
    job = run(env)
    view = job.view(timeline=True)
    assert JobView.from_json(view.to_json()) == view
    assert view.progress.vertices[1].records_in == 100
    texts = [one.text for one in view.events]
    assert texts[-1] == "the job has finished"
    assert "the job begins, with 2 workers" in texts
    assert any(text.endswith("all 2 tasks have finished") for text in texts)
    with pytest.raises(HeadgateError, match="its tasks were not sampled while it ran"):
        job.pressure()


def test_why_names_the_bottleneck():
    def slow(value):
        time.sleep(0.01)
        return value

    env = small_env(1, **QUICK)
    env.from_source(Endless()).rebalance().map(slow).rebalance().sink_to(Gathered())
    with running(env) as job:
        deadline = time.monotonic() + END_S
        while (found := job.why(refresh=True)).operator != "map(slow)":
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        assert job.view().diagnosis == found
        assert "slow (test_pressure.py:" in (found.function or "")
    assert job.why() == found
