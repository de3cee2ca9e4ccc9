"""The states of a remote channel, and its snapshot. The channel itself is in `remote`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["RemoteState", "RemoteStatistics"]


class RemoteState(Enum):
    """The states of a remote channel, in their order."""

    NEW = "new"
    REQUESTING = "requesting"  # the request is to be sent, now or after a delay
    RECEIVING = "receiving"
    ENDED = "ended"  # the producer has sent its last frame
    FAILED = "failed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class RemoteStatistics:
    """A snapshot of a remote channel.

    >>> RemoteStatistics(RemoteState.RECEIVING, backlog=3, queued=1, ready=4, floating=2, unannounced=0).wanted(2)
    5
    """

    state: RemoteState
    backlog: int  # data buffers at the producer, by its latest frame
    queued: int  # unread buffers
    ready: int  # reserved segments
    floating: int  # of these, how many are the gate's
    unannounced: int  # of these, how many were not announced as credit

    def wanted(self, exclusive: int) -> int:
        """Return how many segments the channel wants to have ready."""
        return self.backlog + exclusive
