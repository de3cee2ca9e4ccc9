"""The coordinator of a job: it registers workers, deploys and connects their tasks, and decides how the job ends.

The host makes it in the driver and starts the workers; each connects to the coordinator's port. All state belongs to
the network thread; public methods may be called by any other thread. `Coordinator` is for STREAMING jobs, whose workers
all run at once and once; `batch` has the one for BATCH jobs.

Invariants: every worker is connected once; nothing is deployed before all workers are registered and have enough
memory; a deployed job is over only when every worker is done or lost, or has not left in time after `Cancel`; only then
are the links closed, because a worker that leaves may still be read from; strangers change nothing.
"""

from __future__ import annotations

import logging
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, Self

from headgate.control.link import COORDINATOR
from headgate.control.messages import (
    Cancel,
    Deploy,
    Done,
    Failed,
    PartitionConsumable,
    PartitionLocation,
    RegionOver,
    Register,
    TaskStateChanged,
)
from headgate.control.port import ControlPort, refuse_plaintext
from headgate.control.reports import StackSamples, WorkerReport
from headgate.coordinator.job import Job, JobStatus
from headgate.coordinator.membership import Member, Presence, check_register, missing_error, readers_of
from headgate.coordinator.monitor import JobMonitor
from headgate.errors import (
    Cancelled,
    HeadgateError,
    InsufficientBuffers,
    PartitionNotFound,
    ProducerFailed,
    RemoteProtocolError,
    TransportError,
)
from headgate.graph.fitting import check_memory
from headgate.net import Identity
from headgate.net.loop import open_loop
from headgate.net.sockets import SocketOptions, SocketTransport
from headgate.net.time_limits import ConnectionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.config import Settings
    from headgate.control.link import ControlLink
    from headgate.control.messages import FromWorker, SampleStacks
    from headgate.graph.plan import Partition, Plan
    from headgate.ids import AttemptId
    from headgate.net import Address, Credentials, Timer
    from headgate.observe.progress import Progress

__all__ = ["Coordinator", "FailureCause", "FailureWeight", "JobPhase"]

_log = logging.getLogger(__name__)

_MAX_REASON: Final = 1000  # characters


# Errors that follow from the failure of another worker, whose own error is more useful.
_CONSEQUENCES: Final = (ProducerFailed, TransportError, PartitionNotFound, Cancelled)


class FailureWeight(IntEnum):
    """How close a failure is to the cause.

    >>> FailureWeight.of(ProducerFailed("its producer failed")).name
    'CONSEQUENCE'
    """

    CONSEQUENCE = 0  # of another failure
    LOST = 1  # a worker was lost
    OWN = 2  # the task or worker failed by itself

    @classmethod
    def of(cls, error: HeadgateError) -> FailureWeight:
        """Return the weight of an error that a worker reports."""
        return cls.CONSEQUENCE if isinstance(error, _CONSEQUENCES) else cls.OWN


class FailureCause:
    """The failure with the greatest weight, of several the first. It gets a note with the one that it replaces.

    >>> cause = FailureCause()
    >>> cause.add(ProducerFailed("its producer failed"), FailureWeight.CONSEQUENCE)
    True
    >>> [cause.add(HeadgateError(text), FailureWeight.OWN) for text in ("disk full", "too late")]
    [True, False]
    >>> cause.error, cause.error.__notes__
    (HeadgateError('disk full'), ['reported before: its producer failed'])
    """

    def __init__(self) -> None:
        self.error: HeadgateError | None = None
        self._weight = FailureWeight.CONSEQUENCE

    def add(self, error: HeadgateError, weight: FailureWeight) -> bool:
        """Add a failure. Return True if it is the cause now."""
        if self.error is not None:
            if weight <= self._weight:
                return False
            error.add_note(f"reported before: {self.error}")
        self.error, self._weight = error, weight
        return True


