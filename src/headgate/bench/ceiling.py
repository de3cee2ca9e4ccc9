"""The most bytes that can be between a producer and its consumer, computed from the settings.

The producer's pool limits its side: a buffer stays there until the kernel has taken it. With credit, each buffer on its
way, also in the kernel, has its place in an exclusive or floating buffer of the consumer. Without credit, the kernel's
socket buffers and one read of the network thread are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.buffer import Limits
from headgate.config import FlowControl
from headgate.net.socket_stream import SLAB_BYTES

if TYPE_CHECKING:
    from headgate.config import Settings

__all__ = ["Ceiling", "ceiling_of"]

_KERNEL_TABLES: Final = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The parts of the ceiling."""

    segment: int  # bytes of a buffer
    sending: int  # buffers of the producer's partition
    overdraft: int  # more of them, to finish a batch
    exclusive: int  # buffers of the consumer's channels
    floating: int  # buffers of their gate
    socket: int  # bytes in the kernel's buffers, without credit
    batches: int  # bytes of records in the hands of writer and reader

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        buffers = self.sending + self.overdraft + self.exclusive + self.floating
        return buffers * self.segment + self.socket + self.batches

    def __str__(self) -> str:
        text = (
            f"{self.sending} buffers of {self.segment / 1024:g} KiB at the producer and {self.overdraft} of overdraft, "
            f"{self.exclusive} + {self.floating} at the consumer, {self.batches / 1024:.0f} KiB for two batches"
        )
        return f"{text}, {self.socket / 2**20:.1f} MiB in the socket" if self.socket else text


def ceiling_of(settings: Settings, *, channels: int = 1, overdraft: int = 0, batches: int = 0) -> Ceiling:
    """Return the ceiling of the remote channels between one partition and one gate.

    >>> from headgate.config import Settings
    >>> ceiling_of(Settings()).bytes // 32768  # 10 at the producer, 2 + 8 at the consumer
    20
    """
    network = settings.network
    limits = Limits.of(network)
    pool, gate = limits.partition_pool(channels, bounded=True).maximum, limits.gate_pool(channels).maximum
    assert pool is not None, "a bounded partition has a limit"
    assert gate is not None, "a gate has a limit"
    socket = 0
    if network.flow_control is not FlowControl.CREDIT:
        socket = _kernel_limit(network.send_buffer, "tcp_wmem") + _kernel_limit(network.receive_buffer, "tcp_rmem")
        socket += SLAB_BYTES
    return Ceiling(
        segment=settings.memory.segment_size,
        sending=min(pool, channels * network.max_buffers_per_channel),
        overdraft=overdraft,
        exclusive=limits.exclusive(channels),
        floating=gate,
        socket=socket,
        batches=batches,
    )


def _kernel_limit(size: int, table: str) -> int:
    """Return the limit of a socket's buffer: twice the requested size, by default the kernel's maximum."""
    return 2 * size if size else int((_KERNEL_TABLES / table).read_text("ascii").split()[2])
