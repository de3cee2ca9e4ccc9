"""The life of one worker: what every host calls, once per worker.

The calling thread is the worker's control thread: it handles the coordinator's messages in their order, measures the
tasks every `metrics.interval`, and sends a report once a second. Tasks and the network have threads of their own.

Invariant: when `run_worker` returns or raises, no thread, socket or buffer of it is left, except a task that is blocked
in user code; the error names that task.
"""

from __future__ import annotations

import logging
import os
import queue
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from headgate.control.connect import connect_control
from headgate.control.messages import (
    Adopt,
    Cancel,
    Deploy,
    DeployRegion,
    Done,
    Failed,
    FromCoordinator,
    PartitionLocation,
    Register,
    Release,
    SampleStacks,
)
from headgate.control.reports import interval_ms
from headgate.errors import Cancelled, HeadgateError, TransportError
from headgate.net import Identity
from headgate.net.time_limits import ConnectionOptions
from headgate.record import SerializerRegistry
from headgate.version import __version__
from headgate.worker.batch import BatchWorker
from headgate.worker.environment import Environment
from headgate.worker.memory import network_memory
from headgate.worker.reporting import ReportTimer
from headgate.worker.setup import WorkerPart
from headgate.worker.stack_sampling import StackSampler
from headgate.worker.storage import open_job_storage
from headgate.worker.streaming import StreamingWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.control.messages import FromWorker
    from headgate.graph.plan import Partition, Plan
    from headgate.ids import AttemptId
    from headgate.net import Address
    from headgate.net.certificates import Credentials

__all__ = ["run_worker"]

_log = logging.getLogger("headgate.worker")

_STOP_S: Final = 4.0  # time limit for tasks to end


