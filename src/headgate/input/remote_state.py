"""Where a remote channel is in its life, and what it looks like from outside. The channel itself is in `remote`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["RemoteState", "RemoteStatistics"]


class RemoteState(Enum):
    """Where a remote channel is in its life.

    >>> RemoteState.REQUESTING.value
    'requesting'
    """

    NEW = "new"
    REQUESTING = "requesting"  # to be asked for, or asked for without an answer
    RECEIVING = "receiving"
    ENDED = "ended"  # the producer has sent its last
    FAILED = "failed"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class RemoteStatistics:
    """A remote channel at one moment.

    >>> RemoteStatistics(RemoteState.RECEIVING, backlog=3, queued=1, ready=4, floating=2, unannounced=0).wanted(2)
    5
    """

    state: RemoteState
    backlog: int  # data buffers waiting at the producer when it last spoke
    queued: int  # buffers that have arrived and were not read yet
    ready: int  # segments set aside for what is to come
    floating: int  # of these, how many are the gate's
    unannounced: int  # of these, how many the producer does not know of

    def wanted(self, exclusive: int) -> int:
        """How many segments it would like to have ready."""
        return self.backlog + exclusive
