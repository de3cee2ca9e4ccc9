"""StackSampling from the coordinator's side, with fake workers over real sockets: who is asked, and who is believed."""

from contextlib import contextmanager

import pytest
from tests.support.coordinator import Site, plan_of
from tests.support.threads import Thread
from tests.support.waiting import PATIENCE_S, wait_until

from headgate.config import load_settings
from headgate.control.messages import Cancel, Deploy, Done, SampleStacks
from headgate.control.reports import Stack, StackSamples, SubtaskSamples
from headgate.coordinator import JobStatus
from headgate.errors import HeadgateError, TransportError
from headgate.observe import PressureLevel

SAMPLES, DELAY_MS = 4, 3


def settings(**more):
    values = {"backpressure.samples": SAMPLES, "backpressure.delay": f"{DELAY_MS} ms"}
    return load_settings(code={**values, **{key.replace("__", "."): value for key, value in more.items()}})


@contextmanager
def begun(workers=2, late_s=None, **more):
    """A job whose workers were told to begin; who does not answer in `late_s` is late."""
    with Site(plan_of(workers, settings=settings(**more))) as site:
        fakes = site.all_workers()
        for one in fakes:
            one.wait_heard(Deploy())
        site.sampling = site.coordinator._monitor.sampling
        if late_s is not None:
            site.sampling._late_s = late_s
        yield site, fakes


def samples(vertex, subtask, back_pressured=0, taken=SAMPLES, idle=0, stacks=()):
    return SubtaskSamples(vertex, subtask, taken, idle, back_pressured, list(stacks))


def requests(worker):
    return [one for one in worker.heard if isinstance(one, SampleStacks)]


def request_to(worker, number=1):
    worker.wait(lambda: len(requests(worker)) >= number, "a request for samples")
    return requests(worker)[number - 1]


def answer(worker, *subtasks, number=1):
    worker.say(StackSamples(request_to(worker, number).request, list(subtasks)))


def leave_when_told(worker):
    worker.wait(lambda: any(isinstance(one, Cancel) for one in worker.heard), "Cancel")
    worker.say(Done())


def stack(operator, frames, count, idle=0, back_pressured=0):
    return Stack(operator=operator, frames=tuple(frames), count=count, idle=idle, back_pressured=back_pressured)


def ended(asking):
    """What a thread that asks ends with, as text if it is an error."""
    try:
        return asking.end()
    except HeadgateError as error:
        return str(error)


@pytest.mark.spec("B1")
def test_all_workers_are_asked_as_set_and_their_answers_are_put_together():
    with begun() as (site, (first, second)):
        asking = Thread(site.job.pressure)
        request = request_to(first)
        assert (request.samples, request.delay_ms, request.vertices) == (SAMPLES, DELAY_MS, [])
        assert request_to(second) == request
        slow = stack("map(slow)", ["slow (job.py:7)"], 3, 0, 1)
        answer(second, samples(0, 1, 3, stacks=[slow]), samples(1, 1, idle=4))
        answer(first, samples(0, 0, 0), samples(1, 0, idle=1))
        found = asking.end()
        assert (found.samples, found.delay_ms) == (SAMPLES, DELAY_MS)
        words, count = found.vertices
        assert [(one.subtask, one.ratio, one.level) for one in words.subtasks] == [
            (0, 0.0, PressureLevel.OK),
            (1, 0.75, PressureLevel.HIGH),
        ]
        assert (words.vertex, words.ratio, words.level) == (0, 0.75, PressureLevel.HIGH)
        assert words.subtasks[1].stacks[0].frames == ("slow (job.py:7)",)
        assert [one.idle for one in count.subtasks] == [0.25, 1.0]
        assert site.job.view().pressure == found


@pytest.mark.spec("B1")
def test_workers_are_sampled_on_request_and_the_answer_is_kept_until_a_refresh():
    with begun(1) as (site, (worker,)):
        assert site.job.view().pressure is None
        assert requests(worker) == []
        asking = Thread(site.job.pressure)
        answer(worker, samples(0, 0, 4))
        found = asking.end()
        assert site.job.pressure() is found
        assert len(requests(worker)) == 1
        asking = Thread(lambda: site.job.pressure(refresh=True))
        answer(worker, samples(0, 0, 0), number=2)
        newer = asking.end()
        assert newer.vertices[0].level is PressureLevel.OK
        assert site.job.pressure() is newer
        assert len(requests(worker)) == 2
        assert [one.request for one in requests(worker)] == [1, 2]


