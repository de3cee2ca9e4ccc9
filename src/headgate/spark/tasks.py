"""What runs in Spark's Python workers: one worker of a job per task of a barrier stage.

Spark calls it on the main thread of a Python worker, which may have run other jobs before and may run others after.
Nothing is left when a function here returns or raises.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.worker.run import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from headgate.ids import AttemptId, JobId
    from headgate.net import Address, Credentials
    from headgate.spark.closure import PackedPlan

__all__ = ["LOOPBACK", "WorkerAssignment", "host_ip", "task_host", "worker_function"]

LOOPBACK = "127.0.0.1"
"""The address of workers that all run on one machine."""


@dataclass(frozen=True, slots=True)
class WorkerAssignment:
    """What a worker needs besides its plan: the coordinator's address, and how to prove itself.

    >>> from headgate.ids import AttemptId
    >>> from headgate.net import Address
    >>> WorkerAssignment(Address("127.0.0.1", 7077), AttemptId(1), secret=bytes(32))
    WorkerAssignment(coordinator=Address(host='127.0.0.1', port=7077), attempt=1)
    """

    coordinator: Address
    attempt: AttemptId
    secret: bytes = field(repr=False)
    credentials: Mapping[int, Credentials] | None = field(default=None, repr=False)  # by worker; None: loopback
    job: JobId | None = field(default=None, repr=False)  # None: that of the plan


def worker_function(
    packed: PackedPlan, assignment: WorkerAssignment
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark calls in each of its tasks; it yields no rows.

    >>> from headgate.ids import AttemptId
    >>> from headgate.net import Address
    >>> from headgate.spark.closure import pack
    >>> assignment = WorkerAssignment(Address("127.0.0.1", 7077), AttemptId(1), secret=bytes(32))
    >>> callable(worker_function(pack(("a plan", []), same_machine=True), assignment))
    True
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headgate.spark.tasks import run_task  # noqa: PLC0415 - it runs in a Spark worker

        run_task(packed, assignment, batches)
        return iter(())

    return work


def run_task(packed: PackedPlan, assignment: WorkerAssignment, batches: Iterator[pa.RecordBatch]) -> None:
    """Run the worker of this Spark task until the job is over."""
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    from headgate.spark.batch_queues import filling_source_queues  # noqa: PLC0415

    task = BarrierTaskContext.get()
    index = task.partitionId()
    plan, sources = packed.open()
    with filling_source_queues(sources, batches, in_turn=plan.batch):
        run_worker(
            plan,
            index,
            assignment.attempt,
            assignment.secret,
            assignment.coordinator,
            bind_host=LOOPBACK if assignment.credentials is None else task_host(index),
            credentials=None if assignment.credentials is None else assignment.credentials[index],
            driver_here=assignment.credentials is None,
            fresh=lambda: packed.open()[0],
        )


def task_host(index: int) -> str:
    """Return the address of this task's executor, from Spark.

    >>> task_host(0)  # doctest: +SKIP
    '10.0.0.7'
    """
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    return host_ip(BarrierTaskContext.get().getTaskInfos()[index].address.rpartition(":")[0])


def host_ip(host: str) -> str:
    """Return the IP address of a host.

    >>> host_ip("127.0.0.1"), host_ip("[::1]")
    ('127.0.0.1', '::1')
    """
    host = host.strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return socket.gethostbyname(host)
