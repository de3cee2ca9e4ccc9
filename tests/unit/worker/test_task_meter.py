"""States of a task: moments that lie beside each other, however late or early somebody looks."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from headgate.config import load_settings
from headgate.control.reports import interval_ms
from headgate.meters import Activity, Counter, TaskTimer
from headgate.worker.task_meter import TaskMeter

MS = 1_000_000


class Looked:
    """A task that does as it is told, and its meter; time is both the worker's clock and the timer's."""

    def __init__(self, start_ms=1000, length_ms=100, *, gates=(), writers=1):
        self.ms = start_ms
        self.timer = TaskTimer(lambda: self.ms * MS)
        pool = SimpleNamespace(in_use=3, size=4)
        partition = SimpleNamespace(pool=pool)
        self.task = SimpleNamespace(
            loop=SimpleNamespace(records_in=0),
            writers=[SimpleNamespace(records_out=Counter(), partition=partition) for _ in range(writers)],
        )
        self.meter = TaskMeter(self.task, self.timer, gates, length_ms=length_ms)
        self.meter.begin(start_ms)

    def spend(self, ms, state=Activity.BUSY, came=0, went=0):
        self.timer.enter(state)
        self.ms += ms
        self.timer.leave()
        self.task.loop.records_in += came
        if went:
            self.task.writers[0].records_out.add(went)

    def measure(self):
        self.meter.measure(self.ms)

    def taken(self):
        return [(one.busy, one.idle, one.back_pressured, one.records_in, one.records_out) for one in self.meter.drain()]


@pytest.mark.spec("B2")
def test_a_state_has_the_time_shares_of_its_interval():
    task = Looked()
    task.spend(50, Activity.WAITING)
    task.spend(30)
    task.spend(20, Activity.IDLE)
    task.measure()
    state = task.meter.drain()[0]
    assert (state.busy, state.idle, state.back_pressured, state.waiting) == (300, 200, 0, 500)
    task = Looked()
    task.spend(20, came=5, went=7)
    task.spend(50, Activity.IDLE)
    task.spend(30, Activity.BACK_PRESSURED)
    task.measure()
    assert task.meter.ended_ms == 1100
    task.spend(100, Activity.IDLE)
    task.measure()
    assert task.taken() == [(200, 500, 300, 5, 7), (0, 1000, 0, 0, 0)]
    assert task.taken() == []
    assert task.meter.ended_ms == 1200


@pytest.mark.spec("B2")
def test_an_incomplete_interval_gives_no_state():
    task = Looked()
    task.spend(99, came=3)
    task.measure()
    assert task.taken() == []
    task.spend(2, Activity.IDLE)
    task.measure()
    assert task.taken() == [(981, 19, 0, 3, 0)], "it began at the last look, and ends at this one"
    assert task.meter.ended_ms == 1100


@pytest.mark.spec("B2")
def test_a_late_measurement_is_spread_evenly_over_the_missed_intervals():
    task = Looked()
    task.spend(350, came=10, went=2)
    task.measure()
    assert task.taken() == [(1000, 0, 0, 3, 0), (1000, 0, 0, 3, 1), (1000, 0, 0, 4, 1)]
    assert task.meter.ended_ms == 1300
    task.spend(50, Activity.IDLE)
    task.measure()
    assert task.taken() == [(0, 1000, 0, 0, 0)]
    assert task.meter.ended_ms == 1400


def test_a_very_late_measurement_keeps_the_last_states():
    task = Looked()
    task.spend(100 * 3000, came=6000)
    task.measure()
    states = task.taken()
    assert len(states) == 1000
    assert {one[3] for one in states} == {2}, "the rate is right, though the first are not told of"
    assert task.meter.ended_ms == 1000 + 100 * 3000


def test_a_clock_that_goes_back_a_little_is_waited_for_and_one_that_was_set_is_followed():
    task = Looked(start_ms=100_000)
    task.spend(100, came=1)
    task.measure()
    task.meter.measure(task.ms - 500)
    assert len(task.taken()) == 1
    task.spend(100, came=1)
    task.meter.measure(50_000)
    assert task.meter.ended_ms == 50_000
    task.spend(100, came=1)
    task.meter.measure(50_100)
    assert [one[3] for one in task.taken()] == [1, 1]
    assert task.meter.ended_ms == 50_100


@pytest.mark.spec("B2")
def test_the_end_completes_its_interval_and_later_time_does_not_count():
    task = Looked()
    task.spend(130, came=4)
    task.meter.end(task.ms)
    assert task.meter.ended_ms == 1200
    spent = task.meter.spent()
    task.spend(1000, Activity.IDLE, came=9)
    task.measure()
    task.meter.end(task.ms)
    assert task.taken() == [(1000, 0, 0, 2, 0), (1000, 0, 0, 2, 0)]
    assert task.meter.spent() == spent
    assert task.meter.over


def test_queues_and_pools_are_those_at_the_measurement():
    gates = [
        SimpleNamespace(waiting=lambda: (2, 5), pool=SimpleNamespace(in_use=1, size=8)),
        SimpleNamespace(waiting=lambda: (1, 0), pool=None),
        SimpleNamespace(waiting=lambda: (0, 0), pool=SimpleNamespace(in_use=3, size=0)),  # destroyed
    ]
    task = Looked(gates=gates, writers=2)
    task.spend(100)
    task.measure()
    (state,) = task.meter.drain()
    assert (state.in_queued, state.backlog, state.in_pool, state.out_pool) == (3, 5, 125, 750)


def test_an_overdrawn_pool_is_full_and_no_more():
    task = Looked()
    task.task.writers[0].partition.pool.in_use = 9
    task.spend(100)
    task.measure()
    assert task.meter.drain()[0].out_pool == 1000


def test_without_an_interval_no_state_is_measured():
    task = Looked(length_ms=0)
    task.spend(500, came=3)
    task.measure()
    task.meter.end(task.ms)
    assert task.taken() == []
    assert task.meter.ended_ms == 0
    assert task.meter.spent().busy_ns == 500 * MS


@pytest.mark.parametrize(
    ("said", "length_ms"), [("100 ms", 100), ("0", 0), ("500 us", 1), ("2500 us", 2), ("10 s", 10_000)]
)
def test_intervals_are_whole_milliseconds(said, length_ms):
    assert interval_ms(load_settings(code={"metrics.interval": said}).metrics) == length_ms


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(list(Activity)), st.integers(0, 50), st.booleans()),
        max_size=40,
    ),
    st.integers(0, 999),
)
def test_shares_add_up_records_are_kept_and_intervals_have_no_gap(steps, start_ms):
    task = Looked(start_ms=5000 + start_ms)
    first, states = (5000 + start_ms) // 100, []
    for ms, state, came, looks in steps:
        task.spend(ms, state, came=came, went=came // 2)
        if looks:
            task.measure()
            states += task.meter.drain()
            assert task.meter.ended_ms == (first + len(states)) * 100 <= task.ms
    task.meter.end(task.ms)
    states += task.meter.drain()
    assert len(states) == task.ms // 100 + 1 - first
    assert sum(one.records_in for one in states) == task.task.loop.records_in
    assert sum(one.records_out for one in states) == task.task.writers[0].records_out.value
    assert {one.busy + one.idle + one.back_pressured + one.waiting for one in states} <= {0, 1000}
    assert all(min(astuple(one)) >= 0 for one in states)
