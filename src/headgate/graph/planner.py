"""From what the user wrote to what is run: parallelism, shipping, chains, vertices, exchanges, workers.

Called in the driver, once per execution and by `explain`. Everything that can be refused is refused here, with the
name of the operator, before anything is started.

In BATCH (`graph.regions`) every exchange is blocking, except where a task can hand its records to one other task in the
same worker; and what a sink in the driver reads is fetched to the driver first, whole: see `_with_fetches`.
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
from headgate.task.basic import PassOn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate.config import Settings
    from headgate.ids import JobId

__all__ = ["DEFAULT_GROUP", "make_plan"]

DEFAULT_GROUP = "default"
"""The slot group of operators for which none was chosen."""


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
) -> Plan:
    """The plan of a job.

    Args:
        nodes: What is to be run, each after those it reads from.
        job: What the job is called in messages between workers.
        name: What people call it.
        parallelism: Of operators for which none was chosen.
        settings: They travel to the workers with the plan.
        serializers: The user's own, by type or name.
        chaining: Whether operators may share a task at all.
        splits: Whether sources are asked for their splits; a plan that is only looked at needs none.

    Raises:
        ConfigError: It cannot be run like this; the text names the operator.

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
    planner = _Planner(nodes, parallelism, settings, batch=batch, chaining=chaining, splits=splits)
    return planner.plan(job, name, serializers or {})


def _is_batch(nodes: Sequence[Node], mode: RuntimeMode) -> bool:
    """Whether a job is run in BATCH, as it was told or as AUTO chooses."""
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
    """The nodes, with a `fetch` in the driver before each sink there.

    What such a sink does is seen at once: it must not be done twice, nor stop half-way, because a worker was lost. So
    everything that it reads is on the driver's own disk before it begins.
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


@dataclass(slots=True)
class _Decided:
    """What was decided about a node."""

    parallelism: int
    max_parallelism: int
    group: str
    vertex: int = -1  # the chain that it is in,
    position: int = 0  # and its place there


class _Planner:
    def __init__(
        self, nodes: Sequence[Node], parallelism: int, settings: Settings, *, batch: bool, chaining: bool, splits: bool
    ) -> None:
        self._nodes = nodes
        self._batch = batch
        self._splits = splits
        self._settings = settings
        self._chaining = chaining
        self._default_parallelism = parallelism
        self._decided: dict[int, _Decided] = {}
        self._chains: list[list[Node]] = []

    def plan(self, job: JobId, name: str, serializers: Mapping[object, object]) -> Plan:
        _check_uids(self._nodes)
        for node in self._nodes:
            self._decided[node.id] = self._decide(node)
            self._place(node)
        vertices = tuple(self._vertex(number, chain) for number, chain in enumerate(self._chains))
        groups, workers = _slot_groups(vertices)
        exchanges = self._exchanges()
        plan = Plan(job, name, vertices, exchanges, workers, self._settings, groups, dict(serializers), self._batch)
        check_depth(plan)
        return with_fitting_segments(plan)

    def _decide(self, node: Node) -> _Decided:
        """Parallelism and slot group of a node, after those of all it reads from."""
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
        group = DEFAULT_GROUP if self._batch else node.slot_group  # regions share all workers, one after another
        if group is None:
            groups = {self._decided[edge.node.id].group for edge in node.inputs}
            group = groups.pop() if len(groups) == 1 else DEFAULT_GROUP
        return _Decided(parallelism, most, group)

    def _ship(self, node: Node, edge: Edge) -> Ship:
        """How an edge is shipped, now that the parallelism of both ends is known."""
        producers = self._decided[edge.node.id].parallelism
        consumers = self._decided[node.id].parallelism
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

    def _place(self, node: Node) -> None:
        """Put a node into the chain of the one it reads from, or begin a chain with it."""
        decided = self._decided[node.id]
        if self._is_chained(node):
            decided.vertex = self._decided[node.inputs[0].node.id].vertex
            decided.position = len(self._chains[decided.vertex])
            self._chains[decided.vertex].append(node)
        else:
            decided.vertex = len(self._chains)
            self._chains.append([node])

    def _is_chained(self, node: Node) -> bool:
        if not self._chaining or len(node.inputs) != 1 or node.in_driver or node.chaining is not Chaining.ALWAYS:
            return False
        edge = node.inputs[0]
        before, here = self._decided[edge.node.id], self._decided[node.id]
        return (
            self._ship(node, edge).kind is ShipKind.FORWARD
            and edge.input == 0
            and edge.node.chaining is not Chaining.NEVER
            and before.group == here.group
            and before.max_parallelism == here.max_parallelism
        )

    def _vertex(self, number: int, chain: list[Node]) -> Vertex:
        head = chain[0]
        decided = self._decided[head.id]
        operators = tuple(
            ChainedOperator(
                id=node.id,
                name=node.name,
                make=node.make,
                reads=None if node is head else self._decided[node.inputs[0].node.id].position,
                tag=None if node is head else node.inputs[0].tag,
                source=node.source,
                splits=self._splits_of(node),
            )
            for node in chain
        )
        return Vertex(
            id=number,
            name=" -> ".join(node.name for node in chain),
            parallelism=decided.parallelism,
            max_parallelism=decided.max_parallelism,
            operators=operators,
            inputs=1 + max(edge.input for edge in head.inputs) if head.inputs else 0,
            in_driver=head.in_driver,
            slot_group=decided.group,
        )

    def _splits_of(self, node: Node) -> tuple[Any, ...]:
        if node.source is None or not self._splits:
            return ()
        try:
            return tuple(node.source.splits(self._decided[node.id].parallelism))
        except Exception as error:
            error.add_note(f"{node.name}: its source could not say what there is to read")
            raise

    def _exchanges(self) -> tuple[Exchange, ...]:
        """One for each edge that leads to the head of a chain."""
        exchanges: list[Exchange] = []
        outputs = [0] * len(self._chains)
        for number, chain in enumerate(self._chains):
            head = chain[0]
            for edge in head.inputs:
                producer, ship = self._decided[edge.node.id].vertex, self._ship(head, edge)
                exchanges.append(
                    Exchange(
                        id=len(exchanges),
                        producer=producer,
                        operator=self._decided[edge.node.id].position,
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
    """Whether an exchange stays in memory in BATCH: its two tasks are in one worker, and need nothing else to run."""
    return ship.kind is ShipKind.FORWARD and len(head.inputs) == 1 and not head.in_driver


def _slot_groups(vertices: Sequence[Vertex]) -> tuple[tuple[tuple[str, int], ...], int]:
    """The first worker of each slot group, and how many workers there are."""
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
