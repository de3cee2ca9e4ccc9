"""Counters, rates, and where a task's time goes."""

from headgate.clock import ManualClock
from headgate.meters import Counter, Rate, TaskState, TaskTimer, TimeSpent


def test_a_counter_counts_up() -> None:
    counter = Counter()
    assert counter.value == 0
    counter.add()
    counter.add(41)
    counter.add(0)
    assert counter.value == 42


def test_a_rate_is_the_mean_since_the_last_look() -> None:
    clock, counter = ManualClock(), Counter()
    counter.add(1000)  # before the rate was made: not its business
    rate = Rate(counter, clock.now_ns)
    counter.add(50)
    clock.advance_ms(500)
    assert rate.per_second() == 100.0
    clock.advance_ms(250)
    assert rate.per_second() == 0.0
    counter.add(3)
    clock.advance_ms(1000)
    assert rate.per_second() == 3.0


def test_a_rate_asked_twice_at_once_forgets_nothing() -> None:
    clock, counter = ManualClock(), Counter()
    rate = Rate(counter, clock.now_ns)
    counter.add(10)
    assert rate.per_second() == 0.0
    clock.advance_ms(1000)
    assert rate.per_second() == 10.0


def test_a_timer_splits_time_by_state() -> None:
    clock = ManualClock(10**15)
    timer = TaskTimer(clock.now_ns)
    assert timer.state is TaskState.BUSY
    clock.advance_ms(1)
    timer.enter(TaskState.IDLE)
    assert timer.state is TaskState.IDLE
    clock.advance_ms(2)
    timer.leave()
    assert timer.state is TaskState.BUSY
    clock.advance_ms(4)
    timer.enter(TaskState.BACK_PRESSURED)
    clock.advance_ms(8)
    assert timer.statistics() == TimeSpent(busy_ns=5_000_000, idle_ns=2_000_000, back_pressured_ns=8_000_000)
    timer.leave()
    clock.advance_ms(16)
    spent = TimeSpent(busy_ns=21_000_000, idle_ns=2_000_000, back_pressured_ns=8_000_000)
    assert timer.statistics() == spent
    assert timer.statistics() == spent, "looking changes nothing"


def test_whoever_wants_to_know_is_told_how_long_each_run_was() -> None:
    clock, runs_ns = ManualClock(), list[int]()
    timer = TaskTimer(clock.now_ns, runs_ns.append)
    clock.advance_ms(3)
    timer.enter(TaskState.IDLE)
    clock.advance_ms(5)
    timer.enter(TaskState.BACK_PRESSURED)
    timer.leave()
    clock.advance_ms(7)
    timer.enter(TaskState.IDLE)
    assert runs_ns == [3_000_000, 7_000_000]


def test_a_reader_overtaken_by_the_task_loses_no_time() -> None:
    """Time seen once must not be missing from the next look: rates made of it would be negative."""
    clock = ManualClock()
    overtake: list[TaskState] = []

    def now_ns() -> int:
        if overtake:  # the task's thread runs while the reader is about to read the clock
            state = overtake.pop()
            clock.advance_ms(5)
            timer.enter(state)
        return clock.now_ns()

    timer = TaskTimer(now_ns)
    clock.advance_ms(1000)
    before = timer.statistics()
    overtake.append(TaskState.IDLE)
    after = timer.statistics()
    assert after.busy_ns >= before.busy_ns
    assert after.idle_ns >= before.idle_ns
