"""K4 by plain calls: events go through loops, chains and every operator, behind the results of what came before."""

import logging

import pytest
from tests.support.threads import Thread
from tests.unit.task.test_async_map import Doors
from tests.unit.task.test_task_loop import END, Noting, Script, notes_of, placed

import headgate as hg
from headgate.errors import Cancelled, UserCodeError
from headgate.functions.source import Source, Wait
from headgate.input.align import EventMerge
from headgate.meters import TaskTimer
from headgate.record.element import (
    Batch,
    CheckpointBarrier,
    EndOfPartition,
    EndOfSuperstep,
    UserEvent,
    Watermark,
    user_event,
)
from headgate.sync import ThreadSync
from headgate.task.operators.async_map import MapAsync
from headgate.task.operators.basic import Map, PassOn
from headgate.task.operators.batches import ToArrow
from headgate.task.operators.keyed import KeyedCount, KeyedProcess
from headgate.task.operators.process import CoProcess, Process
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain
from headgate.task.runtime.loop import InputLoop, SourceLoop
from headgate.task.task_events import TaskEvents
from headgate.task.windows.operator import WindowOperator
from headgate.testing.harness import OperatorHarness

pytestmark = pytest.mark.spec("K4")

RELOAD, STOP, SUPERSTEP = UserEvent("reload", b"v2"), UserEvent("stop"), EndOfSuperstep()


def barrier(number):
    return CheckpointBarrier(checkpoint=number, timestamp_ms=number)


class Hearing(Noting):
    """Notes events, too."""

    def event(self, event):
        self.note(event)


def events_of(*steps, inputs=(0, 0)):
    """What the head of a chain sees of a script: values and events."""
    operator = Hearing()
    InputLoop(Script(*steps), inputs, placed(operator), [], lambda: 0).run()
    notes = [note for note in operator.notes if note != "flush" and not (isinstance(note, tuple) and note[0] == "end")]
    return [note[1][0] if isinstance(note, tuple) else note for note in notes]


# The loop.


def test_a_loop_hands_on_users_events_in_order_with_the_data_and_once_per_channel():
    steps = [(0, Batch(["a"])), (0, RELOAD), (0, Batch(["b"])), (1, RELOAD), (1, STOP), (1, Batch(["c"]))]
    assert events_of(*steps) == ["a", RELOAD, "b", RELOAD, STOP, "c"]


def test_a_loop_hands_on_a_barrier_once_when_it_has_arrived_on_all_channels():
    steps = [(0, barrier(1)), (0, Batch(["a"])), (1, Batch(["b"])), (1, barrier(1)), (1, Batch(["c"]))]
    assert events_of(*steps) == ["a", "b", barrier(1), "c"]


@pytest.mark.parametrize("event", [barrier(1), SUPERSTEP])
def test_an_ended_channel_does_not_hold_up_events_of_all_channels(event):
    steps = [(0, event), (1, Batch(["b"])), (1, END), (0, Batch(["c"])), (0, END)]
    assert events_of(*steps) == ["b", event, "c"]


def test_the_end_of_a_partition_goes_no_further_as_an_event():
    assert EndOfPartition() not in notes_of((0, END), (1, END))


def test_a_superstep_ends_when_every_channel_has_ended_it():
    merge = EventMerge(3)
    assert [merge.arrived(0, SUPERSTEP), merge.arrived(0, SUPERSTEP), merge.arrived(1, SUPERSTEP)] == [[], [], []]
    assert merge.arrived(2, SUPERSTEP) == [SUPERSTEP]
    assert merge.end(1) == []
    assert merge.end(2) == [SUPERSTEP], "the second, which only the open channel has ended"
    assert merge.end(0) == []


def test_a_complete_barrier_replaces_earlier_ones_and_old_ones_are_ignored():
    merge = EventMerge(2)
    assert [merge.arrived(0, barrier(1)), merge.arrived(0, barrier(2)), merge.arrived(1, barrier(2))] == [
        [],
        [],
        [barrier(2)],
    ]
    assert merge.arrived(1, barrier(1)) == [], "it is complete, but a later one was handed on"


