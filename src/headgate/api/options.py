"""OperatorOptions: name, parallelism, chaining, slot group and buffer timeout of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.config import BufferTimeout
from headgate.errors import ConfigError
from headgate.graph.stream_graph import Chaining
from headgate.names import printable

if TYPE_CHECKING:
    from typing import Self

    from headgate.graph.stream_graph import Node

__all__ = ["OperatorOptions", "buffer_timeout_of"]


def buffer_timeout_of(timeout: int | str | BufferTimeout) -> BufferTimeout:
    """Return a buffer timeout from milliseconds (0: after every record, -1: only when full), or as in settings.

    >>> str(buffer_timeout_of(10)), str(buffer_timeout_of(-1)), str(buffer_timeout_of("auto"))
    ('10 ms', '-1', 'auto')
    """
    if isinstance(timeout, BufferTimeout):
        return timeout
    if isinstance(timeout, int):
        return BufferTimeout.parse(f"{timeout} ms" if timeout > 0 else str(timeout))
    return BufferTimeout.parse(timeout)


class OperatorOptions:
    """Options of the operator that emits a stream, or of a sink. Each method changes and returns the object.

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
    """The operator; None: there are several, or the shipping was set after it."""

    def name(self, name: str) -> Self:
        """Set the operator's name in errors, progress and `explain`. Control characters are escaped."""
        self._operator_node("name").name = printable(name)
        return self

    def uid(self, uid: str) -> Self:
        """Set the operator's identifier in saved state; it is unique in a job."""
        self._operator_node("uid").uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks."""
        node = self._operator_node("set_parallelism")
        if parallelism < 1:
            raise ConfigError(f"{node.name}: a parallelism of {parallelism} is not possible: it is at least 1")
        if node.fixed and parallelism != node.parallelism:
            raise ConfigError(f"{node.name}: its parallelism is {node.parallelism} and cannot be another")
        node.parallelism = parallelism
        return self

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups, which is the maximum number of subtasks."""
        node = self._operator_node("set_max_parallelism")
        if not 1 <= max_parallelism <= 32_768:
            raise ConfigError(f"{node.name}: a max_parallelism of {max_parallelism} is not within 1 to 32768")
        node.max_parallelism = max_parallelism
        return self

    def set_buffer_timeout(self, timeout: int | str | BufferTimeout) -> Self:
        """Set when buffers are sent before they are full: milliseconds, 0 after every record, -1 never, 'auto'."""
        self._operator_node("set_buffer_timeout").buffer_timeout = buffer_timeout_of(timeout)
        return self

    def start_new_chain(self) -> Self:
        """Do not run the operator in one task with the operator before it."""
        self._operator_node("start_new_chain").chaining = Chaining.HEAD
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in a task of its own."""
        self._operator_node("disable_chaining").chaining = Chaining.NEVER
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Set the slot group: a worker runs operators of one group only; downstream operators inherit the group.

        In BATCH it has no effect: all stages use all workers, one after another.
        """
        self._operator_node("slot_sharing_group").slot_group = group
        return self

    def _operator_node(self, what: str) -> Node:
        if self._node is None:
            raise ConfigError(
                f"{what} belongs right after an operator, such as map or reduce, not after shipping or union"
            )
        return self._node
