"""What runs in Spark's Python workers: one worker of a job per task of a barrier stage.

Called by Spark on the main thread of a Python worker, which may have served another job before and will serve others
after. Nothing is left behind when a function here returns or raises.
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
    from headgate.spark.closure import Parcel

__all__ = ["LOOPBACK", "Errand", "host_ip", "task_host", "worker_function"]

LOOPBACK = "127.0.0.1"
"""Where workers listen that are all on one machine."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What a worker is told besides its plan: where the coordinator is, and how to prove itself to it.

    >>> from headgate.ids import AttemptId
    >>> from headgate.net import Address
    >>> Errand(Address("127.0.0.1", 7077), AttemptId(1), secret=bytes(32))
    Errand(coordinator=Address(host='127.0.0.1', port=7077), attempt=1)
    """

    coordinator: Address
    attempt: AttemptId
    secret: bytes = field(repr=False)
    credentials: Mapping[int, Credentials] | None = field(default=None, repr=False)  # by worker; None: loopback
    job: JobId | None = field(default=None, repr=False)  # None: as the plan says


def worker_function(parcel: Parcel, errand: Errand) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark calls in each of its tasks; it gives out nothing.

    >>> from headgate.ids import AttemptId
    >>> from headgate.net import Address
    >>> from headgate.spark.closure import pack
    >>> errand = Errand(Address("127.0.0.1", 7077), AttemptId(1), secret=bytes(32))
    >>> callable(worker_function(pack(("a plan", []), same_machine=True), errand))
    True
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headgate.spark.tasks import run_task  # noqa: PLC0415 - it runs elsewhere

        run_task(parcel, errand, batches)
        return iter(())

    return work


def run_task(parcel: Parcel, errand: Errand, batches: Iterator[pa.RecordBatch]) -> None:
    """Run the worker of this Spark task until the job is over."""
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    from headgate.worker.feeds import feeding  # noqa: PLC0415

    task = BarrierTaskContext.get()
    index = task.partitionId()
    plan, sources = parcel.open()
    with feeding(sources, batches, in_turn=plan.batch):
        run_worker(
            plan,
            index,
            errand.attempt,
            errand.secret,
            errand.coordinator,
            bind_host=LOOPBACK if errand.credentials is None else task_host(index),
            credentials=None if errand.credentials is None else errand.credentials[index],
            driver_here=errand.credentials is None,
            fresh=lambda: parcel.open()[0],
        )


def task_host(index: int) -> str:
    """The address of this task's executor, as Spark knows it.

    >>> task_host(0)  # doctest: +SKIP
    '10.0.0.7'
    """
    from pyspark import BarrierTaskContext  # noqa: PLC0415 - only in a Spark task

    return host_ip(BarrierTaskContext.get().getTaskInfos()[index].address.rpartition(":")[0])


def host_ip(host: str) -> str:
    """The IP address of a host.

    >>> host_ip("127.0.0.1"), host_ip("[::1]")
    ('127.0.0.1', '::1')
    """
    host = host.strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return socket.gethostbyname(host)
