"""Speeds from the ring of a job's meters, when one follows another, and the ceiling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config import FlowControl, MemorySettings, NetworkSettings, Settings
from headgate.experiments import ceiling
from headgate.experiments.ceiling import ceiling_of
from headgate.experiments.figures import Speeds, follows_after_s, percentile, speeds_of
from headgate.observe.timeline import TaskLine, Timeline

per_s = st.lists(st.floats(0, 1e7) | st.none(), max_size=60)


def steady(*values, start_s=0.0):
    return Speeds(start_s, 0.1, tuple(values))


@given(per_s, st.floats(-5, 5), st.floats(-5, 10), st.floats(0, 10))
def test_a_mean_is_between_the_least_and_the_most_of_what_is_known(values, start_s, begin_s, length_s):
    speeds = Speeds(start_s, 0.1, tuple(values))
    within = [values[number] for number in speeds.steps(begin_s, begin_s + length_s)]
    known = [value for value in within if value is not None]
    mean = speeds.mean(begin_s, begin_s + length_s)
    if not known:
        assert mean is None
    else:
        assert min(known) * (1 - 1e-9) <= mean <= max(known) * (1 + 1e-9)


@given(per_s, st.floats(-5, 5), st.floats(0, 3), st.floats(0, 3))
def test_stretches_side_by_side_share_no_step(values, start_s, first_s, second_s):
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
def test_who_has_the_same_speed_follows_from_the_first_step(values):
    speeds = steady(*values)
    assert follows_after_s(speeds, speeds, 0.0, len(values) * 0.1) == pytest.approx(0.1)


@given(st.lists(st.floats(100, 1e7), min_size=1, max_size=60), st.sampled_from([0.0, 0.5, 0.85, 1.15, 3.0]))
def test_who_is_always_off_never_follows(values, factor):
    other = steady(*(factor * value for value in values))
    assert follows_after_s(steady(*values), other, 0.0, len(values) * 0.1) is None


@given(st.integers(0, 25))
def test_it_says_when_the_follower_came(late):
    leader = steady(*[100.0] * 60)
    follower = steady(*[1000.0] * late, *[100.0] * (60 - late))
    assert follows_after_s(leader, follower, 0.0, 6.0) == pytest.approx((late + 1) / 10)


def test_one_moment_that_was_counted_for_the_next_is_not_held_against_it():
    follower = [100.0] * 100
    follower[80:84] = [0.0, 0.0, 0.0, 400.0]
    assert follows_after_s(steady(*[100.0] * 100), steady(*follower), 0.0, 10.0) == pytest.approx(0.1)


def test_who_leaves_again_has_not_followed():
    follower = [100.0] * 50 + [200.0] * 50
    assert follows_after_s(steady(*[100.0] * 100), steady(*follower), 0.0, 10.0) is None


def test_nothing_known_is_not_following():
    nothing = steady(*[None] * 10)
    assert follows_after_s(steady(*[100.0] * 10), nothing, 0.0, 1.0) is None
    assert follows_after_s(steady(), steady(), 0.0, 1.0) is None
    assert follows_after_s(steady(*[0.0] * 10), steady(*[0.0] * 10), 0.0, 1.0) == pytest.approx(0.1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values(values, q):
    found = percentile(values, q)
    assert found in values
    assert sum(value < found for value in values) <= q * len(values)


def test_the_ceiling_is_the_sum_of_its_parts():
    found = ceiling_of(Settings(), batch_bytes=51_000)
    assert (found.sending, found.overdraft, found.exclusive, found.floating) == (10, 5, 2, 8)
    assert found.bytes == 25 * 32 * 1024 + 2 * 51_000
    assert found.socket == 0, "with credit, what is in the socket has its place at the consumer"


def test_it_follows_the_settings():
    network = NetworkSettings(
        buffers_per_channel=3, floating_buffers_per_gate=20, max_buffers_per_channel=7, max_overdraft_buffers=0
    )
    found = ceiling_of(Settings(network=network, memory=MemorySettings(segment_size=4096)), batch_bytes=0)
    assert found.bytes == (7 + 0 + 3 + 20) * 4096


def test_without_credit_the_kernel_comes_on_top(tmp_path, monkeypatch):
    for name, size in (("tcp_wmem", 4000), ("tcp_rmem", 6000)):
        (tmp_path / name).write_text(f"1 2 {size}\n")
    monkeypatch.setattr(ceiling, "_KERNEL_TABLES", tmp_path)
    own = ceiling_of(Settings(network=NetworkSettings(flow_control=FlowControl.TCP)), 0)
    assert own.socket == 10_000 + ceiling.SLAB_BYTES
    assert own.exclusive == 0
    assert own.floating == 10
    asked = NetworkSettings(flow_control=FlowControl.TCP, send_buffer=1000, receive_buffer=2000)
    assert ceiling_of(Settings(network=asked), 0).socket == 6000 + ceiling.SLAB_BYTES
    assert "in the socket" in str(own)
