"""A tap on a connection: it checks every frame that is sent against the frames before it.

A `Conversation` is both directions of one connection; each `Direction` is the `Tap` of one stream. It splits the bytes
that a stream accepts into frames and checks credit, sequence numbers and backlog. Faults use it to damage, repeat or
insert a frame.

Invariant: the frames are checked as the sender wrote them; a fault changes them afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headgate.errors import HeadgateError, InvariantViolated
from headgate.ids import AttemptId
from headgate.wire import AddCredit, AnnounceBacklog, CancelRequest, Close, Data, RequestPartition
from headgate.wire.codec import PREFIX, data_head_bytes, decode_data, decode_frame, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.ids import PartitionId
    from headgate.testing.simstream import SimStream
    from headgate.testing.worker import WatchedSupply

    Supplies = Callable[[str, PartitionId, int], WatchedSupply | None]

__all__ = ["HEADER_DAMAGE", "Conversation", "Direction"]

_LAST_HANDSHAKE_TYPE: Final = 0x0F
HEADER_DAMAGE: Final = ((3, 0x40), (4, 0x80), (5, 0x40), (10, 0x01), (12, 0x10))
"""Bits of a `Data` frame's head, by offset, in length, type, flags and sequence: the receiver must detect a flip."""


class _Channel:
    """One channel, as the frames describe it."""

    __slots__ = ("announced", "backlog", "cancelled", "ended", "partition", "sent", "sequence", "subpartition")

    def __init__(self, frame: RequestPartition) -> None:
        self.partition = frame.partition
        self.subpartition = frame.subpartition
        self.announced = frame.credit  # None: without credit
        self.sent = 0
        self.backlog = 0  # as the producer has sent it last, with data or without
        self.sequence = 0
        self.ended = False
        self.cancelled = False


