"""K4 in whole jobs: events travel through tasks in order with the data, and back from consumers to producers."""

import threading

import pytest
from tests.support.pipelines import END_S, Gathered, collected, run, small_env

import headgate as hg
from headgate.connectors.collect import ProcessLocal
from headgate.functions.source import Source, Wait
from headgate.record.element import CheckpointBarrier, EndOfSuperstep
from headgate.task.operator import Operator

pytestmark = pytest.mark.spec("K4")

BOTH = pytest.mark.parametrize("chaining", [True, False], ids=["chained", "apart"])
MODES = pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])


class Numbers(Source):
    """Numbers from 0 on, of each subtask, with an event `at-n` after every `every`."""

    def __init__(self, count, every, *, barriers=False):
        self.count, self.every, self.barriers = count, every, barriers

    def splits(self, parallelism):
        return range(parallelism)

    def read(self, split, offset, place):
        for number in range(self.count):
            yield [(split, number)]
            if (number + 1) % self.every == 0:
                yield hg.UserEvent(f"at-{number}", b"%d" % split)
                if self.barriers:
                    yield CheckpointBarrier(checkpoint=number, timestamp_ms=0)
                    yield EndOfSuperstep()


class Noting(hg.ProcessFunction):
    """Passes values on, and notes events among them."""

    def process_element(self, value, ctx):
        yield value

    def on_event(self, event, ctx):
        yield int(event.payload), event.name


def in_order(found, subtasks, count, every):
    """Whether each event stands behind just the values of its subtask that came before it."""
    for subtask in range(subtasks):
        mine = [what for who, what in found if who == subtask]
        wanted = []
        for number in range(count):
            wanted.append(number)
            if (number + 1) % every == 0:
                wanted.append(f"at-{number}")
        if mine != wanted:
            return False
    return True


@MODES
@BOTH
@pytest.mark.parametrize("parallelism", [1, 2])
def test_events_of_a_source_reach_functions_in_order_with_the_data(parallelism, chaining, mode):
    env = small_env(parallelism, chaining=chaining, execution__runtime_mode=mode)
    numbers = env.from_source(Numbers(300, 70))
    passed = numbers.map(lambda pair: pair).filter(lambda pair: True).flat_map(lambda pair: [pair])
    assert in_order(collected(passed.process(Noting())), parallelism, 300, 70)


@MODES
def test_events_that_a_function_emits_reach_every_subtask_of_the_next_vertex_once_per_channel(mode):
    class Emitting(hg.ProcessFunction):
        def open(self, context):
            self.me = context.subtask_index

        def process_element(self, value, ctx):
            yield value
            if value == 5:
                ctx.emit_event("five", b"%d" % self.me)
                yield value + 100

    class Hearing(hg.ProcessFunction):
        def open(self, context):
            self.me = context.subtask_index

        def process_element(self, value, ctx):
            return None

        def on_event(self, event, ctx):
            yield int(event.payload), self.me

    env = small_env(3, execution__runtime_mode=mode)
    emitted = env.from_collection([5, 1, 5]).set_parallelism(1).rebalance().process(Emitting()).set_parallelism(3)
    heard = collected(emitted.rebalance().process(Hearing()))
    emitters = [emitter for emitter, reader in heard if reader == 0]
    assert len(emitters) == 2
    assert sorted(heard) == sorted((emitter, reader) for emitter in emitters for reader in range(3))


@MODES
def test_a_broadcast_event_passes_keyed_vertices(mode):
    env = small_env(2, execution__runtime_mode=mode)
    source = env.from_source(Numbers(50, 50))
    counts = source.key_by(lambda pair: pair[0]).count()
    found = collected(counts.process(Noting()))
    assert sorted(what for _, what in found if isinstance(what, str)) == ["at-49"] * 4, "two, to each of two subtasks"
    assert (0, 50) in found
    assert (1, 50) in found


class Seen(Operator):
    """Notes barriers and supersteps."""

    def process(self, values, times):
        return None

    def event(self, event):
        if not isinstance(event, hg.UserEvent):
            name = "superstep" if isinstance(event, EndOfSuperstep) else f"barrier {event.checkpoint}"
            self.out.emit([(self.place.subtask, name)])


