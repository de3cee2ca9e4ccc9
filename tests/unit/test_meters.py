"""Counters, and the time that a task spends in each state."""

from headgate.clock import ManualClock
from headgate.meters import Activity, Counter, TaskTimer, TimeSpent


def test_a_counter_counts_up() -> None:
    counter = Counter()
    assert counter.value == 0
    counter.add()
    counter.add(41)
    counter.add(0)
    assert counter.value == 42


def test_a_timer_splits_time_by_state() -> None:
    clock = ManualClock(10**15)
    timer = TaskTimer(clock.now_ns)
    assert timer.state is Activity.BUSY
    clock.advance_ms(1)
    timer.enter(Activity.IDLE)
    assert timer.state is Activity.IDLE
    clock.advance_ms(2)
    timer.leave()
    assert timer.state is Activity.BUSY
    clock.advance_ms(4)
    timer.enter(Activity.BACK_PRESSURED)
    clock.advance_ms(8)
    assert timer.statistics() == TimeSpent(busy_ns=5_000_000, idle_ns=2_000_000, back_pressured_ns=8_000_000)
    timer.leave()
    clock.advance_ms(16)
    spent = TimeSpent(busy_ns=21_000_000, idle_ns=2_000_000, back_pressured_ns=8_000_000)
    assert timer.statistics() == spent
    assert timer.statistics() == spent, "looking changes nothing"


def test_waiting_for_coroutines_is_neither_work_nor_one_of_the_other_waits() -> None:
    clock = ManualClock()
    timer = TaskTimer(clock.now_ns)
    clock.advance_ms(1)
    timer.enter(Activity.WAITING)
    clock.advance_ms(2)
    timer.leave()
    assert timer.statistics() == TimeSpent(busy_ns=1_000_000, idle_ns=0, back_pressured_ns=0, waiting_ns=2_000_000)


def test_a_reader_overtaken_by_the_task_loses_no_time() -> None:
    """Time seen once must not be missing from the next look: rates made of it would be negative."""
    clock = ManualClock()
    overtake: list[Activity] = []

    def now_ns() -> int:
        if overtake:  # the task's thread runs while the reader is about to read the clock
            state = overtake.pop()
            clock.advance_ms(5)
            timer.enter(state)
        return clock.now_ns()

    timer = TaskTimer(now_ns)
    clock.advance_ms(1000)
    before = timer.statistics()
    overtake.append(Activity.IDLE)
    after = timer.statistics()
    assert after.busy_ns >= before.busy_ns
    assert after.idle_ns >= before.idle_ns