def test_with_a_keep_time_of_zero_every_call_samples():
    with begun(1, backpressure__refresh="0 s") as (site, (worker,)):
        for number in (1, 2):
            asking = Thread(site.job.pressure)
            answer(worker, samples(0, 0), number=number)
            asking.end()


def test_concurrent_callers_share_a_round():
    with begun(1) as (site, (worker,)):
        asking = [Thread(lambda: site.job.pressure(refresh=True)) for _ in range(3)]
        request_to(worker)
        waiters = site.sampling._changed._waiters
        wait_until(lambda: len(waiters) == 3, "three who wait")
        answer(worker, samples(0, 0, 2))
        first, *others = [one.end() for one in asking]
        assert all(one is first for one in others)
        assert len(requests(worker)) == 1


def test_a_worker_that_does_not_answer_in_time_is_left_out_and_named():
    with begun(late_s=0.2) as (site, (first, second)):
        asking = Thread(site.job.pressure)
        answer(first, samples(0, 0, 1))
        found = asking.end()
        assert [one.subtask for one in found.vertices[0].subtasks] == [0]
        assert site.job.events[-1].text == "no samples of worker 1 came in time"
        assert site.job.events[-1].level == "warning"
        answer(second, samples(0, 1))  # too late, which is nothing
        asking = Thread(lambda: site.job.pressure(refresh=True))
        for worker in (first, second):
            answer(worker, samples(0, worker.number), number=2)
        assert len(asking.end().vertices[0].subtasks) == 2
        assert site.job.status is JobStatus.RUNNING


def test_a_round_without_answers_is_an_error():
    with begun(1, late_s=0.0) as (site, _), pytest.raises(HeadgateError, match="no worker that answered in time"):
        site.job.pressure()


def test_an_abandoned_round_does_not_block_the_next():
    with begun(1, late_s=0.0) as (site, (worker,)):
        site.sampling._round = site.sampling._new_locked()  # as one leaves it who was interrupted
        wait_until(lambda: site.sampling._round.deadline_s < site.sampling._new_locked().deadline_s - 0.05, "its end")
        site.sampling._late_s = PATIENCE_S
        asking = Thread(site.job.pressure)
        answer(worker, samples(0, 0))
        assert len(asking.end().vertices) == 1


def test_a_worker_that_is_done_may_still_answer_and_a_job_that_loses_one_ends_the_round():
    with begun() as (site, (first, second)):
        asking = Thread(site.job.pressure)
        request_to(first)
        request_to(second)
        first.say(Done())
        answer(first, samples(0, 0))
        wait_until(lambda: 0 in getattr(site.sampling._round, "answers", {0}), "the first answer")
        second.close()
        assert [one.subtask for one in asking.end().vertices[0].subtasks] == [0]


def test_before_it_begins_there_is_nothing_to_sample():
    with Site() as site, pytest.raises(HeadgateError, match="has not begun"):
        site.job.pressure()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_the_end_of_the_job_ends_the_wait(end):
    with begun(1) as (site, (worker,)):
        asking = Thread(site.job.pressure)
        request_to(worker)
        if end == "cancel":
            site.job.cancel(wait=False)
            leave_when_told(worker)
        else:
            site.coordinator.close()
        assert "ended before its samples came" in ended(asking)
        with pytest.raises(HeadgateError, match="is over, and its tasks were not sampled"):
            site.job.pressure()


def test_no_worker_is_sampled_while_the_job_stops():
    with begun(1) as (site, (worker,)):
        site.job.cancel(wait=False)
        worker.wait(lambda: any(isinstance(one, Cancel) for one in worker.heard), "Cancel")
        assert "ended before its samples came" in ended(Thread(site.job.pressure))
        assert requests(worker) == []


def test_the_last_samples_are_kept_when_the_job_is_over():
    with begun(1) as (site, (worker,)):
        asking = Thread(site.job.pressure)
        answer(worker, samples(0, 0, 4))
        found = asking.end()
        worker.say(Done())
        assert site.job.wait(PATIENCE_S)
        site.coordinator.close()
        assert site.job.pressure() is found
        assert site.job.pressure(refresh=True) is found
        assert site.job.view().pressure is found


