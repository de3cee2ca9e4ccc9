"""A task's loop by plain calls: what the head of the chain sees, in which order, and when the loop sleeps."""

import logging
from types import SimpleNamespace

import pytest
from tests.support.syncs import HookedSync
from tests.support.threads import Thread

import headgate as hg
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.errors import Cancelled
from headgate.functions.source import Source, Wait
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.meters import TaskTimer
from headgate.record.element import Batch, EndOfPartition, LatencyMarker, Record, StreamStatus, Watermark
from headgate.sync import ThreadSync
from headgate.task.operator import Operator
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain
from headgate.task.runtime.loop import InputLoop, SourceLoop

ACTIVE, IDLE, END = StreamStatus(active=True), StreamStatus(active=False), EndOfPartition()


class Noting(Operator):
    """Writes down all that the loop does to it."""

    def __init__(self):
        self.notes = []
        self.timer_ms = None

    def note(self, *what):
        self.notes.append(what if len(what) > 1 else what[0])

    def process(self, values, times):
        self.note("first", values, times)

    def process_second(self, values, times):
        self.note("second", values, times)

    def watermark(self, timestamp_ms):
        self.note("watermark", timestamp_ms)

    def status(self, *, active):
        self.note("active" if active else "idle")

    def next_timer_ms(self):
        return self.timer_ms

    def on_timers(self, now_ms):
        self.timer_ms = None
        self.note("timer", now_ms)

    def on_wake(self):
        self.note("wake")

    def flush(self):
        self.note("flush")

    def end_input(self, index):
        self.note("end", index)


