"""Who waits for a segment, and what it says when it is offered one.

The network thread leaves a listener of its own; a task thread that sleeps in `LocalPool.request` is a `Claim`. Both
stand in one queue of their pool and are called under the exchange lock.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headgate.buffer.segment import Segment
    from headgate.sync import Sync, Wake

__all__ = ["Answer", "BufferListener", "Claim"]


class Answer(Enum):
    """What a listener says to a segment offered to it.

    >>> Answer.USED_MORE_WANTED.value
    'used, more wanted'
    """

    NOT_USED = "not used"  # wants none any more: offer it to the next
    USED_ENOUGH = "used, enough"
    USED_MORE_WANTED = "used, more wanted"  # stays in the queue, behind the others


class BufferListener(Protocol):
    """Somebody who could not have a segment at once and wants to be offered one."""

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """Take the segment or not; the answer and what to do after the lock. Must not call the pool."""
        ...

    def cancel_locked(self) -> Wake:
        """The pool is gone: nothing will be offered any more."""
        ...


class Claim:
    """A task thread asleep until its pool has a segment for it: a listener that takes one and wakes it.

    >>> from headgate.sync import ThreadSync
    >>> Claim(ThreadSync()).segment is None
    True
    """

    __slots__ = ("segment", "waiter")

    def __init__(self, sync: Sync) -> None:
        self.waiter = sync.waiter()
        self.segment: Segment | None = None

    def offer_locked(self, segment: Segment) -> tuple[Answer, Wake]:
        """Take it."""
        self.segment = segment
        return Answer.USED_ENOUGH, self.waiter.wake

    def cancel_locked(self) -> Wake:
        """Wake up with nothing."""
        return self.waiter.wake
