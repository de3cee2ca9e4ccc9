"""Time as something handed in."""

import time

import pytest

from headgate.clock import ManualClock, SystemClock


def test_the_manual_clock_moves_only_by_advance() -> None:
    clock = ManualClock(now_ns=5)
    assert clock.now_ns() == clock.now_ns() == 5
    clock.advance_ms(1.5)
    assert clock.now_ns() == 1_500_005
    clock.advance_ms(0)
    assert clock.now_ns() == 1_500_005


def test_time_does_not_run_backwards() -> None:
    clock = ManualClock(7)
    with pytest.raises(AssertionError, match="backwards"):
        clock.advance_ms(-1)
    assert clock.now_ns() == 7


def test_the_system_clock_is_the_monotonic_one() -> None:
    before = time.monotonic_ns()
    now = SystemClock().now_ns()
    assert before <= now <= time.monotonic_ns()
