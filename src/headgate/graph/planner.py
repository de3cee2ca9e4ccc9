"""make_plan: from the user's operators to a plan: parallelism, shipping, chains, vertices, exchanges, workers.

Called in the driver, once per execution and by `explain`. All errors of a pipeline's shape are raised here, with the
name of the operator, before a worker is started.

In BATCH (`graph.regions`) every exchange is blocking, except from one task to one other task in the same worker. All
input of a sink in the driver is fetched to the driver first: see `_with_fetches`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headgate.config import RuntimeMode
from headgate.errors import ConfigError
from headgate.graph.depths import check_depth
from headgate.graph.plan import ChainedOperator, Exchange, Plan, Ship, ShipKind, Vertex
from headgate.graph.segments import with_fitting_segments
from headgate.graph.stream_graph import Chaining, Edge, Node
from headgate.task.operators.basic import PassOn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headgate.config import Settings
    from headgate.ids import JobId

__all__ = ["DEFAULT_GROUP", "make_plan"]

DEFAULT_GROUP = "default"
"""The slot group of operators without a group."""


def make_plan(
    nodes: Sequence[Node],
    *,
    job: JobId,
    name: str,
    parallelism: int,
    settings: Settings,
    serializers: Mapping[object, object] | None = None,
    chaining: bool = True,
    splits: bool = True,
    check: Callable[[Plan], object] | None = None,
) -> Plan:
    """Return the plan of a job.

    Args:
        nodes: The operators, each after its inputs.
        job: The job's identity in messages between workers.
        name: The job's name for people.
        parallelism: The default parallelism of operators.
        settings: The settings, which are sent to the workers with the plan.
        serializers: The user's serializers, by type or name.
        chaining: False: every operator is a vertex of its own.
        splits: False: do not call `Source.splits`; `explain` needs none.
        check: Called with the plan before `Source.splits`, and so before any of the user's code; may raise.

    Raises:
        ConfigError: The pipeline cannot be run; the text names the operator.

    >>> from headgate.config import Settings
    >>> from headgate.graph.stream_graph import Edge, StreamGraph
    >>> class SomeSource:
    ...     def splits(self, parallelism):
    ...         return range(parallelism)
    >>> graph = StreamGraph()
    >>> words = graph.add("words", object, source=SomeSource())
    >>> upper = graph.add("upper", object, inputs=[Edge(words)])
    >>> count = graph.add("count", object, inputs=[Edge(upper, Ship(ShipKind.HASH, key=len))])
    >>> plan = make_plan(graph.take(), job="job-1", name="job", parallelism=2, settings=Settings())
    >>> [(vertex.name, vertex.parallelism) for vertex in plan.vertices], plan.workers
    ([('words -> upper', 2), ('count', 2)], 2)
    """
    if not nodes:
        raise ConfigError("there is nothing to execute: add a source and a sink, such as print(), first")
    batch = _is_batch(nodes, settings.execution.runtime_mode)
    nodes = _with_fetches(nodes) if batch else nodes
    planner = _Planner(nodes, parallelism, settings, batch=batch, chaining=chaining)
    plan = planner.plan(job, name, serializers or {})
    if check is not None:
        check(plan)
    return _with_splits(plan) if splits else plan


def _is_batch(nodes: Sequence[Node], mode: RuntimeMode) -> bool:
    """Return True if a job runs in BATCH, by its mode or by the choice of AUTO."""
    if mode is RuntimeMode.STREAMING:
        return False
    sources = [(node, node.source) for node in nodes if node.source is not None]
    if mode is RuntimeMode.AUTO:
        return all(source.bounded for _, source in sources)
    for node, source in sources:
        if source.bounded is False:
            raise ConfigError(
                f"{node.name}: this source has no end, which BATCH would wait for: give it an end (a count, for"
                " example), or choose STREAMING, or AUTO, which is BATCH only where every source says that it ends"
                " (set_runtime_mode, execution.runtime_mode, --mode)"
            )
    return True


def _with_fetches(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with a `fetch` in the driver before each sink there.

    The effects of such a sink are visible at once: the loss of a worker must not repeat or interrupt them. So its whole
    input is on the driver's disk before it starts.
    """
    found, ids = [], 1 + max(node.id for node in nodes)
    for node in nodes:
        if node.in_driver and node.inputs:
            hints = [edge.hint for edge in node.inputs]
            hint = hints[0] if all(one == hints[0] for one in hints) else None
            fetch = Node(ids, "fetch", PassOn, node.inputs, hint=hint, in_driver=True, parallelism=1, fixed=True)
            ids += 1
            found += [fetch, replace(node, inputs=(Edge(fetch, Ship(ShipKind.FORWARD)),))]
        else:
            found.append(node)
    return found


