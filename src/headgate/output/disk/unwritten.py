"""UnwrittenBuffers: full buffers that are collected and written to a partition's file by one call.

Used by `BlockingPartition`, under the exchange lock; `chunks_of` needs no lock.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from headgate.buffer import Kind

if TYPE_CHECKING:
    from headgate.buffer import Buffer

__all__ = ["UnwrittenBuffers", "chunks_of"]

_WRITE_BYTES: Final = 1024 * 1024
_WRITE_CHUNKS: Final = 256  # for small buffers and events
_DATA = Kind.DATA
_by_channel = itemgetter(0)


class UnwrittenBuffers:
    """Finished buffers and events of all channels, in the order of writing.

    >>> from headgate.buffer import Buffer
    >>> unwritten = UnwrittenBuffers()
    >>> for channel in (1, 0, 1):
    ...     unwritten.add(channel, Buffer.event(b"%d" % channel))
    >>> [channel for channel, _ in unwritten.take()], bool(unwritten)
    ([0, 1, 1], False)
    """

    __slots__ = ("_buffers", "_bytes", "_for_all")

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Buffer]] = []
        self._bytes = 0
        self._for_all = False  # True if one of the buffers is for all channels

    def __bool__(self) -> bool:
        return bool(self._buffers)

    @property
    def due(self) -> bool:
        """True if there are enough buffers for a write: a larger write would not be faster."""
        return self._bytes >= _WRITE_BYTES or len(self._buffers) >= _WRITE_CHUNKS

    def add(self, channel: int, buffer: Buffer) -> None:
        """Add a buffer of a channel, or (below 0) of all channels."""
        self._buffers.append((channel, buffer))
        self._bytes += buffer.size
        if channel < 0:
            self._for_all = True

    def take(self) -> list[tuple[int, Buffer]]:
        """Remove and return all buffers; sorted by channel, if the order within each channel allows it."""
        buffers, for_all = self._buffers, self._for_all
        self._buffers, self._bytes, self._for_all = [], 0, False
        if not for_all:
            buffers.sort(key=_by_channel)
        return buffers


def chunks_of(buffers: list[tuple[int, Buffer]]) -> list[tuple[int, memoryview, bool]]:
    """Return the chunks of a file: channel, bytes, and True for an event.

    >>> from headgate.buffer import Buffer
    >>> (channel, memory, is_event), = chunks_of([(0, Buffer.event(b"end"))])
    >>> channel, bytes(memory), is_event
    (0, b'end', True)
    """
    chunks = []
    for channel, buffer in buffers:
        size, memory = buffer.size, buffer.memory
        chunks.append((channel, memory if size == len(memory) else memory[:size], buffer.kind is not _DATA))
    return chunks
