"""Two workers in two processes, connected over loopback: the two ends of an exchange that is measured.

The suite calls `run_workers` with one function for each process; there, `producing` and `consuming` set up the worker.
No clock starts before all channels are connected, and no worker ends before its readers have read the end.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Final, TypeVar

from headgate.bench.processes import START_S, Parent, ProcessPair
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Authority, Identity
from headgate.worker import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.config import Settings
    from headgate.input import InputGate
    from headgate.output import ResultPartition

__all__ = ["JOB", "PRODUCER", "WorkerEnd", "consuming", "partition_id", "producing", "run_workers"]

P = TypeVar("P")
C = TypeVar("C")

JOB: Final = JobId("bench")
"""The job of all workers."""
PRODUCER: Final = 0
"""The number of the producer's worker; the consumer's is 1."""

_POLL_S: Final = 0.002
_SPARE_SEGMENTS: Final = 32  # of a worker's memory, beyond two for each channel


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """What a process needs to set up its worker."""

    identity: Identity
    settings: Settings
    channels: int  # of all its partitions or gates

    def worker(self) -> Environment:
        """Return a worker with memory for these channels."""
        segments = 2 * self.channels + _SPARE_SEGMENTS
        return Environment(self.settings, memory_bytes=segments * self.settings.memory.segment_size)


def run_workers(
    pair: ProcessPair,
    produce: Callable[[Parent, WorkerEnd], P],
    consume: Callable[[Parent, WorkerEnd], C],
    *,
    settings: Settings,
    channels: int = 1,
    tls: bool = False,
    limit_s: float = 0.0,
) -> tuple[P, C]:
    """Call each function in its process with the worker that it is to set up, and return their results."""
    secret = secrets.token_bytes(32)
    authority = Authority(JOB, datetime.now(UTC)) if tls else None

    def end(worker: int) -> WorkerEnd:
        credentials = None if authority is None else authority.issue(worker)
        return WorkerEnd(Identity(JOB, AttemptId(1), worker, secret, credentials), settings, channels)

    return pair.run(partial(produce, end=end(PRODUCER)), partial(consume, end=end(1)), limit_s=limit_s)  # type: ignore[call-arg]


@contextmanager
def producing(
    parent: Parent, end: WorkerEnd, *, partitions: int = 1, subpartitions: int = 1
) -> Iterator[tuple[Environment, list[ResultPartition]]]:
    """Yield partitions whose readers are all connected; at the end, block until they have read everything."""
    with end.worker() as worker:
        address = worker.join(end.identity)
        # Random, so that every page is real: fresh zeroes would all be the system's one zero page, read from the cache.
        noise = urandom(end.settings.memory.segment_size)
        for segment in worker.memory.arena.segments:
            segment.memory[:] = noise
        made = [worker.partition(partition_id(number), subpartitions=subpartitions) for number in range(partitions)]
        parent.send(address)
        _await_readers(worker, partitions * subpartitions)
        yield worker, made
        _await_readers(worker, 0)


@contextmanager
def consuming(
    parent: Parent, end: WorkerEnd, *, gates: int = 1, channels: int = 1
) -> Iterator[tuple[Environment, list[InputGate]]]:
    """Yield one gate for each partition of the producer, connected to all its subpartitions."""
    address = parent.receive(START_S)
    with end.worker() as worker:
        worker.join(end.identity)
        made = [worker.gate(f"bench-{number}", channels=channels) for number in range(gates)]
        for number, gate in enumerate(made):
            for index in range(channels):
                source = worker.remote_source(
                    gate, partition_id(number), SubpartitionIndex(index), worker=PRODUCER, address=address
                )
                gate.connect(index, source)
        yield worker, made


def partition_id(number: int = 0) -> PartitionId:
    """Return the id of one of the producer's partitions."""
    return PartitionId(JOB, AttemptId(1), 0, 0, number)


def _await_readers(worker: Environment, channels: int) -> None:
    """Block until other workers read this many channels."""
    until_s = time.monotonic() + START_S
    while (reading := _channels_read(worker)) != channels:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{reading} channels are read after {START_S:g} s: {worker.statistics()}")
        time.sleep(_POLL_S)


def _channels_read(worker: Environment) -> int:
    network = worker.statistics().network
    assert network is not None, "it has joined"
    return sum(connection.traffic.sending for connection in network.connections)
