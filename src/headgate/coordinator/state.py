"""How far a job is, as its coordinator knows it; the user sees `JobStatus`."""

from __future__ import annotations

from enum import Enum

__all__ = ["State"]


class State(Enum):
    """How far a job is. None leads back, but for the one from RENEWING to GATHERING.

    >>> State.GATHERING.value
    'workers are coming'
    """

    GATHERING = "workers are coming"
    RUNNING = "all were told to begin"
    RENEWING = "a worker was lost, the others were told to leave, and new ones will come; of BATCH jobs"
    LEAVING = "everything has finished, and workers were told to leave; of BATCH jobs"
    STOPPING = "it has failed or was cancelled; workers were told to stop"
    OVER = "nobody is left, or nobody is waited for"
