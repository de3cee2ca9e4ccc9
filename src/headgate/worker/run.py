"""A worker's life from its first connection to its last: what every host calls, once per worker.

The calling thread serves the control connection: it takes the coordinator's messages in their order, looks at the
tasks' meters every `metrics.interval`, and sends a report once a second. Tasks and the network have threads of their
own.

Invariant: when `run_worker` returns or raises, no thread, socket or buffer of it is left, except a task that is stuck
in user code, which is named.
"""

from __future__ import annotations

import logging
import os
import queue
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headgate.errors import Cancelled, HeadgateError, TransportError
from headgate.net import Identity
from headgate.net.watch import ConnectionOptions
from headgate.record import SerializerRegistry
from headgate.version import __version__
from headgate.worker.control import connect_control
from headgate.worker.environment import Environment
from headgate.worker.job_files import job_storage
from headgate.worker.messages import (
    Adopt,
    Cancel,
    Deploy,
    DeployRegion,
    Done,
    Failed,
    FromCoordinator,
    Register,
    Release,
    Sample,
    Wire,
)
from headgate.worker.moments import moment_ms
from headgate.worker.pace import Pace
from headgate.worker.region_worker import RegionWorker
from headgate.worker.sampling import Sampler
from headgate.worker.setup import WorkerPart
from headgate.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.config import Settings
    from headgate.graph.plan import Plan
    from headgate.ids import AttemptId
    from headgate.net import Address
    from headgate.net.certificates import Credentials
    from headgate.worker.messages import FromWorker, Partition

__all__ = ["run_worker", "worker_memory_bytes"]

_log = logging.getLogger("headgate.worker")

_STOP_S: Final = 4.0  # how long tasks may take to end
_ENOUGH_BYTES: Final = 2**30


