"""A loop that is driven by whichever thread has nothing better to do.

Changing threads is costly, in CPython above all. So a task that finds no input or no output buffer looks what has
happened (`help`), and if it would go to sleep all the same takes the loop's seat and does the network's work itself
until it has what it waits for; and a task that has something to send sends it, whoever sits there asleep. Of two tasks,
the one that is always back soon does the work. The network thread takes the seat when no task has looked for a moment,
or when one that is not always back soon left it while another sleeps. Until then it rests on an alarm, which those who
look put off.

Two locks: who has the seat may wait for what happens, who has the turn may act on it; the seat is taken first.
Invariants: with a task asleep, somebody is in the seat, has been called, or looks in a moment; what `call_soon` was
given is run by its caller, or by whoever has the turn before giving it back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from headgate.net.brief import Alarm
from headgate.net.loop import EpollLoop

if TYPE_CHECKING:
    from headgate.net.loop import Call
    from headgate.net.stream import Timer
    from headgate.sync import Sleeper

__all__ = ["SharedLoop"]

_log = logging.getLogger(__name__)

# How long the network thread waits for a task to come and look. To see whether one has come it would need the
# interpreter, and a processor, just when they are wanted most: so whoever has looked puts it off.
_REST_NS: Final = 4_000_000
_MOMENT_NS: Final = 1_000_000  # if something waits for the next turn, or somebody sleeps
# A task that was away for no longer than this is taken to be back as soon again. Meanwhile the seat is left to it: else
# another would do the network's work, and would have to wake it for every buffer.
_SOON_NS: Final = 200_000
_LOOKS: Final = 2  # for what others ask while a turn is given back: they find it taken, and rely on another look


class _Visit(threading.local):
    """What is known of the calling task."""

    left_ns = 0  # when it went
    brief = False  # before it came, it had not been away for long


class SharedLoop(EpollLoop):
    """An epoll loop for a worker's network thread and its task threads together.

    >>> from headgate.sync import ThreadSync
    >>> loop, sync = SharedLoop(), ThreadSync()
    >>> sync.driver = loop; loop.start()
    >>> waiter = sync.waiter()
    >>> loop.call_soon(waiter.wake); waiter.wait(timeout_s=None)
    True
    >>> loop.stop(); loop.join()
    """

    def __init__(self) -> None:
        super().__init__()
        self._seat = threading.Lock()
        self._turn_lock = threading.Lock()
        self._driver = 0  # the thread that has the turn
        self._alarm = Alarm()  # where the network thread rests
        self._alarm_ns = 0  # when it rings; 0: not at all
        self._resting = False  # the network thread is there
        self._called = False  # and is to leave it
        self._helped = False  # a task has acted without the seat since the network thread last rested
        self._looked_ns = 0  # when somebody last saw what has happened
        self._lazy: deque[Call] = deque()  # what is to be called in the next turn of whoever has the seat
        self._asleep: dict[Sleeper, bool] = {}  # tasks that sleep; whether each was back soon
        self._interrupted = False  # by Ctrl-C, in a turn of the main thread
        self._visit = _Visit()
        self._back_ns = 0  # until when the last that went, if it had been back soon, is expected to be so again
        self._attentive = False  # what happens next is waited for
        self._sleeper: Sleeper | None = None  # the task in the seat
        self._deadline_ns: int | None = None  # when that has waited long enough
        self._timer_ns: int | None = None  # when the next timer is due

    @property
    def here(self) -> bool:
        """Whether the caller may touch the loop: it has the turn, or nobody can."""
        return self._in_turn or not self._thread.alive

    @property
    def _in_turn(self) -> bool:
        """Whether the caller has the turn. Unlike `here` it is no question of the thread, which takes longer to ask."""
        return self._driver == threading.get_ident()

    def join(self) -> None:
        """Wait for the network thread's end, unless the caller has the turn: it would wait for itself."""
        if not self.here:
            super().join()

    # For tasks.

    def call_at(self, when_ns: int, function: Call) -> Timer:
        """Call a function at a time, never before it."""
        timer = super().call_at(when_ns, function)
        self._timer_ns = self._timers.next_ns()
        self.ring()  # who sleeps in the seat does not know of it
        return timer

    def call_soon(self, function: Call) -> None:
        """Call a function, now, unless another thread has the turn: that will."""
        self._soon.append(function)
        if self._thread.started:
            self._run_soon()
            if not self._in_turn:  # a task that has acted by itself will look for what it needs (`attend`)
                self._helped = True
                if self.now_ns() - self._looked_ns < _REST_NS:
                    self._put_off()

    def call_lazily(self, function: Call) -> None:
        """Call a function in the next turn: now if somebody sleeps in the seat, else within a moment."""
        self._lazy.append(function)
        self.ring()
        if self._resting and not self._called and not self._seat.locked():
            now_ns = self.now_ns()
            if not now_ns < self._alarm_ns <= now_ns + _MOMENT_NS:
                self._set_alarm(now_ns, _MOMENT_NS)

    def attend(self) -> None:
        """See what has happened. If nothing has, let the network thread keep the seat until something does.

        In a turn: after it. Who sits there already will see it by itself.
        """
        self._attentive = True
        if not self._in_turn:
            self._see()

    def glance(self) -> None:
        """Act on what has happened by now, unless somebody is about to."""
        if not self._in_turn:
            self._see()

    def _see(self) -> None:
        """`attend`, outside of a turn."""
        if self._seat.acquire(blocking=False):
            try:
                if happened := self._look_now():
                    self._act_on(happened)
            finally:
                self._seat.release()
                self._put_off()
        if not self._seat.locked() and (self._attentive or self._is_needed()):
            self._call_network_thread()

    def sleep(self, sleeper: Sleeper, timeout_s: float | None) -> bool:
        """Drive until the sleeper is woken (True) or its time is over; asleep while another thread has the seat."""
        deadline_ns = None if timeout_s is None else self.now_ns() + int(timeout_s * 1e9)
        self._asleep[sleeper] = self._come()  # before the look at the seat: who has it now looks here after leaving it
        try:
            if self._thread.started and self._seat.acquire(blocking=False):
                self._drive(sleeper, deadline_ns)
            return sleeper.sleep(None if deadline_ns is None else max(0, deadline_ns - self.now_ns()) / 1e9)
        finally:
            del self._asleep[sleeper]
            self._go()

    def help(self) -> bool:
        """Act on what has happened, unless another thread has the seat. Whether anything had.

        If so, what is lazy waits on: the caller has something to do now, and will be back. If not, it is about to
        sleep.
        """
        if self._in_turn or not self._seat.acquire(blocking=False):
            return False
        self._come()
        happened = None
        try:
            happened = self._look_now()
            if happened or self._lazy:
                self._act_on(happened, lazily=not happened)
        finally:
            self._leave_seat(going=bool(happened), staying=not happened)
        return bool(happened)

    def _look_now(self) -> list[tuple[int, int]]:
        self._looked_ns = self.now_ns()
        return self._look()

    def _drive(self, sleeper: Sleeper, deadline_ns: int | None) -> None:
        """Until the sleeper is woken, or another that will be back for the seat: who gets most does the work."""
        self._sleeper, self._deadline_ns = sleeper, deadline_ns
        try:
            while not (sleeper.woken or self._stopping or self._interrupted):
                if deadline_ns is not None and self.now_ns() >= deadline_ns:
                    break
                if not self._lazy:
                    self._put_off(_REST_NS)
                self._turn()
                if len(self._asleep) > 1 and self._is_another_back_soon():
                    break
        finally:
            self._sleeper = self._deadline_ns = None
            self._leave_seat(going=sleeper.woken)

    def _come(self) -> bool:
        """A task is here, in the seat or asleep. Whether it was back soon."""
        self._back_ns = 0
        visit = self._visit
        visit.brief = brief = self.now_ns() - visit.left_ns < _SOON_NS
        return brief

    def _go(self) -> None:
        """A task goes back to its own work."""
        visit = self._visit
        visit.left_ns = now_ns = self.now_ns()
        if visit.brief:
            self._back_ns = now_ns + _SOON_NS

    def _leave_seat(self, *, going: bool, staying: bool = False) -> None:
        if going:
            self._go()
        self._seat.release()
        self._put_off()
        self._run_soon()
        if self._stopping or self._attentive or (not staying and self._is_needed()):
            self._call_network_thread()

    def _is_needed(self) -> bool:
        """Whether a task sleeps that relies on somebody in the seat, and nobody will be there in a moment."""
        if not self._asleep or self.now_ns() < self._back_ns:
            return False
        return any(not sleeper.woken for sleeper in list(self._asleep)) and not self._is_another_back_soon()

    def _is_another_back_soon(self) -> bool:
        """Whether a task was woken that will not be away for long."""
        return any(brief and sleeper.woken for sleeper, brief in list(self._asleep.items()))

    # Turns.

    def _turn(self) -> None:
        self._act_on(self._wait())

    def _act_on(self, happened: list[tuple[int, int]], *, lazily: bool = True) -> None:
        self._turn_lock.acquire()
        self._driver = threading.get_ident()
        self._looked_ns = self.now_ns()
        if happened:
            self._attentive = False
        try:
            self._handle(happened)
            if lazily:
                lazy = self._lazy
                for _ in range(len(lazy)):
                    self._call(lazy.popleft())
        finally:
            self._end_turn()

    def _run_soon(self) -> None:
        """Run what was asked for, unless another thread has the turn; in the order of asking."""
        soon = self._soon
        for _ in range(_LOOKS):
            if not soon or not self._turn_lock.acquire(blocking=False):
                break
            self._driver = threading.get_ident()
            try:
                for _ in range(len(soon)):
                    self._call(soon.popleft())
            finally:
                self._end_turn()
        else:  # calls that add calls: the network goes on with them, between what else it has to do
            self.ring()
            self._call_network_thread()
        if self._attentive and not self._in_turn:
            self._see()
        if self._interrupted and _on_main_thread():
            self._interrupted = False
            raise KeyboardInterrupt

    def _end_turn(self) -> None:
        self._timer_ns = self._timers.next_ns()
        self._driver = 0
        self._turn_lock.release()

    def _call(self, function: Call) -> None:
        """Call a function. Ctrl-C in the middle of it, on the main thread, comes after the turn."""
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - see `call_logged`
            if isinstance(error, KeyboardInterrupt) and _on_main_thread():
                self._interrupted = True
            else:
                _log.exception("%r failed in the network's turn", function)

    # The network thread.

    def _run(self) -> None:
        while not self._stopping:
            if self._seat.acquire(blocking=False):
                try:
                    self._turn()
                finally:
                    self._seat.release()
                asked = self._soon and not self._is_another_back_soon()  # else that one goes on with it
                if asked or self._attentive or self._is_needed():
                    continue
            self._rest()
        self._seat.acquire()  # for good: nobody drives any more
        self._turn_lock.acquire()
        self._driver = threading.get_ident()
        self._release()

    def _rest(self) -> None:
        """Leave the seat to tasks, as long as one looks every now and then and none sleeps."""
        helped, self._helped, self._resting = self._helped, False, True
        self._set_alarm(self.now_ns(), _REST_NS if helped and not self._soon else _MOMENT_NS)
        while not (self._called or self._stopping):
            self._alarm.wait()
            self._alarm_ns = 0  # before the look at the seat: who leaves it after that sets the alarm
            if self._seat.locked():
                continue
            if not self._turn_lock.locked():
                break
            self._set_alarm(self.now_ns(), _MOMENT_NS)
        self._resting = self._called = False

    def _put_off(self, rest_ns: int | None = None) -> None:
        """A task has looked, or is about to: the network thread need not for a while, short if it may be missed."""
        if self._called or not self._resting:
            return
        if rest_ns is None:
            missed = self._lazy or any(not sleeper.woken for sleeper in list(self._asleep))
            rest_ns = _MOMENT_NS if missed else _REST_NS
        now_ns = self.now_ns()
        if not rest_ns // 2 < self._alarm_ns - now_ns <= rest_ns:  # else it is well as it is, and a call saved
            self._set_alarm(now_ns, rest_ns)

    # Who was just about to set it when another calls the network thread makes that come so much later: never more than
    # `_REST_NS`, and everybody else leaves the alarm alone from then on.
    def _set_alarm(self, now_ns: int, delay_ns: int) -> None:
        self._alarm_ns = now_ns + delay_ns
        self._alarm.set(delay_ns)

    def _call_network_thread(self) -> None:
        if not self._called:
            self._called = True
            self._alarm.set(1)

    def _end(self) -> None:
        super()._end()
        self.ring()
        self._call_network_thread()

    def _release(self) -> None:
        if not self._epoll.closed:
            super()._release()
            self._alarm.close()  # to set it from now on does nothing: that number is no alarm's, or another loop's

    # What whoever is in the seat waits for.

    def _wait_limit_ns(self) -> int | None:
        at_ns, deadline_ns = self._timer_ns, self._deadline_ns
        if at_ns is None or (deadline_ns is not None and deadline_ns < at_ns):
            return deadline_ns
        return at_ns

    def _has_reason_to_stay_awake(self) -> bool:
        if self._stopping or self._soon or self._lazy:
            return True
        return self._sleeper is not None and self._sleeper.woken


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
