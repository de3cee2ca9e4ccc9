"""Coroutines for values: order, back pressure, watermarks, failures, and nothing left behind."""

import asyncio
import queue
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.waiting import wait_until

from headgate.clock import ManualClock
from headgate.errors import Cancelled, UserCodeError
from headgate.functions.basic import MapFunction
from headgate.functions.times import MAX_WATERMARK_MS
from headgate.meters import Activity, TaskTimer, TimeSpent
from headgate.task.operators.async_map import MapAsync
from headgate.testing.harness import OperatorHarness

WAIT_S = 30


class Doors:
    """A coroutine function whose calls end when the test says so."""

    def __init__(self):
        self.started = queue.SimpleQueue()
        self._events = {}

    async def __call__(self, value):
        event = asyncio.Event()
        self._events[value] = asyncio.get_running_loop(), event
        self.started.put(value)
        await event.wait()
        return -value

    def wait_for(self, *values):
        found = {self.started.get(timeout=WAIT_S) for _ in values}
        assert found == set(values)

    def open(self, value):
        loop, event = self._events[value]
        loop.call_soon_threadsafe(event.set)


class Waking(OperatorHarness):
    """A harness that can wait for the operator's wake-up, as a task's loop does."""

    def __init__(self, operator, **how):
        self.woken = threading.Semaphore(0)
        super().__init__(operator, **how)

    def _wake(self):
        super()._wake()
        self.woken.release()

    def run_until(self, condition):
        """Do what the loop does until something is so."""
        while not condition():
            assert self.woken.acquire(timeout=WAIT_S), "it was never woken"
            self.operator.on_wake()


def opened(doors, harness, *values):
    """Open doors one by one, each once the one before has been given out."""
    for value in values:
        before = len(harness.values)
        doors.open(value)
        harness.run_until(lambda before=before: len(harness.values) > before)


def run(harness, values):
    """All there is in one batch."""
    harness.process(values)
    harness.end()


async def negate(value):
    await asyncio.sleep(0)
    return -value


@pytest.mark.parametrize("ordered", [True, False])
def test_every_value_comes_out_once_with_its_time(ordered):
    with OperatorHarness(MapAsync(negate, 3, ordered)) as harness:
        for begin in range(0, 100, 10):
            harness.process(range(begin, begin + 10), range(begin, begin + 10))
        harness.end()
    assert sorted(harness.timed, key=lambda pair: pair[1]) == [(-value, value) for value in range(100)]
    if ordered:
        assert harness.values == [-value for value in range(100)]
    assert harness.watermarks == [MAX_WATERMARK_MS]


def test_in_order_later_results_wait_for_earlier_ones():
    doors = Doors()
    with Waking(MapAsync(doors, 10, True)) as harness:
        harness.process([1, 2, 3])
        doors.wait_for(1, 2, 3)
        doors.open(3)
        doors.open(2)
        assert harness.woken.acquire(timeout=WAIT_S)
        harness.operator.on_wake()
        assert harness.values == []
        doors.open(1)
        harness.run_until(lambda: len(harness.values) == 3)
    assert harness.values == [-1, -2, -3]


def test_out_of_order_each_leaves_when_it_is_done():
    doors = Doors()
    with Waking(MapAsync(doors, 10, False)) as harness:
        harness.process([1, 2, 3], [10, 20, 30])
        doors.wait_for(1, 2, 3)
        opened(doors, harness, 3, 1, 2)
    assert harness.timed == [(-3, 30), (-1, 10), (-2, 20)]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_never_overtakes_a_value(ordered):
    doors, order = Doors(), []
    with Waking(MapAsync(doors, 10, ordered)) as harness:
        harness.emit = lambda values, times=None: order.extend(values)
        harness.emit_watermark = lambda at: order.append(f"w{at}")
        harness.emit_status = lambda active: order.append(f"active={active}")
        harness.watermark(1)
        assert order == ["w1"], "nothing is on its way"
        harness.process([1, 2])
        harness.watermark(5)
        harness.watermark(6)
        harness.process([3])
        harness.watermark(7)
        harness.operator.status(active=False)
        doors.wait_for(1, 2, 3)
        doors.open(3)
        doors.open(1)
        harness.run_until(lambda: -1 in order)
        assert order == ["w1", -1]
        doors.open(2)
        harness.run_until(lambda: len(order) == 7)
    assert order == ["w1", -1, -2, "w6", -3, "w7", "active=False"]


def delivered(operator, n):
    """Wait until the event loop has handed back so many results that the task has not taken."""
    for _ in range(WAIT_S * 1000):
        if operator._results.qsize() >= n:
            return
        time.sleep(0.001)
    raise AssertionError(f"fewer than {n} results")


