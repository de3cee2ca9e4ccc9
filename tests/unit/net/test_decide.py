"""Which thread polls and how long the network thread rests: the decisions by themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.net.loop.decide import FREQUENT_NS, LONG_REST_NS, SHORT_REST_NS, LeaderPolicy, TaskRecord

NOW_NS = 10**9
BOOL = st.booleans()


class Blocked:
    def __init__(self, *, woken):
        self.woken = woken


def policy_with(blocked, *, expected=False, reply=False):
    """A policy with blocked tasks, each (woken, frequent)."""
    policy = LeaderPolicy()
    for woken, frequent in blocked:
        policy.blocked[Blocked(woken=woken)] = frequent
    policy.expected_until_ns = NOW_NS + 1 if expected else 0
    policy.reply_expected = reply
    return policy


@pytest.mark.parametrize(
    ("expected", "blocked", "needed"),
    [
        (True, [(False, False)], False),  # the frequent task that left is about to poll
        (False, [(False, False)], True),
        (False, [(False, False), (True, True)], False),  # the frequent task that was woken is
        (False, [(False, False), (True, False)], True),
        (False, [(True, False)], False),
        (False, [], False),
    ],
)
def test_a_blocked_task_needs_the_network_thread_unless_a_frequent_task_is_about_to_poll(expected, blocked, needed):
    policy = policy_with(blocked, expected=expected)
    assert policy.task_needs_poller(NOW_NS) is needed
    assert policy.should_call_network_thread(NOW_NS) is needed
    assert policy.network_thread_polls_again(NOW_NS, urgent_queued=False) is needed
    assert not policy.should_call_network_thread(NOW_NS, blocks_next=True), "the task itself polls next"


def test_a_task_is_frequent_if_it_was_away_for_a_short_time():
    policy, task = LeaderPolicy(), TaskRecord()
    assert not policy.task_arrives(task, NOW_NS), "the first time"
    policy.task_leaves(task, NOW_NS)
    assert policy.expected_until_ns == 0, "it is not expected back"
    assert policy.task_arrives(task, NOW_NS + FREQUENT_NS - 1)
    policy.task_leaves(task, NOW_NS + FREQUENT_NS)
    assert policy.expected_until_ns == NOW_NS + 2 * FREQUENT_NS
    assert not policy.task_arrives(task, NOW_NS + 3 * FREQUENT_NS)
    assert policy.expected_until_ns == 0, "it is here"


def test_a_leader_leaves_for_another_task_only():
    assert not policy_with([(True, True)]).should_leave_poll_lock(), "itself"
    assert policy_with([(False, False), (True, True)]).should_leave_poll_lock()
    assert not policy_with([(False, False), (True, False)]).should_leave_poll_lock()


def test_the_network_thread_leaves_urgent_callbacks_to_a_frequent_task():
    assert policy_with([]).network_thread_polls_again(NOW_NS, urgent_queued=True)
    assert not policy_with([(True, True)]).network_thread_polls_again(NOW_NS, urgent_queued=True)


@pytest.mark.parametrize("blocked", [[], [(True, True)], [(False, False)]])
def test_with_a_reply_expected_the_network_thread_polls(blocked):
    policy = policy_with(blocked, expected=True, reply=True)
    assert policy.should_call_network_thread(NOW_NS, blocks_next=True)
    assert policy.network_thread_polls_again(NOW_NS, urgent_queued=False)


def test_the_rest_is_long_only_after_a_task_has_dispatched_and_with_nothing_queued():
    policy = LeaderPolicy()
    for dispatched, queued, rest_ns in [(0, 0, SHORT_REST_NS), (1, 0, LONG_REST_NS), (1, 1, SHORT_REST_NS)]:
        policy.task_dispatched = bool(dispatched)
        assert policy.rest_ns(NOW_NS, urgent_queued=bool(queued)) == rest_ns
        assert policy.rest_until_ns == NOW_NS + rest_ns
        assert not policy.task_dispatched, "it counts once"


@given(
    st.lists(st.tuples(BOOL, BOOL), max_size=4),
    BOOL,
    BOOL,
    BOOL,
    BOOL,
)
def test_whenever_a_blocked_task_has_no_poller_the_network_thread_is_called_or_rests_shortly(
    blocked, expected, reply, deferred, blocks_next
):
    policy = policy_with(blocked, expected=expected, reply=reply)
    waiting = any(not woken for woken, _ in blocked)
    rest_ns = policy.rest_after_poll_ns(NOW_NS, deferred_queued=deferred)
    if waiting or deferred:
        assert rest_ns == SHORT_REST_NS
    if waiting and not blocks_next and not expected and (True, True) not in blocked:
        assert policy.should_call_network_thread(NOW_NS, blocks_next=blocks_next)


@given(st.integers(0, 3 * LONG_REST_NS), BOOL, BOOL, BOOL)
def test_after_a_poll_the_timer_fires_within_the_rest_and_not_at_once(ahead_ns, deferred, waiting, polls_on):
    policy = policy_with([(False, False)] if waiting else [])
    policy.rest_until_ns = NOW_NS + ahead_ns
    limit_ns = SHORT_REST_NS if deferred or (waiting and not polls_on) else LONG_REST_NS
    set_ns = policy.rest_after_poll_ns(NOW_NS, deferred_queued=deferred, polls_on=polls_on)
    assert set_ns in (None, limit_ns)
    assert limit_ns // 2 < policy.rest_until_ns - NOW_NS <= limit_ns


@given(st.integers(-LONG_REST_NS, 3 * LONG_REST_NS))
def test_after_a_deferred_callback_the_timer_fires_within_the_short_rest(ahead_ns):
    policy = LeaderPolicy()
    policy.rest_until_ns = NOW_NS + ahead_ns
    set_ns = policy.rest_after_defer_ns(NOW_NS)
    assert set_ns in (None, SHORT_REST_NS)
    assert 0 < policy.rest_until_ns - NOW_NS <= SHORT_REST_NS
