"""The shared event loop in seeded interleavings: its invariants hold, and planted bugs are found.

A bug is planted by patching the production code while seeds run.
"""

import pytest

from headgate.net.loop.decide import LONG_REST_NS, LeaderPolicy
from headgate.net.loop.shared import NetworkThreadState, SharedLoop
from headgate.testing.loop_model import LoopModel, loop_failure_of

SEEDS = 100
BUGS = {}


def bug(within=SEEDS, finds=""):
    """Register a function that plants a bug: within how many seeds it is found, and what the failure contains."""

    def register(plant):
        BUGS[plant.__name__] = plant, within, finds
        return plant

    return register


def test_the_invariants_hold_in_every_interleaving():
    assert [failure for seed in range(SEEDS) if (failure := loop_failure_of(seed))] == []


def test_a_seed_gives_the_same_run_each_time():
    def steps(seed):
        model = LoopModel(seed)
        model.run()
        return model.steps

    assert [steps(seed) for seed in range(5)] == [steps(seed) for seed in range(5)]


@bug()
def a_leader_leaves_without_waking_the_network_thread(monkeypatch):
    monkeypatch.setattr(LeaderPolicy, "should_call_network_thread", lambda *_, **__: False)
    monkeypatch.setattr(LeaderPolicy, "rest_after_poll_ns", lambda *_, **__: None)


@bug()
def a_deferred_post_does_not_interrupt_the_thread_that_polls(monkeypatch):
    def post(self, callback, *, urgent=True):
        if urgent:
            original(self, callback)
        else:
            self._deferred.append(callback)

    original = SharedLoop.post
    monkeypatch.setattr(SharedLoop, "post", post)


@bug(finds="two threads dispatch")
def a_thread_that_posts_dispatches_without_the_lock(monkeypatch):
    def drain(self):
        while self._urgent:
            self._call(self._urgent.popleft())

    monkeypatch.setattr(SharedLoop, "_drain_urgent", drain)


@bug(finds="two threads poll")
def a_task_polls_without_the_lock(monkeypatch):
    monkeypatch.setattr(SharedLoop, "_poll_before_blocking", lambda self: bool(self._poll()))


@bug(within=400)
def the_network_thread_forgets_its_timer_after_the_check_of_the_poll_lock(monkeypatch):
    def rest(self):
        self._state = NetworkThreadState.RESTING
        self._rest_timer.set(self._policy.rest_ns(self.now_ns(), urgent_queued=bool(self._urgent)))
        while not (self._call_requested or self._stop_requested):
            self._rest_timer.wait()
            polls = self._poll_lock.locked()
            self._policy.rest_until_ns = self.now_ns() + LONG_REST_NS  # as if the timer were still set
            if not polls:
                break
        self._state = NetworkThreadState.POLLING
        self._call_requested = False

    monkeypatch.setattr(SharedLoop, "_rest", rest)


@bug()
def a_stop_does_not_interrupt_the_thread_that_polls(monkeypatch):
    monkeypatch.setattr(SharedLoop, "_request_stop", lambda self: setattr(self, "_stop_requested", True))


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name, monkeypatch):
    plant, within, finds = BUGS[name]
    plant(monkeypatch)
    failure = next((found for seed in range(within) if (found := loop_failure_of(seed))), None)
    assert failure is not None, f"{name} was not found within {within} seeds"
    assert finds in failure
