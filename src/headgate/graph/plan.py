"""The plan of a job: plain data that says which operators run where and how they are connected.

Made from the stream graph by `graph.planner`, in the driver; read by every worker, where it arrives with the user's
functions in it. Nothing here runs anything.

Invariants: subtask i of a vertex is in worker i, and a vertex `in_driver` has one subtask, in the driver, whose worker
number is the number of workers; vertices come after those they read from, and so do the operators of a chain, of which
the first is its head; the exchanges of a vertex are numbered as `outputs` lists them.
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
    from headgate.task.operator import Operator
    from headgate.task.source import Source

__all__ = ["ChainedOperator", "Exchange", "Partition", "Plan", "Ship", "ShipKind", "Vertex"]


class ShipKind(StrEnum):
    """Which of the consumer's subtasks a record goes to.

    >>> ShipKind("hash") is ShipKind.HASH
    True
    """

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
    """How records are shipped over an exchange, with what that needs.

    >>> Ship(ShipKind.HASH_COLUMNS, columns=("word",)).kind
    <ShipKind.HASH_COLUMNS: 'hash-columns'>
    """

    kind: ShipKind
    key: Callable[[Any], Hashable] | None = None  # of HASH
    columns: tuple[str, ...] = ()  # of HASH_COLUMNS: record batches are partitioned by these
    function: Callable[[Any, int], int] | None = None  # of CUSTOM: (record, channels) -> channel


class Partition(msgspec.Struct, frozen=True, order=True):
    """A result partition of a job, without what all of them share.

    >>> Partition(vertex=3, output=0, subtask=7).subtask
    7
    """

    vertex: int
    output: int  # which of the vertex's exchanges
    subtask: int


@dataclass(frozen=True, slots=True)
class ChainedOperator:
    """One operator of a vertex.

    `make` makes the operator for one subtask: what it closes over is this subtask's own copy of the user's functions.
    A head reads the vertex's input, or a source if it has one.

    >>> from headgate.task.basic import PassOn
    >>> ChainedOperator(0, "collection", PassOn).reads is None
    True
    """

    id: int  # of the node in the stream graph
    name: str
    make: Callable[[], Operator]
    reads: int | None = None  # the operator of this chain that it reads from; None: it is the head
    tag: str | None = None  # the side output that it reads; None: the main one
    source: Source[Any] | None = None
    splits: tuple[Any, ...] = ()  # of the source: split i is read by subtask i % parallelism


@dataclass(frozen=True, slots=True)
class Vertex:
    """Operators without an exchange between them, which run as one task; as many tasks as its parallelism.

    >>> Vertex(0, "words", parallelism=2, max_parallelism=128, operators=()).inputs
    1
    """

    id: int
    name: str
    parallelism: int
    max_parallelism: int
    operators: tuple[ChainedOperator, ...]
    inputs: int = 1  # 2: the head has a second input; 0: it has a source
    in_driver: bool = False
    slot_group: str = "default"

    def workers(self, plan: Plan) -> range:
        """The workers that have a subtask of it: subtask i is in the i-th of these."""
        first = plan.workers if self.in_driver else plan.first_worker(self.slot_group)
        return range(first, first + self.parallelism)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One way from a vertex to another: a result partition of each producer, a gate's channels at each consumer.

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
    output: int = 0  # which of the producer's exchanges this is
    hint: object = None  # the declared type of its records; None: not declared
    buffer_timeout: BufferTimeout | None = None  # None: as `execution.buffer_timeout` says
    blocking: bool = False  # through disk: consumers begin when their producers have finished

    def consumers_of(self, subtask: int, producers: int, consumers: int) -> range:
        """The consumer's subtasks that a producer's subtask writes to, which are its subpartitions in order.

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
        """The producer's subtasks that a consumer's subtask reads from, which are its channels in order."""
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
    slot_groups: tuple[tuple[str, int], ...] = (("default", 0),)  # and the first worker of each
    serializers: dict[object, Any] = field(default_factory=dict)  # the user's own, by type or name
    batch: bool = False  # regions one after another, not all tasks at once: see `graph.regions`

    @property
    def uses_driver(self) -> bool:
        """Whether a vertex runs in the driver."""
        return any(vertex.in_driver for vertex in self.vertices)

    def first_worker(self, slot_group: str) -> int:
        """Where subtask 0 of a group's vertices is."""
        return dict(self.slot_groups)[slot_group]

    def vertex(self, number: int) -> Vertex:
        """A vertex by its id, which is its place."""
        return self.vertices[number]

    def outputs(self, vertex: int) -> list[Exchange]:
        """The exchanges that a vertex writes, by their `output` number."""
        return sorted((one for one in self.exchanges if one.producer == vertex), key=lambda one: one.output)

    def inputs(self, vertex: int) -> list[Exchange]:
        """The exchanges that a vertex reads, by input, then id."""
        return sorted((one for one in self.exchanges if one.consumer == vertex), key=lambda one: (one.input, one.id))

    def tasks_of(self, worker: int) -> Iterator[tuple[Vertex, int]]:
        """The tasks of a worker: vertex and subtask."""
        for vertex in self.vertices:
            workers = vertex.workers(self)
            if worker in workers:
                yield vertex, workers.index(worker)

    def demands_of(self, worker: int) -> list[TaskDemand]:
        """What the tasks that a worker has at the same time require of its memory (M5).

        In BATCH these are the tasks of one region, and what counts is the region that requires most.
        """
        demands = {vertex.id: self._demand(vertex, subtask, worker) for vertex, subtask in self.tasks_of(worker)}
        if not self.batch:
            return list(demands.values())
        from headgate.graph.regions import stages_of  # noqa: PLC0415 - it is made of plans

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
        """How many channels are sure to read from their own worker.

        A finished partition may be found elsewhere after a restart; only the driver's own are always there.
        """
        if exchange.blocking and worker != self.workers:
            return 0
        workers = self.vertex(exchange.producer).workers(self)
        return sum(workers[number] == worker for number in subtasks)
