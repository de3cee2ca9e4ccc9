"""Rounds of sampling in a worker: one at a time, answered once, and nothing left of them."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
from tests.support.waiting import Watched

from headgate.control.messages import SampleStacks
from headgate.control.reports import StackSamples
from headgate.meters import Activity, TaskTimer
from headgate.task.operators.basic import Map
from headgate.testing.harness import OperatorHarness
from headgate.worker import stack_sampling
from headgate.worker.stack_sampling import StackSampler


class Running(threading.Thread):
    """A task that waits in a function of the user's until it is told to end; as much of it as is looked at."""

    def __init__(self, vertex=0, subtask=0):
        super().__init__(daemon=True)
        self.vertex, self.subtask = SimpleNamespace(id=vertex), subtask
        self.timer = TaskTimer(lambda: 0)
        self.entered, self.end = threading.Event(), threading.Event()
        self.harness = OperatorHarness(Map(self.works))
        self.chain = SimpleNamespace(operators=[self.harness.operator])

    @property
    def task(self):
        alive = self.is_alive()
        return SimpleNamespace(chain=self.chain, ident=self.ident if alive else None)

    def works(self, value):
        self.entered.set()
        self.end.wait(30)

    def run(self):
        with self.harness as harness:
            harness.process([1])


class Site(Watched):
    """A sampler with tasks; hears what it tells."""

    def __init__(self, *tasks):
        super().__init__()
        self.tasks, self.told = tasks, []
        self.sampler = StackSampler(lambda: self.tasks, self.tell)

    def tell(self, message):
        with self.change():
            self.told.append(message)

    def answer(self, number=1):
        self.wait(lambda: len(self.told) >= number, "an answer")
        return self.told[number - 1]

    def __enter__(self):
        for task in self.tasks:
            task.start()
            assert task.entered.wait(30)
        return self

    def __exit__(self, *exc):
        self.sampler.stop()
        for task in self.tasks:
            task.end.set()
            task.join(30)
        assert not [one for one in threading.enumerate() if one.name == "headgate-sampler"]


@pytest.mark.spec("B1")
def test_every_task_is_sampled_as_often_as_was_asked():
    with Site(Running(0), Running(1), Running(1, subtask=1)) as site:
        site.tasks[0].timer.enter(Activity.BACK_PRESSURED)
        site.tasks[1].timer.enter(Activity.IDLE)
        site.sampler.start(SampleStacks(request=7, samples=5, delay_ms=1))
        answer = site.answer()
        assert answer.request == 7
        seen = [(one.vertex, one.subtask, one.taken, one.idle, one.back_pressured) for one in answer.subtasks]
        assert seen == [(0, 0, 5, 0, 5), (1, 0, 5, 5, 0), (1, 1, 5, 0, 0)]
        (stack,) = answer.subtasks[2].stacks
        assert stack.operator == "Map"
        assert stack.frames[0].startswith("Running.works (test_stack_sampler.py:")
        assert stack.count == 5


def test_only_the_vertices_that_were_asked_for_are_sampled():
    with Site(Running(0), Running(1)) as site:
        site.sampler.start(SampleStacks(request=1, samples=2, delay_ms=1, vertices=[1]))
        assert [one.vertex for one in site.answer().subtasks] == [1]


@pytest.mark.spec("B1")
def test_nothing_runs_before_it_is_asked_for_nor_afterwards(monkeypatch):
    started, start = [], threading.Thread.start

    def count(thread):
        started.append(thread.name)
        start(thread)

    with Site(Running()) as site:
        monkeypatch.setattr(threading.Thread, "start", count)
        StackSampler(lambda: site.tasks, site.tell).stop()
        assert started == []
        site.sampler.start(SampleStacks(request=1, samples=2, delay_ms=1))
        site.answer()
        site.sampler.stop()
        assert started == ["headgate-sampler"]


def test_a_stopped_sampler_answers_with_the_samples_so_far():
    with Site(Running()) as site:
        site.sampler.start(SampleStacks(request=1, samples=10_000, delay_ms=10_000))
        site.sampler.stop()
        assert [one.taken for one in site.answer().subtasks] in ([1], [])
        site.sampler.stop()
        assert len(site.told) == 1


