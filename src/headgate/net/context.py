"""What all pumps of a worker share, and the snapshot of one pump: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.ids import AttemptId, JobId
    from headgate.output import PartitionRegistry
    from headgate.sync import Lock

__all__ = ["ConnectionContext", "PumpStatistics"]


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """What all connections of this worker share.

    >>> from headgate.worker import Environment
    >>> from headgate.ids import AttemptId, JobId
    >>> with Environment(memory_bytes=2**20) as worker:
    ...     ConnectionContext(JobId("etl"), AttemptId(1), worker.registry, segment_size=32768).credited
    True
    """

    job: JobId
    attempt: AttemptId
    registry: PartitionRegistry
    segment_size: int
    max_channels: int = 65_536
    credited: bool = True  # flow control by credit; else by TCP
    checksum: Callable[[memoryview], int] | None = None

    @property
    def lock(self) -> Lock:
        """The exchange lock."""
        return self.registry.lock


@dataclass(frozen=True, slots=True)
class PumpStatistics:
    """A snapshot of the traffic of a connection."""

    sending: int  # channels that this side writes
    receiving: int  # channels that this side reads
    bytes_in: int  # of payloads
    bytes_out: int
    buffers_in: int
    buffers_out: int
    events_refused: int = 0  # task events of this side that had no receiver
