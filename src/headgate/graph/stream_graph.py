"""What the user wrote: operators and how they are connected, before anything is decided about tasks.

The API appends a `Node` per operator, in the driver; `graph.planner` turns nodes into a plan. A node refers to those it
reads from, so a stream that was executed once can be used again: what is executed are the nodes that were added since
the last time, and all that they read from.

Invariant: a node reads only from nodes with a smaller id, so ids are an order in which everything can be visited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headgate.graph.plan import Ship  # noqa: TC001 - a field's type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.config import BufferTimeout
    from headgate.task.operator import Operator
    from headgate.task.source import Source

__all__ = ["Chaining", "Edge", "Node", "StreamGraph", "with_inputs"]


class Chaining(StrEnum):
    """Whether an operator may be in one task with its neighbours.

    >>> Chaining("head") is Chaining.HEAD
    True
    """

    ALWAYS = "always"
    HEAD = "head"  # not with the one before it: `start_new_chain`
    NEVER = "never"  # `disable_chaining`


@dataclass(frozen=True, slots=True)
class Edge:
    """What an operator reads: an output of another, and how its records are shipped.

    >>> numbers = StreamGraph().add("numbers", object)
    >>> Edge(numbers).ship is None
    True
    """

    node: Node
    ship: Ship | None = None  # None: forward where both have the same parallelism, otherwise rebalance
    tag: str | None = None  # the side output that is read; None: the main one
    input: int = 0  # of the reader: 0 or 1

    @property
    def hint(self) -> object:
        """The declared type of its records; None: not declared."""
        return self.node.hint if self.tag is None else self.node.side_hints.get(self.tag)


@dataclass(slots=True, eq=False)
class Node:
    """One operator as the user wrote it; what is None is decided by the plan.

    >>> Node(0, "map", object).chaining
    <Chaining.ALWAYS: 'always'>
    """

    id: int
    name: str
    make: Callable[[], Operator]
    inputs: tuple[Edge, ...] = ()
    source: Source[Any] | None = None
    hint: object = None  # the declared type of what it gives out
    side_hints: dict[str, object] = field(default_factory=dict)
    in_driver: bool = False
    uid: str | None = None
    parallelism: int | None = None
    fixed: bool = False  # whether it can have no other parallelism
    max_parallelism: int | None = None
    buffer_timeout: BufferTimeout | None = None  # of the exchanges that it writes
    chaining: Chaining = Chaining.ALWAYS
    slot_group: str | None = None  # None: the one that all its inputs share


class StreamGraph:
    """The operators that were added since the last execution.

    >>> graph = StreamGraph()
    >>> numbers = graph.add("numbers", object)
    >>> doubled = graph.add("double", object, inputs=(Edge(numbers),))
    >>> [node.name for node in graph.take()], graph.pending
    (['numbers', 'double'], [])
    >>> printed = graph.add("print", object, inputs=(Edge(doubled),))
    >>> [node.name for node in graph.take()]
    ['numbers', 'double', 'print']
    """

    def __init__(self) -> None:
        self.pending: list[Node] = []
        self._ids = 0

    def add(
        self,
        name: str,
        make: Callable[[], Operator],
        *,
        inputs: Iterable[Edge] = (),
        source: Source[Any] | None = None,
        hint: object = None,
        in_driver: bool = False,
        only_one: bool = False,
    ) -> Node:
        """Append an operator; `only_one`: it can have one subtask only, as those in the driver."""
        node = Node(self._ids, name, make, tuple(inputs), source, hint, in_driver=in_driver)
        if in_driver or only_one:
            node.parallelism, node.fixed = 1, True
        self._ids += 1
        self.pending.append(node)
        return node

    def nodes(self) -> list[Node]:
        """All that would be executed now."""
        return with_inputs(self.pending)

    def take(self) -> list[Node]:
        """All that is to be executed; nothing is pending afterwards."""
        taken = self.nodes()
        self.pending = []
        return taken

    def take_only(self, node: Node) -> list[Node]:
        """One operator and what it reads from, to be executed by themselves; the rest stays pending."""
        taken = with_inputs([node])
        self.pending = [one for one in self.pending if one not in taken]
        return taken


def with_inputs(nodes: Iterable[Node]) -> list[Node]:
    """These nodes and all that they read from, directly or not, in order.

    >>> graph = StreamGraph()
    >>> numbers = graph.add("numbers", object)
    >>> doubled = graph.add("double", object, inputs=(Edge(numbers),))
    >>> [node.name for node in with_inputs([doubled])]
    ['numbers', 'double']
    """
    found: dict[int, Node] = {}
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        if node.id not in found:
            found[node.id] = node
            ahead.extend(edge.node for edge in node.inputs)
    return [found[number] for number in sorted(found)]
