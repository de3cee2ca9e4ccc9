"""The event loop that task threads and the network thread share: leader/follower.

Facts
-----
- One epoll watches all sockets of a worker. Any thread can poll it; two threads must not read one socket at once.
- In CPython a thread switch is expensive: the woken thread waits for a processor, then for the interpreter lock. With a
  dedicated network thread every buffer costs two switches (socket -> network thread -> task -> network thread).
  asyncio's loop works that way (`headgate bench wire`, rows "transport", compares the two; ADR 007 has figures).
- A task that has no input, or no output buffer, has no work of its own: it waits for bytes on a socket.

Problem
-------
Let a waiting task do the network's work on its own thread, and still serve the sockets when all tasks compute, and wake
every task whose bytes have arrived, whichever thread has received them.

Solution
--------
**Two locks.** The holder of the *poll lock* may poll: it is the *leader*. The holder of the *dispatch lock* runs
callbacks, and only it touches descriptors, timers and streams. A thread that takes both takes the poll lock first.
There are two locks so that a task with something urgent to send need not wait for a leader that blocks in epoll.

**Which thread polls.**

- A task calls `poll_once` before it blocks: under load, input is there already.
- If not, it calls `drive_until`. If the poll lock is free, the task becomes the leader: it polls and dispatches until
  its own signal is woken, mostly by a callback that it runs itself. Otherwise it is a follower: it blocks on its
  signal.
- A leader leaves the poll lock early if a dispatch has woken a *frequent* task, one that had been back at the loop
  within `FREQUENT_NS` the last time. That task gets most of the I/O: it polls next, and the former leader blocks.
- The network thread polls when no task does. It *rests* on a timer until no thread has polled for `LONG_REST_NS`, or
  for `SHORT_REST_NS` if a task is blocked or a callback is deferred. A task that has polled postpones the timer, which
  wakes no thread. So the network thread takes neither the interpreter nor a processor while tasks poll often.
- A task that leaves the poll lock *calls* the network thread, which ends its rest at once, if a follower is blocked and
  no frequent task is about to poll, or if a reply is expected: flushed records wait for credit, and the task that
  flushed them may compute for long.

**Which thread dispatches.** The leader, after each poll. A thread that posts an urgent callback runs it itself if the
dispatch lock is free; otherwise the holder of the lock runs it. A deferred callback is run in the next dispatch after a
poll: at once if a leader blocks, else within `SHORT_REST_NS`.

Why no wake-up is lost
----------------------
- *A posted callback.* The poster appends it, then tries the dispatch lock. The holder releases the lock, then checks
  the queue. If the poster fails, the lock was not released yet, so the holder's check comes after the append.
- *A blocked leader.* Every change that concerns it (a callback, a timer, its own signal) is made first and announced by
  `Poller.interrupt` second; `poller` has the argument.
- *A follower.* It adds itself to `blocked`, then tries the poll lock. A leader releases the lock, then checks
  `blocked`. So either the follower gets the lock, or the leader sees it, and calls the network thread or relies on a
  frequent task. If the frequent task does not poll, the rest timer fires within `SHORT_REST_NS`.
- *The rest timer.* The network thread forgets the timer's time before it checks the poll lock. A leader that leaves
  after that check therefore sets the timer anew.
- *A call.* The caller sets `_call_requested`, then lets the timer fire. The network thread arms the timer, then checks
  the flag: if its arming comes second, it sees the flag.

The decisions are in `decide`, which the simulator runs with planted bugs in every interleaving; this file takes the
locks and makes the system calls.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headgate.net.loop.decide import LeaderPolicy, TaskRecord
from headgate.net.loop.poller import Poller
from headgate.net.loop.rest_timer import RestTimer
from headgate.net.loop.thread import NetworkThread
from headgate.net.loop.timers import LONGEST_WAIT_NS, Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.net.loop.poller import Events
    from headgate.net.loop.thread import Callback
    from headgate.net.stream import Timer
    from headgate.sync import BlockedThread, Lock

__all__ = ["LoopParts", "NetworkThreadState", "SharedLoop"]

_log = logging.getLogger(__name__)

_DRAINS: Final = 2  # of the urgent queue per thread: callbacks that post callbacks must not hold a task for ever


class NetworkThreadState(enum.Enum):
    """What the network thread does. Only the network thread writes it; other threads write requests."""

    NEW = "new"
    RESTING = "resting"  # blocks on the rest timer; tasks poll
    POLLING = "polling"  # holds the poll lock, or tries to take it
    DISPATCHING = "dispatching"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The parts of a loop at which threads switch; the simulator replaces all of them.

    >>> LoopParts().rest_timer.__name__
    'RestTimer'
    """

    new_lock: Callable[[], Lock] = threading.Lock
    poller: Callable[[], Poller] = Poller
    rest_timer: Callable[[], RestTimer] = RestTimer
    thread: Callable[[Callback], NetworkThread] = NetworkThread
    now_ns: Callable[[], int] = time.monotonic_ns


