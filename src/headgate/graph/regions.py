"""The stages of a job in BATCH mode, and their regions, which run one after another.

A **stage** is a tree of vertices with pipelined exchanges between them; a **region** is one subtask of a stage. Used by
the coordinator (to schedule), by workers (to set up tasks) and by `explain`; plain data made of the plan.

Invariants: all tasks of a region are in one worker. The inputs of a region are finished partitions, read only by the
first vertex of its stage; its outputs are blocking partitions. A stage reads only from stages with smaller numbers, and
the stages of sources are in the order of their vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headgate.graph.plan import Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.graph.plan import Exchange, Plan, Vertex

__all__ = ["PartitionGroup", "Region", "Regions", "Stage", "stages_of"]


class Region(NamedTuple):
    """One subtask of a stage."""

    stage: int
    subtask: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Vertices that run together because pipelined exchanges connect them."""

    id: int
    vertices: tuple[int, ...]  # only the first one reads other stages
    parallelism: int
    in_driver: bool
    sink_in_driver: bool  # its effects are visible at once, so it cannot run again


@dataclass(frozen=True, slots=True, eq=False)
class PartitionGroup:
    """Partitions of an exchange with the same readers; each reader reads all of them."""

    partitions: tuple[Partition, ...]
    readers: tuple[Region, ...]


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of a plan: a vertex starts one, unless it reads a pipelined exchange.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> vertices = tuple(Vertex(number, "", 2, 128, ()) for number in range(3))
    >>> forward = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.FORWARD))
    >>> by_word = Exchange(1, producer=1, operator=0, consumer=2, ship=Ship(ShipKind.HASH), blocking=True)
    >>> plan = Plan("1", "word count", vertices, (forward, by_word), workers=2, settings=Settings(), batch=True)
    >>> [stage.vertices for stage in stages_of(plan)]
    [(0, 1), (2,)]
    """
    stages: dict[int, list[int]] = {}  # by vertex; the vertices of a stage share one list
    for vertex in plan.vertices:
        inputs = plan.inputs(vertex.id)
        if all(one.blocking for one in inputs):
            stages[vertex.id] = [vertex.id]
            continue
        assert len(inputs) == 1, "a pipelined exchange in BATCH is the only input of its consumer"
        assert inputs[0].producer in stages, "a vertex has a smaller number than its input"
        stages[vertex.id] = stages[inputs[0].producer]
        stages[vertex.id].append(vertex.id)
    found = []
    for number, vertices in enumerate(members for vertex, members in stages.items() if vertex == members[0]):
        first = plan.vertex(vertices[0])
        writes = any(plan.outputs(vertex) for vertex in vertices)
        found.append(Stage(number, tuple(vertices), first.parallelism, first.in_driver, first.in_driver and not writes))
    return tuple(found)


class Regions:
    """The stages and regions of a plan.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> vertices = Vertex(0, "words", 2, 128, (), inputs=0), Vertex(1, "count", 2, 128, ())
    >>> by_word = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.HASH), blocking=True)
    >>> plan = Plan("1", "word count", vertices, (by_word,), workers=2, settings=Settings(), batch=True)
    >>> regions = Regions(plan)
    >>> regions.all()
    (Region(stage=0, subtask=0), Region(stage=0, subtask=1), Region(stage=1, subtask=0), Region(stage=1, subtask=1))
    >>> [one.subtask for one in regions.inputs(Region(1, 0))], regions.outputs(Region(1, 0))
    ([0, 1], ())
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stages = stages_of(plan)
        self._stage_of = {vertex: stage.id for stage in self.stages for vertex in stage.vertices}
        self._reads: list[list[Exchange]] = []  # by stage: from other stages
        self._writes: list[list[Exchange]] = []
        for stage in self.stages:
            self._reads.append([one for one in plan.inputs(stage.vertices[0]) if one.blocking])
            outputs = [one for vertex in stage.vertices for one in plan.outputs(vertex)]
            self._writes.append([one for one in outputs if one.blocking])
        self._feeds = [any(_is_fed(plan.vertex(vertex)) for vertex in stage.vertices) for stage in self.stages]
        self._groups: dict[Partition, PartitionGroup] = {}
        self._groups_read: dict[Region, list[PartitionGroup]] = {region: [] for region in self.all()}
        for reads in self._reads:
            for exchange in reads:
                self._add_groups(exchange)

    def _add_groups(self, exchange: Exchange) -> None:
        producers, consumers = self.plan.vertex(exchange.producer), self.plan.vertex(exchange.consumer)
        by_readers: dict[range, list[int]] = {}
        for subtask in range(producers.parallelism):
            readers = exchange.consumers_of(subtask, producers.parallelism, consumers.parallelism)
            by_readers.setdefault(readers, []).append(subtask)
        for subtasks, producing in by_readers.items():
            group = PartitionGroup(
                tuple(Partition(exchange.producer, exchange.output, subtask) for subtask in producing),
                tuple(Region(self._stage_of[exchange.consumer], subtask) for subtask in subtasks),
            )
            self._groups.update(dict.fromkeys(group.partitions, group))
            for reader in group.readers:
                self._groups_read[reader].append(group)

    def all(self) -> tuple[Region, ...]:
        """Return all regions, in the order of their stages."""
        return tuple(Region(stage.id, subtask) for stage in self.stages for subtask in range(stage.parallelism))

    def of_stage(self, stage: int) -> tuple[Region, ...]:
        """Return the regions of a stage."""
        return tuple(Region(stage, subtask) for subtask in range(self.stages[stage].parallelism))

    def stage_of(self, vertex: int) -> int:
        """Return the stage of a vertex."""
        return self._stage_of[vertex]

    def worker(self, region: Region) -> int:
        """Return the worker of a region."""
        return self.plan.vertex(self.stages[region.stage].vertices[0]).workers(self.plan)[region.subtask]

    def vertices(self, region: Region) -> tuple[int, ...]:
        """Return the vertices of a region's tasks, each after its input."""
        return self.stages[region.stage].vertices

    def is_source(self, stage: int) -> bool:
        """Return True if a stage reads no other stage."""
        return not self._reads[stage]

    def has_feed(self, stage: int) -> bool:
        """Return True if a stage reads records that the host streams to the workers: only new workers can repeat it."""
        return self._feeds[stage]

    def input_groups(self, region: Region) -> Sequence[PartitionGroup]:
        """Return the groups of partitions that a region reads."""
        return self._groups_read[region]

    def inputs(self, region: Region) -> tuple[Partition, ...]:
        """Return the partitions that a region reads."""
        return tuple(partition for group in self._groups_read[region] for partition in group.partitions)

    def outputs(self, region: Region) -> tuple[Partition, ...]:
        """Return the partitions that a region writes for other regions."""
        return tuple(Partition(one.producer, one.output, region.subtask) for one in self._writes[region.stage])

    def knows(self, partition: Partition) -> bool:
        """Return True if the partition is one between regions."""
        return partition in self._groups

    def producer(self, partition: Partition) -> Region:
        """Return the region that writes a partition."""
        return Region(self._stage_of[partition.vertex], partition.subtask)

    def group_of(self, partition: Partition) -> PartitionGroup:
        """Return the group of a partition."""
        return self._groups[partition]

    def consumers(self, partition: Partition) -> tuple[Region, ...]:
        """Return the regions that read a partition."""
        return self._groups[partition].readers


def _is_fed(vertex: Vertex) -> bool:
    return any(one.source is not None and one.source.fed for one in vertex.operators)
