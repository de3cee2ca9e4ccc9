"""Latency markers by plain calls: when a source sends them, what a task makes of those that come, and where they go."""

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.exchange import Exchange
from tests.support.syncs import HookedSync
from tests.support.threads import Thread as Beside
from tests.support.threads import switching_often
from tests.unit.task.test_task_loop import Noting, Script, Scripted

import headgate as hg
from headgate.clock import ManualClock
from headgate.config import BufferTimeout
from headgate.errors import Cancelled, SerializationError
from headgate.functions.source import Wait
from headgate.meters import TaskTimer
from headgate.output import Rescale
from headgate.record.element import Batch, EndOfPartition, LatencyMarker, Record
from headgate.task.operators.basic import PassOn
from headgate.task.place import OperatorPlace
from headgate.task.runtime.chain import Chain
from headgate.task.runtime.latency import Latencies, LatencyStatistics
from headgate.task.runtime.loop import InputLoop, SourceLoop

pytestmark = pytest.mark.spec("B2")

SECOND_NS = 1_000_000_000
EPOCH_NS = 1_700_000_000 * SECOND_NS


def marker(marked_ns=0, vertex=7, subtask=0):
    return LatencyMarker(marked_ns, vertex, subtask)


class Hand:
    """A wall clock in the test's hand."""

    def __init__(self, now_ns=EPOCH_NS):
        self.now_ns = now_ns

    def __call__(self):
        return self.now_ns


# What a task makes of markers that come.


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300))
def test_a_percentile_is_the_least_value_that_its_share_does_not_exceed(took_us):
    found = LatencyStatistics.of(3, took_us)
    assert (found.source, found.count, found.max_us) == (3, len(took_us), max(took_us))
    for q, least in ((50, found.p50_us), (99, found.p99_us)):
        assert sum(one <= least for one in took_us) * 100 >= q * len(took_us)
        assert sum(one < least for one in took_us) * 100 < q * len(took_us), "and no less does"


def test_markers_are_counted_by_source():
    clock = Hand()
    latencies = Latencies(clock)
    for took_us, vertex in ((5_000, 9), (100, 2), (300, 2), (200, 2)):
        latencies.add(marker(clock.now_ns - took_us * 1000, vertex, subtask=took_us % 3))
    assert latencies.statistics() == [
        LatencyStatistics(2, count=3, p50_us=200, p99_us=300, max_us=300),
        LatencyStatistics(9, count=1, p50_us=5_000, p99_us=5_000, max_us=5_000),
    ]


def test_a_clock_that_is_ahead_does_not_make_latency_negative():
    clock = Hand()
    latencies = Latencies(clock)
    latencies.add(marker(clock.now_ns + 5 * SECOND_NS))
    assert latencies.statistics() == [LatencyStatistics(7, 1, 0, 0, 0)]


@pytest.mark.parametrize("passed_s", [61, -3600])
def test_markers_older_than_a_minute_do_not_count(passed_s):
    clock = Hand()
    latencies = Latencies(clock)
    latencies.add(marker(clock.now_ns - SECOND_NS))
    clock.now_ns += 59 * SECOND_NS
    latencies.add(marker(clock.now_ns))
    assert latencies.statistics()[0].count == 2
    clock.now_ns += (passed_s - 59 if passed_s > 0 else passed_s) * SECOND_NS
    latencies.add(marker(clock.now_ns))
    left = [one.count for one in latencies.statistics()]
    assert left == ([2] if passed_s > 0 else [1]), "also where the clock was put back"


