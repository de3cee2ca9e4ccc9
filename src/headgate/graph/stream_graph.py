"""StreamGraph: the user's operators and their connections, before they are assigned to tasks.

The API appends a `Node` per operator, in the driver; `graph.planner` makes a plan of the nodes. A node refers to its
inputs, so a stream can be used again after an execution: an execution includes the nodes added since the last one, and
all their inputs.

Invariant: a node reads only from nodes with a smaller id, so ids are a topological order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headgate.graph.plan import Ship  # noqa: TC001 - a field's type
from headgate.names import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.config import BufferTimeout
    from headgate.functions.source import Source
    from headgate.task.operator import Operator

__all__ = ["Chaining", "Edge", "Node", "StreamGraph", "with_inputs"]


class Chaining(StrEnum):
    """The rule that decides if an operator may share a task with its neighbours."""

    ALWAYS = "always"
    HEAD = "head"  # not with its input: `start_new_chain`
    NEVER = "never"  # `disable_chaining`


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of an operator: an output of another operator, and the shipping of its records."""

    node: Node
    ship: Ship | None = None  # None: forward if both have the same parallelism, otherwise rebalance
    tag: str | None = None  # the side output that is read; None: the main one
    input: int = 0  # of the reader: 0 or 1

    @property
    def hint(self) -> object:
        """The declared type of the records, or None."""
        return self.node.hint if self.tag is None else self.node.side_hints.get(self.tag)


@dataclass(slots=True, eq=False)
class Node:
    """One operator of the user; the planner decides the options that are None."""

    id: int
    name: str
    make: Callable[[], Operator]
    inputs: tuple[Edge, ...] = ()
    source: Source[Any] | None = None
    hint: object = None  # the declared type of its results
    side_hints: dict[str, object] = field(default_factory=dict)
    in_driver: bool = False
    uid: str | None = None
    parallelism: int | None = None
    fixed: bool = False  # True: the parallelism cannot be changed
    max_parallelism: int | None = None
    buffer_timeout: BufferTimeout | None = None  # of the exchanges that it writes
    chaining: Chaining = Chaining.ALWAYS
    slot_group: str | None = None  # None: the group of all its inputs


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
        """Append an operator; `only_one`: its parallelism is always 1, as in the driver."""
        node = Node(self._ids, printable(name), make, tuple(inputs), source, hint, in_driver=in_driver)
        if in_driver or only_one:
            node.parallelism, node.fixed = 1, True
        self._ids += 1
        self.pending.append(node)
        return node

    def nodes(self) -> list[Node]:
        """Return the nodes of the next execution."""
        return with_inputs(self.pending)

    def take(self) -> list[Node]:
        """Return the nodes of the next execution, and clear the pending nodes."""
        taken = self.nodes()
        self.pending = []
        return taken

    def take_only(self, node: Node) -> list[Node]:
        """Return one operator and its inputs, for an execution by themselves; other nodes stay pending."""
        taken = with_inputs([node])
        self.pending = [one for one in self.pending if one not in taken]
        return taken


def with_inputs(nodes: Iterable[Node]) -> list[Node]:
    """Return nodes and all their direct and indirect inputs, in order of their ids."""
    found: dict[int, Node] = {}
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        if node.id not in found:
            found[node.id] = node
            ahead.extend(edge.node for edge in node.inputs)
    return [found[number] for number in sorted(found)]
