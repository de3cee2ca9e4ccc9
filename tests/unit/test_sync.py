"""The lock, places to sleep, wake-ups done together, and the ticker."""

import logging
import threading

import pytest
from tests.support.threads import run_threads
from tests.support.waiting import PATIENCE_S

from headgate.sync import DebugLock, ThreadSync, Ticker, together


def test_together_does_every_wake_in_order() -> None:
    done: list[str] = []
    wake = together(None, lambda: done.append("a"), None, lambda: done.append("b"), lambda: done.append("c"))
    assert done == [], "nothing before it is called"
    assert wake is not None
    wake()
    assert done == ["a", "b", "c"]


def test_together_adds_nothing_where_there_is_nothing_to_add() -> None:
    def wake() -> None: ...

    assert together() is None
    assert together(None, None) is None
    assert together(None, wake, None) is wake


def test_the_lock_is_one_per_sync_and_mutexes_are_new() -> None:
    sync = ThreadSync()
    assert sync.lock is sync.lock
    assert len({id(lock) for lock in (sync.lock, sync.mutex(), sync.mutex(), ThreadSync().lock)}) >= 3
    mutex = sync.mutex()
    with sync.lock:
        assert sync.lock.locked()
        assert not mutex.locked()
        assert not sync.lock.acquire(blocking=False), "not reentrant"
    assert not sync.lock.locked()
    assert mutex.acquire(blocking=False)
    mutex.release()


def test_a_wake_before_the_wait_is_not_lost() -> None:
    waiter = ThreadSync().new_signal()
    waiter.wake()
    assert waiter.wait(None)
    assert not waiter.wait(0), "one wake, one return"


@pytest.mark.parametrize("timeout_s", [0, 0.001, -5])
def test_a_wait_ends_with_its_time(timeout_s: float) -> None:
    waiter = ThreadSync().new_signal()
    assert not waiter.wait(timeout_s)
    waiter.wake()
    assert waiter.wait(timeout_s), "a wake after the time still counts for the next wait"


def test_a_wait_of_more_than_the_machine_can_count() -> None:
    waiter = ThreadSync().new_signal()
    waiter.wake()
    assert waiter.wait(1e30)


@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_a_blocked_thread_is_woken_by_another_thread(timeout_s: float | None) -> None:
    waiter = ThreadSync().new_signal()
    woken: list[bool] = []
    run_threads(lambda: woken.append(waiter.wait(timeout_s)), waiter.wake)
    assert woken == [True]


class Countdown:
    """Called `count` times, then the event is set."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = threading.Event()
        self.threads: set[int] = set()

    def __call__(self) -> None:
        self.threads.add(threading.get_ident())
        self.left -= 1
        if self.left == 0:
            self.done.set()


@pytest.mark.spec("W4")
def test_the_ticker_calls_again_and_again_on_one_thread() -> None:
    first, second = Countdown(5), Countdown(3)
    with Ticker("test-ticker") as ticker:
        ticker.every(0.001, first)
        ticker.every(0.002, second)
        assert first.done.wait(PATIENCE_S)
        assert second.done.wait(PATIENCE_S)
        assert "test-ticker" in {thread.name for thread in threading.enumerate()}
    assert first.threads == second.threads
    assert threading.get_ident() not in first.threads
    assert "test-ticker" not in {thread.name for thread in threading.enumerate()}


def test_a_ticker_without_work_has_no_thread() -> None:
    before = threading.active_count()
    ticker = Ticker()
    assert threading.active_count() == before
    ticker.close()
    ticker.close()


def test_a_shorter_interval_does_not_wait_for_a_longer_one() -> None:
    with Ticker() as ticker:
        never = Countdown(1)
        ticker.every(3600, never)
        soon = Countdown(2)
        ticker.every(0.001, soon)
        assert soon.done.wait(PATIENCE_S)
        assert never.left == 1


def test_a_function_that_raises_is_not_called_again_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def bad() -> None:
        calls.append(1)
        raise ValueError("broken flush")

    good = Countdown(10)
    with caplog.at_level(logging.ERROR, "headgate.sync"), Ticker("the-ticker") as ticker:
        ticker.every(0.001, bad)
        ticker.every(0.001, good)
        assert good.done.wait(PATIENCE_S)
    assert calls == [1]
    assert "the-ticker" in caplog.text
    assert "not called again" in caplog.text
    assert "broken flush" in caplog.text


def test_a_cancelled_function_is_not_called() -> None:
    with Ticker() as ticker:
        cancelled, other = Countdown(1), Countdown(5)
        ticker.every(0.001, cancelled)
        ticker.cancel(cancelled)
        seen = cancelled.left
        ticker.cancel(cancelled)  # may be repeated
        ticker.every(0.001, other)
        assert other.done.wait(PATIENCE_S)
        assert seen - cancelled.left <= 1, "at most the call that was under way"


def test_the_ticker_may_be_closed_from_its_own_thread() -> None:
    closed = threading.Event()
    ticker = Ticker()

    def close() -> None:
        ticker.close()
        closed.set()

    ticker.every(0.001, close)
    assert closed.wait(PATIENCE_S)


def test_the_ticker_refuses_invalid_calls() -> None:
    with Ticker() as ticker, pytest.raises(AssertionError, match="positive"):
        ticker.every(0, lambda: None)
    with pytest.raises(AssertionError, match="closed"):
        ticker.every(1, lambda: None)


def test_a_debug_lock_is_held_by_the_thread_that_took_it_only() -> None:
    lock = ThreadSync(debug=True).lock
    assert isinstance(lock, DebugLock)
    others: list[bool] = []

    def look() -> None:
        others.append(DebugLock.any_held())
        with pytest.raises(AssertionError, match="does not hold"):
            lock.assert_held()
        with pytest.raises(AssertionError, match="does not hold"):
            lock.release()
        assert not lock.acquire(blocking=False)

    assert not DebugLock.any_held()
    with lock:
        lock.assert_held()
        assert DebugLock.any_held()
        assert lock.locked()
        run_threads(look)
        with pytest.raises(AssertionError, match="deadlock"):
            lock.acquire()
    assert others == [False]
    assert not lock.locked()
    assert not DebugLock.any_held()


def test_tests_make_every_lock_a_debug_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(ThreadSync().lock, DebugLock)
    assert isinstance(ThreadSync().mutex(), DebugLock)
    monkeypatch.setattr(ThreadSync, "debug_by_default", False)
    assert not isinstance(ThreadSync().lock, DebugLock), "production pays nothing"
