"""SplitStream: a stream whose records have names from a selector, and the streams of these names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headgate.api.options import OperatorOptions
from headgate.graph.stream_graph import Edge
from headgate.task.operators.split import Split

if TYPE_CHECKING:
    from headgate.api.stream import DataStream

__all__ = ["SplitStream"]

T = TypeVar("T")


class SplitStream(OperatorOptions, Generic[T]):
    """The result of `DataStream.split`; `select` returns its streams. Records without a selection are dropped.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=1)
    >>> sizes = env.from_collection([1, 50, 700]).split(lambda n: "small" if n < 100 else "large")
    >>> list(sizes.select("large").execute_and_collect())
    [700]
    """

    def __init__(self, stream: DataStream[T], name: str, selector: Any) -> None:
        self._selections: dict[str, frozenset[str]] = {}
        self._stream = stream._then(name, partial(Split, selector, self._selections))
        self._node = self._stream._node
        self._hint = stream.hint

    def __repr__(self) -> str:
        return f"<SplitStream of {self._operator_node('repr').name}>"

    def select(self, *names: str) -> DataStream[T]:
        """Return the stream of all records with one of these names, each record once.

        A record may be in several selections; each receives its own copy of a mutable value.
        """
        from headgate.api.stream import DataStream  # noqa: PLC0415 - imports this module

        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError(f"select wants one name or several, which are strings, not {names!r}")
        tag = f"select({', '.join(map(repr, sorted(set(names))))})"
        self._selections[tag] = frozenset(names)
        node = self._operator_node("select")
        node.side_hints[tag] = self._hint
        return DataStream(self._stream._env, [Edge(node, tag=tag)])
