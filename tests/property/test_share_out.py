"""Sharing out, for any number of pools of any size."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.buffer import share_out

spares = st.integers(0, 10_000)
excesses = st.lists(st.integers(0, 20_000), max_size=40)


@pytest.mark.spec("M3")
@given(spares, excesses)
def test_all_spare_segments_are_shared_and_no_pool_exceeds_its_maximum(spare: int, excess: list[int]) -> None:
    shares = share_out(spare, excess)
    assert len(shares) == len(excess)
    assert sum(shares) == min(spare, sum(min(spare, wanted) for wanted in excess))
    for share, wanted in zip(shares, excess, strict=True):
        assert 0 <= share <= wanted


@pytest.mark.spec("M3")
@given(spares, excesses)
def test_each_share_is_its_proportion_to_less_than_one_segment(spare: int, excess: list[int]) -> None:
    parts = [min(spare, wanted) for wanted in excess]
    for share, part in zip(share_out(spare, excess), parts, strict=True):
        exact = Fraction(part * min(spare, sum(parts)), sum(parts)) if part else Fraction(0)
        assert abs(share - exact) < 1


@pytest.mark.spec("M3")
@given(spares, excesses)
def test_running_totals_round_down_at_every_point(spare: int, excess: list[int]) -> None:
    parts = [min(spare, wanted) for wanted in excess]
    shares = share_out(spare, excess)
    for seen in range(len(parts) + 1):
        exact = Fraction(sum(parts[:seen]) * min(spare, sum(parts)), max(1, sum(parts)))
        assert sum(shares[:seen]) == exact // 1


@pytest.mark.spec("M3")
@given(spares, excesses)
def test_with_enough_spare_segments_each_pool_has_its_maximum(spare: int, excess: list[int]) -> None:
    assert share_out(sum(excess) + spare, excess) == excess


@pytest.mark.spec("M3")
@given(spares, st.integers(0, 20_000), st.integers(1, 40))
def test_equal_pools_differ_by_one_at_most(spare: int, wanted: int, pools: int) -> None:
    shares = share_out(spare, [wanted] * pools)
    assert max(shares) - min(shares) <= 1
