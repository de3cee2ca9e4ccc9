"""Two ends of a transfer that can be in two processes, which can be killed, stopped, or cut off from each other.

A child runs `produce` or `consume` here (see `headgate.bench.processes`): no pytest, so that it starts soon.
"""

import ctypes
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headgate.bench.processes import Parent
from headgate.config import load_settings
from headgate.errors import HeadgateError
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.net import Address, Identity
from headgate.net.certificates import Credentials
from headgate.output import Forward
from headgate.record import Batch, BytesSerializer, EndOfPartition
from headgate.worker import Environment

PATIENCE_S = 30.0
"""Far more than anything here takes: reaching it means that something hangs."""

JOB, ATTEMPT, SECRET = JobId("harvest"), AttemptId(1), bytes(range(32))
PARTITION = PartitionId(JOB, ATTEMPT, 0, 0, 0)
SEGMENT_BYTES = 4096
MEMORY_BYTES = 64 * SEGMENT_BYTES
_CLONE_NEWNET = 0x4000_0000


@dataclass(frozen=True)
class Plan:
    """Where an end of the transfer is, and how it is set up."""

    worker: int
    settings: dict[str, object] = field(default_factory=dict)
    credentials: Credentials | None = field(default=None, repr=False)
    namespace: str = ""  # of the network; empty: this process's


@dataclass(frozen=True)
class Report:
    """How it ended in a child."""

    records: int
    error: str  # the name of its class; empty: there was none
    text: str
    segments_missing: int


def record(number: int) -> bytes:
    return b"%d:" % number + random.Random(number).randbytes(number * 37 % 1500)


def enter(namespace: str) -> None:
    """Make all sockets of this process from now on in a network namespace; before it has threads."""
    if namespace:
        with Path("/run/netns", namespace).open() as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


@contextmanager
def worker(plan: Plan) -> Iterator[tuple[Environment, Address]]:
    enter(plan.namespace)
    settings = load_settings(code={"memory.segment_size": SEGMENT_BYTES, **plan.settings})
    with Environment(settings, memory_bytes=MEMORY_BYTES) as environment:
        yield environment, environment.join(Identity(JOB, ATTEMPT, plan.worker, SECRET, plan.credentials))


class Writing:
    """The producer's end; `write` goes on until `count` records are written, or an error comes."""

    def __init__(self, environment: Environment) -> None:
        self._writer = environment.writer(
            environment.partition(PARTITION, subpartitions=1), Forward(), BytesSerializer()
        )
        self.records = 0

    def write(self, count: int = sys.maxsize) -> None:
        while self.records < count:
            self._writer.emit(record(self.records))
            self.records += 1

    def finish(self) -> None:
        self._writer.finish()

    def close(self) -> None:
        self._writer.close()


class Reading:
    """The consumer's end: what arrives must be what was sent."""

    def __init__(self, environment: Environment, address: Address) -> None:
        gate = environment.gate("sheaves", channels=1)
        source = environment.remote_source(gate, PARTITION, SubpartitionIndex(0), worker=0, address=address)
        gate.connect(0, source)
        self._reader = environment.reader(gate, BytesSerializer())
        self.records = 0
        self.finished = False

    def read(self, count: int = sys.maxsize) -> None:
        """Until so many have come, or the end."""
        deadline = time.monotonic() + PATIENCE_S
        while self.records < count and not self.finished:
            element = self._reader.read(timeout_s=max(0.0, deadline - time.monotonic()))
            if element is None:
                raise TimeoutError(f"nothing more came after {self.records} records")
            if isinstance(element, EndOfPartition):
                self.finished = True
                return
            for value in element.values if isinstance(element, Batch) else [element.value]:
                if value != record(self.records):
                    raise AssertionError(f"record {self.records} was harmed")
                self.records += 1
                deadline = time.monotonic() + PATIENCE_S

    def close(self) -> None:
        self._reader.close()


def _reported(end: Writing | Reading, environment: Environment, run: Callable[[], object]) -> Report:
    error: HeadgateError | None = None
    try:
        run()
    except HeadgateError as raised:
        error = raised
    end.close()
    environment.close()
    memory = environment.memory.statistics()
    name, text = ("", "") if error is None else (type(error).__name__, str(error))
    return Report(end.records, name, text, memory.total - memory.free)


def produce(parent: Parent, plan: Plan, count: int = sys.maxsize) -> Report:
    """Write `count` records; the parent is told the address, and says when to begin."""
    with worker(plan) as (environment, address):
        writing = Writing(environment)
        parent.send(address)

        def run() -> None:
            writing.write(count)
            writing.finish()
            wait_for_the_reader(environment)

        return _reported(writing, environment, run)


def wait_for_the_reader(environment: Environment) -> None:
    """Until all is read, and the connection is not used any more."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while environment.statistics().network.connections or any(
        one.queued for partition in environment.statistics().partitions for one in partition.subpartitions
    ):
        if time.monotonic() > deadline:
            raise TimeoutError("nobody reads")
        time.sleep(0.01)


def consume(parent: Parent, plan: Plan, address: Address, enough: int = 100) -> Report:
    """Read until the end; the parent is told when `enough` have come."""
    with worker(plan) as (environment, _):
        reading = Reading(environment, address)

        def run() -> None:
            reading.read(enough)
            parent.send(reading.records)
            reading.read()

        return _reported(reading, environment, run)


def produce_and_leave(parent: Parent, plan: Plan, how: str) -> None:
    """Write for a while, then end the process without a word, or closing what is open; never `finish`."""
    with worker(plan) as (environment, address):
        writing = Writing(environment)
        parent.send(address)
        writing.write(500)
        if how == "exit":
            os._exit(0)
        writing.close()
        sys.exit(0)


def consume_and_leave(parent: Parent, plan: Plan, address: Address, how: str) -> None:
    with worker(plan) as (environment, _):
        reading = Reading(environment, address)
        reading.read(500)
        parent.send(reading.records)
        if how == "exit":
            os._exit(0)
        reading.close()
        sys.exit(0)


def listen(parent: Parent, plan: Plan) -> str:
    """Only that: the error, if there is one."""
    try:
        with worker(plan):
            return ""
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"
