"""The two sides of a producer's session: the supply of its buffers, and the bytes it returns.

Protocols and plain data; everything is called under the exchange lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headgate.buffer import BufferQueue

if TYPE_CHECKING:
    from headgate.buffer import BufferSlice

__all__ = ["Outgoing", "Supply"]


class Outgoing(NamedTuple):
    """Bytes to send, in order, and for each piece the slice to release when it is sent.

    Two lists, not pairs: so a batch of pieces reaches the outbox and the kernel without a loop in Python.

    >>> Outgoing([b"to be"], [None]).pieces
    [b'to be']
    """

    pieces: list[bytes | memoryview]
    owners: list[BufferSlice | None]


class Supply(BufferQueue, Protocol):
    """The subpartition that a stream polls: a queue of buffers, and what flow control asks of it."""

    @property
    def next_is_data(self) -> bool:
        """True if a poll may return data, which needs a credit."""
        ...

    @property
    def drained(self) -> bool:
        """True once the end was polled: nothing follows."""
        ...

    @property
    def urgent(self) -> bool:
        """True if the data must not wait for more: it was flushed, or ends with an event."""
        ...

    def notify_at_backlog_locked(self, backlog: int) -> None:
        """Call the reader's `available_locked` when the backlog grows to this number, although it is `notified`."""
        ...