def test_memory_is_bounded_and_the_newest_are_kept():
    clock = Hand()
    latencies = Latencies(clock)
    for n in range(10_000):
        latencies.add(marker(clock.now_ns - n * 1000, vertex=n % 3))
    assert len(latencies._ring) == 2048
    found = latencies.statistics()
    assert sum(one.count for one in found) == 2048
    assert max(one.max_us for one in found) == 9_999
    assert min(took_ns // 1000 for _, _, took_ns in latencies._ring) == 10_000 - 2048


def test_statistics_can_be_read_by_another_thread_while_markers_are_added():
    latencies, rounds = Latencies(itertools.count(EPOCH_NS).__next__), 20_000
    with switching_often():
        coming = Beside(lambda: [latencies.add(marker(EPOCH_NS, n % 5)) for n in range(rounds)])
        for _ in range(50):
            assert sum(one.count for one in latencies.statistics()) <= 2048
        coming.end()


# What a loop does with them.


class Paper:
    """A writer that remembers what it was given, and when it was flushed."""

    def __init__(self, timeout="auto", notes=None, on_marker=None):
        self.buffer_timeout = BufferTimeout.parse(timeout)
        self.notes = [] if notes is None else notes
        self._on_marker = on_marker

    def emit_batch(self, values, timestamps_ms=None):
        self.notes.append(values)

    def emit_element(self, element):
        self.notes.append(element)
        if self._on_marker is not None:
            self._on_marker(element)

    def flush(self):
        self.notes.append("flush")


def chained(operator, *writers, tag=None, wall_ms=lambda: 0):
    operator.place = OperatorPlace("op", 0, 1, 128, wall_ms, logging.getLogger("headgate.user"))
    chain = Chain([operator], [None])
    for writer in writers:
        chain.links[0].add_writer(writer, tag)
    return chain


def read(script, chain, writers, *, inputs=(0,), clock=None):
    loop = InputLoop(script, inputs, chain, writers, lambda: 0, wall_ns=clock or Hand())
    loop.run()
    return loop


def test_a_marker_goes_on_behind_the_records_before_it_and_past_the_operators():
    papers, operator = [Paper("-1"), Paper("-1")], PassOn()
    chain, clock = chained(operator, *papers), Hand()
    sent = marker(clock.now_ns - 3_000_000)
    loop = read(Script((0, Batch([1])), (0, sent), (0, Batch([2]))), chain, papers, clock=clock)
    assert [paper.notes for paper in papers] == [[[1], sent, [2]]] * 2, "by every exchange, as it came"
    assert loop.latencies() == [LatencyStatistics(7, 1, 3_000, 3_000, 3_000)]


def test_operators_do_not_receive_a_marker_and_a_sink_notes_it():
    operator = Noting()
    loop = read(Script((0, marker()), (0, EndOfPartition())), chained(operator), [])
    assert operator.notes == [("end", 0)]
    assert [one.count for one in loop.latencies()] == [1]


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_a_marker_is_noted_from_either_input(channel):
    paper = Paper()
    loop = read(Script((channel, marker(vertex=5))), chained(Noting(), paper), [paper], inputs=(0, 0, 1))
    assert paper.notes[0] == marker(vertex=5)
    assert [one.source for one in loop.latencies()] == [5]


def test_a_marker_is_emitted_to_side_outputs_too():
    paper = Paper()
    read(Script((0, marker())), chained(PassOn(), paper, tag="late"), [paper])
    assert marker() in paper.notes


def test_a_marker_does_not_flush_but_blocking_does():
    with Exchange(Rescale(), channels=1, buffer_timeout="auto") as exchange:
        seen = []
        script = Script(
            (0, Batch([b"a"])),
            (0, marker()),
            (0, Record(b"b")),
            lambda: seen.append(exchange.take()),
            (0, Record(b"c")),
        )
        chain = chained(PassOn(), exchange.writer)
        script_read = script.read

        def reading(*args, **kwargs):
            seen.append(exchange.take())
            return script_read(*args, **kwargs)

        script.read = reading
        read(script, chain, [exchange.writer])
        assert [one for one in seen if one] == [[b"a", marker(), b"b"]], "all together, when nothing is at hand"


def test_very_many_are_noted_but_not_passed_on():
    paper, clock = Paper(), Hand()
    steps = [(0, marker(n)) for n in range(1_000)]
    loop = read(Script(*steps), chained(PassOn(), paper), [paper], clock=clock)
    assert loop.latencies()[0].count == 1_000
    assert [one for one in paper.notes if one != "flush"] == [marker(n) for n in range(200)]


def test_a_second_later_they_are_passed_on_again():
    clock = Hand()
    latencies = Latencies(clock)
    passed = 0
    for _ in range(3):
        passed += sum(latencies.add(marker()) for _ in range(500))
        clock.now_ns += SECOND_NS
    assert passed == 600


def test_an_error_of_writing_records_names_the_operator():
    def refuse(element):
        raise SerializationError("cannot write a socket")

    paper = Paper(on_marker=refuse)
    with pytest.raises(hg.UserCodeError, match=r"op, subtask 0: .*cannot write a socket"):
        read(Script((0, marker())), chained(PassOn(), paper), [paper])


def test_a_cancelled_exchange_is_raised_as_cancelled():
    def refuse(element):
        raise Cancelled("released")

    paper = Paper(on_marker=refuse)
    with pytest.raises(Cancelled):
        read(Script((0, marker())), chained(PassOn(), paper), [paper])


# What a source sends.


class Sending:
    """A source's loop whose time passes only in its sleep, or where its script says so."""

    def __init__(
        self, *steps, interval_ms=1000, bounded=True, timeout="auto", on_marker=None, on_sleep=None, operator=None
    ):
        self.clock = ManualClock()
        self.paper = Paper(timeout, on_marker=on_marker)
        self.on_sleep = on_sleep
        chain = chained(operator or PassOn(), self.paper, wall_ms=lambda: self.clock.now_ns() // 1_000_000)
        self.source = Scripted([self._step(step) for step in steps], bounded=bounded)
        self.loop = SourceLoop(
            self.source,
            [0],
            chain.head.place,
            chain,
            [self.paper],
            sync=HookedSync(self._sleep),
            timer=TaskTimer(self.clock.now_ns),
            now_ns=self.clock.now_ns,
            marker_interval_ns=int(interval_ms * 1_000_000),
            vertex=4,
            subtask=2,
            wall_ns=lambda: EPOCH_NS + self.clock.now_ns(),
        )

    def _step(self, step):
        if not isinstance(step, tuple):
            return step
        passing_ms, batch = step
        return lambda: self.clock.advance_ms(passing_ms) or batch

    def _sleep(self, timeout_s):
        assert timeout_s > 0, "it spins"
        self.clock.advance_ms(timeout_s * 1000)
        if self.on_sleep is not None:
            self.on_sleep(self)

    def run(self):
        self.loop.run()
        return [self._shown(note) for note in self.paper.notes]

    @staticmethod
    def _shown(note):
        if not isinstance(note, LatencyMarker):
            return note
        assert (note.operator, note.subtask) == (4, 2)
        return f"{(note.marked_ns - EPOCH_NS) // 1_000_000} ms"


def test_a_due_marker_is_emitted_before_a_batch():
    sending = Sending([1], [2], (999, [3]), (1, [4]), (5000, [5]), [6])
    assert sending.run() == ["0 ms", [1], [2], [3], "1000 ms", [4], "6000 ms", [5], [6]], (
        "late ones are not made up for"
    )
    assert sending.loop.latencies() == []


@pytest.mark.parametrize("bounded", [True, False])
def test_markers_go_on_while_a_source_waits_and_do_not_stay_in_buffers(bounded):
    sending = Sending([1], Wait(2.5), [2], bounded=bounded)
    assert sending.run() == ["0 ms", [1], "flush", "1000 ms", "flush", "2000 ms", "flush", [2]]


@pytest.mark.parametrize("timeout", ["10 ms", "0", "-1"])
def test_other_buffers_have_their_own_time(timeout):
    assert Sending([1], Wait(1.5), [2], timeout=timeout).run() == ["0 ms", [1], "1000 ms", [2]]


def test_a_source_that_has_nothing_at_all_sends_them():
    notes = Sending(Wait(1.0), Wait(0.5), Wait(1.0), on_sleep=lambda one: one.paper.notes.append("asleep")).run()
    assert [note for note in notes if note not in ("flush", "asleep")] == ["0 ms", "1000 ms", "2000 ms"]
    after = [following for note, following in itertools.pairwise(notes) if note.endswith("ms")]
    assert after == ["flush"] * 3, "none waits for a record to come along"


def test_a_source_that_is_asked_again_at_once_sends_them():
    notes = Sending(*[(300, Wait(0.0))] * 8, bounded=False).run()
    assert [note for note in notes if note != "flush"] == ["300 ms", "1500 ms"]


def test_more_than_a_thousand_a_second_are_not_sent():
    notes = Sending([1], Wait(0.0105), [2], interval_ms=0.000001).run()
    assert [note for note in notes if note != "flush"] == ["0 ms", [1], *[f"{n} ms" for n in range(1, 11)], [2]]


def test_none_are_sent_if_the_interval_is_zero():
    assert Sending([1], Wait(10.0), [2], interval_ms=0).run() == [[1], "flush", [2]]


def test_time_spent_waiting_for_a_buffer_counts():
    sending = Sending([1], (1000, [2]), [3], on_marker=lambda _: sending.clock.advance_ms(400))
    assert sending.run() == ["0 ms", [1], "1400 ms", [2], [3]], "it was marked before it was waited for"


def test_none_is_sent_after_the_end():
    sending = Sending([1])
    sending.run()
    sending.clock.advance_ms(10_000)
    assert sending.paper.notes == [LatencyMarker(EPOCH_NS, 4, 2), [1]]
    assert Sending().run() == [], "a source without records has ended at once"


def test_none_is_sent_once_it_is_cancelled():
    sending = Sending([1], Wait(60.0), [2], on_sleep=lambda one: one.loop.cancel())
    with pytest.raises(Cancelled):
        sending.run()
    assert [note for note in sending.paper.notes if note != "flush"] == [LatencyMarker(EPOCH_NS, 4, 2), [1]]


def test_none_is_sent_once_it_is_cancelled_while_it_reads():
    sending = Sending([1], (5000, [2]))
    step = sending.source._splits[0][1]
    sending.source._splits[0][1] = lambda: sending.loop.cancel() or step()
    with pytest.raises(Cancelled):
        sending.run()
    assert sending.paper.notes == [LatencyMarker(EPOCH_NS, 4, 2), [1]]


def test_timers_are_not_late_for_markers():
    operator = Noting()
    operator.timer_ms = 1700
    sending = Sending(Wait(3.0), [1], operator=operator)
    notes = sending.run()
    assert [note for note in operator.notes if note != "flush"] == [("timer", 1700), ("first", [1], None)]
    assert [note for note in notes if note != "flush"] == ["0 ms", "1000 ms", "2000 ms", "3000 ms"]
