"""Jobs beside each other, jobs one after the other, and plans that cannot be run."""

import logging
import sys
import threading

import pytest
from tests.support.pipelines import END_S, Endless, Gathered, collected, failure, run, small_env
from tests.support.threads import Thread

import headgate as hg
from headgate.coordinator import Coordinator, JobStatus


@pytest.mark.spec("M9")
def test_jobs_at_once_do_not_touch_each_other():
    def job(number):
        stream = small_env(2).from_collection(range(300), parallel=True).rebalance().map(lambda n: (number, n))
        return sorted(collected(stream.key_by(lambda pair: pair[1] % 7).reduce(max)))

    results = [thread.end() for thread in [Thread(lambda n=n: job(n)) for n in range(4)]]
    for number, got in enumerate(results):
        assert {one for one, _ in got} == {number}
        assert len(got) == 300


@pytest.mark.spec("K6", "M9")
def test_one_that_fails_or_is_cancelled_leaves_the_other_alone():
    endless, sink = small_env(2), Gathered()
    endless.from_source(Endless()).rebalance().sink_to(sink)
    job = endless.execute_async()
    sink.wait_for(1)
    failing = small_env(2)
    failing.from_collection(range(5), parallel=True).rebalance().map(lambda n: 1 // (n - 3)).for_each(lambda _: None)
    failure(failing, hg.UserCodeError)
    cancelled, other = small_env(2), Gathered()
    cancelled.from_source(Endless()).rebalance().sink_to(other)
    second = cancelled.execute_async()
    other.wait_for(1)
    assert second.cancel(timeout_s=END_S)
    assert job.status is JobStatus.RUNNING
    sink.wait_for(len(sink.values) + 100)
    assert job.cancel(timeout_s=END_S)


def test_two_jobs_of_one_environment_run_at_once():
    env, first, second = small_env(2), Gathered(), Gathered()
    env.from_source(Endless()).rebalance().sink_to(first)
    one = env.execute_async("one")
    env.from_source(Endless()).rebalance().sink_to(second)
    two = env.execute_async("two")
    first.wait_for(10)
    second.wait_for(10)
    assert (one.name, two.name) == ("one", "two")
    assert one.id != two.id
    assert one.cancel(timeout_s=END_S)
    assert two.cancel(timeout_s=END_S)


def test_each_subtask_has_its_own_copy_of_a_function():
    class Counting(hg.MapFunction):
        def __init__(self):
            self.seen = 0

        def map(self, value):
            self.seen += 1
            return self.seen

    function = Counting()
    got = collected(small_env(3).from_collection(range(30), parallel=True).set_parallelism(1).rebalance().map(function))
    assert sorted(got) == sorted([*range(1, 11)] * 3)
    assert function.seen == 0


def test_a_plan_that_cannot_be_copied_leaves_nothing():
    class Locked(hg.MapFunction):
        def __init__(self):
            self.lock = threading.Lock()

        def map(self, value):
            return value

    env = small_env(2)
    env.from_collection(range(3), parallel=True).map(Locked()).name("culprit").for_each(lambda _: None)
    with pytest.raises((TypeError, hg.HeadgateError), match="culprit"):
        env.execute_async()


def test_the_switch_interval_is_restored():
    before_s = sys.getswitchinterval()
    try:
        for _ in range(3):
            assert len(collected(small_env(4).from_collection(range(10), parallel=True).rebalance().map(str))) == 10
            assert sys.getswitchinterval() == before_s
    finally:
        sys.setswitchinterval(before_s)


@pytest.mark.spec("M9")
def test_many_jobs_one_after_the_other_leave_nothing():
    threads = threading.active_count()
    for number in range(10):
        assert len(collected(small_env(2).from_collection(range(number), parallel=True).rebalance().map(str))) == number
        assert threading.active_count() == threads, "when a job is over, so are its threads"


def test_a_function_that_is_stuck_is_named_and_not_waited_for_for_ever(monkeypatch, caplog):
    monkeypatch.setattr("headgate.worker.run._STOP_S", 0.1)
    monkeypatch.setitem(Coordinator.__init__.__kwdefaults__, "goodbye_timeout_s", 0.1)
    caplog.set_level(logging.DEBUG, logger="headgate")
    inside, go, env = threading.Event(), threading.Event(), small_env(1)

    def hang(_):
        inside.set()
        go.wait(END_S)

    env.from_collection(range(3), parallel=True).rebalance().sink_to(Gathered(each=hang)).name("stuck one")
    job = env.execute_async()
    try:
        assert inside.wait(END_S)
        assert job.cancel(timeout_s=END_S)
        assert job.status is JobStatus.CANCELLED
        assert "stuck one (1/1)" in caplog.text
    finally:
        go.set()


def test_user_counters_are_added_up():
    class Rejecting(hg.FilterFunction):
        def open(self, context):
            self.context = context

        def filter(self, value):
            self.context.count("rejected" if value % 3 else "kept")
            return value % 3 == 0

    env = small_env(2)
    env.from_collection(range(30), parallel=True).filter(Rejecting()).for_each(lambda _: None)
    assert run(env).last_progress.vertices[0].counters == {"kept": 10, "rejected": 20}
