"""The most bytes that can be between a producer and its consumer, by the settings: what a run is held against.

Called in the driver. What is counted is what the tasks themselves see: given out by a source, and not yet in the hands
of the function that consumes it. All of that is in a buffer of the producer's pool, in one that the consumer has set
aside, or in one of two batches: the one whose rest the writer still holds, and the one that the reader puts together.
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

_BATCHES: Final = 2
_KERNEL_TABLES: Final = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The parts of it: buffers, and bytes that are not in buffers.

    >>> Ceiling(segment=32768, sending=10, overdraft=5, exclusive=2, floating=8, socket=0, batches=100_000).bytes
    919200
    """

    segment: int  # bytes of a buffer
    sending: int  # buffers that the producer's partition may fill for one channel
    overdraft: int  # and those it may take beyond that, to finish a batch
    exclusive: int  # buffers that the channel has for itself at the consumer
    floating: int  # and those of its gate
    socket: int  # bytes that may be in the kernel's buffers, where credit does not stand for them
    batches: int  # bytes

    @property
    def bytes(self) -> int:
        """All together."""
        buffers = self.sending + self.overdraft + self.exclusive + self.floating
        return buffers * self.segment + self.socket + self.batches

    def __str__(self) -> str:
        kib = self.segment / 1024
        text = (
            f"{self.sending} buffers of {kib:g} KiB at the producer and {self.overdraft} of overdraft, "
            f"{self.exclusive} + {self.floating} at the consumer, {self.batches / 1024:.0f} KiB for two batches"
        )
        return f"{text}, {self.socket / 2**20:.1f} MiB in the socket" if self.socket else text


def ceiling_of(settings: Settings, batch_bytes: int) -> Ceiling:
    """The ceiling of one remote channel.

    With credit, whatever is under way has its place in a buffer that the consumer has set aside. Without, what the
    kernel may hold comes on top, and one read of the network thread's.

    >>> from headgate.config import Settings
    >>> ceiling_of(Settings(), batch_bytes=50_000).bytes // 1024
    897
    """
    network = settings.network
    credited = network.flow_control is FlowControl.CREDIT
    limits = Limits.of(network)
    pool, gate = limits.partition_pool(1, bounded=True).maximum, limits.gate_pool(1).maximum
    assert pool is not None, "a bounded partition has a limit"
    assert gate is not None, "so has a gate"
    kernel = 0
    if not credited:
        kernel = _kernel_limit(network.send_buffer, "tcp_wmem") + _kernel_limit(network.receive_buffer, "tcp_rmem")
        kernel += SLAB_BYTES
    return Ceiling(
        segment=settings.memory.segment_size,
        sending=min(pool, network.max_buffers_per_channel),
        overdraft=network.max_overdraft_buffers,
        exclusive=limits.exclusive(1),
        floating=gate,
        socket=kernel,
        batches=_BATCHES * batch_bytes,
    )


def _kernel_limit(size: int, table: str) -> int:
    """The most that a socket's buffer holds: twice what was asked for, else what the kernel lets it grow to."""
    return 2 * size if size else int((_KERNEL_TABLES / table).read_text("ascii").split()[2])