class Script:
    """A reader that gives out what is written: (channel, element) pairs; a call where a task would sleep."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.channel = -1
        self.timeouts = []
        self.records_in = SimpleNamespace(value=0)
        self.interrupts, self.releases = 0, 0
        self.gate = SimpleNamespace(interrupt=self._interrupt, release=self._release)

    def _interrupt(self):
        self.interrupts += 1

    def _release(self):
        self.releases += 1

    @property
    def finished(self):
        return not self.steps

    def read(self, timeout_s=None, *, before_wait=None):
        if not self.steps:
            return None
        step = self.steps.pop(0)
        if callable(step):
            self.timeouts.append(timeout_s)
            before_wait()
            step()
            return None
        self.channel, element = step
        return element


class Clock:
    """A clock that the test sets; too many reads mean a loop that never blocks."""

    def __init__(self):
        self.now_ms = 1000
        self._asked = 0

    def __call__(self):
        self._asked += 1
        assert self._asked < 10_000, "it spins"
        return self.now_ms


def placed(operator, wall_ms=lambda: 0, **more):
    operator.place = OperatorPlace("op", 0, 1, 128, wall_ms, logging.getLogger("headgate.user"), **more)
    return Chain([operator], [None])


def notes_of(*steps, inputs=(0, 0)):
    """What an operator sees of a script."""
    operator = Noting()
    InputLoop(Script(*steps), inputs, placed(operator), [], lambda: 0).run()
    return [note for note in operator.notes if note != "flush"]


@pytest.mark.spec("K2")
def test_batches_and_records_go_to_the_input_of_their_channel():
    assert notes_of(
        (0, Batch([1, 2])), (1, Batch([3], [30])), (2, Record(4)), (2, Record(5, 50)), (1, Record(6)), inputs=(0, 0, 1)
    ) == [
        ("first", [1, 2], None),
        ("first", [3], [30]),
        ("second", [4], None),
        ("second", [5], [50]),
        ("first", [6], None),
    ]


@pytest.mark.spec("K2")
def test_an_input_ends_with_its_last_channel():
    steps = [(1, END), (2, END), (0, Batch([1])), (0, END)]
    assert notes_of(*steps, inputs=(0, 0, 1)) == [("end", 1), ("first", [1], None), ("end", 0)]


@pytest.mark.spec("K3")
def test_the_watermark_is_the_least_of_all_channels():
    assert notes_of((0, Watermark(5)), (1, Watermark(3)), (1, Watermark(9)), (0, Watermark(7)), (0, Watermark(6))) == [
        ("watermark", 3),
        ("watermark", 5),
        ("watermark", 7),
    ]


@pytest.mark.spec("K3")
def test_both_inputs_have_one_watermark():
    assert notes_of((0, Watermark(5)), (1, Watermark(3)), inputs=(0, 1)) == [("watermark", 3)]


@pytest.mark.spec("K3")
def test_a_channel_that_is_idle_or_ended_does_not_hold_it_back():
    assert notes_of(
        (0, Watermark(5)), (1, IDLE), (0, Watermark(7)), (1, ACTIVE), (1, Watermark(6)), (1, Watermark(8))
    ) == [
        ("watermark", 5),
        ("watermark", 7),
    ], "nor does it fall when the channel comes back"
    assert notes_of((0, Watermark(5)), (1, Watermark(2)), (1, END), (0, Watermark(6))) == [
        ("watermark", 2),
        ("watermark", 5),
        ("watermark", 6),
    ]


@pytest.mark.spec("K3")
def test_idle_when_all_are_and_active_with_the_first():
    assert notes_of((0, IDLE), (1, IDLE), (1, IDLE), (0, ACTIVE), (1, ACTIVE)) == ["idle", "active"]


@pytest.mark.spec("K3")
@pytest.mark.parametrize("first", [0, 1])
def test_when_all_are_idle_the_furthest_counts(first):
    steps = [(0, Watermark(9)), (1, Watermark(4)), (first, IDLE), (1 - first, IDLE), (1, ACTIVE), (1, Watermark(6))]
    notes = notes_of(*steps)
    assert [note for note in notes if note[0] == "watermark"] == [("watermark", 4), ("watermark", 9)]
    assert notes[1:] == [("watermark", 9), "idle", "active"], (
        "whoever was idle first; and before it says that it is idle"
    )


@pytest.mark.spec("K3")
def test_idle_when_the_only_active_channel_ends():
    assert notes_of((1, IDLE), (0, END), inputs=(0, 0)) == ["idle"], "or it would hold back those behind it for ever"


@pytest.mark.spec("K3")
def test_the_last_watermark_comes_with_the_end_of_all():
    assert notes_of((0, Watermark(MAX_WATERMARK_MS)), (0, END), (1, Watermark(MAX_WATERMARK_MS)), (1, END)) == [
        ("end", 0)
    ], "the task sends it through the chain when the loop has ended"


@pytest.mark.spec("K3")
def test_a_channel_at_the_last_watermark_does_not_hold_back_the_others():
    steps = [(1, Watermark(3)), (1, IDLE), (0, Watermark(MAX_WATERMARK_MS)), (0, END), (1, ACTIVE), (1, Watermark(9))]
    assert ("watermark", 9) in notes_of(*steps), "event time goes on after one of two sources has ended"


def test_latency_markers_pass_by_the_operators():
    assert notes_of((0, LatencyMarker(1, 2, 3))) == []


@pytest.mark.spec("W4")
def test_operators_and_writers_are_flushed_before_the_loop_blocks():
    operator, flushed = Noting(), []
    writers = [
        SimpleNamespace(buffer_timeout=BufferTimeout.parse(text), flush=lambda text=text: flushed.append(text))
        for text in ("auto", "10 ms", "0", "-1")
    ]
    script = Script((0, Batch([1])), lambda: operator.note("asleep"), (0, Batch([2])))
    InputLoop(script, [0], placed(operator), writers, lambda: 0).run()
    assert operator.notes == [("first", [1], None), "flush", "asleep", ("first", [2], None)]
    assert flushed == ["auto"], "the others have their own time"
    assert script.timeouts == [None]


def test_timers_run_between_batches_and_wake_the_loop():
    operator, clock = Noting(), Clock()
    operator.timer_ms = 1500

    def sleep():
        operator.note("asleep")
        clock.now_ms = 1600

    script = Script((0, Batch([1])), sleep, (0, Batch([2])))
    InputLoop(script, [0], placed(operator, clock), [], clock).run()
    assert operator.notes == [("first", [1], None), "flush", "asleep", ("timer", 1600), ("first", [2], None)]
    assert script.timeouts == [0.5]


def test_a_timer_that_is_due_does_not_wait_for_the_input_to_pause():
    operator, clock = Noting(), Clock()
    operator.timer_ms = 1000
    InputLoop(Script((0, Batch([1])), (0, Batch([2]))), [0], placed(operator, clock), [], clock).run()
    assert operator.notes == [("first", [1], None), ("timer", 1000), ("first", [2], None)]


def test_an_interrupt_calls_on_wake_once():
    operator = Noting()
    loops = []
    script = Script(lambda: [loop.interrupt() for loop in loops], (0, Batch([1])))
    loops.append(InputLoop(script, [0], placed(operator), [], lambda: 0))
    loops[0].run()
    assert operator.notes == ["flush", "wake", ("first", [1], None)]
    assert (script.interrupts, script.releases) == (1, 0)
    loops[0].cancel()
    assert script.releases == 1


def test_a_cancelled_loop_does_not_read_the_rest_of_a_buffer():
    operator, script = Noting(), Script((0, Batch([1])), (0, Batch([2])), (0, Batch([3])))
    loop = InputLoop(script, [0], placed(operator), [], lambda: 0)
    operator.process = lambda values, times: operator.note(values) or loop.cancel()
    with pytest.raises(Cancelled):
        loop.run()
    assert operator.notes == [[1]]


# Sources.


class Scripted(Source):
    """Gives out what is written for each split; a call is made where it stands, and gives out what it returns."""

    def __init__(self, *splits, bounded=True):
        self._splits = splits
        self.bounded = bounded
        self.closed = []

    def splits(self, parallelism):
        return range(len(self._splits))

    def read(self, split, offset, place):
        try:
            for step in self._splits[split]:
                yield step() if callable(step) else step
        finally:
            self.closed.append(split)


def source_loop(source, operator, *, clock=None, sync=None, writers=()):
    wall_ms = clock or Clock()
    chain = placed(operator, wall_ms)
    sync = sync or HookedSync(lambda timeout_s: None)
    timer = TaskTimer(ManualClock().now_ns)
    return SourceLoop(
        source, source.splits(1), operator.place, chain, list(writers),
        sync=sync, timer=timer, now_ns=lambda: wall_ms() * 1_000_000,
    )  # fmt: skip


def values_of(operator):
    return [note[1] for note in operator.notes if note[0] == "first"]


def test_bounded_splits_are_read_one_after_the_other():
    source, operator = Scripted([[1], [2]], [[3], [4]]), Noting()
    loop = source_loop(source, operator)
    loop.run()
    assert values_of(operator) == [[1], [2], [3], [4]]
    assert loop.records_in == 4
    assert source.closed == [0, 1]


def test_unbounded_splits_are_read_round_robin():
    source, operator = Scripted([[1], [2]], [[3], [4], [5]], bounded=False), Noting()
    source_loop(source, operator).run()
    assert values_of(operator) == [[1], [3], [2], [4], [5]]


def test_a_source_without_splits_ends_at_once():
    operator = Noting()
    source_loop(Scripted(), operator).run()
    assert operator.notes == []


def napping(clock, notes=None):
    """Where the thread would sleep, time passes instead."""

    def sleep(timeout_s):
        clock.now_ms += round(timeout_s * 1000)
        if notes is not None:
            notes.append("asleep")

    return HookedSync(sleep)


def test_the_loop_blocks_only_if_no_split_has_data():
    clock, operator = Clock(), Noting()
    sync = napping(clock, operator.notes)
    source = Scripted([[1], Wait(5.0), [2]], [[3], [4], Wait(5.0), [5]], bounded=False)
    source_loop(source, operator, clock=clock, sync=sync).run()
    assert operator.notes[:4] == [("first", [1], None), ("first", [3], None), ("first", [4], None), "flush"]
    assert [note for note in operator.notes if note == "asleep"] == ["asleep"] * len(sync.waits)
    assert values_of(operator) == [[1], [3], [4], [2], [5]]


def test_each_split_is_polled_when_its_wait_is_over():
    clock, asked = Clock(), []

    def ask(name, answer):
        return lambda: asked.append((name, clock.now_ms - 1000)) or answer

    source = Scripted(
        [Wait(5.0), ask("slow", Wait(5.0)), ask("slow", [1])],
        [Wait(2.0), ask("fast", Wait(2.0)), ask("fast", Wait(2.0)), ask("fast", [2])],
        bounded=False,
    )
    source_loop(source, Noting(), clock=clock, sync=napping(clock)).run()
    assert asked == [("fast", 2000), ("fast", 4000), ("slow", 5000), ("fast", 6000), ("slow", 10000)]


def test_a_timer_does_not_poll_a_source_before_its_wait_is_over():
    clock, operator = Clock(), Noting()
    operator.timer_ms = 1250
    sync = napping(clock)
    source_loop(Scripted([Wait(60.0), [1]]), operator, clock=clock, sync=sync).run()
    assert [note for note in operator.notes if note != "flush"] == [("timer", 1250), ("first", [1], None)]
    assert sync.waits == [0.25, 59.75]


def test_writers_are_flushed_before_a_source_blocks():
    flushed, operator, clock = [], Noting(), Clock()
    writer = SimpleNamespace(
        buffer_timeout=BufferTimeout.parse("auto"), flush=lambda: flushed.append(len(operator.notes))
    )
    source_loop(Scripted([[1], Wait(1.0), [2]]), operator, clock=clock, sync=napping(clock), writers=[writer]).run()
    assert flushed == [2], "after the operators have given out theirs"


def test_an_interrupt_ends_the_wait_of_a_source():
    operator, loops, clock = Noting(), [], Clock()

    def sleep(timeout_s):
        if "wake" in operator.notes:
            clock.now_ms += round(timeout_s * 1000)
        else:
            loops[0].interrupt()

    loops.append(source_loop(Scripted([Wait(3600.0), [1]]), operator, clock=clock, sync=HookedSync(sleep)))
    loops[0].run()
    assert [note for note in operator.notes if note != "flush"] == ["wake", ("first", [1], None)]


def test_an_interrupt_just_before_a_wait_is_not_lost():
    operator, loops, clock = Noting(), [], Clock()

    def sleep(timeout_s):
        assert "wake" in operator.notes, "it sleeps"
        clock.now_ms += round(timeout_s * 1000)

    operator.flush = lambda: "wake" in operator.notes or loops[0].interrupt()
    loops.append(source_loop(Scripted([Wait(3600.0), [1]]), operator, clock=clock, sync=HookedSync(sleep)))
    loops[0].run()
    assert "wake" in operator.notes


@pytest.mark.parametrize("when", ["asleep", "reading", "before"])
def test_a_cancelled_loop_ends_and_closes_its_splits(when):
    operator, loops = Noting(), []
    sync = HookedSync(lambda timeout_s: loops[0].cancel())
    steps = {
        "asleep": [[1], Wait(3600.0), [2]],
        "reading": [[1], lambda: loops[0].cancel() or [2], [3]],
        "before": [[2]],
    }[when]
    source = Scripted(steps, [[9]])
    loops.append(source_loop(source, operator, sync=sync))
    if when == "before":
        loops[0].cancel()
    with pytest.raises(Cancelled):
        loops[0].run()
    assert values_of(operator) == ([] if when == "before" else [[1]])
    assert 0 in source.closed


def test_a_blocked_loop_is_woken_by_another_thread():
    operator = Noting()
    loop = source_loop(Scripted([Wait(3600.0)] * 100, bounded=False), operator, sync=ThreadSync())
    thread = Thread(loop.run)
    loop.cancel()
    with pytest.raises(Cancelled):
        thread.end()


@pytest.mark.spec("K6")
def test_an_error_of_a_source_is_a_user_code_error():
    def fail():
        raise ValueError("disk gone")

    operator = Noting()
    source = Scripted([[1], fail], [[2]])
    with pytest.raises(hg.UserCodeError, match="op, subtask 0: ValueError: disk gone"):
        source_loop(source, operator).run()
    assert values_of(operator) == [[1]]
    assert source.closed == [0], "the other was not begun"


@pytest.mark.spec("B2")
def test_the_wait_of_a_source_counts_as_idle():
    clock = ManualClock()
    sync = HookedSync(lambda timeout_s: clock.advance_ms(int(timeout_s * 1000)))
    operator, timer = Noting(), TaskTimer(clock.now_ns)
    chain = placed(operator, lambda: clock.now_ns() // 1_000_000)
    source = Scripted([Wait(2.0), [1]])
    SourceLoop(source, [0], operator.place, chain, [], sync=sync, timer=timer, now_ns=clock.now_ns).run()
    assert timer.statistics().idle_ns == 2_000_000_000
    assert timer.statistics().busy_ns == 0