@pytest.mark.spec("K3")
@pytest.mark.parametrize("between", ["watermark", "status"])
def test_out_of_order_no_result_overtakes_an_earlier_watermark_or_status(between):
    doors, order = Doors(), []
    with Waking(MapAsync(doors, 10, False)) as harness:
        harness.emit = lambda values, times=None: order.extend(values)
        harness.emit_watermark = lambda at: order.append(f"w{at}")
        harness.emit_status = lambda *, active: order.append(f"active={active}")
        harness.process([1, 2], [10, 20])
        if between == "watermark":
            harness.watermark(20)
        else:
            harness.operator.status(active=True)
        harness.process([3, 4], [21, 22])
        doors.wait_for(1, 2, 3, 4)
        doors.open(4)
        delivered(harness.operator, 1)
        harness.operator.on_wake()
        assert order == [], "a value behind the watermark is done, and those before it are not"
        doors.open(2)
        harness.run_until(lambda: order == [-2])
        doors.open(1)
        passed = "w20" if between == "watermark" else "active=True"
        harness.run_until(lambda: order == [-2, -1, passed, -4])
        doors.open(3)
        harness.run_until(lambda: len(order) == 5)
    assert order == [-2, -1, passed, -4, -3]


def test_idle_and_active_again_behind_one_value_keeps_the_watermark_in_an_active_stream():
    doors, order = Doors(), []
    with Waking(MapAsync(doors, 10, True)) as harness:
        harness.emit_watermark = order.append
        harness.emit_status = lambda *, active: order.append(active)
        harness.process([1])
        harness.operator.status(active=False)
        harness.operator.status(active=True)
        harness.watermark(5)
        doors.wait_for(1)
        doors.open(1)
        harness.run_until(lambda: len(order) == 2)
    assert order == [True, 5]


def test_in_order_watermarks_behind_a_slow_value_take_no_memory():
    doors = Doors()
    with Waking(MapAsync(doors, 2, True)) as harness:
        harness.process([1])
        for at in range(1000):
            harness.watermark(at)
        assert len(harness.operator._pending._queue) == 2
        doors.wait_for(1)
        doors.open(1)
        harness.end()
    assert harness.watermarks == [MAX_WATERMARK_MS] or harness.watermarks == [999, MAX_WATERMARK_MS]


@pytest.mark.parametrize("done", ["before the watermarks", "after the watermarks"])
def test_out_of_order_watermarks_behind_a_slow_value_take_no_memory(done):
    doors = Doors()
    with Waking(MapAsync(doors, 2, False)) as harness:
        harness.process([0])
        doors.wait_for(0)
        harness.watermark(0)
        harness.process([1])
        doors.wait_for(1)
        if done == "before the watermarks":
            doors.open(1)
            delivered(harness.operator, 1)
        for at in range(1, 1000):
            harness.watermark(at)
        assert len(harness.operator._pending._segments) == 2, "no more than values are inside"
        assert harness.values == harness.watermarks == []
        doors.open(0)
        if done == "after the watermarks":
            doors.open(1)
        harness.run_until(lambda: len(harness.watermarks) == 2)
    assert harness.values == [0, -1]
    assert harness.watermarks == [0, 999]


@pytest.mark.parametrize("ordered", [True, False])
def test_at_most_capacity_coroutines_run(ordered):
    running = most = 0

    async def count(value):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return value

    with OperatorHarness(MapAsync(count, 4, ordered)) as harness:
        harness.process(range(200))
        harness.end()
    assert sorted(harness.values) == list(range(200))
    assert most == 4


def test_process_blocks_while_the_operator_is_full():
    doors = Doors()
    with OperatorHarness(MapAsync(doors, 2, True)) as harness:
        task = threading.Thread(target=harness.process, args=([1, 2, 3],))
        task.start()
        doors.wait_for(1, 2)
        assert doors.started.empty()
        doors.open(1)
        doors.wait_for(3)
        task.join(WAIT_S)
        assert not task.is_alive()
        assert harness.values == [-1]
        doors.open(2)
        doors.open(3)
        harness.end()
    assert harness.values == [-1, -2, -3]


