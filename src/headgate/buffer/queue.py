"""What the reader of a subpartition or channel polls.

Implemented by the subpartitions of `output` and by the remote channels of `input`; polled by gates and by the sessions
of `wire`. Everything is called under the exchange lock unless it says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headgate.buffer.builder import BufferSlice
    from headgate.sync import Wake

__all__ = ["BufferQueue"]


class BufferQueue(Protocol):
    """A queue of buffers with one reader."""

    @property
    def backlog(self) -> int:
        """The number of data buffers that wait at the producer."""
        ...

    @property
    def readable(self) -> int:
        """The number of buffers that could be polled; read without the lock, so it may be out of date by one change."""
        ...

    @property
    def notified(self) -> bool:
        """True if there is something to poll and the reader was notified: `available_locked` is not called again."""
        ...

    def poll_locked(self) -> tuple[BufferSlice | None, Wake]:
        """Return the next bytes, or None, and a wake-up to perform after the lock."""
        ...
