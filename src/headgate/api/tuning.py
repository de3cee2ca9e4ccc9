"""What can be said about an operator after it was added: its name, parallelism, chain, slot group, buffer timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.config import BufferTimeout
from headgate.errors import ConfigError
from headgate.graph.stream_graph import Chaining

if TYPE_CHECKING:
    from typing import Self

    from headgate.graph.stream_graph import Node

__all__ = ["DataStreamSink", "Tuned", "buffer_timeout_of"]


def buffer_timeout_of(timeout: int | str | BufferTimeout) -> BufferTimeout:
    """A buffer timeout from milliseconds (0: after every record, -1: only when full), or as settings write it.

    >>> str(buffer_timeout_of(10)), str(buffer_timeout_of(-1)), str(buffer_timeout_of("auto"))
    ('10 ms', '-1', 'auto')
    """
    if isinstance(timeout, BufferTimeout):
        return timeout
    if isinstance(timeout, int):
        return BufferTimeout.parse(f"{timeout} ms" if timeout > 0 else str(timeout))
    return BufferTimeout.parse(timeout)


class Tuned:
    """Settings of the operator that a stream comes from, or of a sink. All change it and return it.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> numbers = env.from_collection(range(4)).name("numbers").uid("numbers-1").set_parallelism(1)
    >>> text = numbers.map(str).name("to text").disable_chaining()
    >>> print(env.explain("mermaid"))
    flowchart LR
        v0(["numbers<br/><i>x 1</i>"])
        v1["to text<br/><i>x 2</i>"]
        v0 -->|"rebalance, pickle"| v1
    """

    _node: Node | None
    """The operator; None: there is not exactly one, or something was said about shipping since."""

    def name(self, name: str) -> Self:
        """What the operator is called in error texts, progress and `explain`."""
        self._tuned("name").name = name
        return self

    def uid(self, uid: str) -> Self:
        """What the operator is called in saved state; unique in a job."""
        self._tuned("uid").uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """How many subtasks the operator has."""
        node = self._tuned("set_parallelism")
        if parallelism < 1:
            raise ConfigError(f"{node.name}: a parallelism of {parallelism} is not possible: it is at least 1")
        if node.fixed and parallelism != node.parallelism:
            raise ConfigError(f"{node.name}: its parallelism is {node.parallelism} and cannot be another")
        node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """How many key groups there are, so the most subtasks that it can ever have."""
        node = self._tuned("set_max_parallelism")
        if not 1 <= max_parallelism <= 32_768:
            raise ConfigError(f"{node.name}: a max_parallelism of {max_parallelism} is not within 1 to 32768")
        node.max_parallelism = max_parallelism
        return self

    def set_buffer_timeout(self, timeout: int | str | BufferTimeout) -> Self:
        """When buffers that are not full are sent: milliseconds, 0 after every record, -1 only when full, 'auto'."""
        self._tuned("set_buffer_timeout").buffer_timeout = buffer_timeout_of(timeout)
        return self

    def start_new_chain(self) -> Self:
        """Not in one task with the operator before it."""
        self._tuned("start_new_chain").chaining = Chaining.HEAD
        return self

    def disable_chaining(self) -> Self:
        """In a task of its own."""
        self._tuned("disable_chaining").chaining = Chaining.NEVER
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Its workers run only operators of this group; those after it are in the same unless they say otherwise.

        In BATCH it changes nothing: all stages share all workers, one after another.
        """
        self._tuned("slot_sharing_group").slot_group = group
        return self

    def _tuned(self, what: str) -> Node:
        if self._node is None:
            raise ConfigError(
                f"{what} belongs right after an operator, such as map or reduce, not after shipping or union"
            )
        return self._node


class DataStreamSink(Tuned):
    """The end of a stream, for settings of its operator.

    >>> import headgate as hg
    >>> env = hg.environment(local=True, parallelism=2)
    >>> env.from_collection("abc").for_each(print).name("shown").set_parallelism(1)
    <DataStreamSink shown>
    """

    def __init__(self, node: Node) -> None:
        self._node: Node = node

    def __repr__(self) -> str:
        return f"<DataStreamSink {self._node.name}>"
