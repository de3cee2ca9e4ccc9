"""K3: one watermark out of many channels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.input.align import WatermarkMerge

pytestmark = pytest.mark.spec("K3")


def test_the_least_channel_holds_it_back():
    merge = WatermarkMerge(3)
    assert [merge.rise(0, 9), merge.rise(1, 5), merge.rise(2, 7)] == [None, None, 5]
    assert merge.rise(1, 8) == 7


def test_an_idle_channel_does_not_hold_it_back():
    merge = WatermarkMerge(2)
    merge.rise(0, 10)
    assert merge.set_active(1, active=False) == 10
    assert not merge.idle
    assert merge.set_active(0, active=False) is None
    assert merge.idle
    assert merge.set_active(1, active=True) is None, "it never falls"
    assert merge.rise(1, 3) is None
    assert merge.rise(1, 12) == 12


def test_an_ended_channel_does_not_hold_it_back():
    merge = WatermarkMerge(2)
    merge.rise(0, 10)
    assert merge.end(1) == 10
    assert not merge.idle
    assert merge.end(0) is None


def test_an_ended_channel_counts_where_all_others_are_idle():
    """Neither holds event time back, so it is as far as the further of them, in whichever order they stop."""
    merge = WatermarkMerge(2)
    assert [merge.rise(0, 99), merge.rise(1, 5)] == [None, 5]
    assert merge.end(0) is None, "the other one is active"
    assert merge.set_active(1, active=False) == 99
    assert merge.idle
    other = WatermarkMerge(2)
    assert [other.rise(0, 99), other.rise(1, 5)] == [None, 5]
    assert other.set_active(1, active=False) == 99
    assert other.end(0) is None


def test_a_watermark_of_an_idle_channel_counts_where_all_are_idle():
    merge = WatermarkMerge(2)
    assert [merge.rise(0, 10), merge.rise(1, 5)] == [None, 5]
    assert merge.set_active(0, active=False) is None
    assert merge.rise(0, 50) is None, "the active one holds it back"
    assert merge.set_active(1, active=False) == 50
    assert merge.rise(0, 60) == 60
    assert merge.rise(1, 55) is None


steps = st.lists(
    st.tuples(st.sampled_from(["rise", "idle", "active", "end"]), st.integers(0, 2), st.integers(-50, 50)), max_size=60
)


@given(steps)
def test_it_is_the_least_of_the_active_channels_and_never_falls(steps):
    merge, marks, active, ended, merged = WatermarkMerge(3), {}, set(range(3)), set(), None
    for what, channel, mark in steps:
        if what == "rise":
            marks[channel] = max(mark, marks.get(channel, mark))
            found = merge.rise(channel, mark)
        elif what == "end":
            ended.add(channel)
            found = merge.end(channel)
        else:
            (active.add if what == "active" else active.discard)(channel)
            found = merge.set_active(channel, active=what == "active")
        counted = [marks.get(one) for one in active - ended]
        if counted and None not in counted and (merged is None or min(counted) > merged):
            assert found == min(counted)
        if not counted and marks and (merged is None or max(marks.values()) > merged):
            assert found == max(marks.values()), "where none is active, the greatest"
        if found is not None:
            assert merged is None or found > merged
            merged = found
