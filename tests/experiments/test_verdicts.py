"""The verdicts: which figures of a run pass and which fail."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import FlowControl, Settings
from headgate.experiments.figures import Speeds
from headgate.experiments.follow import PhaseFigures, result_of, samples_of
from headgate.experiments.neighbour import FAST, SLOW, NeighbourResult, verdict_of
from headgate.experiments.schedule import FOLLOW, PhaseSchedule, neighbour_phases
from headgate.experiments.tasks import BATCH, BarrierNote
from headgate.observe.timeline import TaskLine, Timeline

GOOD = PhaseFigures(
    name="released",
    begin_s=0.0,
    end_s=10.0,
    expected=1.0,
    throttled=False,
    full_per_s=1000.0,
    producer_per_s=1000.0,
    consumer_per_s=1000.0,
    followed_after_s=0.1,
    in_flight_bytes=1000,
)


@given(st.floats(0.9, 1.1), st.floats(1.0, 1e7))
def test_speeds_may_differ_by_five_percent(ratio, consumer_per_s):
    phase = replace(
        GOOD, producer_per_s=ratio * consumer_per_s, consumer_per_s=consumer_per_s, full_per_s=consumer_per_s
    )
    assert phase.ratio == pytest.approx(ratio)
    if abs(abs(ratio - 1) - 0.05) > 1e-6:
        assert (phase.problems() == []) == (abs(ratio - 1) < 0.05)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"consumer_per_s": 0.0}, "one of the two stood still"),
        ({"producer_per_s": None}, "one of the two stood still"),
        ({"followed_after_s": None}, "the producer did not follow"),
        ({"producer_per_s": 940.0}, "the producer gave out 0.94 of what the consumer took"),
        ({"full_per_s": 2100.0}, "48 % of full speed instead of 100 % (a busy machine?)"),
        ({"expected": 0.3, "throttled": True}, "100 % of full speed instead of 30 % (a busy machine?)"),
    ],
)
def test_each_problem_is_named(change, problem):
    assert problem in replace(GOOD, **change).problems()


def test_a_machine_that_has_become_faster_is_no_problem():
    assert replace(GOOD, full_per_s=400.0).problems() == []


def run_of(speeds, *, in_flight=5000, follower=None, record_bytes=100.0):
    """Return the figures of a run with one speed for each second: a lead of 1 s, phases of 1 s."""
    schedule = PhaseSchedule(FOLLOW, phase_s=1.0, lead_s=1.0)
    steps = [round(speed / 10) for speed in speeds for _ in range(10)]
    others = steps if follower is None else [round(speed / 10) for speed in follower for _ in range(10)]
    lines = (
        TaskLine(vertex=0, subtask=-1, records_out=tuple(others), back_pressured=(100,) * len(steps)),
        TaskLine(vertex=1, subtask=-1, records_in=tuple(steps), idle=(-1,) * len(steps)),
    )
    timeline = Timeline(start_ms=1_000_000, step_ms=100, steps=len(steps), tasks=lines)
    start_ns = 1_000_000 * 10**6
    most = in_flight if isinstance(in_flight, list) else [in_flight] * 6
    notes = []
    for second in range(6):
        sent_ns = start_ns + second * 10**9 + 5 * 10**8
        notes.append(
            BarrierNote("consumer", start_ns, sent_ns, sent_ns + 10**8, 0, most[second], 1000.0 if second else 0.0)
        )
    return result_of(notes, timeline, ids=(0, 1), schedule=schedule, settings=Settings(), record_bytes=record_bytes)


AS_ASKED = (1000, 600, 300, 1000, 300, 1000)


@pytest.mark.spec("B3")
def test_a_run_in_which_all_phases_are_as_asked_passes():
    found = run_of(AS_ASKED)
    assert [phase.share for phase in found.phases] == [0.6, 0.3, 1.0, 0.3, 1.0]
    assert [phase.followed_after_s for phase in found.phases] == [pytest.approx(0.1)] * 5
    assert [phase.in_flight_bytes for phase in found.phases] == [500_000] * 5
    assert [phase.latency_p50_ms for phase in found.phases] == [pytest.approx(100.0)] * 5
    assert found.verdict().passed
    assert str(found.verdict()) == (
        "PASS: the producer followed in all 5 phases, after 0.1 s at most; speeds within 0.0 % of each other; at most "
        "488 KiB in flight, 54 % of the ceiling"
    )
    assert found.held.mean(0.0, 6.0) == pytest.approx(0.1)
    assert found.idle.mean(0.0, 6.0) is None


@pytest.mark.parametrize("phase", range(5))
def test_a_producer_that_does_not_follow_in_one_phase_fails_and_the_phase_is_named(phase):
    follower = list(AS_ASKED)
    follower[phase + 1] = 2 * AS_ASKED[phase + 1]
    verdict = run_of(AS_ASKED, follower=follower).verdict()
    assert not verdict.passed
    assert (
        verdict.text
        == f"{FOLLOW[phase].name}: the producer gave out 2.00 of what the consumer took, the producer did not follow"
    )


def test_a_consumer_that_is_not_released_fails():
    verdict = run_of((1000, 600, 300, 300, 300, 1000)).verdict()
    assert str(verdict) == "FAIL: released: 30 % of full speed instead of 100 % (a busy machine?)"


def test_more_bytes_than_the_ceiling_fail():
    ceiling = run_of(AS_ASKED).ceiling.bytes
    assert run_of(AS_ASKED, in_flight=ceiling // 100).verdict().passed
    verdict = run_of(AS_ASKED, in_flight=ceiling // 100 + 1).verdict()
    assert not verdict.passed
    assert "KiB were in flight, and the ceiling is" in verdict.text


def test_records_in_flight_belong_to_the_phase_in_which_they_were_sent():
    found = run_of(AS_ASKED, in_flight=[9, 1, 2, 3, 4, 5])
    assert [phase.in_flight_bytes for phase in found.phases] == [100, 200, 300, 400, 500]
    assert [size for _, size in found.in_flight] == [900, 100, 200, 300, 400, 500]


def test_the_ceiling_counts_batches_as_large_as_they_are():
    small, large = run_of(AS_ASKED, record_bytes=100.0), run_of(AS_ASKED, record_bytes=200.0)
    assert large.ceiling.bytes - small.ceiling.bytes == 2 * BATCH * 100


@given(st.floats(0.5, 20.0), st.floats(0.1, 30.0))
def test_samples_cover_all_of_the_time_and_are_as_long_as_asked_for(end_s, interval_s):
    speeds = Speeds(0.0, 0.1, (50.0,) * round(end_s * 10))
    samples = samples_of(speeds, speeds, end_s, interval_s, full_per_s=100.0)
    assert samples[0].begin_s == 0.0
    assert samples[-1].end_s == pytest.approx(end_s, abs=1e-5)
    for one, other in pairwise(samples):
        assert one.end_s == pytest.approx(other.begin_s, abs=1e-5)
        assert one.end_s - one.begin_s == pytest.approx(interval_s, abs=1e-5)
    assert {sample.producer for sample in samples} <= {0.5, None}


def neighbour(mode, alone, beside, took=None):
    schedule = PhaseSchedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0)
    fast = Speeds(0.0, 0.1, (*[0.0] * 10, *[alone] * 10, *[beside] * 10, *[alone] * 10))
    return NeighbourResult(mode=mode, schedule=schedule, record_bytes=100.0, fast=fast, slow=fast, took=took or {})


@pytest.mark.spec("B4")
@pytest.mark.parametrize(
    ("credit", "tcp", "passed"), [(0.95, 0.05, True), (0.9, 0.5, True), (0.85, 0.05, False), (0.95, 0.8, False)]
)
def test_the_fast_one_must_keep_its_speed_with_credit_and_lose_it_with_tcp(credit, tcp, passed):
    found = {
        FlowControl.CREDIT: neighbour(FlowControl.CREDIT, 1000.0, credit * 1000.0),
        FlowControl.TCP: neighbour(FlowControl.TCP, 1000.0, tcp * 1000.0),
    }
    assert found[FlowControl.CREDIT].keeps() == pytest.approx(credit)
    assert verdict_of(found).passed is passed
    assert ("not at least 90" in str(verdict_of(found))) == (credit < 0.9)
    assert ("not dragged down" in str(verdict_of(found))) == (tcp > 0.5)


def test_unknown_figures_fail():
    assert not verdict_of({FlowControl.CREDIT: neighbour(FlowControl.CREDIT, 1000.0, 1000.0)}).passed
    silent = {mode: neighbour(mode, None, None) for mode in FlowControl}
    assert not verdict_of(silent).passed
    assert "nothing is known" in str(verdict_of(silent))


def test_the_first_quarter_of_a_phase_does_not_count():
    schedule = PhaseSchedule(neighbour_phases(1), phase_s=1.0, lead_s=1.0)
    fast = Speeds(0.0, 0.05, (*[0.0] * 25, *[100.0] * 15, *[900.0] * 5, *[50.0] * 15, *[0.0] * 5, *[100.0] * 15))
    found = NeighbourResult(mode=FlowControl.CREDIT, schedule=schedule, record_bytes=1.0, fast=fast, slow=fast, took={})
    assert found.keeps() == pytest.approx(0.5)


def test_barriers_count_where_the_neighbour_was_slow_until_they_arrived():
    took = {
        FAST: [(1.2, 7.0), (1.8, 1.0), (2.1, 2.0), (2.4, 8.0), (2.7, 9.0), (3.2, 7.0), (3.6, 3.0)],
        SLOW: [(2.1, 5.0)],
    }
    found = neighbour(FlowControl.CREDIT, 1.0, 1.0, took)
    assert found.barriers(FAST, beside=True).count == 2
    assert found.barriers(FAST, beside=True).max_ms == 8.0
    assert found.barriers(FAST, beside=False).max_ms == 3.0
    assert found.barriers(SLOW, beside=True).p50_ms == 5.0
    assert found.barriers(SLOW, beside=False).p50_ms is None
