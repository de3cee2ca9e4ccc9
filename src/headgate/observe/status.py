"""The status of a job."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["JobStatus"]


class JobStatus(StrEnum):
    """The status of a job."""

    CREATED = "created"  # its workers are being started
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Return True if the job has ended."""
        return self in {JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELLED}