def test_barriers_that_never_complete_take_bounded_memory():
    merge = EventMerge(2)
    for number in range(1000):
        merge.arrived(0, barrier(number))
    assert merge.arrived(1, barrier(899)) == []
    assert merge.arrived(1, barrier(900)) == [barrier(900)]


class Speaking(Source):
    def __init__(self, *steps):
        self.steps = steps

    def splits(self, parallelism):
        return [0]

    def read(self, split, offset, place):
        yield from self.steps


def source_loop(operator, *steps):
    chain = placed(operator)
    timing = {"sync": ThreadSync(), "timer": TaskTimer(lambda: 0), "now_ns": lambda: 0}
    return SourceLoop(Speaking(*steps), [0], operator.place, chain, [], **timing)


def test_a_source_yields_events_between_its_batches():
    operator = Hearing()
    source_loop(operator, ["a"], RELOAD, ["b"], Wait(0), barrier(3)).run()
    notes = [note for note in operator.notes if note != "flush"]
    assert notes == [("first", ["a"], None), RELOAD, ("first", ["b"], None), barrier(3)]


def test_a_source_may_not_yield_the_end_of_a_partition():
    with pytest.raises(UserCodeError, match="a source ends when its reading does"):
        source_loop(Hearing(), EndOfPartition()).run()


# Chains.


class Paper:
    """A writer that remembers, in order."""

    def __init__(self):
        self.written = []

    def emit_batch(self, values, timestamps_ms=None):
        self.written += values

    def emit_element(self, element):
        self.written.append(element)

    def emit_event(self, event):
        self.written.append(event)


def test_an_event_goes_to_every_operator_and_every_exchange_of_a_chain_once():
    operators = [PassOn(), Map(str.upper), Map(str.lower)]
    for operator in operators:
        operator.place = OperatorPlace("op", 0, 1, 128, lambda: 0, logging.getLogger("headgate.user"))
    chain = Chain(operators, [None, (0, None), (0, "late")])
    papers = [Paper() for _ in range(4)]
    for position, tag, paper in zip([0, 0, 1, 2], [None, "late", None, None], papers, strict=True):
        chain.links[position].add_writer(paper, tag)
    chain.open()
    chain.head.process(["a"], None)
    chain.head.event(RELOAD)
    chain.head.process(["b"], None)
    chain.close()
    assert [paper.written for paper in papers] == [["a", RELOAD, "b"], [RELOAD], ["A", RELOAD, "B"], [RELOAD]]


# Operators that hold results back.


def test_to_arrow_gives_out_the_rows_before_an_event_first():
    with OperatorHarness(ToArrow(batch_rows=100)) as harness:
        harness.process([1, 2])
        harness.event(barrier(1))
        harness.process([3])
    assert [batch.num_rows for batch in harness.values] == [2]
    assert harness.events == [(1, barrier(1))]


@pytest.mark.parametrize("ordered", [True, False])
def test_an_event_waits_for_the_coroutines_before_it(ordered):
    async def negative(number):
        return -number

    with OperatorHarness(MapAsync(negative, capacity=10, ordered=ordered)) as harness:
        harness.process([1, 2])
        harness.event(RELOAD)
        harness.event(STOP)
        harness.watermark(5)
        harness.event(SUPERSTEP)
        harness.process([3])
        harness.end()
    assert [event for _, event in harness.events] == [RELOAD, STOP, SUPERSTEP]
    assert {count for count, _ in harness.events} == {2}
    assert sorted(harness.values) == [-3, -2, -1]
    assert harness.watermarks[0] == 5