@pytest.mark.spec("B2")
@pytest.mark.parametrize("where", ["process", "finish"])
def test_a_task_that_waits_for_coroutines_is_waiting_not_busy(where):
    doors, clock = Doors(), ManualClock()
    harness = OperatorHarness(MapAsync(doors, 1 if where == "process" else 5, True))
    timer = TaskTimer(clock.now_ns)
    harness.operator.place = replace(harness.operator.place, timer=timer)
    with harness:

        def run():
            harness.process([1, 2])
            harness.operator.finish()

        clock.advance_ms(3)
        task = threading.Thread(target=run)
        task.start()
        for value in (1, 2):
            if where == "process" or value == 1:
                doors.wait_for(*((value,) if where == "process" else (1, 2)))
            wait_until(lambda: timer.state is Activity.WAITING, "the task to wait")
            clock.advance_ms(100)
            doors.open(value)
            wait_until(lambda n=value: len(harness.values) == n, "its result")
        task.join(WAIT_S)
        assert not task.is_alive()
        clock.advance_ms(5)
        assert timer.state is Activity.BUSY
    spent = TimeSpent(busy_ns=8_000_000, idle_ns=0, back_pressured_ns=0, waiting_ns=200_000_000)
    assert timer.statistics() == spent


def test_a_task_that_finds_results_does_not_wait():
    clock = ManualClock()
    doors = Doors()
    harness = OperatorHarness(MapAsync(doors, 2, True))
    entered = []

    class Recorded(TaskTimer):
        def enter(self, state):
            entered.append(state)
            super().enter(state)

    harness.operator.place = replace(harness.operator.place, timer=Recorded(clock.now_ns))
    with harness:
        harness.process([1, 2])
        doors.wait_for(1, 2)
        doors.open(1)  # not before `process` has returned, which takes the results that are there at its end
        doors.open(2)
        delivered(harness.operator, 2)
        harness.process([3])
        assert (harness.values, entered) == ([-1, -2], []), "the task stays busy"


def test_one_wake_up_for_many_results():
    doors = Doors()
    with Waking(MapAsync(doors, 10, False)) as harness:
        harness.process(range(5))
        doors.wait_for(*range(5))
        for value in range(5):
            doors.open(value)
        harness.run_until(lambda: len(harness.values) == 5)
        assert 1 <= harness.wakes <= 5
        harness.process([5])
        doors.wait_for(5)
        doors.open(5)
        harness.run_until(lambda: len(harness.values) == 6)


@pytest.mark.parametrize("how", ["flush", "process"])
def test_results_leave_whenever_the_operator_is_called(how):
    doors = Doors()
    with Waking(MapAsync(doors, 10, False)) as harness:
        harness.process([1])
        doors.wait_for(1)
        doors.open(1)
        assert harness.woken.acquire(timeout=WAIT_S)
        if how == "flush":
            harness.operator.flush()
        else:
            harness.process([2])
        assert harness.values == [-1]


def test_batches_with_and_without_times_may_follow_each_other():
    doors = Doors()
    with OperatorHarness(MapAsync(doors, 10, True)) as harness:
        harness.process([1, 2], [10, 20])
        harness.process([3])
        harness.process([4], [40])
        doors.wait_for(1, 2, 3, 4)
        for value in (4, 3, 2, 1):
            doors.open(value)
        harness.end()
    assert harness.timed == [(-1, 10), (-2, 20), (-3, None), (-4, 40)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda value: 1 / 0, "ZeroDivisionError"),
        (lambda value: value, "await"),
        (lambda value: asyncio.sleep(0, asyncio.current_task().cancel()), "RuntimeError: .*CancelledError"),
    ],
)
def test_failures_name_the_operator(ordered, function, text):
    with OperatorHarness(MapAsync(function, 10, ordered), subtask=3) as harness:
        with pytest.raises(UserCodeError, match=text) as caught:
            run(harness, [1])
        assert (caught.value.operator, caught.value.subtask) == ("MapAsync", 3)


def test_a_failure_does_not_wait_for_earlier_values():
    async def fail_for_two(value):
        if value == 2:
            raise LookupError("two")
        await asyncio.Event().wait()

    with (
        OperatorHarness(MapAsync(fail_for_two, 10, True)) as harness,
        pytest.raises(UserCodeError, match="LookupError: two"),
    ):
        run(harness, [1, 2])


def test_a_value_that_takes_too_long_fails():
    async def forever(value):
        await asyncio.Event().wait()

    with OperatorHarness(MapAsync(forever, 10, True, 0.01)) as harness:
        with pytest.raises(UserCodeError, match=r"TimeoutError: no result within 0\.01 s") as caught:
            run(harness, [1])
        assert isinstance(caught.value.__cause__, TimeoutError)


