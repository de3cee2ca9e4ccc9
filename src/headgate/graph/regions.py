"""What a job in BATCH mode is cut into: stages, and the regions that are run one after another.

A **stage** is a tree of vertices with pipelined exchanges between them; a **region** is one subtask of a stage. Used by
the coordinator (what is run next), by workers (what to set up) and by `explain`; plain data made of the plan.

Invariants: all tasks of a region are in one worker; a region reads from outside only finished partitions, and only by
the first vertex of its stage; what it writes to outside are blocking partitions. Stages are numbered such that a stage
reads only from those before it, and the stages of sources are in the order of their vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headgate.graph.plan import Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.graph.plan import Exchange, Plan, Vertex

__all__ = ["Lane", "Region", "Regions", "Stage", "stages_of"]


class Region(NamedTuple):
    """One subtask of a stage.

    >>> Region(stage=1, subtask=0)
    Region(stage=1, subtask=0)
    """

    stage: int
    subtask: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Vertices that run together because pipelined exchanges connect them.

    >>> Stage(0, vertices=(0, 1), parallelism=2, in_driver=False, sink_in_driver=False).vertices
    (0, 1)
    """

    id: int
    vertices: tuple[int, ...]  # the first is the only one that reads from outside
    parallelism: int
    in_driver: bool
    sink_in_driver: bool  # what it does is seen at once, and cannot be done again


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Partitions with the same readers, each of which reads all of them: all of an exchange, or one of several parts.

    >>> Lane(partitions=(Partition(0, 0, 0),), readers=(Region(1, 0), Region(1, 1))).readers[0]
    Region(stage=1, subtask=0)
    """

    partitions: tuple[Partition, ...]
    readers: tuple[Region, ...]


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """The stages of a plan: a vertex begins one, unless it reads a pipelined exchange and is in its producer's.

    >>> from headgate.config import Settings
    >>> from headgate.graph.plan import Exchange, Plan, Ship, ShipKind, Vertex
    >>> vertices = tuple(Vertex(number, "", 2, 128, ()) for number in range(3))
    >>> handed_on = Exchange(0, producer=0, operator=0, consumer=1, ship=Ship(ShipKind.FORWARD))
    >>> by_word = Exchange(1, producer=1, operator=0, consumer=2, ship=Ship(ShipKind.HASH), blocking=True)
    >>> plan = Plan("1", "word count", vertices, (handed_on, by_word), workers=2, settings=Settings(), batch=True)
    >>> [stage.vertices for stage in stages_of(plan)]
    [(0, 1), (2,)]
    """
    stages: dict[int, list[int]] = {}  # by vertex: that of those which it shares with others
    for vertex in plan.vertices:
        inputs = plan.inputs(vertex.id)
        if all(one.blocking for one in inputs):
            stages[vertex.id] = [vertex.id]
            continue
        assert len(inputs) == 1, "who reads a pipelined exchange in BATCH reads nothing else"
        assert inputs[0].producer in stages, "vertices come after those they read from"
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
        self._reads: list[list[Exchange]] = []  # by stage: from outside
        self._writes: list[list[Exchange]] = []
        for stage in self.stages:
            self._reads.append([one for one in plan.inputs(stage.vertices[0]) if one.blocking])
            outputs = [one for vertex in stage.vertices for one in plan.outputs(vertex)]
            self._writes.append([one for one in outputs if one.blocking])
        self._feeds = [any(_is_fed(plan.vertex(vertex)) for vertex in stage.vertices) for stage in self.stages]
        self._lanes: dict[Partition, Lane] = {}
        self._lanes_read: dict[Region, list[Lane]] = {region: [] for region in self.all()}
        for reads in self._reads:
            for exchange in reads:
                self._add_lanes(exchange)

    def _add_lanes(self, exchange: Exchange) -> None:
        producers, consumers = self.plan.vertex(exchange.producer), self.plan.vertex(exchange.consumer)
        by_readers: dict[range, list[int]] = {}
        for subtask in range(producers.parallelism):
            readers = exchange.consumers_of(subtask, producers.parallelism, consumers.parallelism)
            by_readers.setdefault(readers, []).append(subtask)
        for subtasks, producing in by_readers.items():
            lane = Lane(
                tuple(Partition(exchange.producer, exchange.output, subtask) for subtask in producing),
                tuple(Region(self._stage_of[exchange.consumer], subtask) for subtask in subtasks),
            )
            self._lanes.update(dict.fromkeys(lane.partitions, lane))
            for reader in lane.readers:
                self._lanes_read[reader].append(lane)

    def all(self) -> tuple[Region, ...]:
        """Every region, in the order of their stages."""
        return tuple(Region(stage.id, subtask) for stage in self.stages for subtask in range(stage.parallelism))

    def of_stage(self, stage: int) -> tuple[Region, ...]:
        """The regions of a stage."""
        return tuple(Region(stage, subtask) for subtask in range(self.stages[stage].parallelism))

    def stage_of(self, vertex: int) -> int:
        """The stage that a vertex is in."""
        return self._stage_of[vertex]

    def worker(self, region: Region) -> int:
        """Where a region runs."""
        return self.plan.vertex(self.stages[region.stage].vertices[0]).workers(self.plan)[region.subtask]

    def vertices(self, region: Region) -> tuple[int, ...]:
        """The vertices of which it has a task, each after the one it reads from."""
        return self.stages[region.stage].vertices

    def is_source(self, stage: int) -> bool:
        """Whether it reads nothing that others have written."""
        return not self._reads[stage]

    def has_feed(self, stage: int) -> bool:
        """Whether it reads what the host hands to the workers, once: it can be read again by new workers only."""
        return self._feeds[stage]

    def lanes(self, region: Region) -> Sequence[Lane]:
        """The partitions that it reads, together with all who read them."""
        return self._lanes_read[region]

    def inputs(self, region: Region) -> tuple[Partition, ...]:
        """The partitions that it reads."""
        return tuple(partition for lane in self._lanes_read[region] for partition in lane.partitions)

    def outputs(self, region: Region) -> tuple[Partition, ...]:
        """The partitions that it writes for others."""
        return tuple(Partition(one.producer, one.output, region.subtask) for one in self._writes[region.stage])

    def knows(self, partition: Partition) -> bool:
        """Whether there is such a partition between regions."""
        return partition in self._lanes

    def producer(self, partition: Partition) -> Region:
        """The region that writes it."""
        return Region(self._stage_of[partition.vertex], partition.subtask)

    def lane(self, partition: Partition) -> Lane:
        """The partition, together with others that have the same readers."""
        return self._lanes[partition]

    def consumers(self, partition: Partition) -> tuple[Region, ...]:
        """The regions that read it."""
        return self._lanes[partition].readers


def _is_fed(vertex: Vertex) -> bool:
    return any(one.source is not None and one.source.fed for one in vertex.operators)
