"""Two workers in two processes, for the experiments of the wire suite.

The suite's process has an `Ends`, which runs a pair of functions, one in each process; what one of them sends to its
parent is handed to the other. In the processes, `producing` and `consuming` set up the two sides of the exchange.

Invariants: both processes stay for several experiments, so that none pays for starting an interpreter, but each
experiment has a worker of its own at either end; no clock starts before all channels are connected; no worker leaves
before all its readers have read the end.
"""

from __future__ import annotations

import gc
import secrets
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from os import urandom
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headgate.bench._children import START_S, Child, Parent, child, first_of
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Authority, Identity
from headgate.slices import Slices
from headgate.worker import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headgate.config import Settings
    from headgate.input import InputGate
    from headgate.output import ResultPartition

__all__ = ["Ends", "Place", "consuming", "producing"]

P = TypeVar("P")
C = TypeVar("C")

_JOB: Final = JobId("bench")
_ATTEMPT: Final = AttemptId(1)
_PRODUCER: Final = 0  # its worker's number; the consumer's is 1
_LOOK_S: Final = 0.002  # between two looks at what the other end has done
_IDLE_S: Final = 3600.0  # how long an end waits for its next experiment
_SPARE_SEGMENTS: Final = 32  # of a worker's memory, beyond two for each channel


@dataclass(frozen=True, slots=True)
class Place:
    """What an end needs to be a worker."""

    identity: Identity
    settings: Settings
    channels: int  # of all its partitions or gates

    def worker(self) -> Environment:
        """A worker with memory for so many channels."""
        segments = 2 * self.channels + _SPARE_SEGMENTS
        return Environment(self.settings, memory_bytes=segments * self.settings.memory.segment_size)

    def slices(self) -> Slices:
        """Those of a task's thread."""
        execution = self.settings.execution
        return Slices(execution.time_slice.ns, execution.long_run_nice)


@dataclass(frozen=True, slots=True)
class _Done:
    """An end's last word in an experiment."""

    result: Any


class Ends:
    """Two processes that wait for experiments; started by the first, ended with the block or by `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._children: tuple[Child[None], Child[None]] | None = None

    def run(
        self,
        produce: Callable[[Parent, Place], P],
        consume: Callable[[Parent, Place], C],
        *,
        settings: Settings,
        channels: int = 1,
        tls: bool = False,
        limit_s: float = 0.0,
    ) -> tuple[P, C]:
        """Run a function in each process, and return what both return; importable ones, or partials of such.

        Raises:
            ChildFailed: one of them raised, died, or said nothing within `limit_s` and the time to start.
        """
        if self._children is None:
            self._children = self._stack.enter_context(child(_serve)), self._stack.enter_context(child(_serve))
        producer, consumer = self._children
        secret = secrets.token_bytes(32)
        authority = Authority(_JOB, datetime.now(UTC)) if tls else None
        for worker, (end, function) in enumerate(((producer, produce), (consumer, consume))):
            credentials = None if authority is None else authority.issue(worker)
            identity = Identity(_JOB, _ATTEMPT, worker, secret, credentials)
            end.send((function, Place(identity, settings, channels)))
        results: dict[Child[None], Any] = {}
        while len(results) < 2:
            busy = [end for end in (producer, consumer) if end not in results]
            end, said = first_of(*busy, timeout_s=START_S + limit_s)
            if isinstance(said, _Done):
                results[end] = said.result
            else:
                (consumer if end is producer else producer).send(said)
        return results[producer], results[consumer]

    def close(self) -> None:
        """End both processes; the next experiment starts two new ones."""
        self._children = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _serve(parent: Parent) -> None:
    """An end's whole life: one experiment after another, until it is killed."""
    while True:
        function, place = parent.receive(_IDLE_S)
        gc.collect()  # one experiment's garbage must not be collected on the next one's time
        parent.send(_Done(function(parent, place)))


@contextmanager
def producing(
    parent: Parent, place: Place, *, partitions: int = 1, subpartitions: int = 1
) -> Iterator[tuple[Environment, list[ResultPartition]]]:
    """In the producer's process: partitions whose readers are all there. Left when all of them have read the end."""
    place.slices().begin()
    with place.worker() as worker:
        address = worker.join(place.identity)
        # Random, so that every page is real: fresh zeroes would be one page of the system's, read from the cache.
        noise = urandom(place.settings.memory.segment_size)
        for segment in worker.memory.arena.segments:
            segment.memory[:] = noise
        made = [worker.partition(_partition_id(number), subpartitions=subpartitions) for number in range(partitions)]
        parent.send(address)
        _await(worker, lambda reading: reading == partitions * subpartitions)
        yield worker, made
        _await(worker, lambda reading: reading == 0)


@contextmanager
def consuming(
    parent: Parent, place: Place, *, gates: int = 1, channels: int = 1
) -> Iterator[tuple[Environment, list[InputGate]]]:
    """In the consumer's process: one gate for each partition of the producer, connected to all its subpartitions."""
    address = parent.receive(START_S)
    place.slices().begin()
    with place.worker() as worker:
        worker.join(place.identity)
        made = [worker.gate(f"bench-{number}", channels=channels) for number in range(gates)]
        for number, gate in enumerate(made):
            for index in range(channels):
                source = worker.remote_source(
                    gate, _partition_id(number), SubpartitionIndex(index), worker=_PRODUCER, address=address
                )
                gate.connect(index, source)
        yield worker, made


def _partition_id(number: int) -> PartitionId:
    return PartitionId(_JOB, _ATTEMPT, 0, 0, number)


def _await(worker: Environment, enough: Callable[[int], bool]) -> None:
    """Wait until enough channels of other workers are, or are not, being written to."""
    until_s = time.monotonic() + START_S
    while not enough(_channels_read(worker)):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{_channels_read(worker)} channels are read after {START_S:g} s: {worker.statistics()}")
        time.sleep(_LOOK_S)


def _channels_read(worker: Environment) -> int:
    network = worker.statistics().network
    assert network is not None, "it has joined"
    return sum(connection.traffic.sending for connection in network.connections)
