"""Speeds from the ring of a job's meters, and when one follows another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.experiments.figures import Speeds, follows_after_s, speeds_of
from headgate.observe.timeline import TaskLine, Timeline

per_s = st.lists(st.floats(0, 1e7) | st.none(), max_size=60)


def steady(*values, start_s=0.0):
    return Speeds(start_s, 0.1, tuple(values))


@given(per_s, st.floats(-5, 5), st.floats(-5, 10), st.floats(0, 10))
def test_a_mean_is_between_the_least_and_the_greatest_known_value(values, start_s, begin_s, length_s):
    speeds = Speeds(start_s, 0.1, tuple(values))
    within = [values[number] for number in speeds.steps(begin_s, begin_s + length_s)]
    known = [value for value in within if value is not None]
    mean = speeds.mean(begin_s, begin_s + length_s)
    if not known:
        assert mean is None
    else:
        assert min(known) * (1 - 1e-9) <= mean <= max(known) * (1 + 1e-9)


@given(per_s, st.floats(-5, 5), st.floats(0, 3), st.floats(0, 3))
def test_adjacent_intervals_share_no_step(values, start_s, first_s, second_s):
    speeds = Speeds(start_s, 0.1, tuple(values))
    one = speeds.steps(start_s, start_s + first_s)
    other = speeds.steps(start_s + first_s, start_s + first_s + second_s)
    assert not set(one) & set(other)
    assert one == list(range(len(one)))


def test_speeds_are_read_from_the_line_of_the_whole_vertex():
    tasks = (
        TaskLine(vertex=1, subtask=0, records_in=(1, 1, 1)),
        TaskLine(vertex=1, subtask=-1, records_in=(2, -1, 4)),
        TaskLine(vertex=2, subtask=-1, records_in=(9, 9, 9)),
    )
    timeline = Timeline(start_ms=10_000, step_ms=200, steps=3, tasks=tasks)
    assert speeds_of(timeline, 1, "records_in", start_ms=9_500.0) == Speeds(0.5, 0.2, (10.0, None, 20.0))
    assert speeds_of(timeline, 7, "records_in", start_ms=9_500.0).per_s == ()


@given(st.lists(st.floats(1, 1e7), min_size=1, max_size=60))
def test_equal_speeds_follow_from_the_first_step(values):
    speeds = steady(*values)
    assert follows_after_s(speeds, speeds, 0.0, len(values) * 0.1) == pytest.approx(0.1)


@given(st.lists(st.floats(100, 1e7), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.85, 1.15, 3.0]))
def test_a_speed_that_always_differs_never_follows(values, factor):
    other = steady(*(factor * value for value in values))
    assert follows_after_s(steady(*values), other, 0.0, len(values) * 0.1) is None


@given(st.integers(0, 25))
def test_the_result_is_when_the_follower_arrived(late):
    leader = steady(*[100.0] * 60)
    follower = steady(*[1000.0] * late, *[100.0] * (60 - late))
    assert follows_after_s(leader, follower, 0.0, 6.0) == pytest.approx((late + 1) / 10)


def test_records_counted_in_the_next_step_do_not_matter():
    follower = [100.0] * 100
    follower[80:84] = [0.0, 0.0, 0.0, 400.0]
    assert follows_after_s(steady(*[100.0] * 100), steady(*follower), 0.0, 10.0) == pytest.approx(0.1)


def test_a_follower_that_leaves_again_has_not_followed():
    follower = [100.0] * 50 + [200.0] * 50
    assert follows_after_s(steady(*[100.0] * 100), steady(*follower), 0.0, 10.0) is None


def test_unknown_speeds_do_not_follow():
    nothing = steady(*[None] * 10)
    assert follows_after_s(steady(*[100.0] * 10), nothing, 0.0, 1.0) is None
    assert follows_after_s(steady(), steady(), 0.0, 1.0) is None
    assert follows_after_s(steady(*[0.0] * 10), steady(*[0.0] * 10), 0.0, 1.0) == pytest.approx(0.1)


def test_columns_of_time_become_shares():
    tasks = (TaskLine(vertex=1, subtask=-1, idle=(250, -1)),)
    timeline = Timeline(start_ms=0, step_ms=100, steps=2, tasks=tasks)
    assert speeds_of(timeline, 1, "idle", start_ms=0.0).per_s == (0.25, None)
