"""What every stream is: the outputs of operators, and how they are shipped to whatever comes next.

All of it happens in the driver and only adds nodes to the environment's graph; nothing runs before `execute`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.tuning import Tuned
from headgate.graph.plan import Ship, ShipKind
from headgate.record.registry import is_record_batch
from headgate.task.functions import Function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.api.environment import StreamExecutionEnvironment
    from headgate.api.stream import DataStream
    from headgate.graph.stream_graph import Edge, Node
    from headgate.task.operator import Operator

__all__ = ["Stream", "checked", "operator_name"]

T = TypeVar("T")


def checked(what: str, function: Any, *methods: str) -> Any:
    """A user's function, if it can be called or has the methods that are wanted.

    >>> checked("map", str.upper, "map") is str.upper
    True
    >>> checked("map", "upper", "map")
    Traceback (most recent call last):
    TypeError: map wants a callable, or a Function with map, not 'upper'
    """
    fits = all(hasattr(function, name) for name in methods) if isinstance(function, Function) else callable(function)
    if fits and not (isinstance(function, type) and issubclass(function, Function)):
        return function
    hint = ": make an instance of it" if isinstance(function, type) else ""
    raise TypeError(f"{what} wants a callable, or a Function with {' and '.join(methods)}, not {function!r}{hint}")


def operator_name(what: str, function: object) -> str:
    """What an operator is called unless the user names it.

    >>> operator_name("flat_map", str.split), operator_name("map", lambda n: n)
    ('flat_map(split)', 'map')
    """
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return what if name == "<lambda>" else f"{what}({name})"


class Stream(Tuned, Generic[T]):
    """The outputs that a stream consists of; see `DataStream`.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> isinstance(env.from_collection([1, 2]), Stream)
    True
    """

    def __init__(self, env: StreamExecutionEnvironment, edges: Sequence[Edge], node: Node | None = None) -> None:
        self._env = env
        self._edges = tuple(edges)
        self._node = node

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(edge.node.name for edge in self._edges)}>"

    @property
    def hint(self) -> object:
        """The declared type of its records; None: not declared, or not the same in all parts of a union."""
        first = self._edges[0].hint
        return first if all(edge.hint == first for edge in self._edges) else None

    @property
    def is_arrow(self) -> bool:
        """Whether its values are Arrow record batches rather than rows."""
        return any(is_record_batch(edge.hint) for edge in self._edges)

    # How records are shipped to the next operator.

    def rebalance(self) -> DataStream[T]:
        """Ship records to all subtasks of the next operator in turn.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).rebalance().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.REBALANCE))

    def rescale(self) -> DataStream[T]:
        """As `rebalance`, but only to the subtasks nearby: fewer channels.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> numbers = env.from_collection([1, 2, 3]).set_parallelism(1)
        >>> sorted(numbers.rescale().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.RESCALE))

    def shuffle(self) -> DataStream[T]:
        """Ship each record to a random subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).shuffle().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.SHUFFLE))

    def forward(self) -> DataStream[T]:
        """Ship records to the subtask with the same number; both operators need the same parallelism.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> list(env.from_collection([1, 2, 3]).forward().map(str).set_parallelism(1).execute_and_collect())
        Traceback (most recent call last):
        headgate.errors.ConfigError: collection -> map(str): forward needs the same parallelism on both sides, not ...
        """
        return self._shipped(Ship(ShipKind.FORWARD))

    def broadcast(self) -> DataStream[T]:
        """Ship every record to every subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2]).broadcast().map(str).execute_and_collect())
        ['1', '1', '2', '2']
        """
        return self._shipped(Ship(ShipKind.BROADCAST))

    def global_(self) -> DataStream[T]:
        """Ship every record to the first subtask of the next operator.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> sorted(env.from_collection([1, 2, 3]).global_().map(str).execute_and_collect())
        ['1', '2', '3']
        """
        return self._shipped(Ship(ShipKind.GLOBAL))

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key_selector: Callable[[T], Any] | None = None
    ) -> DataStream[T]:
        """Ship each record to the subtask that a function of yours chooses.

        Args:
            partitioner: Called with the record, or its key, and the number of subtasks; answers a number below that.
            key_selector: The key of a record.

        >>> import headgate as hg
        >>> env = hg.environment(local=True, parallelism=2)
        >>> by_parity = env.from_collection(range(4)).partition_custom(lambda n, subtasks: n % 2 % subtasks)
        >>> sorted(by_parity.map(str).execute_and_collect())
        ['0', '1', '2', '3']
        """
        checked("partition_custom", partitioner)
        function = partitioner if key_selector is None else partial(_by_key, partitioner, key_selector)
        return self._shipped(Ship(ShipKind.CUSTOM, function=function))

    def _shipped(self, ship: Ship) -> DataStream[T]:
        from headgate.api.stream import DataStream  # noqa: PLC0415 - it is made of this

        return DataStream(self._env, [replace(edge, ship=ship) for edge in self._edges])

    # For the operators.

    def _then(
        self,
        name: str,
        make: Callable[[], Operator],
        *,
        hint: object = None,
        edges: Sequence[Edge] | None = None,
        only_one: bool = False,
    ) -> DataStream[Any]:
        """The stream that a new operator makes of this one."""
        from headgate.api.stream import DataStream  # noqa: PLC0415 - it is made of this
        from headgate.graph.stream_graph import Edge  # noqa: PLC0415

        inputs = self._edges if edges is None else edges
        node = self._env._graph.add(name, make, inputs=inputs, hint=hint, only_one=only_one)
        return DataStream(self._env, [Edge(node)], node)

    def _rows(self, what: str) -> None:
        """Refuse what is done to rows if this is a stream of Arrow batches."""
        if self.is_arrow:
            raise TypeError(
                f"{what} is for rows, and this is an Arrow stream, whose values are record batches:"
                " use map_batches(f, form='arrow'), or from_arrow() first"
            )


def _by_key(partitioner: Callable[[Any, int], int], key: Callable[[Any], Any], record: Any, channels: int) -> int:
    return partitioner(key(record), channels)
