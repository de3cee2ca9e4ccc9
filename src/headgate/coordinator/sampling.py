"""Rounds of stack sampling (B1): the coordinator requests samples of all workers, and collects the answers.

`pressure` may be called by any thread but the network thread, and blocks; `begun`, `answered` and `over` are called on
the network thread and never block.

Invariants: nothing is requested unless `pressure` is called; one round at a time, shared by all callers; a round ends,
with the answers so far, when every worker has answered, at its deadline, or with the job; an invalid answer is a
RemoteProtocolError, and a late one is ignored.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from headgate.clock import wall_ms
from headgate.control.messages import SampleStacks
from headgate.control.reports import MAX_FRAMES, MAX_STACKS
from headgate.errors import HeadgateError, RemoteProtocolError
from headgate.observe.pressure import pressure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.control.reports import Stack, StackSamples, SubtaskSamples
    from headgate.graph.plan import Plan
    from headgate.observe.pressure import Pressure

__all__ = ["StackSampling"]

_LATE_S: Final = 5.0  # from the last sample to the deadline for answers
_MAX_TEXT: Final = 2000  # characters of a frame, and of an operator's name


class StackSampling:
    """Requests samples, and keeps the last result.

    `request` sends a message to every registered worker, and returns their numbers; `call_soon` runs it on the network
    thread.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> plan = Plan("1", "etl", (Vertex(0, "words", 1, 128, (), inputs=0),), (), workers=1, settings=Settings())
    >>> StackSampling(plan, call_soon=print, request=print).pressure()
    Traceback (most recent call last):
    headgate.errors.HeadgateError: job 'etl' has not begun: there is nothing to sample yet
    """

    def __init__(
        self,
        plan: Plan,
        *,
        call_soon: Callable[[Callable[[], object]], object],
        request: Callable[[SampleStacks], Iterable[int]],
        warn: Callable[[str], object] = lambda _: None,
        late_s: float = _LATE_S,
    ) -> None:
        self._call_soon = call_soon
        self._plan = plan
        self._settings = plan.settings.backpressure
        self._request = request
        self._warn = warn
        self._late_s = late_s
        self._changed = threading.Condition()  # guards all below
        self._begun = False
        self._over = False
        self._issued = 0  # number of requests
        self._round: _Round | None = None
        self._last: Pressure | None = None
        self._last_request = 0
        self._good_until_s = 0.0

    @property
    def last(self) -> Pressure | None:
        """The last result."""
        return self._last

    def pressure(self, *, refresh: bool = False) -> Pressure:
        """Return the last result if it is recent or the job is over; otherwise sample. Blocks for a round.

        Raises:
            HeadgateError: the job has not begun, or is over without a result; or no worker answers.
        """
        with self._changed:
            if self._round is not None and time.monotonic() > self._round.deadline_s:
                self._end_locked(self._round)  # its caller was interrupted
            found = self._recent_locked(refresh=refresh)
            if found is not None:
                return found
            one, starts = self._round, self._round is None
            if one is None:
                one = self._round = self._new_locked()
        if starts:
            self._call_soon(lambda: self._begin(one))
        with self._changed:
            self._changed.wait_for(lambda: one.over, one.deadline_s - time.monotonic())
            missing = [] if one.over else sorted(one.missing)
            self._end_locked(one)
        if missing:
            self._warn(f"no samples of worker {', '.join(map(str, missing[:20]))} came in time")
        return self._found(one)

    def _recent_locked(self, *, refresh: bool) -> Pressure | None:
        """Return the last result if it answers the call."""
        if not self._begun:
            raise HeadgateError(f"job {self._plan.name!r} has not begun: there is nothing to sample yet")
        if self._over and self._last is None:
            raise HeadgateError(f"job {self._plan.name!r} is over, and its tasks were not sampled while it ran")
        fresh = not refresh and time.monotonic() < self._good_until_s
        return self._last if fresh or self._over else None

    def _new_locked(self) -> _Round:
        self._issued += 1
        settings = self._settings
        request = SampleStacks(self._issued, settings.samples, max(1, round(settings.delay.ms)))
        length_s = request.samples * request.delay_ms / 1000
        return _Round(request, time.monotonic() + length_s + self._late_s)

    def _found(self, one: _Round) -> Pressure:
        """Return the result of a round that is over; the first caller computes it."""
        with one.lock:
            if one.result is None:
                request = one.request
                one.result = pressure_of(
                    one.answers.values(), at_ms=wall_ms(), samples=request.samples, delay_ms=request.delay_ms
                )
        with self._changed:
            if one.result.vertices:
                if self._last is None or one.request.request > self._last_request:
                    self._last, self._last_request = one.result, one.request.request
                    self._good_until_s = time.monotonic() + self._settings.refresh.seconds
                return one.result
            if self._over and self._last is not None:
                return self._last
        ends = self._over or not one.requested
        state = "ended before its samples came" if ends else "has no worker that answered in time"
        raise HeadgateError(f"job {self._plan.name!r} {state}")

    # On the network thread.

    def begun(self) -> None:
        """Allow sampling: all tasks are deployed."""
        self._begun = True

    def _begin(self, one: _Round) -> None:
        workers = frozenset() if one.over else frozenset(self._request(one.request))
        with self._changed:
            one.requested, one.missing = workers, set(workers)
            if not one.missing:
                self._end_locked(one)

    def answered(self, worker: int, answer: StackSamples) -> None:
        """Add the answer of a worker.

        Raises:
            RemoteProtocolError: it was not requested, or its numbers do not fit.
        """
        with self._changed:
            one = self._round
            if not 0 < answer.request <= self._issued:
                raise RemoteProtocolError(f"worker {worker} sends samples that were not requested")
            if one is None or one.request.request != answer.request:
                return  # too late
            if worker not in one.requested or worker in one.answers:
                raise RemoteProtocolError(f"worker {worker} sends samples twice, or without a request")
        self._check(worker, answer, one.request)
        with self._changed:
            if not one.over:
                one.answers[worker] = answer
                one.missing.discard(worker)
                if not one.missing:
                    self._end_locked(one)

    def over(self) -> None:
        """End the current round, and all sampling: the job is over."""
        with self._changed:
            self._begun = self._over = True
            if self._round is not None:
                self._round.missing.clear()  # the workers are not late: no warning
                self._end_locked(self._round)

    def _end_locked(self, one: _Round) -> None:
        one.over = True
        if self._round is one:
            self._round = None
        self._changed.notify_all()

    def _check(self, worker: int, answer: StackSamples, request: SampleStacks) -> None:
        plan = self._plan
        seen = set()
        for one in answer.subtasks:
            place = one.vertex, one.subtask
            workers = plan.vertex(one.vertex).workers(plan) if 0 <= one.vertex < len(plan.vertices) else range(0)
            if not 0 <= one.subtask < len(workers) or workers[one.subtask] != worker or place in seen:
                raise RemoteProtocolError(f"worker {worker} sends samples of subtask {place[1]} of vertex {place[0]}")
            seen.add(place)
            if not _plausible(one, request.samples):
                raise RemoteProtocolError(f"worker {worker} sends samples that do not add up")


class _Round:
    """One request to all workers. `lock` guards `result`; the condition of `StackSampling` guards all else."""

    def __init__(self, request: SampleStacks, deadline_s: float) -> None:
        self.request = request
        self.deadline_s = deadline_s
        self.requested: frozenset[int] = frozenset()  # workers
        self.missing: set[int] = set()  # workers that have not answered
        self.answers: dict[int, StackSamples] = {}
        self.over = False
        self.lock = threading.Lock()
        self.result: Pressure | None = None


def _plausible(one: SubtaskSamples, samples: int) -> bool:
    """Return True if the numbers of a task fit together."""
    parts_fit = one.idle >= 0 and one.back_pressured >= 0 and one.idle + one.back_pressured <= one.taken <= samples
    if not parts_fit or len(one.stacks) > MAX_STACKS:
        return False
    return all(map(_plausible_stack, one.stacks)) and sum(stack.count for stack in one.stacks) <= one.taken


def _plausible_stack(one: Stack) -> bool:
    counts_fit = one.idle >= 0 and one.back_pressured >= 0 and one.idle + one.back_pressured <= one.count
    texts_fit = all(len(text) <= _MAX_TEXT for text in (one.operator, *one.frames))
    return counts_fit and texts_fit and len(one.frames) <= MAX_FRAMES
