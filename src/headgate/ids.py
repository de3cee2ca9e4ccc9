"""Identifiers of jobs, attempts, partitions and channels, as distinct types instead of bare ints and strings."""

from dataclasses import dataclass
from typing import NewType

__all__ = ["AttemptId", "ChannelIndex", "JobId", "PartitionId", "SubpartitionIndex"]

JobId = NewType("JobId", str)
"""A job; unique in its driver."""

AttemptId = NewType("AttemptId", int)
"""One attempt to run a job. Messages between workers name it, so that a late message of attempt k is not taken for one
of attempt k + 1."""

SubpartitionIndex = NewType("SubpartitionIndex", int)
"""The number of a subpartition in its partition, from 0."""

ChannelIndex = NewType("ChannelIndex", int)
"""The number of a channel in its gate, from 0; in a union gate, offset by the channels of the gates before."""


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """One result partition of one attempt of a job.

    >>> str(PartitionId(JobId("etl"), AttemptId(1), vertex=3, output=0, subtask=7))
    'etl#1/v3.0[7]'
    """

    job: JobId
    attempt: AttemptId
    vertex: int
    output: int
    subtask: int

    def __str__(self) -> str:
        return f"{self.job}#{self.attempt}/v{self.vertex}.{self.output}[{self.subtask}]"
