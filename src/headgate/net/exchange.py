"""This worker's side of every connection, and what one of them carries: plain data for pumps and whoever looks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.ids import AttemptId, JobId
    from headgate.output import PartitionRegistry
    from headgate.sync import Lock

__all__ = ["Exchange", "PumpStatistics"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """This worker's side of every connection.

    >>> from headgate.worker import Environment
    >>> from headgate.ids import AttemptId, JobId
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     Exchange(JobId("etl"), AttemptId(1), worker.registry, segment_size=32768).credited
    True
    """

    job: JobId
    attempt: AttemptId
    registry: PartitionRegistry
    segment_size: int
    max_channels: int = 65_536
    credited: bool = True  # flow control by credit; else by the connection itself
    checksum: Callable[[memoryview], int] | None = None

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        return self.registry.lock


@dataclass(frozen=True, slots=True)
class PumpStatistics:
    """What a connection carries at one moment.

    >>> PumpStatistics(sending=1, receiving=2, bytes_in=0, bytes_out=0, buffers_in=0, buffers_out=0).receiving
    2
    """

    sending: int  # channels this side writes
    receiving: int  # channels this side reads
    bytes_in: int  # of payloads
    bytes_out: int
    buffers_in: int
    buffers_out: int