class Direction:
    """The frames that one end of a connection sends. Created by `Conversation`."""

    def __init__(self, stream: SimStream, supplies: Supplies) -> None:
        self.opposite: Direction = self
        self.channels: dict[int, _Channel] = {}
        """The channels that this end has requested, by receiver."""
        self.hello = b""
        """The bytes that this end sent in the handshake."""
        self.damage: Callable[[bytes, int], int | None] | None = None
        """Called with a frame and the offset of its payload; returns the bit to flip, or None for another frame."""
        self.replay = False
        """True: repeat the last data frame, once."""
        self.stale = False
        """True: insert a frame of an earlier attempt, once."""
        self.struck = False
        """True once a frame was damaged, repeated or inserted."""
        self._stream = stream
        self._supplies = supplies
        self._pending = bytearray()  # of a frame that is not complete
        self._last_data: bytes | None = None
        self._closed = False  # it has sent Close

    def sends(self, data: bytes) -> bytes:
        """See `Tap`."""
        changed, pending = data, self._pending
        if self.damage is not None:
            changed = self._damaged(data)
        elif self.replay and self._last_data is not None and not pending:
            self.replay, self.struck = False, True
            changed = self._last_data + data
        elif self.stale and not pending:
            changed = self._stale() + data
        pending += data
        while len(pending) >= PREFIX.size:
            size = 4 + int.from_bytes(pending[:4], "little")
            if len(pending) < size:
                break
            frame = bytes(pending[:size])
            del pending[:size]
            if frame[4] <= _LAST_HANDSHAKE_TYPE:
                self.hello += frame
            else:
                self._on_frame(frame)
        return changed

    def _stale(self) -> bytes:
        """Return a frame of an earlier attempt for the first open channel; empty if there is none."""
        for receiver, channel in self.channels.items():
            if not channel.cancelled:
                self.stale, self.struck = False, True
                return encode_frame(CancelRequest(receiver, AttemptId(channel.partition.attempt - 1)))
        return b""

    def _damaged(self, data: bytes) -> bytes:
        """Flip a bit of the first frame that begins in these bytes and that `damage` accepts."""
        assert self.damage is not None, "a fault waits"
        start = 0
        if self._pending:
            if len(self._pending) < 4:
                return data
            start = 4 + int.from_bytes(self._pending[:4], "little") - len(self._pending)
        while start + PREFIX.size <= len(data):
            frame = data[start : start + 4 + int.from_bytes(data[start : start + 4], "little")]
            if frame[4] == Data.TYPE and len(frame) > PREFIX.size:
                bit = self.damage(frame, PREFIX.size + data_head_bytes(frame[5]))
                if bit is not None and start + bit // 8 < len(data):
                    self.damage, self.struck = None, True
                    changed = bytearray(data)
                    changed[start + bit // 8] ^= 1 << bit % 8
                    return bytes(changed)
            start += 4 + int.from_bytes(data[start : start + 4], "little")
        return data

    # Checks.

    def _on_frame(self, frame: bytes) -> None:
        kind, flags = frame[4], frame[5]
        try:
            if kind == Data.TYPE:
                self._last_data = frame
                self._on_data(decode_data(flags, frame[PREFIX.size :], len(frame) - 4))
                return
            decoded = decode_frame(kind, flags, frame[PREFIX.size :])
        except InvariantViolated:
            raise
        except HeadgateError as error:
            raise InvariantViolated(f"{self}: sent bytes that are no frame: {error}") from error
        if self._closed and isinstance(decoded, RequestPartition | AddCredit | CancelRequest):
            raise InvariantViolated(f"{self}: {type(decoded).__name__} after it has sent Close")
        match decoded:
            case Close():
                self._closed = True
            case RequestPartition(receiver):
                if receiver in self.channels:
                    raise InvariantViolated(f"{self}: receiver {receiver} is used twice")
                self.channels[receiver] = _Channel(decoded)
            case AddCredit(receiver, attempt, credit):
                channel = self._own(receiver, attempt)
                if channel.announced is None:
                    raise InvariantViolated(f"{self}: credit for receiver {receiver}, which has none")
                channel.announced += credit
            case CancelRequest(receiver, attempt):
                self._own(receiver, attempt).cancelled = True
            case AnnounceBacklog(receiver, backlog):
                self._on_backlog(self._theirs(receiver, "a backlog"), backlog)

    def _own(self, receiver: int, attempt: int) -> _Channel:
        channel = self.channels.get(receiver)
        if channel is None or channel.cancelled:
            raise InvariantViolated(f"{self}: a frame for receiver {receiver}, which is unknown or cancelled")
        if attempt != channel.partition.attempt:
            raise InvariantViolated(f"{self}: a frame of attempt {attempt} for partition {channel.partition}")
        return channel

    def _theirs(self, receiver: int, what: str) -> _Channel:
        channel = self.opposite.channels.get(receiver)
        if channel is None or channel.ended:
            raise InvariantViolated(f"{self}: {what} for receiver {receiver}, which is unknown or has ended")
        return channel

    def _on_data(self, frame: Data) -> None:
        channel = self._theirs(frame.receiver, "data")
        where = f"{self}: partition {channel.partition}, subpartition {channel.subpartition}"
        if frame.sequence != channel.sequence:
            raise InvariantViolated(f"{where}: sequence number {frame.sequence} follows {channel.sequence - 1}")
        if not frame.event and channel.announced is not None:
            channel.sent += 1
            if channel.sent > channel.announced:
                raise InvariantViolated(f"{where}: {channel.sent} buffers sent of {channel.announced} announced")
        supply = self._supplies(self._stream.here.host, channel.partition, channel.subpartition)
        if supply is not None:
            polled = supply.polled[channel.sequence]
            if (frame.backlog, frame.size, frame.event) != polled:
                raise InvariantViolated(
                    f"{where}, sequence number {frame.sequence}: sent as (backlog, bytes, event) = "
                    f"{(frame.backlog, frame.size, frame.event)}, but the queue was {polled}"
                )
        channel.sequence += 1
        channel.backlog = frame.backlog
        channel.ended = frame.last

    def known_backlog(self, receiver: int) -> int | None:
        """Return the backlog that this end sent last for a channel; None if there is no such channel."""
        channel = self.opposite.channels.get(receiver)
        return None if channel is None else channel.backlog

    def _on_backlog(self, channel: _Channel, backlog: int) -> None:
        channel.backlog = backlog
        supply = self._supplies(self._stream.here.host, channel.partition, channel.subpartition)
        if supply is not None and backlog not in supply.seen_backlogs:
            raise InvariantViolated(
                f"{self}: partition {channel.partition}, subpartition {channel.subpartition}: a backlog of {backlog} "
                f"is announced, but the queue had {sorted(supply.seen_backlogs)}"
            )

    def __str__(self) -> str:
        return f"{self._stream.here} to {self._stream.there}"


class Conversation:
    """Both directions of one connection; `ours` is the client's end."""

    def __init__(self, ours: SimStream, theirs: SimStream, supplies: Supplies) -> None:
        self.streams = ours, theirs
        self.directions = Direction(ours, supplies), Direction(theirs, supplies)
        self.directions[0].opposite, self.directions[1].opposite = self.directions[1], self.directions[0]
        ours.tap, theirs.tap = self.directions
