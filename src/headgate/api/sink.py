"""DataStreamSink: the end of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.api.options import OperatorOptions

if TYPE_CHECKING:
    from headgate.graph.stream_graph import Node

__all__ = ["DataStreamSink"]


class DataStreamSink(OperatorOptions):
    """The sink of a stream, for options of its operator.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> env.from_collection("abc").for_each(print).name("shown").set_parallelism(1)
    <DataStreamSink shown>
    """

    def __init__(self, node: Node) -> None:
        self._node: Node = node

    def __repr__(self) -> str:
        return f"<DataStreamSink {self._node.name}>"