def test_events_before_and_after_watermarks_keep_their_order_in_an_async_map():
    class Order(OperatorHarness):
        def __init__(self, operator):
            self.order = []
            super().__init__(operator)

        def emit_watermark(self, timestamp_ms):
            self.order.append(timestamp_ms)

        def emit_status(self, *, active):
            self.order.append(active)

        def emit_event(self, event):
            self.order.append(event)

    async def same(value):
        return value

    with Order(MapAsync(same, capacity=1)) as harness:
        harness.process([1])
        for step in (3, RELOAD, 4, 5, STOP, SUPERSTEP, 6):
            harness.watermark(step) if isinstance(step, int) else harness.event(step)
        harness.operator.status(active=False)
        harness.operator.finish()
    assert harness.order in (
        [3, RELOAD, 5, STOP, SUPERSTEP, 6, False],
        [3, RELOAD, 4, 5, STOP, SUPERSTEP, 6, False],  # the coroutine was done sooner
    )


def test_an_async_map_holds_a_bounded_number_of_events():
    doors = Doors()

    with OperatorHarness(MapAsync(doors, capacity=10)) as harness:
        harness.process([1])
        doors.wait_for(1)
        for _ in range(1000):
            harness.event(RELOAD)
        assert harness.events == []
        doors.open(1)
        harness.event(STOP)
        assert len(harness.events) == 1001, "the event beyond the limit has waited for the value"
        assert harness.values == [-1]
        harness.end()


def test_a_keyed_operator_of_batch_hands_events_on_behind_its_results():
    with OperatorHarness(KeyedCount(str.lower), batch=True) as harness:
        harness.process(["a"])
        harness.event(RELOAD)
        harness.process(["A", "b"])
        assert harness.events == []
        harness.end()
    assert harness.values == [("a", 2), ("b", 1)]
    assert harness.events == [(2, RELOAD)]


