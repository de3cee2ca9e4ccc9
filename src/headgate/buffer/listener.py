"""Waiting for a segment without polling for it.

Two kinds of listeners are in the queue of a `LocalPool`: those of components that must not block (a remote channel on
the thread that polls the network, the read-ahead), and a `Claim` for each task thread that blocks in
`LocalPool.request`. The pool calls both under the exchange lock, in the order of the queue.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headgate.buffer.segment import Segment
    from headgate.sync import Sync, Wake

__all__ = ["Answer", "BufferListener", "Claim"]


class Answer(Enum):
    """The reply of a listener to an offered segment."""

    NOT_USED = "not used"  # the listener leaves the queue, and the pool offers the segment to the next one
    USED_ENOUGH = "used, enough"  # the listener leaves the queue
    USED_MORE_WANTED = "used, more wanted"  # the listener moves to the end of the queue


class BufferListener(Protocol):
    """A component that got no segment at once, and is offered one later."""

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """Take the segment or refuse it. Return the reply, and the wake-up to perform after the lock.

        Must not call the pool.
        """
        ...

    def cancel_locked(self) -> Wake:
        """Handle the end of the pool: no segment will be offered any more."""
        ...


class Claim:
    """The request of a blocked task thread: a listener that takes one segment and wakes the thread."""

    __slots__ = ("segment", "waiter")

    def __init__(self, sync: Sync) -> None:
        self.waiter = sync.new_signal()
        self.segment: Segment | None = None

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """Take the segment and wake the thread."""
        self.segment = segment
        return Answer.USED_ENOUGH, self.waiter.wake

    def cancel_locked(self) -> Wake:
        """Wake the thread without a segment."""
        return self.waiter.wake