def test_in_time_is_in_time_and_a_timeout_of_the_users_own_stays_that():
    async def own(value):
        if value:
            raise TimeoutError("the database's")
        return 7

    with OperatorHarness(MapAsync(own, 10, True, 60)) as harness:
        harness.process([0])
        harness.operator.finish()
        assert harness.values == [7]
        with pytest.raises(UserCodeError, match="the database's"):
            run(harness, [1])


def test_close_cancels_running_coroutines():
    ended = []

    async def forever(value):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(value)

    with OperatorHarness(MapAsync(forever, 10, True)) as harness:
        harness.process([1, 2])
        names = {thread.name for thread in threading.enumerate()}
        assert "headgate-async-MapAsync-0" in names
    assert sorted(ended) == [1, 2]
    assert names - {thread.name for thread in threading.enumerate()} == {"headgate-async-MapAsync-0"}
    harness.operator.close()


def test_cancel_ends_a_task_that_waits_for_results():
    doors, caught = Doors(), []

    def task():
        try:
            harness.process([1, 2])
        except Cancelled as error:
            caught.append(error)

    with OperatorHarness(MapAsync(doors, 1, True)) as harness:
        thread = threading.Thread(target=task)
        thread.start()
        doors.wait_for(1)
        harness.operator.cancel()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert len(caught) == 1


def test_a_coroutine_that_will_not_end_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr("headgate.task.operators.async_map._CLOSE_WITHIN_S", 0.01)
    started, go_on = threading.Event(), threading.Event()

    async def block(value):
        started.set()
        go_on.wait(WAIT_S)

    with OperatorHarness(MapAsync(block, 1, True)) as harness:
        harness.process([1])
        assert started.wait(WAIT_S)
    assert "MapAsync, subtask 0: coroutines blocked" in caplog.text
    go_on.set()


class Client(MapFunction):
    """Makes its client on the loop, as clients want it."""

    def __init__(self):
        self.life = []

    async def open(self, context):
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        self.life.append(("open", context.subtask_index))

    async def map(self, value):
        assert asyncio.get_running_loop() is self.loop
        return value + 1

    def close(self):
        assert asyncio.get_running_loop() is self.loop
        self.life.append("close")


def test_a_function_object_is_opened_and_closed_on_the_event_loop():
    function = Client()
    with OperatorHarness(MapAsync(function), subtask=2) as harness:
        harness.process([1])
        harness.end()
    assert harness.values == [2]
    assert function.life == [("open", 2), "close"]


@pytest.mark.parametrize("where", ["open", "close"])
def test_a_function_object_may_fail_to_open_or_close(where):
    def fail(*context):
        raise LookupError("no client")

    function = Client()
    setattr(function, where, fail)
    with pytest.raises(UserCodeError, match="LookupError: no client"), OperatorHarness(MapAsync(function)):
        pass


@pytest.mark.parametrize("how", [{"capacity": 0}, {"timeout_s": 0}])
def test_limits_make_sense(how):
    with pytest.raises(ValueError, match="more"):
        MapAsync(negate, **how)


steps = st.lists(st.integers(1, 8) | st.none(), max_size=25)  # a batch of so many, or a watermark


@pytest.mark.spec("K3")
@settings(deadline=None, max_examples=100)
@given(steps, st.booleans(), st.integers(1, 5), st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_any_timing_keeps_values_on_their_side_of_watermarks(steps, ordered, capacity, naps):
    async def nap(value):
        for _ in range(naps[value % len(naps)]):
            await asyncio.sleep(0)
        return value

    order, sent, watermarks = [], 0, []
    with OperatorHarness(MapAsync(nap, capacity, ordered)) as harness:
        harness.emit = lambda values, times=None: order.extend(zip(values, times, strict=True))
        harness.emit_watermark = order.append
        for step in steps:
            if step is None:
                harness.watermark(sent)  # all values below have been sent
                watermarks.append(sent)
            else:
                harness.process(range(sent, sent + step), range(sent, sent + step))
                sent += step
        harness.end()
    values = [one[0] for one in order if isinstance(one, tuple)]
    assert sorted(values) == list(range(sent))
    assert all(one[0] == one[1] for one in order if isinstance(one, tuple))
    if ordered:
        assert values == list(range(sent))
    seen, last = set(), 0
    for one in order:
        if isinstance(one, tuple):
            seen.add(one[0])
            assert last >= max((at for at in watermarks if at <= one[0]), default=0), "it has overtaken a watermark"
        else:
            last = one
            assert seen >= set(range(min(one, sent))), "the watermark has overtaken a value"
    assert order[-1] == MAX_WATERMARK_MS
    assert {one for one in order if isinstance(one, int)} <= {*watermarks, MAX_WATERMARK_MS}