@MODES
def test_barriers_and_supersteps_pass_tasks_once_though_they_arrive_on_several_channels(mode):
    env = small_env(2, execution__runtime_mode=mode)
    numbers = env.from_source(Numbers(40, 20, barriers=True))
    shuffled = numbers.rebalance().map(lambda pair: pair).key_by(lambda pair: pair[1]).map(lambda pair: pair)
    found = collected(shuffled.rebalance()._then("seen", Seen))
    for subtask in (0, 1):
        mine = [what for who, what in found if who == subtask]
        assert [one for one in mine if one != "superstep"] == ["barrier 19", "barrier 39"]
        assert mine.count("superstep") == 2


# Backwards.


class Asked(Source):
    """Gives out numbers until it is asked to stop."""

    bounded = False

    def __init__(self, here):
        self.here = here

    def splits(self, parallelism):
        return range(parallelism)

    def read(self, split, offset, place):
        stopped = []
        place.on_task_event("stop", stopped.append)
        number = 0
        while not stopped:
            yield [(split, number)]
            number += 1
            yield Wait(0.002)
        self.here.value.append((split, stopped[0].payload, threading.current_thread().name))


@BOTH
def test_a_consumer_stops_its_sources_by_task_events(chaining):
    """Over a rebalance, so that half of the channels are remote, and from the chain's last function."""
    here = ProcessLocal([])

    class Stopping(hg.ProcessFunction):
        def process_element(self, value, ctx):
            yield value
            if value[1] == 20:
                ctx.send_task_event("stop", b"enough of %d" % value[0])

    env = small_env(2, chaining=chaining)
    source = env.from_source(Asked(here))
    source.rebalance().process(Stopping()).set_parallelism(2).sink_to(Gathered())
    run(env)
    assert {split for split, _, _ in here.value} == {0, 1}
    assert all(payload.startswith(b"enough of ") for _, payload, _ in here.value)


@BOTH
def test_functions_receive_task_events_on_their_own_thread_also_while_they_wait_for_input(chaining):
    """A -> B -> C: C asks, B answers to its next values and asks A on."""
    heard = ProcessLocal([])

    class Asking(hg.MapFunction):
        def open(self, context):
            self.context = context
            self.thread = threading.get_ident()
            context.on_task_event("faster", self.hear)

        def map(self, value):
            return value

        def hear(self, event):
            assert threading.get_ident() == self.thread
            heard.value.append((self.context.task_name, event.payload))
            self.context.send_task_event("stop", event.payload)

    class Last(hg.MapFunction):
        def open(self, context):
            self.context = context

        def map(self, value):
            if value[1] == 3:
                self.context.send_task_event("faster", b"please")
            return value

    stopped = ProcessLocal([])
    env = small_env(1, chaining=chaining)
    source = env.from_source(Asked(stopped))
    source.rebalance().map(Asking()).name("asking").rebalance().map(Last()).sink_to(Gathered())
    run(env)
    assert heard.value == [("asking", b"please")]
    assert [payload for _, payload, _ in stopped.value] == [b"please"]


def test_an_error_of_a_task_event_handler_fails_the_job_with_its_operator():
    class Failing(hg.MapFunction):
        def open(self, context):
            context.on_task_event("fail", self.fail)

        def map(self, value):
            return value

        def fail(self, event):
            raise RuntimeError("asked to fail")

    class Asking(hg.ProcessFunction):
        def process_element(self, value, ctx):
            ctx.send_task_event("fail")

    env = small_env(1)
    source = env.from_source(Asked(ProcessLocal([])))
    source.map(Failing()).name("failing").rebalance().process(Asking()).sink_to(Gathered())
    job = env.execute_async()
    try:
        with pytest.raises(hg.UserCodeError, match=r"(?s)failing.*asked to fail"):
            job.await_termination(END_S)
    finally:
        job.cancel(timeout_s=END_S)


def test_task_events_to_producers_that_have_ended_are_dropped_in_batch():
    class Asking(hg.ProcessFunction):
        def process_element(self, value, ctx):
            ctx.send_task_event("stop")
            yield value

    env = small_env(2, execution__runtime_mode="BATCH")
    assert sorted(collected(env.from_collection(range(10)).rebalance().process(Asking()))) == list(range(10))


def test_task_events_that_no_producer_has_a_handler_for_are_logged_and_end_nothing(caplog):
    class Asking(hg.ProcessFunction):
        def process_element(self, value, ctx):
            ctx.send_task_event("nobody")
            yield value

    env = small_env(2)
    assert sorted(collected(env.from_collection(range(10)).rebalance().process(Asking()))) == list(range(10))
    assert "subscribes to task event 'nobody'" in caplog.text