class JobPhase(Enum):
    """The coordinator's phases of a job, in their order; only RENEWING returns to GATHERING. Users see `JobStatus`.

    >>> JobPhase.GATHERING.value
    'workers register'
    """

    GATHERING = "workers register"
    RUNNING = "tasks are deployed"
    RENEWING = "a worker was lost, the others leave, and another attempt follows; of BATCH jobs"
    LEAVING = "everything has finished, and the workers leave; of BATCH jobs"
    STOPPING = "it has failed or was cancelled, and the workers stop"
    OVER = "all workers have left, or their time to leave is over"


class Coordinator:
    """Registers a job's workers, deploys and connects their tasks, and cancels all when one fails.

    With `credentials`, which must name the worker `COORDINATOR`, connections use TLS.

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
        self._transport = SocketTransport(open_loop("asyncio"), SocketOptions(keepalive=self._network.keepalive))
        self._port = ControlPort(self._identity, self._transport, options, max_half_open=self._network.max_half_open)
        self._port.wanted = self._wanted
        self._port.on_proved = self._proved
        self._monitor = JobMonitor(plan, self._progress, call_soon=self._transport.post, request=self._request_samples)
        self.job = Job(plan.job, plan.name, progress=self._progress, cancel=self.cancel, monitor=self._monitor)
        self._members = self._new_members()
        self._state = JobPhase.GATHERING
        self._cause = FailureCause()  # in STOPPING without an error: the job was cancelled
        self._reason = ""  # in the `Cancel` for workers
        self._consumable: set[Partition] = set()
        self._deployed = False  # workers have tasks that must end
        self._deployed_ns: int | None = None
        self._over_ns: int | None = None
        self._timer: Timer | None = None
        self._address: Address | None = None
        self._closed = False

    def start(self) -> Address:
        """Open the port, and begin to accept workers.

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
        """The address of its port, after `start`."""
        assert self._address is not None, "start() was called"
        return self._address

    @property
    def refused(self) -> int:
        """How many connections were refused: strangers, mostly."""
        return self._port.refused

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop the job, unless it has failed or is over."""
        self._transport.post(lambda: self._cancel(reason))

    def fail(
        self, error: HeadgateError, *, attempt: AttemptId | None = None, workers: Sequence[int] | None = None
    ) -> None:
        """Fail the job: the host has noticed an error that no worker can report.

        Args:
            error: The error.
            attempt: The attempt that it concerns; it has no effect on a later one. None: any.
            workers: The workers that are lost by it; a BATCH job may continue with others.
        """
        self._transport.post(lambda: self._host_failed(error, attempt, workers))

    def next_attempt(self, after: AttemptId) -> AttemptId | None:  # noqa: ARG002 - a BATCH job may have several
        """Block until an attempt after this one needs workers, and return its number. None: the job is over."""
        self.job.wait()
        return None

    def await_workers(self, extra_s: float) -> None:
        """Restart the time limit for registration, and allow `extra_s` more.

        For a host that cannot start the workers of an attempt yet.
        """
        self._transport.post(lambda: self._await_workers(extra_s))

    def _await_workers(self, extra_s: float) -> None:
        if self._state is JobPhase.GATHERING:
            self._call_in(self._registration_timeout_s + extra_s, self._on_missing)

    def note(self, text: str, level: str = "info") -> None:
        """Add an event to the job's log; from any thread."""
        self._monitor.log.note(text, level)
        self.job.changed()

    def close(self) -> None:
        """End the job if it is not over, all links, the port and the thread. May be repeated. Not from a callback."""
        if not self._closed:
            self._closed = True
            if self._address is not None:
                self._transport.call(self._shut)  # blocks until its last messages are queued
            self._transport.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Start and end, on the network thread.

    def _begin(self) -> Address:
        address = self._port.listen(*self._bind)
        self._call_in(self._registration_timeout_s, self._on_missing)
        if not self._members:
            self._deploy()
        return address

    def _new_members(self) -> list[Member]:
        return [Member(number) for number in range(self.plan.workers + self.plan.uses_driver)]

    def _shut(self) -> None:
        self._cancel("the driver has left")
        self._finish()
        self._port.close()

    def _call_in(self, seconds: float, function: Callable[[], object]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._transport.call_at(self._transport.now_ns() + int(seconds * 1e9), function)

    def _on_missing(self) -> None:
        self._fail(missing_error(self._members, self.plan.name, self._registration_timeout_s), FailureWeight.OWN)

    # Registration.

    def _wanted(self, worker: int) -> bool:
        return worker < len(self._members) and self._members[worker].presence is Presence.ABSENT

    def _proved(self, link: ControlLink) -> None:
        member = self._members[link.worker]
        member.presence, member.link = Presence.CONNECTED, link
        link.on_message = lambda message: self._on_message(member, message)
        link.on_lost = lambda error: self._on_lost(member, error)
        if self._state is JobPhase.OVER:  # this worker is too late
            member.send(Cancel(self._reason))
            link.close()

    def _registered(self, member: Member, register: Register) -> None:
        check_register(register)
        member.presence, member.register = Presence.REGISTERED, register
        missing = sum(one.presence is not Presence.REGISTERED for one in self._members)
        self._monitor.registered(member.number, register, missing=missing)
        if not missing and self._state is JobPhase.GATHERING:
            self._deploy()
        self.job.changed()

    def _on_lost(self, member: Member, error: HeadgateError | None) -> None:
        if member.presence is Presence.DONE:
            return
        member.presence = Presence.LOST
        if self._state is JobPhase.OVER:
            return
        why = "its link was closed" if error is None else str(error)
        lost = TransportError(f"worker {member.number} was lost before it was done: {why}", peer=member.place)
        lost.__cause__ = error
        self._on_worker_lost(member, lost)
        self._check_over()

    def _on_worker_lost(self, member: Member, error: HeadgateError) -> None:  # noqa: ARG002 - BATCH jobs use it
        """Fail the job: a worker is lost."""
        self._fail(error, FailureWeight.LOST)

    def _host_failed(self, error: HeadgateError, attempt: AttemptId | None, workers: Sequence[int] | None) -> None:  # noqa: ARG002 - BATCH jobs use them
        self._fail(error, FailureWeight.of(error))

    # Messages of workers.

    def _on_message(self, member: Member, message: FromWorker) -> None:
        if member.presence is Presence.CONNECTED:
            if not isinstance(message, Register):
                raise RemoteProtocolError(f"{type(message).__name__} before Register")
            self._registered(member, message)
            return
        may_follow_done = isinstance(message, WorkerReport | StackSamples)
        if isinstance(message, Register) or (member.presence is Presence.DONE and not may_follow_done):
            raise RemoteProtocolError(f"{type(message).__name__} from a worker that is {member.presence.name.lower()}")
        if self._state is JobPhase.GATHERING and isinstance(message, PartitionConsumable | RegionOver | Done):
            raise RemoteProtocolError(f"{type(message).__name__} before Deploy")
        match message:
            case TaskStateChanged(vertex, subtask, state):
                self._monitor.moved(member.number, vertex, subtask, state)
                self.job.changed()
            case WorkerReport():
                self._monitor.tracker.report(member.number, message)
                self.job.changed()
            case StackSamples():
                self._monitor.sampling.answered(member.number, message)
            case Done():
                self._on_done(member)
            case Failed():
                self._on_failed(member, message.error())
            case PartitionConsumable(partition):
                self._announce_partition(member, partition)
            case RegionOver():
                self._on_region_over(member, message)

    def _deploy(self) -> None:
        """Deploy the job: all workers are registered. Fail it if one of them has too little memory (M5)."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            check_memory(self.plan, [one.register.segments for one in self._members if one.register is not None])
        except InsufficientBuffers as error:
            self._fail(error, FailureWeight.OWN)
            return
        self._state, self._deployed = JobPhase.RUNNING, True
        if self._deployed_ns is None:
            self._deployed_ns = self._transport.now_ns()
            self._monitor.begun()
            self.job.begin()
        self._start()

    def _start(self) -> None:
        for member in self._members:
            member.send(Deploy())
        self._check_over()

    def _on_done(self, member: Member) -> None:
        member.presence = Presence.DONE
        self._check_over()

    def _on_failed(self, member: Member, error: HeadgateError) -> None:
        """Fail the job: a task or the worker has failed."""
        self._fail(error, FailureWeight.of(error), but=member)

    def _on_region_over(self, member: Member, message: RegionOver) -> None:  # noqa: ARG002 - BATCH jobs use it
        raise RemoteProtocolError("RegionOver in a STREAMING job")

    def _announce_partition(self, member: Member, partition: Partition) -> None:
        """Send the location of a consumable partition to the workers of its readers (P6). Repeating has no effect."""
        readers = readers_of(self.plan, partition, member.number)
        if partition in self._consumable:
            return
        self._consumable.add(partition)
        self._monitor.log.consumable(len(self._consumable))
        assert member.register is not None, "messages before Register are refused"
        location = PartitionLocation(partition, member.number, member.register.host, member.register.port)
        for worker in readers:
            self._members[worker].send(location)

    def _request_samples(self, request: SampleStacks) -> list[int]:
        """Send the request to all registered workers. Return their numbers."""
        running = self._state is JobPhase.RUNNING
        workers = [one for one in self._members if running and one.presence is Presence.REGISTERED]
        for member in workers:
            member.send(request)
        return [one.number for one in workers]

    # Ending.

    def _fail(self, error: HeadgateError, weight: FailureWeight, *, but: Member | None = None) -> None:
        """Record a failure, and stop all workers except `but`, unless the job is already stopping."""
        cancelled = self._state is JobPhase.STOPPING and self._cause.error is None
        if cancelled or self._state in (JobPhase.LEAVING, JobPhase.OVER):
            _log.info("job %s, which is being stopped: %s", self.plan.name, error)
        elif self._cause.add(error, weight):
            self._monitor.log.note(f"the job fails: {error}", "error")
            self.job.ending(error)
            self._stop(str(error), but=but)

    def _cancel(self, reason: str) -> None:
        if self._state in (JobPhase.GATHERING, JobPhase.RUNNING, JobPhase.RENEWING):
            self._monitor.log.note(f"the job is stopped: {reason}")
            self.job.ending(None)
            self._stop(reason)

    def _stop(self, reason: str, *, but: Member | None = None) -> None:
        if self._state is JobPhase.STOPPING:
            return
        self._state, self._reason = JobPhase.STOPPING, reason[:_MAX_REASON]
        for member in self._members:
            if member is not but:
                self._send_cancel(member)
        self._call_in(self._goodbye_timeout_s, self._finish)
        self._check_over()

    def _send_cancel(self, member: Member) -> None:
        member.send(Cancel(self._reason))

    def _check_over(self) -> None:
        stopped = self._state is JobPhase.STOPPING and not (self._deployed and any(one.here for one in self._members))
        finished = self._state is JobPhase.RUNNING and all(one.presence is Presence.DONE for one in self._members)
        if stopped or finished:
            self._finish()

    def _finish(self) -> None:
        if self._state is JobPhase.OVER:
            return
        finished, self._state = self._state in (JobPhase.RUNNING, JobPhase.LEAVING), JobPhase.OVER
        self._over_ns = self._transport.now_ns()
        if self._timer is not None:
            self._timer.cancel()
        still = [one.number for one in self._members if one.here]
        if still and self._deployed and not self._closed:
            _log.warning("job %s: workers %s did not leave in time", self.plan.name, still)
            self._monitor.log.note(f"workers {still[:20]} did not leave in time", "warning")
        for member in self._members:
            if member.link is not None:
                member.link.close()  # the worker leaves when its link ends
        failed = self._cause.error is not None
        status = JobStatus.FINISHED if finished else JobStatus.FAILED if failed else JobStatus.CANCELLED
        self._monitor.over(status)
        self.job.end(status)

    def _progress(self) -> Progress:
        began_ns, over_ns = self._deployed_ns, self._over_ns
        until_ns = self._transport.now_ns() if over_ns is None else over_ns
        return self._monitor.tracker.snapshot(self.job.status, 0.0 if began_ns is None else (until_ns - began_ns) / 1e9)
