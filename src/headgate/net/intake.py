"""Payloads on their way from the network into the segments that were set aside for them.

One intake per connection, filled by its pump on the network thread. It touches channels and segments, no session.

Invariants: a payload is copied once, outside the exchange lock; what one read has completed is handed over under one
lock, in order; a segment that was taken ends in its channel or goes back to its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.buffer import UNCHANNELLED
from headgate.errors import ChecksumMismatch, RemoteProtocolError
from headgate.input import RemoteState
from headgate.record.element import EndOfPartition, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import BufferOwner, Segment
    from headgate.input import RemoteChannel
    from headgate.sync import Lock, Wake
    from headgate.wire import Data, Payload

__all__ = ["Arrived", "Intake"]

Arrived = tuple["RemoteChannel", int, int, memoryview]
"""A buffer that has come whole: its channel, the backlog behind it, its skew, its bytes."""

_RECEIVING = RemoteState.RECEIVING
_END = encode_event(EndOfPartition())


class _Arrival:
    """A buffer or event whose payload is arriving, and where it goes; no channel: it is dropped."""

    __slots__ = ("channel", "event", "filled", "frame", "owner", "segment")

    def __init__(self, frame: Data, channel: RemoteChannel | None) -> None:
        self.frame = frame
        self.channel = channel
        self.segment: Segment | None = None
        self.owner: BufferOwner | None = None
        self.event = b""
        self.filled = 0


class Intake:
    """What is arriving over one connection.

    >>> from headgate.sync import ThreadSync
    >>> from headgate.wire import Data, Payload
    >>> intake = Intake(ThreadSync().lock, segment_size=32768)
    >>> intake.begin(Data(receiver=0, sequence=0, backlog=0, size=3), channel=None)  # nobody wants it any more
    True
    >>> intake.fill(Payload(memoryview(b"abc"), last=True)); intake.hand_over(); intake.buffers
    0
    """

    def __init__(self, lock: Lock, segment_size: int, checksum: Callable[[memoryview], int] | None = None) -> None:
        self._lock = lock
        self._segment_size = segment_size
        self._checksum = checksum
        self._arriving: _Arrival | None = None
        self._complete: list[_Arrival] = []
        self.starved = False  # what is arriving has no place; set under the exchange lock
        self.buffers = 0
        self.bytes = 0

    def begin(self, frame: Data, channel: RemoteChannel | None) -> bool:
        """A payload follows. Whether it has a place: if not, reading must stop until `resume` finds one."""
        if not frame.event and frame.skew + frame.size > self._segment_size:
            raise RemoteProtocolError(f"{frame.size} bytes at {frame.skew} for buffers of {self._segment_size}")
        self._arriving = arriving = _Arrival(frame, channel)
        return channel is None or self._place(arriving, channel)

    def resume(self) -> bool:
        """Whether the payload that had no place has one now."""
        arriving = self._arriving
        if arriving is None or arriving.channel is None or not self.starved:
            return True
        return self._place(arriving, arriving.channel)

    def _place(self, arriving: _Arrival, channel: RemoteChannel) -> bool:
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            self.starved = False
            if channel.state is not _RECEIVING:
                arriving.channel = None  # released meanwhile: the producer will be told
            elif arriving.frame.event:
                self.starved = not channel.has_room_for_event_locked()
            elif (place := channel.take_segment_locked()) is None:
                self.starved = True
            else:
                arriving.segment, arriving.owner = place
            return not self.starved
        finally:
            self._lock.release()

    def take_whole(self, arrived: list[Arrived]) -> None:
        """Plain buffers with credit that have come whole: find their places, copy them, hand them over.

        This is `begin`, `fill` and `hand_over` for many at once: under load, all data comes this way.
        """
        self.hand_over()  # what came before
        lock, size_limit = self._lock, self._segment_size
        for _, _, skew, payload in arrived:
            if skew + len(payload) > size_limit:
                raise RemoteProtocolError(f"{len(payload)} bytes at {skew} for buffers of {size_limit}")
        lock.acquire()
        try:
            # Who is not receiving was released meanwhile: the producer will be told.
            places = [one[0].take_segment_locked() if one[0].state is _RECEIVING else None for one in arrived]
        finally:
            lock.release()
        for (_, _, skew, payload), place in zip(arrived, places, strict=True):
            if place is not None:
                place[0].memory[skew : skew + len(payload)] = payload
        wakes: list[Wake] = []
        lock.acquire()
        try:
            for (channel, backlog, skew, payload), place in zip(arrived, places, strict=True):
                if place is not None:
                    self.buffers += 1
                    self.bytes += len(payload)
                    wake = channel.arrive_locked(place[0], place[1], len(payload), skew, backlog)
                    if wake is not None:
                        wakes.append(wake)
        finally:
            lock.release()
        if wakes:
            _call_all(wakes)

    def fill(self, piece: Payload) -> None:
        """More of the payload."""
        arriving, data = self._arriving, piece.data
        assert arriving is not None, "a payload follows its head"
        segment = arriving.segment
        if segment is not None:
            start = arriving.frame.skew + arriving.filled
            arriving.filled += len(data)
            segment.memory[start : start + len(data)] = data
        elif arriving.channel is not None:
            arriving.event += data
        if piece.last:
            if arriving.channel is not None:
                self._verify(arriving)
            self._arriving = None
            self._complete.append(arriving)

    def _verify(self, arriving: _Arrival) -> None:
        frame, segment = arriving.frame, arriving.segment
        if frame.last and arriving.event != _END:
            raise RemoteProtocolError(f"{arriving.channel}: an end that is not the end of the partition")
        if (frame.checksum is None) is not (self._checksum is None):
            raise RemoteProtocolError("with a checksum on one side only: set network.checksum on all workers, or none")
        if self._checksum is None:
            return
        whole = memoryview(arriving.event) if segment is None else segment.memory[frame.skew : frame.skew + frame.size]
        if (found := self._checksum(whole)) != frame.checksum:
            raise ChecksumMismatch(
                f"{arriving.channel}, sequence number {frame.sequence}: its bytes have the CRC-32C {found:#010x}, "
                f"but {frame.checksum:#010x} was sent"
            )

    def hand_over(self) -> None:
        """Give what is complete to its channels."""
        complete = self._complete
        if not complete:
            return
        self._complete = []
        wakes: list[Wake] = []
        self._lock.acquire()
        try:
            for one in complete:
                channel, frame, segment = one.channel, one.frame, one.segment
                if segment is not None and channel is not None and one.owner is not None:
                    self.buffers += 1
                    self.bytes += frame.size
                    wake = channel.arrive_locked(segment, one.owner, frame.size, frame.skew, frame.backlog)
                else:
                    wake = None if channel is None else channel.event_locked(one.event, frame.backlog, last=frame.last)
                if wake is not None:
                    wakes.append(wake)
        finally:
            self._lock.release()
        _call_all(wakes)

    def lose_locked(self) -> Wake:
        """The connection is lost: what was being filled goes back."""
        lost = self._complete if self._arriving is None else [*self._complete, self._arriving]
        self._complete, self._arriving = [], None
        return together(
            *[
                one.owner.recycle_locked(one.segment, UNCHANNELLED)
                for one in lost
                if one.segment is not None and one.owner is not None
            ]
        )


def _call_all(wakes: list[Wake]) -> None:
    for wake in wakes:
        if wake is not None:
            wake()