def test_a_grouped_function_of_batch_receives_events_behind_its_results():
    class Counting(hg.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

        def on_event(self, event, ctx):
            yield event.name

    with OperatorHarness(KeyedProcess(str.lower, Counting()), batch=True) as harness:
        harness.process(["a"])
        harness.event(RELOAD)
        harness.process(["b", "A"])
        harness.end()
    assert harness.values == ["a", "A", "b", "reload"]
    assert harness.events == [(4, RELOAD)]


def test_too_many_events_before_the_end_of_a_batch_input_are_an_error_that_names_the_operator():
    with OperatorHarness(KeyedCount(str.lower), batch=True) as harness:
        for _ in range(10_000):
            harness.event(RELOAD)
        with pytest.raises(UserCodeError, match=r"(?s)LastCount.*more than 10000 events"):
            harness.event(RELOAD)


def test_windows_pass_events_on_without_waiting_for_their_results():
    window = WindowOperator(str.lower, hg.TumblingEventTimeWindows.of(10), min, "reduce")
    with OperatorHarness(window) as harness:
        harness.process(["a"], [1])
        harness.event(RELOAD)
    assert harness.events == [(0, RELOAD)]


# Functions that emit and receive.


def words(*found):
    """A process function of these steps for each value: events by name, with a '!', and values."""

    class Emitting(hg.ProcessFunction):
        def process_element(self, value, ctx):
            for one in found:
                if isinstance(one, str) and one.endswith("!"):
                    ctx.emit_event(one[:-1], value.encode())
                else:
                    yield one

    return Process(Emitting())


def test_an_event_keeps_its_position_among_yielded_values():
    side = hg.OutputTag("side")
    with OperatorHarness(words("a", (side, "x"), "one!", "b", "two!", "three!", (side, "y"))) as harness:
        harness.process(["v", "w"], [1, 2])
    assert harness.timed == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [(count, event.name, event.payload) for count, event in harness.events] == [
        (1, "one", b"v"),
        (2, "two", b"v"),
        (2, "three", b"v"),
        (3, "one", b"w"),
        (4, "two", b"w"),
        (4, "three", b"w"),
    ]
    assert harness.sides == {"side": ["x", "y", "x", "y"]}


def test_side_outputs_keep_their_order_with_events():
    class Order(OperatorHarness):
        def __init__(self, operator):
            self.order = []
            super().__init__(operator)

        def emit(self, values, times=None):
            self.order += values

        def emit_to(self, tag, values, times=None):
            self.order += [(tag, value) for value in values]

        def emit_event(self, event):
            self.order.append(event.name)

    side = hg.OutputTag("side")
    with Order(words((side, 1), "e!", (side, 2), 3)) as harness:
        harness.process(["v"])
    assert harness.order == [("side", 1), "e", ("side", 2), 3]


def test_a_timer_emits_events():
    class Timed(hg.KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(10)

        def on_timer(self, timestamp, ctx):
            yield "before"
            ctx.emit_event("fired", str(ctx.get_current_key()).encode())
            yield "after"

    with OperatorHarness(KeyedProcess(len, Timed())) as harness:
        harness.process(["to"], [1])
        harness.watermark(10)
    assert (harness.values, harness.events) == (["before", "after"], [(1, UserEvent("fired", b"2"))])


class Receiving(hg.ProcessFunction):
    def __init__(self):
        self.rules = b"v1"

    def process_element(self, value, ctx):
        self.kept = ctx
        yield value, self.rules

    def on_event(self, event, ctx):
        assert ctx.timestamp() is None
        self.rules = event.payload
        ctx.emit_event("seen", event.payload)
        yield event.name


def test_a_function_receives_users_events_between_its_values():
    with OperatorHarness(Process(Receiving())) as harness:
        harness.process(["a"])
        harness.event(RELOAD)
        harness.event(barrier(1))
        harness.process(["b"])
    assert harness.values == [("a", b"v1"), "reload", ("b", b"v2")]
    assert harness.events == [(1, UserEvent("seen", b"v2")), (2, RELOAD), (2, barrier(1))], "and hands them on"


def test_functions_of_connected_streams_receive_events():
    class Both(hg.CoProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        def process_element2(self, value, ctx):
            return None

        def on_event(self, event, ctx):
            yield event.payload

    with OperatorHarness(CoProcess(Both())) as harness:
        harness.event(RELOAD)
    assert harness.values == [b"v2"]


def test_an_event_has_no_key():
    class Keyed(hg.KeyedProcessFunction):
        def open(self, context):
            self.seen = context.get_state("seen")

        def process_element(self, value, ctx):
            self.seen.update(value)

        def on_event(self, event, ctx):
            self.seen.update("everybody's")

    with OperatorHarness(KeyedProcess(len, Keyed())) as harness:
        harness.process(["to"])
        with pytest.raises(UserCodeError, match="no value is at hand, as in open, close and on_event"):
            harness.event(RELOAD)


def test_an_error_of_on_event_names_the_operator():
    class Failing(Receiving):
        def on_event(self, event, ctx):
            raise KeyError("rules")

    with OperatorHarness(Process(Failing())) as harness, pytest.raises(UserCodeError, match=r"(?s)Process.*rules"):
        harness.event(RELOAD)


def test_a_context_that_was_kept_refuses_events():
    function = Receiving()
    with OperatorHarness(Process(function)) as harness:
        harness.process(["a"])
        with pytest.raises(RuntimeError, match="the call that this context was made for is over"):
            function.kept.emit_event("late")
    assert harness.events == []


@pytest.mark.parametrize(
    ("name", "payload", "kind", "text"),
    [
        ("", b"", ValueError, "cannot be called ''"),
        ("checkpoint-barrier", b"", ValueError, "one of headgate's own"),
        ("large", b"x" * 4096, ValueError, "the limit is 4096"),
        ("text", "not bytes", TypeError, "payload"),
        (7, b"", TypeError, "name"),
    ],
)
def test_invalid_events_are_refused(name, payload, kind, text):
    with pytest.raises(kind, match=text):
        user_event(name, payload)


def test_a_function_whose_operator_does_not_receive_events_is_refused():
    class Mapping(hg.MapFunction):
        def map(self, value):
            return value

        def on_event(self, event, ctx):
            return None

    env = hg.environment(local=True, parallelism=1)
    with pytest.raises(TypeError, match=r"map: Mapping.on_event would not be called"):
        env.from_collection([1]).map(Mapping())


# Task events.


class Way:
    """A channel to a producer."""

    def __init__(self, *, ready=True, fails=None):
        self.ready, self.fails, self.sent = ready, fails, []

    def send_task_event(self, event):
        if self.fails is not None:
            raise self.fails
        self.sent.append(event)


def test_a_task_event_goes_to_every_producer_also_to_those_that_are_connected_later():
    ways = [Way(), Way(ready=False), Way(fails=Cancelled("released"))]
    events = TaskEvents(ways)
    events.send("slower", b"1")
    assert (events.due, ways[0].sent, ways[1].sent) == (True, [UserEvent("slower", b"1")], [])
    ways[1].ready = True
    events.send("slower", b"2")
    events.run_due()
    assert ways[0].sent == ways[1].sent == [UserEvent("slower", b"1"), UserEvent("slower", b"2")]
    assert not events.due


def test_coroutines_may_send_task_events_beside_the_task():
    way = Way()
    events = TaskEvents([way])

    def send():
        for number in range(300):
            way.ready = bool(number % 2)
            events.send("n", b"%d" % number)

    threads = [Thread(send) for _ in range(3)]
    for _ in range(100):
        events.run_due()
    for thread in threads:
        thread.end()
    way.ready = True
    events.run_due()
    assert len(way.sent) == 900


def test_task_events_are_dispatched_by_name_to_all_handlers_on_the_task_thread():
    subscribed, woken, heard = {}, [], []
    events = TaskEvents(subscribe=subscribed.__setitem__, wake=lambda: woken.append(1))
    events.on("slower", lambda event: heard.append(("a", event.payload)), operator="map", subtask=0)
    events.on("slower", lambda event: heard.append(("b", event.payload)), operator="map", subtask=0)
    events.on("stop", heard.append, operator="map", subtask=0)
    assert set(subscribed) == {"slower", "stop"}
    subscribed["slower"](UserEvent("slower", b"1"))
    assert (heard, woken, events.due) == ([], [1], True), "not on the thread that delivers it"
    events.run_due()
    assert (heard, events.due) == ([("a", b"1"), ("b", b"1")], False)


def test_a_loop_dispatches_task_events_when_it_is_woken():
    operator, heard = Noting(), []
    events = TaskEvents()
    events.on("slower", lambda event: heard.append((event.name, list(operator.notes))), operator="map", subtask=0)
    chain = placed(operator, task_events=events)
    steps = [(0, Batch(["a"])), lambda: events.receive(UserEvent("slower")), (0, Watermark(1))]
    InputLoop(Script(*steps), [0], chain, [], lambda: 0).run()
    assert heard == [("slower", [("first", ["a"], None), "flush"])]


def test_an_error_of_a_handler_names_operator_and_subtask():
    events = TaskEvents()
    events.on("slower", lambda event: {}[event.name], operator="map(rate)", subtask=3)
    events.receive(UserEvent("slower"))
    with pytest.raises(UserCodeError, match=r"(?s)map\(rate\).*slower") as raised:
        events.run_due()
    assert raised.value.subtask == 3


def test_undispatched_task_events_are_bounded_and_dropped_ones_counted():
    counters, heard = {}, []
    events = TaskEvents([Way(ready=False)], counters=counters)
    events.on("n", lambda event: heard.append(int(event.payload)), operator="map", subtask=0)
    for number in range(1003):
        events.receive(UserEvent("n", b"%d" % number))
        events.send("n", b"%d" % number)
    events.run_due()
    assert (heard, counters) == (list(range(3, 1003)), {"task_events_dropped": 6})
