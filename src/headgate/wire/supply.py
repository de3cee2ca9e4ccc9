"""What stands on both sides of a producer's session: where its buffers come from, and what it gives to whoever sends.

Protocols and plain data; everything is called under the exchange lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from headgate.buffer import BufferSlice
    from headgate.sync import Wake

__all__ = ["Outgoing", "Supply", "WakeLocked"]


class Outgoing(NamedTuple):
    """Bytes to send, in order, and for each piece what to release when it is sent.

    Two lists, not pairs: so all pieces of a batch go through the outbox and to the kernel without a loop over them.

    >>> Outgoing([b"to be"], [None]).pieces
    [b'to be']
    """

    pieces: list[bytes | memoryview]
    owners: list[BufferSlice | None]


class WakeLocked(Protocol):
    """Called when there is something to send: at once, or when there is more."""

    def __call__(self, *, urgent: bool) -> Wake:
        """Let whoever sends come."""
        ...


class Supply(Protocol):
    """Where a stream's buffers come from: a subpartition. Everything under the exchange lock."""

    @property
    def backlog(self) -> int:
        """Data buffers waiting."""
        ...

    @property
    def announced(self) -> bool:
        """Whether there is something to poll, so that `available_locked` will not be called."""
        ...

    @property
    def next_is_data(self) -> bool:
        """Whether a poll may give data, which needs a credit."""
        ...

    @property
    def drained(self) -> bool:
        """Whether the end has been polled: nothing will follow."""
        ...

    @property
    def pressing(self) -> bool:
        """Whether what is there should not wait for more: it was flushed, or is an event."""
        ...

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """The next bytes, and whom to wake."""
        ...
