"""Timers: in the order of their times, once for a key and time, and no memory for those that were deleted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.functions.state import KeyedState
from headgate.functions.times import MIN_WATERMARK_MS
from headgate.task.state.timers import KeyedTimers, NoTimers, TimerQueue

steps = st.lists(
    st.tuples(st.sampled_from(["add", "discard", "pop"]), st.integers(0, 12), st.sampled_from("abc")), max_size=200
)


def pop_all(queue, until_ms=100):
    found = []
    while (due := queue.pop(until_ms)) is not None:
        found.append(due)
    return found


@given(steps)
def test_it_is_a_sorted_set_of_times_and_keys(steps):
    queue, model = TimerQueue(), {}
    for what, time, key in steps:
        if what == "add":
            queue.add(time, key)
            model.setdefault(time, {})[key] = None
        elif what == "discard":
            queue.discard(time, key)
            model.get(time, {}).pop(key, None)
        else:
            model = {at: wanted for at, wanted in model.items() if wanted}
            expected = [(at, list(model[at])) for at in sorted(model) if at <= time]
            assert pop_all(queue, time) == expected
            model = {at: wanted for at, wanted in model.items() if at > time}
        waiting = [at for at, wanted in model.items() if wanted]
        assert len(queue) == sum(map(len, model.values()))
        assert queue.next_ms() == min(waiting, default=None)


def test_keys_need_not_be_comparable():
    queue = TimerQueue()
    for key in ["a", 1, None, ("x",)]:
        queue.add(5, key)
    assert queue.pop(5) == (5, ["a", 1, None, ("x",)])


def test_a_timer_that_is_moved_again_and_again_takes_no_memory():
    queue = TimerQueue()
    queue.add(0, "key")
    for time in range(1, 100_000):
        queue.discard(time - 1, "key")
        queue.add(time, "key")
    assert len(queue) == 1
    assert len(queue._heap) < 200
    assert pop_all(queue, 10**6) == [(99_999, ["key"])]


def test_clear_forgets_all():
    queue = TimerQueue()
    queue.add(5, "a")
    queue.clear()
    assert (len(queue), queue.next_ms(), queue.pop(10)) == (0, None, None)


def test_event_and_processing_time_are_apart():
    state = KeyedState()
    timers = KeyedTimers(state, lambda: 7)
    state.key = "a"
    timers.register_event_time_timer(10)
    timers.register_processing_time_timer(20)
    timers.delete_event_time_timer(20)
    timers.delete_processing_time_timer(10)
    assert timers.event.pop(100) == (10, ["a"])
    assert timers.processing.pop(100) == (20, ["a"])
    assert timers.current_processing_time() == 7
    assert timers.current_watermark() == MIN_WATERMARK_MS


def test_a_timer_is_deleted_for_its_key_only():
    state = KeyedState()
    timers = KeyedTimers(state, lambda: 0)
    for key in "ab":
        state.key = key
        timers.register_event_time_timer(10)
    timers.delete_event_time_timer(10)
    assert timers.event.pop(10) == (10, ["a"])


@pytest.mark.parametrize("time", [1.5, None, "10"])
def test_a_time_is_a_whole_number(time):
    state = KeyedState()
    state.key = "a"
    with pytest.raises(TypeError, match="whole milliseconds"):
        KeyedTimers(state, lambda: 0).register_event_time_timer(time)


def test_a_timer_outside_a_call_with_a_key_is_refused():
    timers = KeyedTimers(KeyedState(), lambda: 0)
    with pytest.raises(TypeError, match="no value is at hand"):
        timers.register_event_time_timer(10)
    assert (len(timers.event), timers.event.next_ms()) == (0, None)


@pytest.mark.parametrize("act", ["register", "delete"])
@pytest.mark.parametrize("domain", ["event", "processing"])
def test_timers_without_keys_are_an_error_with_the_reason(act, domain):
    timers = NoTimers(lambda: 7, "timers belong to keys")
    with pytest.raises(TypeError, match="timers belong to keys"):
        getattr(timers, f"{act}_{domain}_time_timer")(5)
    assert (timers.current_processing_time(), timers.current_watermark()) == (7, MIN_WATERMARK_MS)


@pytest.mark.parametrize("time", [2**63, 2**64, 10**30, -(2**63) - 1])
def test_a_time_beyond_64_bits_is_refused_and_leaves_nothing(time):
    state = KeyedState()
    state.key = "a"
    timers = KeyedTimers(state, lambda: 0)
    for register in (timers.register_event_time_timer, timers.register_processing_time_timer):
        with pytest.raises(ValueError, match=rf"a timer at {time} .* 64 bits"):
            register(time)
    assert (len(timers.event), len(timers.processing)) == (0, 0)


def test_the_first_and_the_last_time_of_64_bits_are_times():
    state = KeyedState()
    state.key = "a"
    timers = KeyedTimers(state, lambda: 0)
    timers.register_event_time_timer(2**63 - 1)
    timers.register_event_time_timer(-(2**63))
    assert pop_all(timers.event, 2**63 - 1) == [(-(2**63), ["a"]), (2**63 - 1, ["a"])]