_REAL_PARTS: Final = LoopParts()


class _CallingTask(threading.local):
    def __init__(self) -> None:
        self.record = TaskRecord()


class SharedLoop:
    """An event loop on epoll for a worker's network thread and its task threads; see the module.

    >>> from headgate.sync import ThreadSync
    >>> loop, sync = SharedLoop(), ThreadSync()
    >>> sync.driver = loop; loop.start()
    >>> signal = sync.new_signal()
    >>> loop.post(signal.wake); signal.wait(timeout_s=None)
    True
    >>> loop.stop(); loop.join()
    """

    def __init__(self, parts: LoopParts = _REAL_PARTS) -> None:
        self.now_ns = parts.now_ns
        self._policy = LeaderPolicy()
        self._poll_lock = parts.new_lock()
        self._poller = parts.poller()
        # Guarded by the dispatch lock.
        self._dispatch_lock = parts.new_lock()
        self._dispatcher = 0  # the thread that holds it
        self._timers = Timers()
        self._next_timer_ns: int | None = None  # copied from `_timers` for the leader, which may not hold the lock
        # Filled by any thread, emptied by the dispatcher.
        self._urgent: deque[Callback] = deque()
        self._deferred: deque[Callback] = deque()
        # The network thread, and requests to it.
        self._thread = parts.thread(self._run)
        self._state = NetworkThreadState.NEW
        self._rest_timer = parts.rest_timer()
        self._call_requested = False
        self._stop_requested = False
        self._calling_task = _CallingTask()
        self._interrupted = False  # a callback on the main thread was hit by Ctrl-C

    @property
    def state(self) -> NetworkThreadState:
        """What the network thread does."""
        return self._state

    @property
    def may_touch(self) -> bool:
        """True if the caller may touch descriptors and timers: it dispatches, or no thread can."""
        return self._dispatches_here or not self._thread.alive

    @property
    def _dispatches_here(self) -> bool:
        return self._dispatcher == threading.get_ident()

    def start(self) -> None:
        """Start the network thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after all callbacks posted until now. From any thread; may be repeated."""
        self.post(self._request_stop)
        if not self._thread.started:
            self._close()

    def join(self) -> None:
        """Block until the network thread's end, unless the caller dispatches: it would wait for itself."""
        if not self.may_touch:
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child: do nothing any more, and wake nothing in the parent. Takes no lock."""
        if not self._poller.closed:
            self._rest_timer.close()
        self._poller.abandon()
        self._thread = NetworkThread(self._run)  # which never starts
        self._state, self._dispatcher = NetworkThreadState.STOPPED, 0
        self._poll_lock = threading.Lock()
        self._poll_lock.acquire()  # for good: a closed descriptor's number may belong to another file

    # For the dispatcher.

    def watch(self, fd: int, readable: Callback | None, writable: Callback | None) -> None:
        """See `EventLoop`."""
        assert self.may_touch, "descriptors are touched on the network thread or with the dispatch lock"
        self._poller.watch(fd, readable, writable)

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        """See `EventLoop`."""
        assert self.may_touch, "timers are touched on the network thread or with the dispatch lock"
        timer = self._timers.add(when_ns, callback)
        self._next_timer_ns = self._timers.next_ns()
        self._poller.interrupt()  # a leader blocks until the timer that was next before
        return timer

    # For any thread: the three verbs.

    def post(self, callback: Callback, *, urgent: bool = True) -> None:
        """Run a callback under the dispatch lock. From any thread.

        Urgent: now, on this thread, unless another thread dispatches, which then runs it; in the order of posting.
        Otherwise in the next dispatch after a poll: at once if a leader blocks, else within `SHORT_REST_NS`.
        """
        if urgent:
            self._urgent.append(callback)
            if self._thread.started:
                self._run_urgent()
                if not self._dispatches_here:
                    self._policy.task_dispatched = True  # and will poll for what it needs
                    if self._policy.recently_polled(self.now_ns()):
                        self._postpone_network_thread()
            return
        self._deferred.append(callback)
        self._poller.interrupt()
        if self._rests_uncalled() and not self._poll_lock.locked():
            rest_ns = self._policy.rest_after_defer_ns(self.now_ns())
            if rest_ns is not None:
                self._rest_timer.set(rest_ns)

    def poll_once(self, *, before_blocking: bool = False, reply_expected: bool = False) -> bool:
        """Poll without blocking, unless another thread polls, and dispatch. Return True if there were events.

        `before_blocking`: the caller calls `drive_until` next if there were none. Deferred callbacks are run only then:
        otherwise the caller has work to do, and polls again after it.

        `reply_expected`: if there are no events, the network thread polls until there are. A thread that dispatches
        only sets this; the poll follows after the dispatch.
        """
        if reply_expected:
            self._policy.reply_expected = True
        if self._dispatches_here:
            return False
        if before_blocking:
            return self._poll_before_blocking()
        found = self._poll_between_work()
        self._raise_interrupt()
        return found

    def drive_until(self, thread: BlockedThread, timeout_s: float | None) -> bool:
        """Lead until `thread`, the caller, is woken (True) or its time is over; block while another thread leads."""
        deadline_ns = None if timeout_s is None else self.now_ns() + int(timeout_s * 1e9)
        policy, task = self._policy, self._calling_task.record
        policy.blocked[thread] = policy.task_arrives(task, self.now_ns())  # before the poll lock: see the module
        try:
            if self._thread.started and self._poll_lock.acquire(blocking=False):
                self._lead(thread, deadline_ns)
            return thread.block(None if deadline_ns is None else max(0, deadline_ns - self.now_ns()) / 1e9)
        finally:
            del policy.blocked[thread]
            policy.task_leaves(task, self.now_ns())

    def wake_poller(self) -> None:
        """Interrupt the leader: the thread that was woken may be that one."""
        self._poller.interrupt()

    # Tasks as leaders.

    def _poll_before_blocking(self) -> bool:
        if not self._poll_lock.acquire(blocking=False):
            return False
        self._policy.task_arrives(self._calling_task.record, self.now_ns())
        events: Events = []
        try:
            events = self._poll()
            if events or self._deferred:
                self._dispatch(events, run_deferred=not events)
        finally:
            self._leave_poll_lock(to_work=bool(events), blocks_next=not events)
        return bool(events)

    def _poll_between_work(self) -> bool:
        """Poll for a task that neither arrives nor leaves: it is in the middle of its work."""
        events: Events = []
        if self._poll_lock.acquire(blocking=False):
            try:
                events = self._poll()
                if events:
                    self._dispatch(events)
            finally:
                self._poll_lock.release()
                self._postpone_network_thread()
            self._drain_urgent()
        if not self._poll_lock.locked() and self._policy.should_call_network_thread(self.now_ns()):
            self._call_network_thread()
        return bool(events)

    def _lead(self, thread: BlockedThread, deadline_ns: int | None) -> None:
        try:
            while not (thread.woken or self._stop_requested or self._interrupted):
                if deadline_ns is not None and self.now_ns() >= deadline_ns:
                    break
                if not self._deferred:
                    self._postpone_network_thread(polls_on=True)
                self._dispatch(self._wait(thread, deadline_ns))
                if self._policy.should_leave_poll_lock():
                    break
        finally:
            self._leave_poll_lock(to_work=thread.woken)

    def _leave_poll_lock(self, *, to_work: bool, blocks_next: bool = False) -> None:
        if to_work:
            self._policy.task_leaves(self._calling_task.record, self.now_ns())
        self._poll_lock.release()
        self._postpone_network_thread()
        self._run_urgent()
        if self._stop_requested or self._policy.should_call_network_thread(self.now_ns(), blocks_next=blocks_next):
            self._call_network_thread()

    # Polling: with the poll lock.

    def _poll(self) -> Events:
        self._policy.polled_ns = self.now_ns()
        return self._poller.poll()

    def _wait(self, thread: BlockedThread | None = None, deadline_ns: int | None = None) -> Events:
        """Block until there is something to dispatch, or `thread` is woken, or its deadline is over."""
        if self._has_work(thread):
            return self._poller.poll()
        return self._poller.wait(lambda: self._timeout_s(thread, deadline_ns))

    def _has_work(self, thread: BlockedThread | None) -> bool:
        if self._stop_requested or self._urgent or self._deferred:
            return True
        return thread is not None and thread.woken

    def _timeout_s(self, thread: BlockedThread | None, deadline_ns: int | None) -> float:
        if self._has_work(thread):
            return 0.0
        at_ns = self._next_timer_ns
        if at_ns is None or (deadline_ns is not None and deadline_ns < at_ns):
            at_ns = deadline_ns
        return -1.0 if at_ns is None else min(max(0, at_ns - self.now_ns()), LONGEST_WAIT_NS) / 1e9

    # Dispatching.

    def _dispatch(self, events: Events, *, run_deferred: bool = True) -> None:
        """Run the callbacks of ready descriptors, due timers, and posted callbacks; not those that these post."""
        self._dispatch_lock.acquire()
        self._dispatcher = threading.get_ident()
        self._policy.polled_ns = self.now_ns()
        if events:
            self._policy.reply_expected = False
        try:
            self._poller.run_ready(events, self._call)
            if len(self._timers):
                for timer in self._timers.take_due(self.now_ns()):
                    self._call(timer.run)
            self._run_queue(self._urgent)
            if run_deferred:
                self._run_queue(self._deferred)
        finally:
            self._end_dispatch()

    def _run_urgent(self) -> None:
        """Run urgent callbacks, then poll if one of them expects a reply."""
        self._drain_urgent()
        if self._policy.reply_expected and not self._dispatches_here:
            self._poll_between_work()
        self._raise_interrupt()

    def _drain_urgent(self) -> None:
        """Run urgent callbacks, unless another thread dispatches; again if others were posted meanwhile."""
        for _ in range(_DRAINS):
            if not self._urgent or not self._dispatch_lock.acquire(blocking=False):
                return
            self._dispatcher = threading.get_ident()
            try:
                self._run_queue(self._urgent)
            finally:
                self._end_dispatch()
        # Callbacks post callbacks: the network thread continues, with polls in between.
        self._poller.interrupt()
        self._call_network_thread()

    def _run_queue(self, queue: deque[Callback]) -> None:
        for _ in range(len(queue)):
            self._call(queue.popleft())

    def _end_dispatch(self) -> None:
        self._next_timer_ns = self._timers.next_ns()
        self._dispatcher = 0
        self._dispatch_lock.release()

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 - see `call_logged`
            if isinstance(error, KeyboardInterrupt) and _on_main_thread():
                self._interrupted = True  # raised after the dispatch, which must be completed
            else:
                _log.exception("%r failed in a dispatch of the event loop", callback)

    def _raise_interrupt(self) -> None:
        if self._interrupted and _on_main_thread():
            self._interrupted = False
            raise KeyboardInterrupt

    # The network thread.

    def _run(self) -> None:
        while not self._stop_requested:
            if self._poll_lock.acquire(blocking=False):
                try:
                    self._state = NetworkThreadState.POLLING
                    events = self._wait()
                    self._state = NetworkThreadState.DISPATCHING
                    self._dispatch(events)
                finally:
                    self._poll_lock.release()
                if self._policy.network_thread_polls_again(self.now_ns(), urgent_queued=bool(self._urgent)):
                    continue
            self._rest()
        self._poll_lock.acquire()  # for good: no thread polls or dispatches any more
        self._dispatch_lock.acquire()
        self._dispatcher = threading.get_ident()
        self._close()
        self._state = NetworkThreadState.STOPPED

    def _rest(self) -> None:
        self._state = NetworkThreadState.RESTING
        policy, timer = self._policy, self._rest_timer
        timer.set(policy.rest_ns(self.now_ns(), urgent_queued=bool(self._urgent)))
        while not (self._call_requested or self._stop_requested):
            timer.wait()
            policy.rest_until_ns = 0  # before the check of the poll lock: see the module
            if self._poll_lock.locked():
                continue
            if not self._dispatch_lock.locked():
                break
            timer.set(policy.retry_rest_ns(self.now_ns()))
        self._state = NetworkThreadState.POLLING
        self._call_requested = False

    def _rests_uncalled(self) -> bool:
        return self._state is NetworkThreadState.RESTING and not self._call_requested

    def _postpone_network_thread(self, *, polls_on: bool = False) -> None:
        """Let the network thread rest on: this thread has polled, or with `polls_on` is about to."""
        # A thread that sets the timer just after another has called the network thread delays the call, once, by
        # at most LONG_REST_NS: from then on all threads see the request.
        if self._rests_uncalled():
            rest_ns = self._policy.rest_after_poll_ns(
                self.now_ns(), deferred_queued=bool(self._deferred), polls_on=polls_on
            )
            if rest_ns is not None:
                self._rest_timer.set(rest_ns)

    def _call_network_thread(self) -> None:
        """End the network thread's rest."""
        if not self._call_requested:
            self._call_requested = True
            self._rest_timer.set(1)

    def _request_stop(self) -> None:
        self._stop_requested = True
        self._poller.interrupt()
        self._call_network_thread()

    def _close(self) -> None:
        if not self._poller.closed:
            self._poller.close()
            self._rest_timer.close()


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