class _LinkLost:
    """Event: the control link has ended."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class _RegionEnded:
    """Event: the last task of the running region has ended."""


class _Unreadable:
    """Event: the file of a finished partition cannot be read."""

    def __init__(self, partition: Partition, error: HeadgateError) -> None:
        self.partition = partition
        self.error = error


_Event = FromCoordinator | _LinkLost | _RegionEnded | _Unreadable


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
    """Run one worker until its job, or this attempt, has ended. Block meanwhile.

    Args:
        plan: The whole job's.
        index: The worker's number.
        attempt: The number of the attempt.
        secret: The job's.
        coordinator: The address of the coordinator's port.
        bind_host: The address for this worker's port.
        credentials: This worker's; None: nothing is encrypted.
        driver_here: True if the driver is on this machine: it then holds the lock on the job's files.
        fresh: Returns a copy of the plan whose function objects no task has used; for regions that run again.

    Raises:
        HeadgateError: the coordinator cannot be reached or was lost, or this worker could not be set up. Errors of
            tasks are reported to the coordinator, not raised here.

    >>> import headgate as hg  # the local host calls it in a thread
    >>> env = hg.environment(local=True, parallelism=2)
    >>> sorted(env.from_collection([1, 2]).execute_and_collect())
    [1, 2]
    """
    settings = replace(plan.settings, network=replace(plan.settings.network, bind_address=bind_host))
    memory_bytes, warning = network_memory(plan)
    if warning is not None and not driver_here:  # else the driver has logged the same
        _log.warning("%s", warning)
    inbox: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    identity = Identity(plan.job, attempt, index, secret, credentials)
    keep = plan.batch  # until the coordinator ends the job, its files stay for another attempt
    environment = Environment(settings, memory_bytes=memory_bytes)
    try:
        environment.storage = open_job_storage(plan, attempt, driver_here=driver_here)
        environment.disk.on_unreadable = lambda partition, error: inbox.put(_Unreadable(partition, error))
        address = environment.join(identity)
        link = connect_control(
            environment.transport,
            coordinator,
            identity,
            on_message=inbox.put,
            on_lost=lambda error: inbox.put(_LinkLost(error)),
            timeout_s=settings.network.connect_timeout.seconds,
            options=ConnectionOptions(settings.network.handshake_timeout.ns, settings.network.idle_timeout.ns),
        )
        try:
            assert link.authenticated_peer is not None, "connect_control returns a proved link"
            serializers = SerializerRegistry()
            for key, serializer in plan.serializers.items():
                serializers.register(key, serializer, replace=True)
            part = WorkerPart(plan, index, attempt, environment, link.authenticated_peer, serializers)
            worker = (
                BatchWorker(part, link.send, ended=lambda: inbox.put(_RegionEnded()), fresh=fresh)
                if plan.batch
                else StreamingWorker(part, link.send)
            )
            try:
                register = Register(
                    address.host, address.port, os.getpid(), __version__, segments=environment.memory.total
                )
                _register_and_serve(worker, register, inbox, link.send, interval_ms(settings.metrics))
            finally:
                keep = worker.keep
        finally:
            link.close()
    finally:
        environment.close(keep=keep)


def _register_and_serve(
    worker: StreamingWorker | BatchWorker,
    register: Register,
    inbox: queue.SimpleQueue[_Event],
    send: Callable[[FromWorker], object],
    length_ms: int,
) -> None:
    timer = ReportTimer(worker.measure, worker.report, length_ms)
    found: list[Partition] = []
    if isinstance(worker, BatchWorker):
        found = worker.found()
        timer.begin()  # the worker reports between two regions as well
    send(msgspec.structs.replace(register, found=found))
    sampler = StackSampler(lambda: worker.tasks, send)
    try:
        _serve(worker, sampler, timer, inbox, send)
    finally:
        sampler.stop()


def _serve(
    worker: StreamingWorker | BatchWorker,
    sampler: StackSampler,
    timer: ReportTimer,
    inbox: queue.SimpleQueue[_Event],
    send: Callable[[FromWorker], object],
) -> None:
    while True:
        timer.run_due()
        try:
            message = inbox.get(timeout=timer.wait_s())
        except queue.Empty:
            continue
        if isinstance(message, _LinkLost):
            _leave(worker, message.error)
            return
        if isinstance(message, SampleStacks):
            sampler.start(message)
        elif isinstance(worker, BatchWorker):
            _handle_batch(worker, message)
        else:
            _handle(worker, message, send, timer)
        if isinstance(message, Cancel):
            sampler.stop()


def _handle(worker: StreamingWorker, message: _Event, send: Callable[[FromWorker], object], timer: ReportTimer) -> None:
    match message:
        case Deploy():
            if _deploy(worker, send):
                timer.begin()
        case PartitionLocation():
            worker.connect(message)
        case Cancel(reason):
            worker.cancel(reason)


def _handle_batch(worker: BatchWorker, message: _Event) -> None:
    match message:
        case DeployRegion():
            worker.deploy(message)
        case _RegionEnded():
            worker.region_ended()
        case _Unreadable(partition=partition, error=error):
            worker.drop_partition(partition, error)
        case Adopt(partitions):
            worker.adopt(partitions)
        case Release(partitions):
            worker.release(partitions)
        case Cancel(reason, keep):
            worker.cancel(reason, keep=keep)


def _deploy(worker: StreamingWorker, send: Callable[[FromWorker], object]) -> bool:
    try:
        worker.deploy()
    except Exception as error:  # noqa: BLE001 - operators are made here, by user code
        if not isinstance(error, HeadgateError):
            _log.exception("the worker's tasks could not be set up")
        send(Failed.of(error))
        send(Done())
        return False
    return True


def _leave(worker: StreamingWorker | BatchWorker, error: Exception | None) -> None:
    """End all tasks: the coordinator has closed the link because the job is over, or it is lost."""
    done = worker.over
    reason = "the job is over" if error is None else f"the coordinator was lost: {error}"
    if isinstance(worker, BatchWorker):
        worker.cancel(reason, keep=worker.keep)
    else:
        worker.cancel(reason)
    stuck = worker.join(_STOP_S)
    if stuck:
        _log.warning("still in user code %g s after the end of the job: %s", _STOP_S, ", ".join(stuck))
        raise Cancelled(f"still in user code {_STOP_S:g} s after the end of the job: {', '.join(stuck)}")
    if error is not None and not done:
        raise error if isinstance(error, HeadgateError) else TransportError(str(error), peer="the coordinator")
