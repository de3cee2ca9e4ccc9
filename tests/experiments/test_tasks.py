"""The tasks of the experiments: throttles that keep to a rate, stamps, and the counts made from them."""

import copy
import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate as hg
from headgate.experiments import tasks
from headgate.experiments.schedule import FOLLOW, Phase, PhaseSchedule, neighbour_phases
from headgate.experiments.tasks import (
    BATCH,
    RECORD_BYTES,
    FullSpeed,
    NoteStore,
    PhaseConsumer,
    PhaseSource,
    Throttle,
    barrier_at,
    stamped,
)
from headgate.record import CheckpointBarrier


class Clock:
    def __init__(self):
        self.s = 100.0
        self.slept = []

    def now(self):
        return self.s

    def sleep(self, seconds):
        assert seconds > 0
        self.slept.append(seconds)
        self.s += seconds


@given(st.floats(1e3, 1e7), st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 0.01)), min_size=1, max_size=200))
def test_a_throttle_lets_no_more_pass_than_its_rate(per_s, batches):
    clock, passed = Clock(), 0
    throttle = Throttle(clock.now, clock.sleep)
    for records, work_s in batches:
        clock.s += work_s
        throttle.wait(records, per_s)
        passed += records
        elapsed_s = clock.s - 100.0
        # A throttle makes up for a little lost time, and adds up sleeps that are too short.
        assert passed <= per_s * (elapsed_s + tasks._CATCH_UP_S + tasks._SHORTEST_S) + 1e-3


@given(st.floats(1e4, 1e6), st.integers(50, 300))
def test_a_throttle_reaches_its_rate_if_records_never_run_out(per_s, count):
    clock = Clock()
    throttle = Throttle(clock.now, clock.sleep)
    for _ in range(count):
        throttle.wait(BATCH, per_s)
    assert clock.s - 100.0 <= count * BATCH / per_s + 1e-6
    assert clock.s - 100.0 >= count * BATCH / per_s - tasks._SHORTEST_S - 1e-6
    assert max(clock.slept) <= 0.05


def test_a_long_stall_is_not_made_up_for():
    clock = Clock()
    throttle = Throttle(clock.now, clock.sleep)
    throttle.wait(10, 1000.0)
    clock.s += 5.0
    began_s = clock.s
    for _ in range(100):
        throttle.wait(10, 1000.0)
    assert clock.s - began_s == pytest.approx(1.0 - tasks._CATCH_UP_S)


def test_without_a_rate_the_throttle_does_not_wait_and_starts_anew():
    clock = Clock()
    throttle = Throttle(clock.now, clock.sleep)
    throttle.wait(1000, 1000.0)
    assert clock.s == pytest.approx(101.0)
    throttle.wait(1000, None)
    assert clock.s == pytest.approx(101.0)
    throttle.wait(10, 1000.0)
    assert clock.s == pytest.approx(101.01)


def test_full_speed_is_that_of_the_faster_half_of_the_lead_and_stays():
    speed = FullSpeed(slice_s=0.5, lead_s=2.0)
    for second, written in ((0.2, 1), (0.5, 50), (1.0, 550), (1.6, 700)):
        speed.update(second, written)
        assert speed.per_s == 0.0
    speed.update(2.1, 1000)
    assert speed.per_s == pytest.approx((1000 + 600) / 2)
    speed.update(2.7, 10**9)
    assert speed.per_s == pytest.approx(800)


def batches_of(source):
    place = None
    return source.read(0, 0, place)


def test_a_source_emits_stamps_with_their_place_in_the_order():
    source = PhaseSource("one", PhaseSchedule(FOLLOW, phase_s=60, lead_s=60))
    reading = batches_of(source)
    found = list(islice((batch for batch in reading if isinstance(batch, list)), 3))
    reading.close()
    assert all(len(batch) == BATCH and {len(record) for record in batch} == {RECORD_BYTES} for batch in found)
    stamps = [tasks._STAMP.unpack_from(batch[0]) for batch in found]
    assert [stamp[3] for stamp in stamps] == [0, BATCH, 2 * BATCH]
    assert {stamp[0] for stamp in stamps} == {1}
    assert len({stamp[1] for stamp in stamps}) == 1, "there is one start"
    assert stamps[0][1] <= stamps[0][2] <= stamps[1][2] <= time.time_ns()
    assert all(record[0] == 0 for batch in found for record in batch[1:])
    assert "one" not in tasks._starts, "nothing is left of the run"


def test_all_sources_of_a_run_have_one_start_and_other_runs_another():
    schedule = PhaseSchedule(FOLLOW, phase_s=60, lead_s=60)
    readings = [batches_of(PhaseSource(run, schedule)) for run in ("a", "a", "b")]
    starts = [tasks._STAMP.unpack_from(next(reading)[0])[1] for reading in readings]
    for reading in readings:
        reading.close()
    assert starts[0] == starts[1] != starts[2]


def test_a_neighbour_waits_for_its_phase_without_spinning():
    reading = batches_of(PhaseSource("c", PhaseSchedule(neighbour_phases(1), phase_s=60, lead_s=60), neighbour=True))
    waits = list(islice(reading, 3))
    reading.close()
    assert all(isinstance(wait, hg.Wait) and wait.seconds == 0.05 for wait in waits)


