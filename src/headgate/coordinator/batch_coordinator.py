"""The coordinator of a BATCH job: regions one after another, and several attempts if workers are lost.

What a STREAMING job's does, and besides: it deploys what `batch` says, lets the workers leave when everything has
finished, and when one is lost lets the others leave and waits for those of another attempt, which the host starts as
soon as `next_attempt` says so. All on the network thread, but for what its base says of others.

Invariants: an attempt begins when nobody of the one before is left, or is waited for; nothing that comes from an
earlier attempt changes anything; the files of finished partitions are kept from one attempt to the next, and removed
before the job is over by every worker that leaves in time.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headgate.coordinator.batch import Batch, Outcome
from headgate.coordinator.cause import Weight
from headgate.coordinator.coordinator import Coordinator
from headgate.coordinator.members import Presence
from headgate.coordinator.state import State
from headgate.errors import RemoteProtocolError, TransportError
from headgate.ids import AttemptId
from headgate.worker.messages import Cancel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.coordinator.members import Member
    from headgate.errors import HeadgateError
    from headgate.graph.plan import Plan
    from headgate.worker.messages import Partition, RegionOver

__all__ = ["BatchCoordinator", "coordinator_for"]

_BLAME_S: Final = 1.0  # in which a worker is known to be lost whose readers have failed
_MAX_REASON: Final = 1000  # characters
_GONE: Final = (Presence.DONE, Presence.LOST)


def coordinator_for(
    plan: Plan, secret: bytes, attempt: AttemptId, *, renews: bool, attempts: int | None = None, **options: Any
) -> Coordinator:
    """The coordinator of a job, of whichever kind it is.

    Args:
        plan: The job.
        secret: What its workers prove that they know.
        attempt: The first.
        renews: Whether the host starts workers for another attempt when `next_attempt` says so; for BATCH jobs.
        attempts: How often a region is tried; None: as `batch.attempts` says.
        options: See `Coordinator`.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> with coordinator_for(plan, bytes(32), AttemptId(1), renews=True) as coordinator:
    ...     coordinator.job.await_termination(10), coordinator.job.status
    (True, <JobStatus.FINISHED: 'finished'>)
    """
    if not plan.batch:
        return Coordinator(plan, secret, attempt, **options)
    return BatchCoordinator(plan, secret, attempt, renews=renews, attempts=attempts, **options)


class BatchCoordinator(Coordinator):
    """Runs the regions of a job, in as many attempts as it takes and may take.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan
    >>> plan = Plan("1", "nothing", (), (), workers=0, settings=Settings(), batch=True)
    >>> with BatchCoordinator(plan, bytes(32), AttemptId(1), renews=True) as coordinator:
    ...     coordinator.next_attempt(AttemptId(1)) is None  # it is over
    True
    """

    def __init__(
        self,
        plan: Plan,
        secret: bytes,
        attempt: AttemptId,
        *,
        renews: bool = False,
        attempts: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(plan, secret, attempt, **options)
        tries = plan.settings.batch.attempts if attempts is None else attempts
        self._batch = Batch(plan, self._watch.log, attempts=tries)
        self._renews = renews
        self._attempt = attempt
        self._turn = threading.Condition()  # of the attempt, and the end

    def next_attempt(self, after: AttemptId) -> AttemptId | None:
        """Wait until an attempt after this one needs workers: its number. None: the job is over."""
        with self._turn:
            self._turn.wait_for(lambda: self.job.status.over or self._attempt > after)
            return None if self.job.status.over else self._attempt

    def _wanted(self, worker: int) -> bool:
        return self._state is not State.RENEWING and super()._wanted(worker)

    # Regions.

    def _start(self) -> None:
        self._go_on(self._batch.begin(self._members))

    def _wire(self, member: Member, partition: Partition) -> None:
        raise RemoteProtocolError(f"worker {member.number} says of {partition} alone that it can be read: BATCH")

    def _region_over(self, member: Member, message: RegionOver) -> None:
        if self._state not in (State.RUNNING, State.RENEWING):  # in the latter, what has finished still counts
            return
        if message.failure is None:
            self._go_on(self._batch.over(member, message))
            return
        error = message.failure.error()
        if Weight.of(error) is Weight.OWN:
            self._region_failed(member, message, error)
        else:  # a worker may be lost: who reads from it must not pay for that
            at_ns = self._transport.now_ns() + int(_BLAME_S * 1e9)
            self._transport.call_at(at_ns, lambda: self._region_failed(member, message, error))

    def _region_failed(self, member: Member, message: RegionOver, error: HeadgateError) -> None:
        if self._state is State.RUNNING:  # perhaps in another attempt, where that run is not the current one
            self._go_on(self._batch.failed(member, message, error), error)

    def _failed(self, member: Member, error: HeadgateError) -> None:
        """A worker could not do what it was told to, which was not to run a region."""
        self._miss(member, error)

    def _done(self, member: Member) -> None:
        if self._state is State.RUNNING:
            raise RemoteProtocolError("Done from a worker that was not told to leave")
        super()._done(member)

    def _go_on(self, how: Outcome, error: HeadgateError | None = None, weight: Weight = Weight.OWN) -> None:
        """What follows from what a worker has done, or from what has happened to it (`error`)."""
        if how is Outcome.FINISHED:
            self._dismiss(State.LEAVING, Cancel("the job has finished"), self._over)
        elif how is not Outcome.GOES_ON:
            assert error is not None, "there is a reason"
            if how is Outcome.NEW_ATTEMPT and self._renews:
                self._watch.log.note(f"the job goes on with new workers: {error}", "warning")
                self._dismiss(State.RENEWING, Cancel(str(error)[:_MAX_REASON], keep=True), self._renew)
            else:
                self._fail(error, weight)

    # Attempts.

    def _miss(self, member: Member, error: HeadgateError) -> None:
        if self._state in (State.GATHERING, State.RUNNING):
            self._go_on(self._batch.lost(member.number), error, Weight.LOST)
        elif self._state is State.STOPPING:
            self._fail(error, Weight.LOST)

    def _host_failed(self, error: HeadgateError, attempt: AttemptId | None, workers: Sequence[int] | None) -> None:
        if attempt not in {None, self._attempt}:
            return
        own = Weight.of(error) is Weight.OWN and self._state is not State.RENEWING  # in that they end anyhow
        if workers is None or own:
            self._fail(error, Weight.of(error))
            return
        gone = [one for one in self._members if one.number in workers and one.presence not in _GONE]
        before = self._attempt
        for member in gone:  # they may still be there for a moment: who is, is told to leave, and waited for as always
            if self._state in (State.GATHERING, State.RUNNING) and before == self._attempt:  # else one was enough
                self._miss(member, error if len(workers) > 1 else _lost(member, error))

    def _dismiss(self, state: State, message: Cancel, then: Callable[[], object]) -> None:
        """Let all workers leave; who does not in time is not waited for."""
        self._state = state
        for member in self._members:
            _tell(member, message)
        self._call_in(self._goodbye_timeout_s, then)
        self._look_if_over()

    def _renew(self) -> None:
        """Nobody of the last attempt is left, or waited for: let others come."""
        for member in self._members:
            member.dismiss()
        self._members, self._begun = self._nobody(), False
        self._batch.renew()
        self._watch.renewed()
        self._state = State.GATHERING
        self._call_in(self._registration_timeout_s, self._on_missing)
        self._port.renew(replace(self._identity, attempt=AttemptId(self._attempt + 1)))
        with self._turn:
            self._attempt = AttemptId(self._attempt + 1)
            self._turn.notify_all()
        self.job.changed()

    # How it ends.

    def _tell_stop(self, member: Member) -> None:
        _tell(member, Cancel(self._reason))

    def _look_if_over(self) -> None:
        somebody = any(one.here for one in self._members)
        if self._state is State.LEAVING and not somebody:
            self._over()
        elif self._state is State.RENEWING and not somebody:
            self._renew()
        elif self._state is State.STOPPING and not (self._begun and somebody):
            self._over()

    def _over(self) -> None:
        super()._over()
        with self._turn:
            self._turn.notify_all()


def _lost(member: Member, error: HeadgateError) -> TransportError:
    return TransportError(f"worker {member.number} was lost before it was done: {error}", peer=member.place)


def _tell(member: Member, message: Cancel) -> None:
    """Also who is done: it may have files that it was told to keep."""
    if member.link is not None:
        member.link.send(message)
