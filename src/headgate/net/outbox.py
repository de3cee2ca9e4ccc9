"""The bytes that a connection has to write and the stream has not accepted yet, with two watermarks.

Filled and emptied by the connection on the network thread.

Invariants: there is room up to the high mark, and none from then on until less than the low mark waits; slices whose
bytes are all written, or dropped, are in `sent` until the connection releases them. The clock is read only when the
stream becomes blocked or unblocked.
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
    >>> outbox = Outbox(high_bytes=8, low_bytes=4)
    >>> outbox.room_bytes
    8
    >>> outbox.put(Outgoing([b"to be or not"], [None])); outbox.waiting_bytes, outbox.room_bytes
    (12, 0)
    >>> outbox.blocked, outbox.blocked_ns
    (False, 0)
    """

    __slots__ = (
        "_blocking",
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

    def __init__(self, high_bytes: int, low_bytes: int, now_ns: Callable[[], int] = lambda: 0) -> None:
        self._high_bytes = high_bytes
        self._low_bytes = low_bytes
        self._now_ns = now_ns
        self._pieces: list[bytes | memoryview] = []
        self._owners: list[BufferSlice | None] = []  # for each piece: the slice to release when it is written
        self._holding = False  # the high mark was reached, and since then never less than the low mark waited
        self.waiting_bytes = 0
        self.written_bytes = 0
        self.blocked = False  # the stream accepts nothing until it is writable
        # The blocked time until now, and since when it is blocked: one tuple, so that other threads read both together.
        self._blocking: tuple[int, int | None] = (0, None)
        self.sent: list[BufferSlice] = []

    @property
    def blocked_ns(self) -> int:
        """How long the stream has been blocked in total. From any thread."""
        before_ns, since_ns = self._blocking
        return before_ns if since_ns is None else before_ns + max(0, self._now_ns() - since_ns)

    @property
    def room_bytes(self) -> int:
        """The number of bytes up to the high mark; once that was reached, 0 until less than the low mark waits."""
        return 0 if self._holding else self._high_bytes - self.waiting_bytes

    def put(self, sending: Outgoing) -> None:
        """Add pieces at the end."""
        self._pieces += sending.pieces
        self._owners += sending.owners
        self.waiting_bytes += sum(map(len, sending.pieces))
        if self.waiting_bytes >= self._high_bytes:
            self._holding = True

    def write(self, stream: Stream) -> None:
        """Write as much as the stream accepts."""
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
        if not self.waiting_bytes:  # the common case
            self.drop()
            return
        written = 0
        while taken >= len(pieces[written]):
            taken -= len(pieces[written])
            written += 1
        self._remove(written)
        pieces[0] = memoryview(pieces[0])[taken:]

    def _remove(self, count: int) -> None:
        """Remove the first pieces; their slices go to `sent`."""
        self.sent += filter(None, self._owners[:count])
        del self._pieces[:count], self._owners[:count]

    def _block(self) -> None:
        if not self.blocked:
            self.blocked = True
            self._blocking = (self._blocking[0], self._now_ns())

    def unblock(self) -> None:
        """Note that the stream accepts bytes again. Idempotent."""
        if self.blocked:
            self._blocking = (self.blocked_ns, None)
            self.blocked = False

    def drop(self) -> None:
        """Remove all pieces: they are written, or will never be."""
        self._remove(len(self._pieces))
        self.waiting_bytes = 0
        self._holding = False