def test_a_source_ends_with_the_schedule():
    assert list(batches_of(PhaseSource("d", PhaseSchedule((Phase("all"),), phase_s=0.001, lead_s=0.001))))


@pytest.mark.spec("B4", "K4")
def test_a_barrier_follows_a_batch_and_its_number_is_the_time_of_emission(monkeypatch):
    now_ns = [10**18]
    monkeypatch.setattr(tasks.time, "time_ns", lambda: now_ns[0])
    reading = batches_of(PhaseSource("barriers", PhaseSchedule(FOLLOW, phase_s=60, lead_s=60)))
    found = []
    for _ in range(7):
        found.append(next(reading))
        now_ns[0] += 8_000_000
    reading.close()
    barriers = [one for one in found if not isinstance(one, list)]
    assert [isinstance(one, list) for one in found] == [True, False, True, True, False, True, True]
    assert all(isinstance(one, CheckpointBarrier) for one in barriers)
    assert [one.checkpoint - 10**18 for one in barriers] == [8_000_000, 32_000_000]
    assert [one.timestamp_ms for one in barriers] == [one.checkpoint // 10**6 for one in barriers]


def stamp(*, sent_ns, before, start_ns=0, full=0.0):
    return stamped(start_ns=start_ns, sent_ns=sent_ns, before=before, full_per_s=full)


def test_a_consumer_computes_the_records_in_flight_at_the_time_of_a_stamp(monkeypatch):
    now = [0]
    monkeypatch.setattr(tasks.time, "time_ns", lambda: now[0])
    consumer = PhaseConsumer("it", PhaseSchedule((Phase("all"),), phase_s=1, lead_s=1))
    plain = [bytes(RECORD_BYTES)] * 9
    now[0] = 100
    consumer([stamp(sent_ns=10, before=0), *plain])
    first = consumer.on_barrier(barrier_at(11))
    assert (first.in_flight, first.came_ns, first.sent_ns, first.seen) == (0, 100, 11, 10)
    now[0] = 200
    # Sent when 30 were given out and, as far as the consumer's clock says, 10 had come.
    consumer([stamp(sent_ns=150, before=30), *plain])
    now[0] = 300
    # Sent before the batch of 200 had come: 25 given out, 10 taken. The most since the last barrier counts.
    consumer([stamp(sent_ns=199, before=25), *plain])
    third = consumer.on_barrier(barrier_at(200))
    assert (third.in_flight, third.seen) == (20, 30)
    now[0] = 400
    consumer([stamp(sent_ns=350, before=40), *plain])
    assert consumer.on_barrier(barrier_at(351)).in_flight == 10


def test_the_history_of_a_consumer_does_not_grow(monkeypatch):
    consumer = PhaseConsumer("it", PhaseSchedule((Phase("all"),), phase_s=1, lead_s=1))
    for number in range(1, 1000):
        monkeypatch.setattr(tasks.time, "time_ns", lambda number=number: 100 * number)
        consumer([stamp(sent_ns=100 * number - 50, before=number)])
    assert len(consumer._history) < 5


def test_a_consumer_is_throttled_by_the_full_speed_that_the_stamps_carry(monkeypatch):
    rates = []
    monkeypatch.setattr(tasks.Throttle, "wait", lambda self, records, per_s: rates.append((records, per_s)))
    monkeypatch.setattr(tasks.time, "time_ns", lambda: 10**9 * 15)
    consumer = PhaseConsumer("it", PhaseSchedule(FOLLOW, phase_s=10, lead_s=2))
    consumer([stamp(sent_ns=1, before=0, full=0.0)])
    consumer([stamp(sent_ns=1, before=1, full=1000.0)])
    monkeypatch.setattr(tasks.time, "time_ns", lambda: 10**9 * 25)
    consumer([stamp(sent_ns=1, before=2, full=1000.0), bytes(RECORD_BYTES)])
    assert rates == [(1, None), (1, 300.0), (2, None)]


def test_a_slow_neighbour_takes_its_time_for_every_batch(monkeypatch):
    rates = []
    monkeypatch.setattr(tasks.Throttle, "wait", lambda self, records, per_s: rates.append(per_s))
    schedule = PhaseSchedule(neighbour_phases(1), phase_s=10, lead_s=2)
    consumer = PhaseConsumer("slow", schedule, pause_s=0.02)
    for second in (5, 15, 25):
        monkeypatch.setattr(tasks.time, "time_ns", lambda second=second: 10**9 * second)
        consumer([stamp(sent_ns=1, before=0)])
    assert rates == [None, BATCH / 0.02, None]


def test_copies_of_a_consumer_share_nothing():
    consumer = PhaseConsumer("it", PhaseSchedule(FOLLOW, phase_s=1, lead_s=1))
    other = copy.deepcopy(consumer)
    consumer([bytes(RECORD_BYTES)])
    assert other._seen == 0


def test_a_note_store_keeps_consumers_apart():
    store = NoteStore()
    assert store.last("a") is None
    store.put_batch([("a", 0, 1, 2, 3, 4, 0.0), ("b", 0, 1, 2, 3, 4, 0.0)])
    store.put_batch([("a", 0, 5, 6, 7, 8, 0.5)])
    assert [note.sent_ns for note in store.notes("a")] == [1, 5]
    assert store.last("a").full_per_s == 0.5
    assert len(store.notes("b")) == 1