class _Lost:
    """The control connection is over."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class _RegionEnded:
    """The last task of the region that was running is over."""


class _Unreadable:
    """The file of a finished partition cannot be read."""

    def __init__(self, partition: Partition, error: HeadgateError) -> None:
        self.partition = partition
        self.error = error


_Heard = FromCoordinator | _Lost | _RegionEnded | _Unreadable


def run_worker(
    plan: Plan,
    index: int,
    attempt: AttemptId,
    secret: bytes,
    coordinator: Address,
    *,
    bind_host: str = "127.0.0.1",
    credentials: Credentials | None = None,
    driver_here: bool = True,
    fresh: Callable[[], Plan] | None = None,
) -> None:
    """Run one worker of a job until the job, or this attempt at it, is over.

    Args:
        plan: Of the whole job.
        index: The worker's number.
        attempt: Which attempt at the job this is.
        secret: Of the job.
        coordinator: Where it listens.
        bind_host: Where this worker listens.
        credentials: Of this worker; without them nothing is encrypted.
        driver_here: Whether the driver is on this machine, and keeps the job's files from being swept up.
        fresh: Makes the plan anew, with function objects that no task has used: for regions that are run again.

    Raises:
        HeadgateError: the coordinator cannot be reached or was lost, or this worker could not be set up. What tasks
            raise is reported to the coordinator, not raised here.

    >>> import headgate as hg  # a host calls it, once per worker; this one in threads
    >>> env = hg.environment(local=True, parallelism=2)
    >>> sorted(env.from_collection([1, 2]).execute_and_collect())
    [1, 2]
    """
    settings = replace(plan.settings, network=replace(plan.settings.network, bind_address=bind_host))
    memory_bytes = settings.network_memory_bytes(worker_memory_bytes(settings, plan.workers + 1)).bytes
    inbox: queue.SimpleQueue[_Heard] = queue.SimpleQueue()
    identity = Identity(plan.job, attempt, index, secret, credentials)
    keep = plan.batch  # who was not told that the job is over leaves its files: another attempt may read them
    environment = Environment(settings, memory_bytes=memory_bytes)
    try:
        environment.storage = job_storage(plan, attempt, driver_here=driver_here)
        environment.disk.on_unreadable = lambda partition, error: inbox.put(_Unreadable(partition, error))
        address = environment.join(identity)
        link = connect_control(
            environment.transport,
            coordinator,
            identity,
            on_message=inbox.put,
            on_lost=lambda error: inbox.put(_Lost(error)),
            timeout_s=settings.network.connect_timeout.seconds,
            options=ConnectionOptions(settings.network.handshake_timeout.ns, settings.network.idle_timeout.ns),
        )
        try:
            assert link.peer is not None, "it has proved itself"
            serializers = SerializerRegistry()
            for key, serializer in plan.serializers.items():
                serializers.register(key, serializer, replace=True)
            part = WorkerPart(plan, index, attempt, environment, link.peer, serializers)
            worker = (
                RegionWorker(part, link.send, ended=lambda: inbox.put(_RegionEnded()), fresh=fresh)
                if plan.batch
                else Worker(part, link.send)
            )
            try:
                _work(worker, address, inbox, link.send, moment_ms(settings.metrics))
            finally:
                keep = worker.keep
        finally:
            link.close()
    finally:
        environment.close(keep=keep)


def _work(
    worker: Worker | RegionWorker,
    address: Address,
    inbox: queue.SimpleQueue[_Heard],
    tell: Callable[[FromWorker], object],
    length_ms: int,
) -> None:
    pace = Pace(worker.look, worker.reports, tell, length_ms)
    found: list[Partition] = []
    if isinstance(worker, RegionWorker):
        found = worker.found()
        pace.begin()  # it is there for the whole job, whatever runs
    tell(Register(address.host, address.port, os.getpid(), __version__, found))
    sampler = Sampler(lambda: worker.tasks, tell)
    try:
        _serve(worker, sampler, pace, inbox, tell)
    finally:
        sampler.stop()


def _serve(
    worker: Worker | RegionWorker,
    sampler: Sampler,
    pace: Pace,
    inbox: queue.SimpleQueue[_Heard],
    tell: Callable[[FromWorker], object],
) -> None:
    while True:
        pace.come_by()
        try:
            message = inbox.get(timeout=pace.due_s())
        except queue.Empty:
            continue
        if isinstance(message, _Lost):
            _leave(worker, message.error)
            return
        if isinstance(message, Sample):
            sampler.start(message)
        elif isinstance(worker, RegionWorker):
            _handle_batch(worker, message)
        else:
            _handle(worker, message, tell, pace)
        if isinstance(message, Cancel):
            sampler.stop()


def _handle(worker: Worker, message: _Heard, tell: Callable[[FromWorker], object], pace: Pace) -> None:
    match message:
        case Deploy():
            if _deployed(worker, tell):
                pace.begin()
        case Wire():
            worker.wire(message)
        case Cancel(reason):
            worker.cancel(reason)


def _handle_batch(worker: RegionWorker, message: _Heard) -> None:
    match message:
        case DeployRegion():
            worker.deploy(message)
        case _RegionEnded():
            worker.region_ended()
        case _Unreadable(partition=partition, error=error):
            worker.give_up(partition, error)
        case Adopt(partitions):
            worker.adopt(partitions)
        case Release(partitions):
            worker.release(partitions)
        case Cancel(reason, keep):
            worker.cancel(reason, keep=keep)


def _deployed(worker: Worker, tell: Callable[[FromWorker], object]) -> bool:
    try:
        worker.deploy()
    except Exception as error:  # noqa: BLE001 - also the user's: operators are made here
        if not isinstance(error, HeadgateError):
            _log.exception("the worker's tasks could not be set up")
        tell(Failed.of(error))
        tell(Done())
        return False
    return True


def _leave(worker: Worker | RegionWorker, error: Exception | None) -> None:
    """The coordinator has ended the connection, as it does when a job is over, or is gone."""
    over = worker.over
    reason = "the job is over" if error is None else f"the coordinator was lost: {error}"
    if isinstance(worker, RegionWorker):
        worker.cancel(reason, keep=worker.keep)
    else:
        worker.cancel(reason)
    stuck = worker.join(_STOP_S)
    if stuck:
        _log.warning("still in user code %g s after the end of the job: %s", _STOP_S, ", ".join(stuck))
        raise Cancelled(f"still in user code {_STOP_S:g} s after the end of the job: {', '.join(stuck)}")
    if error is not None and not over:
        raise error if isinstance(error, HeadgateError) else TransportError(str(error), peer="the coordinator")


def worker_memory_bytes(settings: Settings, workers: int) -> int:
    """The memory that one of so many workers has, of which `memory.network.fraction` is for buffers.

    Where nobody has said anything about that, it is no more than 1 GiB: buffers beyond what keeps tasks apart only make
    a job start, and follow its slowest part, more slowly.

    >>> from headgate.config import Settings
    >>> worker_memory_bytes(Settings(), workers=1) <= 2**30
    True
    """
    share = _machine_bytes() // workers
    said = any(settings.origin(f"memory.network.{one}") != "default" for one in ("fraction", "max"))
    return share if said else min(share, _ENOUGH_BYTES)


def _machine_bytes() -> int:
    """The memory of this machine, or of the container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
            return min(total, int(limit.read()))
    except (OSError, ValueError):  # not limited
        return total
