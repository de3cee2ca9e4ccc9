"""What a connection has taken to write and the stream has not taken yet, with its two marks.

Filled and emptied by the connection on the network thread.

Invariants: no room is offered from the moment more than the high mark waits until less than the low mark does; while
nothing waits, as much as makes one good write is; slices whose bytes are all written, or given up, stand in `sent`
until the connection releases them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.buffer import BufferSlice
    from headgate.net.stream import Stream
    from headgate.wire import Outgoing

__all__ = ["Outbox"]


class Outbox:
    """The queue of pieces to write.

    >>> outbox = Outbox(high_bytes=8, low_bytes=4, gather_bytes=32)
    >>> outbox.room_bytes
    32
    >>> outbox.put([(b"to be or not", None)]); outbox.waiting_bytes, outbox.room_bytes
    (12, 0)
    """

    __slots__ = (
        "_gather_bytes",
        "_high_bytes",
        "_holding",
        "_low_bytes",
        "_pieces",
        "blocked",
        "sent",
        "waiting_bytes",
        "written_bytes",
    )

    def __init__(self, high_bytes: int, low_bytes: int, gather_bytes: int) -> None:
        self._gather_bytes = gather_bytes  # of one write, while the stream takes all that it is offered
        self._high_bytes = high_bytes
        self._low_bytes = low_bytes
        self._pieces: deque[Outgoing] = deque()
        self._holding = False  # above the high mark, and not below the low one since
        self.waiting_bytes = 0
        self.written_bytes = 0
        self.blocked = False  # the stream takes nothing until it says that it is writable
        self.sent: list[BufferSlice] = []

    @property
    def room_bytes(self) -> int:
        """How many bytes more to take."""
        if self._holding:
            return 0
        return self._high_bytes - self.waiting_bytes if self.waiting_bytes else self._gather_bytes

    def put(self, pieces: list[Outgoing]) -> None:
        """Add pieces at the end."""
        self._pieces.extend(pieces)
        self.waiting_bytes += sum([len(piece) for piece, _ in pieces])
        if self.waiting_bytes >= self._high_bytes:
            self._holding = True

    def write(self, stream: Stream) -> None:
        """Offer everything to the stream."""
        pieces = self._pieces
        taken = left = stream.write([piece for piece, _ in pieces])
        self.blocked = taken < self.waiting_bytes
        self.waiting_bytes -= taken
        self.written_bytes += taken
        if self.waiting_bytes < self._low_bytes:
            self._holding = False
        while left:
            piece, owned = pieces[0]
            if left < len(piece):
                pieces[0] = (memoryview(piece)[left:], owned)
                break
            left -= len(piece)
            pieces.popleft()
            if owned is not None:
                self.sent.append(owned)

    def drop(self) -> None:
        """Give up what waits."""
        self.sent += [owned for _, owned in self._pieces if owned is not None]
        self._pieces.clear()
        self.waiting_bytes = 0
        self._holding = False
