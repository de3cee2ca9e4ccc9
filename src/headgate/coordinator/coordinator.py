"""The coordinator of a job: who is there, what they may read, what went wrong, and when it is over.

Made in the driver by the host, which starts the workers; each connects to the coordinator's port. All state belongs to
the network thread; the public methods are for any other thread. `Coordinator` is that of a STREAMING job, whose workers
all run at once, and once; `batch_coordinator` has that of a BATCH job.

Invariants: every worker is there once; nothing is deployed before all are; a job that was deployed is over only when
every worker is done or lost, or has not left in time after it was told to; then, and not before, the links of those who
are done are closed, so that nobody leaves whom others may still read from; strangers change nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

from headgate.coordinator.cause import Cause, Weight
from headgate.coordinator.job import Job, JobStatus
from headgate.coordinator.members import Member, Presence, check_register, missing_error, readers_of
from headgate.coordinator.port import ControlPort, refuse_plaintext
from headgate.coordinator.state import State
from headgate.coordinator.watching import JobWatch
from headgate.errors import HeadgateError, RemoteProtocolError, TransportError
from headgate.net import Identity
from headgate.net.loop import EpollLoop
from headgate.net.sockets import SocketOptions, SocketTransport
from headgate.net.watch import ConnectionOptions
from headgate.worker.link import COORDINATOR
from headgate.worker.messages import (
    Cancel,
    Deploy,
    Done,
    Failed,
    PartitionConsumable,
    RegionOver,
    Register,
    Report,
    Sampled,
    TaskStateChanged,
    Wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.config import Settings
    from headgate.graph.plan import Plan
    from headgate.ids import AttemptId
    from headgate.net import Address, Credentials, Timer
    from headgate.observe.progress import Progress
    from headgate.worker.link import ControlLink
    from headgate.worker.messages import FromWorker, Partition, Sample

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)

_MAX_REASON: Final = 1000  # characters


class Coordinator:
    """Gathers a job's workers, starts them, wires their partitions, and ends them all when one fails.

    With `credentials`, which must be those of the worker `COORDINATOR`, connections are in TLS.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Plan, Vertex
    >>> from headgate.ids import AttemptId, JobId
    >>> words = Vertex(0, "words", 1, 128, (), inputs=0)
    >>> plan = Plan(JobId("1"), "word count", (words,), (), workers=1, settings=Settings())
    >>> with Coordinator(plan, bytes(32), AttemptId(1)) as coordinator:
    ...     coordinator.address.host, coordinator.job
    ('127.0.0.1', Job('word count', id='1', created))
    >>> coordinator.job.status
    <JobStatus.CANCELLED: 'cancelled'>
    """

    def __init__(
        self,
        plan: Plan,
        secret: bytes,
        attempt: AttemptId,
        *,
        credentials: Credentials | None = None,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        settings: Settings | None = None,
        registration_timeout_s: float = 60.0,
        goodbye_timeout_s: float = 5.0,
    ) -> None:
        self.plan = plan
        self._network = (plan.settings if settings is None else settings).network
        self._bind = (bind_host, port)
        self._registration_timeout_s = registration_timeout_s
        self._goodbye_timeout_s = goodbye_timeout_s
        self._identity = Identity(plan.job, attempt, COORDINATOR, secret, credentials)
        options = ConnectionOptions(self._network.handshake_timeout.ns, self._network.idle_timeout.ns)
        if credentials is None and not self._network.insecure_plaintext:
            refuse_plaintext(bind_host)
        self._transport = SocketTransport(EpollLoop(), SocketOptions(keepalive=self._network.keepalive))
        self._port = ControlPort(self._identity, self._transport, options, max_half_open=self._network.max_half_open)
        self._port.wanted = self._wanted
        self._port.on_proved = self._proved
        self._watch = JobWatch(plan, self._progress, call_soon=self._transport.call_soon, ask=self._ask)
        self.job = Job(plan.job, plan.name, progress=self._progress, cancel=self.cancel, watch=self._watch)
        self._members = self._nobody()
        self._state = State.GATHERING
        self._cause = Cause()  # without an error in STOPPING: it was cancelled
        self._reason = ""  # for workers that are told to stop
        self._consumable: set[Partition] = set()
        self._begun = False  # workers were told to begin: they have something to end
        self._deployed_ns: int | None = None
        self._over_ns: int | None = None
        self._timer: Timer | None = None
        self._address: Address | None = None
        self._closed = False

    def start(self) -> Address:
        """Open the port, and begin to wait for workers.

        Raises:
            TransportError: the port is in use, or the address is not this machine's.
        """
        self._transport.start()
        try:
            self._address = self._transport.call(self._begin)
        except BaseException:
            self._transport.close()
            raise
        return self._address

    @property
    def address(self) -> Address:
        """Where it listens, once it was started."""
        assert self._address is not None, "it was started"
        return self._address

    @property
    def refused(self) -> int:
        """Connections that came to nothing: strangers, mostly."""
        return self._port.refused

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop the job, unless it has failed or is over."""
        self._transport.call_soon(lambda: self._cancel(reason))

    def fail(
        self, error: HeadgateError, *, attempt: AttemptId | None = None, workers: Sequence[int] | None = None
    ) -> None:
        """Let the job fail: the host knows of something that no worker can tell.

        Args:
            error: What it is.
            attempt: Of which attempt, if it concerns only that: it has no effect on a later one.
            workers: Those that are lost by it: a BATCH job may go on with others.
        """
        self._transport.call_soon(lambda: self._host_failed(error, attempt, workers))

    def next_attempt(self, after: AttemptId) -> AttemptId | None:  # noqa: ARG002 - of BATCH jobs there may be several
        """Wait until an attempt after this one needs workers: its number. None: the job is over."""
        self.job.wait()
        return None

    def close(self) -> None:
        """End the job if it is not over, all links, the port and the thread. May be repeated. Not from a callback."""
        if not self._closed:
            self._closed = True
            if self._address is not None:
                self._transport.call(self._shut)  # waits, so that what it sends goes before the transport
            self._transport.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Beginning and end, on the network thread.

    def _begin(self) -> Address:
        address = self._port.listen(*self._bind)
        self._call_in(self._registration_timeout_s, self._on_missing)
        if not self._members:
            self._deploy()
        return address

    def _nobody(self) -> list[Member]:
        return [Member(number) for number in range(self.plan.workers + self.plan.uses_driver)]

    def _shut(self) -> None:
        self._cancel("the driver has left")
        self._over()
        self._port.close()

    def _call_in(self, seconds: float, function: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._transport.call_at(self._transport.now_ns() + int(seconds * 1e9), function)

    def _on_missing(self) -> None:
        self._fail(missing_error(self._members, self.plan.name, self._registration_timeout_s), Weight.OWN)

    # Who is there.

    def _wanted(self, worker: int) -> bool:
        return worker < len(self._members) and self._members[worker].presence is Presence.ABSENT

    def _proved(self, link: ControlLink) -> None:
        member = self._members[link.worker]
        member.presence, member.link = Presence.CONNECTED, link
        link.on_message = lambda message: self._heard(member, message)
        link.on_lost = lambda error: self._lost(member, error)
        if self._state is State.OVER:  # who comes too late
            member.send(Cancel(self._reason))
            link.close()

    def _registered(self, member: Member, register: Register) -> None:
        check_register(register)
        member.presence, member.register = Presence.REGISTERED, register
        missing = sum(one.presence is not Presence.REGISTERED for one in self._members)
        self._watch.registered(member.number, register, missing=missing)
        if not missing and self._state is State.GATHERING:
            self._deploy()
        self.job.changed()

    def _lost(self, member: Member, error: HeadgateError | None) -> None:
        if member.presence is Presence.DONE:
            return
        member.presence = Presence.LOST
        if self._state is State.OVER:
            return
        why = "its link was closed" if error is None else str(error)
        lost = TransportError(f"worker {member.number} was lost before it was done: {why}", peer=member.place)
        lost.__cause__ = error
        self._miss(member, lost)
        self._look_if_over()

    def _miss(self, member: Member, error: HeadgateError) -> None:  # noqa: ARG002 - who it is matters to BATCH jobs
        """A worker is lost."""
        self._fail(error, Weight.LOST)

    def _host_failed(self, error: HeadgateError, attempt: AttemptId | None, workers: Sequence[int] | None) -> None:  # noqa: ARG002 - likewise
        self._fail(error, Weight.of(error))

    # What workers say.

    def _heard(self, member: Member, message: FromWorker) -> None:
        if member.presence is Presence.CONNECTED:
            if not isinstance(message, Register):
                raise RemoteProtocolError(f"{type(message).__name__} before Register")
            self._registered(member, message)
            return
        last_words = isinstance(message, Report | Sampled)
        if isinstance(message, Register) or (member.presence is Presence.DONE and not last_words):
            raise RemoteProtocolError(f"{type(message).__name__} from a worker that is {member.presence.name.lower()}")
        if self._state is State.GATHERING and isinstance(message, PartitionConsumable | RegionOver | Done):
            raise RemoteProtocolError(f"{type(message).__name__} before Deploy")
        match message:
            case TaskStateChanged(vertex, subtask, state):
                self._watch.moved(member.number, vertex, subtask, state)
                self.job.changed()
            case Report():
                self._watch.tracker.report(member.number, message)
                self.job.changed()
            case Sampled():
                self._watch.sampling.answered(member.number, message)
            case Done():
                self._done(member)
            case Failed():
                self._failed(member, message.error())
            case PartitionConsumable(partition):
                self._wire(member, partition)
            case RegionOver():
                self._region_over(member, message)

    def _deploy(self) -> None:
        """All are there."""
        if self._timer is not None:
            self._timer.cancel()
        self._state, self._begun = State.RUNNING, True
        if self._deployed_ns is None:
            self._deployed_ns = self._transport.now_ns()
            self._watch.begun()
            self.job.begin()
        self._start()

    def _start(self) -> None:
        for member in self._members:
            member.send(Deploy())
        self._look_if_over()

    def _done(self, member: Member) -> None:
        member.presence = Presence.DONE
        self._look_if_over()

    def _failed(self, member: Member, error: HeadgateError) -> None:
        """A task has failed, or the worker."""
        self._fail(error, Weight.of(error), but=member)

    def _region_over(self, member: Member, message: RegionOver) -> None:  # noqa: ARG002 - of BATCH jobs
        raise RemoteProtocolError("RegionOver in a STREAMING job")

    def _wire(self, member: Member, partition: Partition) -> None:
        """A partition can be read: tell the workers of its readers (P6). A second notice changes nothing."""
        readers = readers_of(self.plan, partition, member.number)
        if partition in self._consumable:
            return
        self._consumable.add(partition)
        self._watch.log.consumable(len(self._consumable))
        assert member.register is not None, "only who has registered is listened to"
        wire = Wire(partition, member.number, member.register.host, member.register.port)
        for worker in readers:
            self._members[worker].send(wire)

    def _ask(self, request: Sample) -> list[int]:
        """Ask for samples; who was asked."""
        running = self._state is State.RUNNING
        asked = [one for one in self._members if running and one.presence is Presence.REGISTERED]
        for member in asked:
            member.send(request)
        return [one.number for one in asked]

    # How it ends.

    def _fail(self, error: HeadgateError, weight: Weight, *, but: Member | None = None) -> None:
        """Something failed: stop the job, if that was not done, and tell all others."""
        cancelled = self._state is State.STOPPING and self._cause.error is None
        if cancelled or self._state in (State.LEAVING, State.OVER):
            _log.info("job %s, which is being stopped: %s", self.plan.name, error)
        elif self._cause.hear(error, weight):
            self._watch.log.note(f"the job fails: {error}", "error")
            self.job.ending(error)
            self._stop(str(error), but=but)

    def _cancel(self, reason: str) -> None:
        if self._state in (State.GATHERING, State.RUNNING, State.RENEWING):
            self._watch.log.note(f"the job is stopped: {reason}")
            self.job.ending(None)
            self._stop(reason)

    def _stop(self, reason: str, *, but: Member | None = None) -> None:
        if self._state is State.STOPPING:
            return
        self._state, self._reason = State.STOPPING, reason[:_MAX_REASON]
        for member in self._members:
            if member is not but:
                self._tell_stop(member)
        self._call_in(self._goodbye_timeout_s, self._over)
        self._look_if_over()

    def _tell_stop(self, member: Member) -> None:
        member.send(Cancel(self._reason))

    def _look_if_over(self) -> None:
        stopped = self._state is State.STOPPING and not (self._begun and any(one.here for one in self._members))
        finished = self._state is State.RUNNING and all(one.presence is Presence.DONE for one in self._members)
        if stopped or finished:
            self._over()

    def _over(self) -> None:
        if self._state is State.OVER:
            return
        finished, self._state = self._state in (State.RUNNING, State.LEAVING), State.OVER
        self._over_ns = self._transport.now_ns()
        if self._timer is not None:
            self._timer.cancel()
        still = [one.number for one in self._members if one.here]
        if still and self._begun and not self._closed:
            _log.warning("job %s: workers %s did not leave in time", self.plan.name, still)
            self._watch.log.note(f"workers {still[:20]} did not leave in time", "warning")
        for member in self._members:
            if member.link is not None:
                member.link.close()  # so that the worker leaves
        failed = self._cause.error is not None
        status = JobStatus.FINISHED if finished else JobStatus.FAILED if failed else JobStatus.CANCELLED
        self._watch.over(status)
        self.job.end(status)

    def _progress(self) -> Progress:
        began_ns, over_ns = self._deployed_ns, self._over_ns
        until_ns = self._transport.now_ns() if over_ns is None else over_ns
        return self._watch.tracker.snapshot(self.job.status, 0.0 if began_ns is None else (until_ns - began_ns) / 1e9)
