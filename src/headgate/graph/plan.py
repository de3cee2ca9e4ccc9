"""Plan: the vertices of a job, their workers and their exchanges, as plain data.

`graph.planner` makes it from the stream graph, in the driver; every worker receives it, with the user's functions.

Invariants: subtask i of a vertex runs on worker i of its slot group. A vertex `in_driver` has one subtask, in the
driver, whose worker number is the number of workers. A vertex has a greater number than its inputs, and so has an
operator of a chain, whose first operator is the head. The exchanges of a vertex are numbered in the order of `outputs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.buffer import GateDemand, Limits, PartitionDemand, TaskDemand
from headgate.ids import JobId  # noqa: TC001 - a field's type

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from headgate.config import BufferTimeout, Settings
    from headgate.functions.source import Source
    from headgate.task.operator import Operator

__all__ = ["ChainedOperator", "Exchange", "Partition", "Plan", "Ship", "ShipKind", "Vertex"]


class ShipKind(StrEnum):
    """The rule that selects the consumer's subtask of a record."""

    FORWARD = "forward"
    REBALANCE = "rebalance"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    HASH = "hash"
    HASH_COLUMNS = "hash-columns"
    BROADCAST = "broadcast"
    GLOBAL = "global"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Ship:
    """The shipping of an exchange: its kind and parameters."""

    kind: ShipKind
    key: Callable[[Any], Hashable] | None = None  # of HASH
    columns: tuple[str, ...] = ()  # of HASH_COLUMNS: the key columns of record batches
    function: Callable[[Any, int], int] | None = None  # of CUSTOM: (record, channels) -> channel


class Partition(msgspec.Struct, frozen=True, order=True):
    """The identity of a result partition within a job."""

    vertex: int
    output: int  # the number of the exchange among the vertex's outputs
    subtask: int


@dataclass(frozen=True, slots=True)
class ChainedOperator:
    """One operator of a vertex.

    `make` creates the operator for one subtask, with the subtask's own copy of the user's functions. A head reads the
    vertex's input, or its source.
    """

    id: int  # of the node in the stream graph
    name: str
    make: Callable[[], Operator]
    reads: int | None = None  # the index of its input in this chain; None: it is the head
    tag: str | None = None  # the side output that it reads; None: the main one
    source: Source[Any] | None = None
    splits: tuple[Any, ...] = ()  # of the source: subtask i % parallelism reads split i


