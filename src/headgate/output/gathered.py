"""Full buffers that wait to be written to a partition's file, many by one call.

Used by `BlockingPartition`, under the exchange lock; `chunks_of` needs none.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from headgate.buffer import Kind

if TYPE_CHECKING:
    from headgate.buffer import Buffer

__all__ = ["Gathered", "chunks_of"]

_ENOUGH_BYTES: Final = 1024 * 1024
_ENOUGH: Final = 256  # chunks, for small ones and events
_DATA = Kind.DATA
_by_channel = itemgetter(0)


class Gathered:
    """Finished buffers and events of all channels, in the order in which they were written.

    >>> from headgate.buffer import Buffer
    >>> gathered = Gathered()
    >>> for channel in (1, 0, 1):
    ...     gathered.add(channel, Buffer.event(b"%d" % channel))
    >>> [channel for channel, _ in gathered.take()], bool(gathered)
    ([0, 1, 1], False)
    """

    __slots__ = ("_buffers", "_bytes", "_for_all")

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Buffer]] = []
        self._bytes = 0
        self._for_all = False  # some of these are for all channels

    def __bool__(self) -> bool:
        return bool(self._buffers)

    @property
    def due(self) -> bool:
        """Whether it is time to write: more at once would not be faster."""
        return self._bytes >= _ENOUGH_BYTES or len(self._buffers) >= _ENOUGH

    def add(self, channel: int, buffer: Buffer) -> None:
        """One more, for a channel or (below 0) for all."""
        self._buffers.append((channel, buffer))
        self._bytes += buffer.size
        if channel < 0:
            self._for_all = True

    def take(self) -> list[tuple[int, Buffer]]:
        """All of them, those of a channel together if that leaves each channel its order."""
        buffers, for_all = self._buffers, self._for_all
        self._buffers, self._bytes, self._for_all = [], 0, False
        if not for_all:
            buffers.sort(key=_by_channel)
        return buffers


def chunks_of(gathered: list[tuple[int, Buffer]]) -> list[tuple[int, memoryview, bool]]:
    """What a file is given: channel, bytes, whether it is an event.

    >>> from headgate.buffer import Buffer
    >>> (channel, memory, is_event), = chunks_of([(0, Buffer.event(b"end"))])
    >>> channel, bytes(memory), is_event
    (0, b'end', True)
    """
    chunks = []
    for channel, buffer in gathered:
        size, memory = buffer.size, buffer.memory
        chunks.append((channel, memory if size == len(memory) else memory[:size], buffer.kind is not _DATA))
    return chunks
