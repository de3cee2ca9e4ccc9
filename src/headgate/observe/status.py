"""Where a job is in its life."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["JobStatus"]


class JobStatus(StrEnum):
    """Where a job is in its life.

    >>> JobStatus.RUNNING.over, JobStatus.CANCELLED.over
    (False, True)
    """

    CREATED = "created"  # its workers are being started
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether it is one of the last states."""
        return self in {JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELLED}