def test_a_new_request_ends_the_one_before():
    with Site(Running()) as site:
        site.sampler.start(SampleStacks(request=1, samples=10_000, delay_ms=10_000))
        site.sampler.start(SampleStacks(request=2, samples=2, delay_ms=1))
        assert [site.answer(1).request, site.answer(2).request] == [1, 2]


def test_when_all_tasks_are_over_so_is_the_round():
    with Site(Running()) as site:
        site.tasks[0].end.set()
        site.tasks[0].join(30)
        site.sampler.start(SampleStacks(request=1, samples=10_000, delay_ms=10_000))
        assert site.answer() == StackSamples(1, [])


def test_a_thread_that_has_got_the_number_of_one_that_has_ended_is_not_taken_for_it():
    with Site(Running(), Running(1)) as site:
        other = site.tasks[1]
        over = SimpleNamespace(chain=site.tasks[0].chain, ident=None)  # as Task says of one that has ended
        ended = SimpleNamespace(vertex=SimpleNamespace(id=0), subtask=0, timer=other.timer, task=over)
        site.sampler._tasks = lambda: [ended, other]
        site.sampler.start(SampleStacks(request=1, samples=2, delay_ms=1))
        assert [one.vertex for one in site.answer().subtasks] == [1]


def test_an_error_of_sampling_is_logged_and_the_next_request_is_answered(caplog):
    with Site(Running()) as site:
        site.sampler._tasks = lambda: 1 / 0
        site.sampler.start(SampleStacks(request=1, samples=2, delay_ms=1))
        site.sampler.stop()
        assert "ZeroDivisionError" in caplog.text
        site.sampler._tasks = lambda: site.tasks
        site.sampler.start(SampleStacks(request=2, samples=1, delay_ms=1))
        assert site.answer().request == 2


def test_the_answer_of_many_tasks_can_be_sent(monkeypatch):
    monkeypatch.setattr(stack_sampling, "_STACK_BYTES", 1000)
    with Site(Running(0), Running(1), Running(2)) as site:
        site.sampler.start(SampleStacks(request=1, samples=1, delay_ms=1))
        for one in site.answer().subtasks:
            assert one.stacks[0].frames[0].startswith("Running.works (")
        monkeypatch.setattr(stack_sampling, "_LEAST_BYTES", 0)
        monkeypatch.setattr(stack_sampling, "_STACK_BYTES", 60)
        site.sampler.start(SampleStacks(request=2, samples=1, delay_ms=1))
        assert [one.stacks[0].frames for one in site.answer(2).subtasks] == [("others",)] * 3


def test_no_frame_outlives_a_sample():
    """Two who look at each other's threads would otherwise keep each other, and with them what tasks hold."""

    class Held:
        pass

    held, looked, leave = [], threading.Event(), threading.Event()

    def holds():
        local = Held()
        held.append(weakref.ref(local))
        looked.set()
        leave.wait(30)

    with Site(Running()) as site:
        thread = threading.Thread(target=holds)
        gc.disable()
        try:
            thread.start()
            assert looked.wait(30)
            others = [StackSampler(lambda: site.tasks, site.tell) for _ in range(3)]
            for number, other in enumerate(others):
                other.start(SampleStacks(request=number, samples=20, delay_ms=1))
            site.wait(lambda: len(site.told) == 3)
            for other in others:
                other.stop()
            leave.set()
            thread.join(30)
            del thread
            assert held[0]() is None
        finally:
            leave.set()
            gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_during_a_sample(monkeypatch, enabled):
    """A finalizer could let another thread run, which starts one, and waits for ever: the interpreter has that lock."""
    seen, look = [], stack_sampling.sys._current_frames

    def current_frames():
        seen.append(gc.isenabled())
        return look()

    monkeypatch.setattr(stack_sampling.sys, "_current_frames", current_frames)
    if not enabled:
        gc.disable()
    try:
        assert threading.get_ident() in stack_sampling._frames()
        assert (seen, gc.isenabled()) == ([False], enabled), "and then as it was"
    finally:
        gc.enable()