def _with_splits(plan: Plan) -> Plan:
    """Return the plan with the splits of all sources. Calls the user's code."""
    vertices = []
    for vertex in plan.vertices:
        operators = tuple(replace(one, splits=_splits_of(one, vertex.parallelism)) for one in vertex.operators)
        vertices.append(replace(vertex, operators=operators))
    return replace(plan, vertices=tuple(vertices))


def _splits_of(operator: ChainedOperator, parallelism: int) -> tuple[Any, ...]:
    if operator.source is None:
        return ()
    try:
        return tuple(operator.source.splits(parallelism))
    except Exception as error:
        error.add_note(f"{operator.name}: its source could not say what there is to read")
        raise


@dataclass(slots=True)
class _Placement:
    """The decisions about a node."""

    parallelism: int
    max_parallelism: int
    group: str
    vertex: int = -1  # the index of its chain
    position: int = 0  # its index in the chain


class _Planner:
    def __init__(
        self, nodes: Sequence[Node], parallelism: int, settings: Settings, *, batch: bool, chaining: bool
    ) -> None:
        self._nodes = nodes
        self._batch = batch
        self._settings = settings
        self._chaining = chaining
        self._default_parallelism = parallelism
        self._placements: dict[int, _Placement] = {}
        self._chains: list[list[Node]] = []

    def plan(self, job: JobId, name: str, serializers: Mapping[object, object]) -> Plan:
        _check_uids(self._nodes)
        for node in self._nodes:
            self._placements[node.id] = self._decide(node)
            self._add_to_chain(node)
        vertices = tuple(self._vertex(number, chain) for number, chain in enumerate(self._chains))
        groups, workers = _slot_groups(vertices)
        exchanges = self._exchanges()
        plan = Plan(job, name, vertices, exchanges, workers, self._settings, groups, dict(serializers), self._batch)
        check_depth(plan)
        return with_fitting_segments(plan)

    def _decide(self, node: Node) -> _Placement:
        """Return parallelism and slot group of a node, after those of its inputs."""
        if not node.inputs and node.source is None:
            raise ConfigError(f"{node.name} has neither an input nor a source")
        parallelism = self._default_parallelism if node.parallelism is None else node.parallelism
        most = self._settings.execution.max_parallelism if node.max_parallelism is None else node.max_parallelism
        if parallelism < 1:
            raise ConfigError(f"{node.name}: a parallelism of {parallelism} is not possible: it is at least 1")
        if parallelism > most:
            raise ConfigError(
                f"{node.name}: its parallelism of {parallelism} is above its max_parallelism of {most}:"
                " lower the first or raise the second (set_max_parallelism, execution.max_parallelism)"
            )
        group = DEFAULT_GROUP if self._batch else node.slot_group  # regions use all workers, one after another
        if group is None:
            groups = {self._placements[edge.node.id].group for edge in node.inputs}
            group = groups.pop() if len(groups) == 1 else DEFAULT_GROUP
        return _Placement(parallelism, most, group)

    def _ship(self, node: Node, edge: Edge) -> Ship:
        """Return the shipping of an edge; the parallelism of both ends is known."""
        producers = self._placements[edge.node.id].parallelism
        consumers = self._placements[node.id].parallelism
        if node.in_driver:
            return Ship(ShipKind.FORWARD if edge.node.in_driver else ShipKind.GLOBAL)
        if edge.ship is None:
            return Ship(ShipKind.FORWARD if producers == consumers else ShipKind.REBALANCE)
        if edge.ship.kind is ShipKind.FORWARD and producers != consumers:
            raise ConfigError(
                f"{edge.node.name} -> {node.name}: forward needs the same parallelism on both sides, not"
                f" {producers} and {consumers}: use rescale or rebalance, or set_parallelism"
            )
        return edge.ship

    def _add_to_chain(self, node: Node) -> None:
        """Append a node to the chain of its input, or start a chain with it."""
        placement = self._placements[node.id]
        if self._is_chained(node):
            placement.vertex = self._placements[node.inputs[0].node.id].vertex
            placement.position = len(self._chains[placement.vertex])
            self._chains[placement.vertex].append(node)
        else:
            placement.vertex = len(self._chains)
            self._chains.append([node])

    def _is_chained(self, node: Node) -> bool:
        if not self._chaining or len(node.inputs) != 1 or node.in_driver or node.chaining is not Chaining.ALWAYS:
            return False
        edge = node.inputs[0]
        before, here = self._placements[edge.node.id], self._placements[node.id]
        return (
            self._ship(node, edge).kind is ShipKind.FORWARD
            and edge.input == 0
            and edge.node.chaining is not Chaining.NEVER
            and before.group == here.group
            and before.max_parallelism == here.max_parallelism
        )

    def _vertex(self, number: int, chain: list[Node]) -> Vertex:
        head = chain[0]
        placement = self._placements[head.id]
        operators = tuple(
            ChainedOperator(
                id=node.id,
                name=node.name,
                make=node.make,
                reads=None if node is head else self._placements[node.inputs[0].node.id].position,
                tag=None if node is head else node.inputs[0].tag,
                source=node.source,
            )
            for node in chain
        )
        return Vertex(
            id=number,
            name=" -> ".join(node.name for node in chain),
            parallelism=placement.parallelism,
            max_parallelism=placement.max_parallelism,
            operators=operators,
            inputs=1 + max(edge.input for edge in head.inputs) if head.inputs else 0,
            in_driver=head.in_driver,
            slot_group=placement.group,
        )

    def _exchanges(self) -> tuple[Exchange, ...]:
        """Return an exchange for each edge to the head of a chain."""
        exchanges: list[Exchange] = []
        outputs = [0] * len(self._chains)
        for number, chain in enumerate(self._chains):
            head = chain[0]
            for edge in head.inputs:
                producer, ship = self._placements[edge.node.id].vertex, self._ship(head, edge)
                exchanges.append(
                    Exchange(
                        id=len(exchanges),
                        producer=producer,
                        operator=self._placements[edge.node.id].position,
                        consumer=number,
                        ship=ship,
                        tag=edge.tag,
                        input=edge.input,
                        output=outputs[producer],
                        hint=edge.hint,
                        buffer_timeout=edge.node.buffer_timeout,
                        blocking=self._batch and not _is_pipelined(head, ship),
                    )
                )
                outputs[producer] += 1
        return tuple(exchanges)


def _is_pipelined(head: Node, ship: Ship) -> bool:
    """Return True for an exchange in memory in BATCH: both tasks are in one worker, and the consumer has one input."""
    return ship.kind is ShipKind.FORWARD and len(head.inputs) == 1 and not head.in_driver


def _slot_groups(vertices: Sequence[Vertex]) -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the first worker of each slot group, and the number of workers."""
    widest: dict[str, int] = {}
    for vertex in vertices:
        if not vertex.in_driver:
            widest[vertex.slot_group] = max(widest.get(vertex.slot_group, 0), vertex.parallelism)
    groups, workers = [], 0
    for group, parallelism in widest.items():
        groups.append((group, workers))
        workers += parallelism
    return tuple(groups), workers


def _check_uids(nodes: Sequence[Node]) -> None:
    seen: dict[str, Node] = {}
    for node in nodes:
        if node.uid is None:
            continue
        if node.uid in seen:
            raise ConfigError(
                f"{seen[node.uid].name} and {node.name} have the same uid {node.uid!r}: it must be unique"
            )
        seen[node.uid] = node