@dataclass(frozen=True, slots=True)
class Vertex:
    """A chain of operators without exchanges between them. Each of its subtasks runs as one task."""

    id: int
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[ChainedOperator, ...]
    inputs: int = 1  # 2: the head has a second input; 0: it has a source
    in_driver: bool = False
    slot_group: str = "default"

    def workers(self, plan: Plan) -> range:
        """Return the workers of its subtasks: subtask i runs on the i-th of these."""
        first = plan.workers if self.in_driver else plan.first_worker(self.slot_group)
        return range(first, first + self.parallelism)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A connection from a vertex to another: a result partition per producer, and a gate's channels per consumer.

    >>> forward = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.FORWARD))
    >>> forward.producers_of(1, producers=2, consumers=2)
    [1]
    """

    id: int
    producer: int  # vertices
    operator: int  # of the producer's chain, whose output it is
    consumer: int
    ship: Ship
    tag: str | None = None
    input: int = 0  # of the consumer's head: 0 or 1
    output: int = 0  # the number of the exchange among the producer's outputs
    hint: object = None  # the declared type of its records, or None
    buffer_timeout: BufferTimeout | None = None  # None: `execution.buffer_timeout`
    blocking: bool = False  # on disk: consumers start after their producers have finished

    def consumers_of(self, subtask: int, producers: int, consumers: int) -> range:
        """Return the consumer's subtasks that a producer's subtask writes to, in the order of its subpartitions.

        >>> rescale = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.RESCALE))
        >>> [list(rescale.consumers_of(subtask, producers=2, consumers=5)) for subtask in range(2)]
        [[0, 1, 2], [3, 4]]
        """
        if self.ship.kind is ShipKind.FORWARD:
            return range(subtask, subtask + 1)
        if self.ship.kind is not ShipKind.RESCALE:
            return range(consumers)
        if consumers <= producers:
            only = subtask * consumers // producers
            return range(only, only + 1)
        return range(-(-subtask * consumers // producers), -(-(subtask + 1) * consumers // producers))

    def producers_of(self, subtask: int, producers: int, consumers: int) -> list[int]:
        """Return the producer's subtasks that a consumer's subtask reads from, in the order of its channels."""
        if self.ship.kind is ShipKind.FORWARD:
            return [subtask]
        if self.ship.kind is not ShipKind.RESCALE:
            return list(range(producers))
        return [one for one in range(producers) if subtask in self.consumers_of(one, producers, consumers)]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole job.

    >>> from headgate.config import Settings
    >>> words = Vertex(0, "words", 2, 128, (), inputs=0)
    >>> plan = Plan(JobId("1"), "count", (words,), (), workers=2, settings=Settings())
    >>> [(vertex.name, subtask) for vertex, subtask in plan.tasks_of(1)]
    [('words', 1)]
    """

    job: JobId
    name: str
    vertices: tuple[Vertex, ...]
    exchanges: tuple[Exchange, ...]
    workers: int  # without the driver
    settings: Settings
    slot_groups: tuple[tuple[str, int], ...] = (("default", 0),)  # with the first worker of each
    serializers: dict[object, Any] = field(default_factory=dict)  # registered by the user, by type or name
    batch: bool = False  # regions run one after another: see `graph.regions`

    @property
    def uses_driver(self) -> bool:
        """True if a vertex runs in the driver."""
        return any(vertex.in_driver for vertex in self.vertices)

    def first_worker(self, slot_group: str) -> int:
        """Return the worker of subtask 0 of a group's vertices."""
        return dict(self.slot_groups)[slot_group]

    def vertex(self, number: int) -> Vertex:
        """Return a vertex by its id, which is its index."""
        return self.vertices[number]

    def outputs(self, vertex: int) -> list[Exchange]:
        """Return the exchanges that a vertex writes, by their `output` number."""
        return sorted((one for one in self.exchanges if one.producer == vertex), key=lambda one: one.output)

    def inputs(self, vertex: int) -> list[Exchange]:
        """Return the exchanges that a vertex reads, by input, then id."""
        return sorted((one for one in self.exchanges if one.consumer == vertex), key=lambda one: (one.input, one.id))

    def tasks_of(self, worker: int) -> Iterator[tuple[Vertex, int]]:
        """Yield the tasks of a worker: vertex and subtask."""
        for vertex in self.vertices:
            workers = vertex.workers(self)
            if worker in workers:
                yield vertex, workers.index(worker)

    def demands_of(self, worker: int) -> list[TaskDemand]:
        """Return the memory that the concurrent tasks of a worker require (M5).

        In BATCH these are the tasks of the region that requires most.
        """
        demands = {vertex.id: self._demand(vertex, subtask, worker) for vertex, subtask in self.tasks_of(worker)}
        if not self.batch:
            return list(demands.values())
        from headgate.graph.regions import stages_of  # noqa: PLC0415 - imports this module

        limits = Limits.of(self.settings.network)
        here = [stage.vertices for stage in stages_of(self) if stage.vertices[0] in demands]
        regions = [[demands[vertex] for vertex in vertices] for vertices in here]
        return max(regions, key=lambda tasks: sum(one.required(limits) for one in tasks), default=[])

    def _demand(self, vertex: Vertex, subtask: int, worker: int) -> TaskDemand:
        partitions = [
            PartitionDemand(len(one.consumers_of(subtask, vertex.parallelism, self.vertex(one.consumer).parallelism)))
            for one in self.outputs(vertex.id)
        ]
        gates = []
        for one in self.inputs(vertex.id):
            producer = self.vertex(one.producer)
            subtasks = one.producers_of(subtask, producer.parallelism, vertex.parallelism)
            local = self._local_channels(one, subtasks, worker)
            gates.append(GateDemand(remote_channels=len(subtasks) - local, local_channels=local))
        return TaskDemand(f"{vertex.name} ({subtask})", tuple(partitions), tuple(gates))

    def _local_channels(self, exchange: Exchange, subtasks: list[int], worker: int) -> int:
        """Return the number of channels that certainly read from their own worker.

        A finished partition may be on another worker after a restart; only those of the driver never move.
        """
        if exchange.blocking and worker != self.workers:
            return 0
        workers = self.vertex(exchange.producer).workers(self)
        return sum(workers[number] == worker for number in subtasks)
