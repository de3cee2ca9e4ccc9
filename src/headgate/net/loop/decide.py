"""Which thread polls: the decisions of the shared event loop, without threads, locks or a clock.

`SharedLoop` reports to a `LeaderPolicy` what its threads do, and asks it what to do next. The simulator does the same
with simulated threads (`headgate.testing.loop_model`). Every method takes the time as an argument and returns plain
values, so that each decision can be tested by itself. The essay in `shared` explains why these are the decisions.

Threads call the methods without a lock. That is safe: each field is one int, bool or dict, each is read or written by
single operations, and a decision taken on a value that changes at the same moment is corrected by the thread that
changed it, or by the network thread's rest timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headgate.sync import BlockedThread

__all__ = ["FREQUENT_NS", "LONG_REST_NS", "SHORT_REST_NS", "LeaderPolicy", "TaskRecord"]

LONG_REST_NS: Final = 4_000_000
"""How long the network thread rests after a task has polled, if no task is blocked and no callback is deferred."""

SHORT_REST_NS: Final = 1_000_000
"""How long it rests otherwise: the longest time that a blocked task or a deferred callback is left alone."""

FREQUENT_NS: Final = 200_000
"""A task that polls again within this time is frequent: it is expected to poll as soon again the next time."""


class TaskRecord:
    """The polling behaviour of one task thread.

    >>> task = TaskRecord()
    >>> task.frequent
    False
    """

    __slots__ = ("frequent", "left_ns")

    def __init__(self) -> None:
        self.left_ns = 0  # when it last returned from the loop to its own work
        self.frequent = False  # before its last arrival it had been away for less than FREQUENT_NS


class LeaderPolicy:
    """Decides which thread polls, and how long the network thread rests.

    >>> policy, task = LeaderPolicy(), TaskRecord()
    >>> policy.rest_ns(0, urgent_queued=False)  # no task has dispatched: a task may need the network thread soon
    1000000
    >>> policy.task_arrives(task, 10**9)  # the first time, so it counts as one that was away for long
    False
    >>> policy.should_call_network_thread(10**9)  # no task is blocked
    False
    """

    __slots__ = ("blocked", "expected_until_ns", "polled_ns", "reply_expected", "rest_until_ns", "task_dispatched")

    def __init__(self) -> None:
        self.blocked: dict[BlockedThread, bool] = {}
        """The blocked task threads, and whether each is frequent."""
        self.expected_until_ns = 0
        """Until when the frequent task that left last is expected to poll again."""
        self.reply_expected = False
        """A task waits for the peer's answer, though it is not blocked: credit for flushed records."""
        self.polled_ns = 0
        """When a thread last polled."""
        self.rest_until_ns = 0
        """When the network thread's rest timer fires; 0: it is not set."""
        self.task_dispatched = False
        """A task has dispatched without the poll lock since the network thread last rested."""

    # Reports.

    def task_arrives(self, task: TaskRecord, now_ns: int) -> bool:
        """Record that a task polls or blocks. Return True if it is frequent."""
        self.expected_until_ns = 0
        task.frequent = frequent = now_ns - task.left_ns < FREQUENT_NS
        return frequent

    def task_leaves(self, task: TaskRecord, now_ns: int) -> None:
        """Record that a task returns to its own work."""
        task.left_ns = now_ns
        if task.frequent:
            self.expected_until_ns = now_ns + FREQUENT_NS

    # Which thread polls.

    def frequent_task_woken(self) -> bool:
        """Return True if a blocked task was woken that will poll soon: it should be the next leader.

        If the leader stayed, it would do the I/O of the task that gets most of it, and wake that task for each buffer.
        """
        return any(frequent and thread.woken for thread, frequent in list(self.blocked.items()))

    def task_needs_poller(self, now_ns: int) -> bool:
        """Return True if a blocked task needs I/O polled and no task is about to poll."""
        if not self.blocked or now_ns < self.expected_until_ns:
            return False
        return self.unwoken_task_blocked() and not self.frequent_task_woken()

    def unwoken_task_blocked(self) -> bool:
        """Return True if a task is blocked that no thread has woken."""
        return any(not thread.woken for thread in list(self.blocked))

    def should_leave_poll_lock(self) -> bool:
        """Return True if the leader, which is not woken yet, should leave the poll lock to another task."""
        return len(self.blocked) > 1 and self.frequent_task_woken()

    def should_call_network_thread(self, now_ns: int, *, blocks_next: bool = False) -> bool:
        """Return True if a task that released the poll lock must end the network thread's rest.

        With `blocks_next` the task drives the loop itself right away, so that other tasks do not need the network
        thread.
        """
        return self.reply_expected or (not blocks_next and self.task_needs_poller(now_ns))

    def network_thread_polls_again(self, now_ns: int, *, urgent_queued: bool) -> bool:
        """Return True if the network thread polls again after a dispatch, False if it rests."""
        if urgent_queued and not self.frequent_task_woken():
            return True
        return self.reply_expected or self.task_needs_poller(now_ns)

    # How long the network thread rests.

    def rest_ns(self, now_ns: int, *, urgent_queued: bool) -> int:
        """Return for how long the network thread rests, at the beginning of its rest."""
        dispatched, self.task_dispatched = self.task_dispatched, False
        return self._rest_for(LONG_REST_NS if dispatched and not urgent_queued else SHORT_REST_NS, now_ns)

    def rest_after_poll_ns(self, now_ns: int, *, deferred_queued: bool, polls_on: bool = False) -> int | None:
        """Return the new remaining rest of the network thread after a task has polled; None: leave the timer.

        `polls_on`: the task drives the loop, so that blocked tasks need no other thread for now.
        """
        short = deferred_queued or (not polls_on and self.unwoken_task_blocked())
        rest_ns = SHORT_REST_NS if short else LONG_REST_NS
        if rest_ns // 2 < self.rest_until_ns - now_ns <= rest_ns:
            return None  # near enough: setting the timer costs a system call
        return self._rest_for(rest_ns, now_ns)

    def rest_after_defer_ns(self, now_ns: int) -> int | None:
        """Return the new remaining rest after a callback was deferred; None: the timer fires soon enough."""
        if now_ns < self.rest_until_ns <= now_ns + SHORT_REST_NS:
            return None
        return self._rest_for(SHORT_REST_NS, now_ns)

    def recently_polled(self, now_ns: int) -> bool:
        """Return True if a thread has polled so lately that a task that only dispatches may prolong the rest."""
        return now_ns - self.polled_ns < LONG_REST_NS

    def retry_rest_ns(self, now_ns: int) -> int:
        """Return for how long the network thread rests on while another thread dispatches."""
        return self._rest_for(SHORT_REST_NS, now_ns)

    def _rest_for(self, rest_ns: int, now_ns: int) -> int:
        self.rest_until_ns = now_ns + rest_ns
        return rest_ns