def test_answers_that_came_before_the_end_of_the_job_count():
    with begun() as (site, (first, second)):
        asking = Thread(site.job.pressure)
        request_to(second)
        answer(first, samples(0, 0, 4))
        wait_until(lambda: 0 in getattr(site.sampling._round, "answers", {0}), "the first answer")
        first.say(Done())
        second.say(Done())
        assert [one.subtask for one in asking.end().vertices[0].subtasks] == [0]
        assert not [one for one in site.job.events if one.level != "info"], "that is nobody's fault"


def test_a_callback_must_not_wait():
    with begun(1) as (site, (worker,)):
        heard = []
        for ask in (site.job.pressure, site.job.why):
            site.job.on_change(lambda job, ask=ask: heard.append(ended(FromThisThread(ask))))
        worker.say(Done())
        assert site.job.wait(PATIENCE_S)
        wait_until(lambda: len(heard) >= 2, "the callbacks")
        assert all("must not block" in one for one in heard)
        with pytest.raises(HeadgateError, match="is over"):
            site.job.pressure()


class FromThisThread:
    def __init__(self, end):
        self.end = end


LONG = "x" * 3000


BAD = {
    "request 0": StackSamples(0, []),
    "request below 0": StackSamples(-1, []),
    "a request to come": StackSamples(2, []),
    "a request far from it": StackSamples(2**60, []),
    "another worker's task": StackSamples(1, [samples(0, 1)]),
    "no such vertex": StackSamples(1, [samples(2, 0)]),
    "a vertex below 0": StackSamples(1, [samples(-1, 0)]),
    "a subtask below 0": StackSamples(1, [samples(0, -1)]),
    "no such subtask": StackSamples(1, [samples(0, 2**62)]),
    "a task twice": StackSamples(1, [samples(0, 0), samples(0, 0)]),
    "more than was asked": StackSamples(1, [samples(0, 0, taken=SAMPLES + 1)]),
    "less than none": StackSamples(1, [samples(0, 0, taken=-1)]),
    "more held back than seen": StackSamples(1, [samples(0, 0, back_pressured=SAMPLES + 1)]),
    "held back below 0": StackSamples(1, [samples(0, 0, back_pressured=-1)]),
    "idle below 0": StackSamples(1, [samples(0, 0, idle=-1)]),
    "states that are too many": StackSamples(1, [samples(0, 0, idle=3, back_pressured=2)]),
    "stacks that are too many": StackSamples(1, [samples(0, 0, stacks=[stack("", [], SAMPLES + 1)])]),
    "a stack below 0": StackSamples(1, [samples(0, 0, stacks=[stack("", [], -1)])]),
    "more states than stacks": StackSamples(1, [samples(0, 0, stacks=[stack("", [], 1, 1, 1)])]),
    "a state of a stack below 0": StackSamples(1, [samples(0, 0, stacks=[stack("", [], 1, -1, 0)])]),
    "a long frame": StackSamples(1, [samples(0, 0, stacks=[stack("", [LONG], 1)])]),
    "a long operator": StackSamples(1, [samples(0, 0, stacks=[stack(LONG, [], 1)])]),
    "a deep stack": StackSamples(1, [samples(0, 0, stacks=[stack("", ["f"] * 65, 1)])]),
    "many stacks": StackSamples(1, [samples(0, 0, stacks=[stack("", [], 0)] * 201)]),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_invalid_samples_are_refused(bad):
    with begun() as (site, (first, second)):
        asking = Thread(site.job.pressure)
        request_to(second)
        request_to(first)
        first.say(bad)
        leave_when_told(second)
        with pytest.raises(TransportError, match="worker 0 was lost before it was done"):
            site.job.await_termination(PATIENCE_S)
        assert "ended before its samples came" in ended(asking)


def test_an_answer_twice_is_refused():
    with begun() as (site, (first, second)):
        asking = Thread(site.job.pressure)
        request_to(second)
        answer(first, samples(0, 0))
        answer(first, samples(0, 0))
        leave_when_told(second)
        with pytest.raises(TransportError, match="twice, or without a request"):
            site.job.await_termination(PATIENCE_S)
        assert len(asking.end().vertices) == 1


def test_unrequested_samples_are_refused():
    with begun() as (site, (first, second)):
        first.say(StackSamples(1, []))
        leave_when_told(second)
        with pytest.raises(TransportError, match="were not requested"):
            site.job.await_termination(PATIENCE_S)
