"""What a connection has taken to write and the stream has not taken yet, with its two marks.

Filled and emptied by the connection on the network thread.

Invariants: no room is offered from the moment more than the high mark waits until less than the low mark does; while
nothing waits, as much as makes one good write is; slices whose bytes are all written, or given up, stand in `sent`
until the connection releases them. The clock is asked only when the stream begins or ceases to be blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferSlice
    from headgate.net.stream import Stream
    from headgate.wire import Outgoing

__all__ = ["Outbox"]


class Outbox:
    """The queue of pieces to write.

    >>> from headgate.wire import Outgoing
    >>> outbox = Outbox(high_bytes=8, low_bytes=4, gather_bytes=32)
    >>> outbox.room_bytes
    32
    >>> outbox.put(Outgoing([b"to be or not"], [None])); outbox.waiting_bytes, outbox.room_bytes
    (12, 0)
    >>> outbox.blocked, outbox.blocked_ns
    (False, 0)
    """

    __slots__ = (
        "_blocking",
        "_gather_bytes",
        "_high_bytes",
        "_holding",
        "_low_bytes",
        "_now_ns",
        "_owners",
        "_pieces",
        "blocked",
        "sent",
        "waiting_bytes",
        "written_bytes",
    )

    def __init__(
        self, high_bytes: int, low_bytes: int, gather_bytes: int, now_ns: Callable[[], int] = lambda: 0
    ) -> None:
        self._gather_bytes = gather_bytes  # of one write, while the stream takes all that it is offered
        self._high_bytes = high_bytes
        self._low_bytes = low_bytes
        self._now_ns = now_ns
        self._pieces: list[bytes | memoryview] = []
        self._owners: list[BufferSlice | None] = []  # of each piece: what it completes
        self._holding = False  # above the high mark, and not below the low one since
        self.waiting_bytes = 0
        self.written_bytes = 0
        self.blocked = False  # the stream takes nothing until it says that it is writable
        # For how long it was before, and since when it is: replaced as one, so that a reader never sees parts of two.
        self._blocking: tuple[int, int | None] = (0, None)
        self.sent: list[BufferSlice] = []

    @property
    def blocked_ns(self) -> int:
        """For how long the stream has taken nothing, until now; from any thread."""
        before_ns, since_ns = self._blocking
        return before_ns if since_ns is None else before_ns + max(0, self._now_ns() - since_ns)

    @property
    def room_bytes(self) -> int:
        """How many bytes more to take."""
        if self._holding:
            return 0
        return self._high_bytes - self.waiting_bytes if self.waiting_bytes else self._gather_bytes

    def put(self, sending: Outgoing) -> None:
        """Add pieces at the end."""
        self._pieces += sending.pieces
        self._owners += sending.owners
        self.waiting_bytes += sum(map(len, sending.pieces))
        if self.waiting_bytes >= self._high_bytes:
            self._holding = True

    def write(self, stream: Stream) -> None:
        """Offer everything to the stream."""
        pieces = self._pieces
        taken = stream.write(pieces)
        if taken < self.waiting_bytes:
            self._block()
        elif self.blocked:
            self.unblock()
        self.waiting_bytes -= taken
        self.written_bytes += taken
        if self.waiting_bytes < self._low_bytes:
            self._holding = False
        if not self.waiting_bytes:  # as is usual
            self.drop()
            return
        written = 0
        while taken >= len(pieces[written]):
            taken -= len(pieces[written])
            written += 1
        self._forget(written)
        pieces[0] = memoryview(pieces[0])[taken:]

    def _forget(self, count: int) -> None:
        """Let go of the first pieces."""
        self.sent += filter(None, self._owners[:count])
        del self._pieces[:count], self._owners[:count]

    def _block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._blocking = (self._blocking[0], self._now_ns())

    def unblock(self) -> None:
        """The stream takes bytes again. May be repeated."""
        if self.blocked:
            self._blocking = (self.blocked_ns, None)
            self.blocked = False

    def drop(self) -> None:
        """Let go of all that is there: it was taken, or is given up."""
        self._forget(len(self._pieces))
        self.waiting_bytes = 0
        self._holding = False
