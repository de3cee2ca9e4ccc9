"""How much of a batch is handed on at once, by what the functions take."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.meters import Activity, TaskTimer
from headgate.record.element import Batch
from headgate.task.runtime.portions import Portions

MS = 1_000_000


class Site:
    """Portions with a clock that moves as the handler says."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.timer = TaskTimer(lambda: self.now_ns)
        self.portions = Portions(lambda: self.now_ns, self.timer)
        self.handed: list[tuple[list[Any], list[int] | None]] = []
        self.between = 0
        self.each_ns = 0
        self.waits_ns = 0

    def handle(self, values: list[Any], times: list[int] | None) -> None:
        self.handed.append((values, times))
        self.now_ns += self.each_ns * len(values)
        if self.waits_ns:
            self.timer.enter(Activity.BACK_PRESSURED)
            self.now_ns += self.waits_ns
            self.timer.leave()

    def stop_by(self) -> None:
        self.between += 1

    def process(self, count: int, *, timed: bool = False) -> list[int]:
        """How large the portions were of a batch of so many."""
        self.handed.clear()
        values = list(range(count))
        times = [value + 7 for value in values] if timed else None
        self.portions.process(Batch(values, times), self.handle, self.stop_by)
        assert [value for portion, _ in self.handed for value in portion] == values
        if timed:
            assert [time for _, portion in self.handed for time in portion or ()] == times
        else:
            assert all(portion is None for _, portion in self.handed)
        return [len(portion) for portion, _ in self.handed]


def test_fast_batches_are_not_cut() -> None:
    site = Site()
    site.each_ns = 10_000
    assert [site.process(1000) for _ in range(5)] == [[1000]] * 5
    assert site.between == 0


def test_slow_batches_are_cut_except_the_first() -> None:
    site = Site()
    site.each_ns = 1 * MS
    assert site.process(1000, timed=True) == [1000]
    assert site.process(100, timed=True) == [10] * 10
    assert site.between == 9, "between two portions, and not after the last"


def test_a_single_record_may_take_as_long_as_it_likes() -> None:
    site = Site()
    site.each_ns = 500 * MS
    site.process(10)
    assert site.process(3) == [1, 1, 1]


def test_portions_grow_when_the_functions_are_fast_again() -> None:
    site = Site()
    site.each_ns = 1 * MS
    site.process(1000)
    site.each_ns = 1000
    assert site.process(310) == [10, 20, 40, 80, 160]


def test_blocking_for_a_buffer_does_not_shrink_portions() -> None:
    site = Site()
    site.each_ns, site.waits_ns = 10_000, 3_000 * MS
    assert [site.process(500) for _ in range(3)] == [[500]] * 3


def test_an_error_goes_through() -> None:
    site = Site()
    with pytest.raises(ZeroDivisionError):
        site.portions.process(Batch([1]), lambda values, times: 1 // 0, site.stop_by)


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from([0, 1000, MS, 30 * MS]), st.booleans()), max_size=20))
def test_nothing_is_lost_doubled_or_reordered(batches: list[tuple[int, int, bool]]) -> None:
    site = Site()
    for count, each_ns, timed in batches:
        site.each_ns = each_ns
        site.process(count, timed=timed)
