"""Payloads on their way from the network into the segments that were set aside for them.

One intake per connection, filled by its pump on the network thread. It touches channels and segments, no session.

Invariants: a payload is copied once; what one read has completed is handed over under one lock, in order, and what came
whole is copied under it too, for that costs less than a second look; a segment that was taken ends in its channel or
goes back to its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import ChecksumMismatch, RemoteProtocolError
from headgate.input import RemoteState, arrive_run_locked
from headgate.record.element import EndOfPartition, encode_event
from headgate.sync import together

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.buffer import Buffer
    from headgate.input import RemoteChannel
    from headgate.sync import Lock, Wake
    from headgate.wire import Arrived, Data, Payload

    Call = Callable[[], object]

__all__ = ["Intake"]

_RECEIVING = RemoteState.RECEIVING
_END = encode_event(EndOfPartition())


class _Arrival:
    """A buffer or event whose payload is arriving, and where it goes; no channel: it is dropped."""

    __slots__ = ("backlog", "buffer", "channel", "event", "frame", "position", "size", "skew")

    def __init__(
        self, channel: RemoteChannel | None, size: int, skew: int, backlog: int, frame: Data | None = None
    ) -> None:
        self.channel = channel
        self.size = size
        self.skew = skew
        self.backlog = backlog
        self.frame = frame  # None: it was checked, and is a buffer without a checksum
        self.buffer: Buffer | None = None
        self.event = b""
        self.position = skew  # where the next byte goes in the buffer


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
        self._arriving = arriving = _Arrival(channel, frame.size, frame.skew, frame.backlog, frame)
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
            elif arriving.frame is not None and arriving.frame.event:
                self.starved = not channel.has_room_for_event_locked()
            else:
                arriving.buffer = channel.take_buffer_locked()
                self.starved = arriving.buffer is None
            return not self.starved
        finally:
            self._lock.release()

    def take_run(self, run: list[Arrived[RemoteChannel]], missing: int = 0) -> None:
        """Plain buffers with credit that have come: this is `begin`, `fill` and `hand_over` for many at once.

        Of the last so many bytes are missing: they are to come by `fill`.
        """
        wakes: list[Call] = []
        cut = run.pop() if missing else None
        self._lock.acquire()
        try:
            self._hand_over_locked(wakes)  # what came before
            buffers, size = arrive_run_locked(run, wakes)
            self.buffers += buffers
            self.bytes += size
            if cut is not None:
                self._begin_locked(cut, missing)
        finally:
            self._lock.release()
            for wake in wakes:  # also if this fails: who was told of something must come and find the failure
                wake()

    def _begin_locked(self, cut: Arrived[RemoteChannel], missing: int) -> None:
        channel, backlog, skew, payload = cut
        self._arriving = arriving = _Arrival(channel, len(payload) + missing, skew, backlog)
        if channel.state is not _RECEIVING:
            arriving.channel = None  # as in `_place`
            return
        arriving.buffer = buffer = channel.take_buffer_locked()
        assert buffer is not None, "with credit there is a segment"
        arriving.position = stop = skew + len(payload)
        buffer.memory[skew:stop] = payload

    def fill(self, piece: Payload) -> None:
        """More of the payload."""
        arriving, data = self._arriving, piece.data
        assert arriving is not None, "a payload follows its head"
        buffer = arriving.buffer
        if buffer is not None:
            start = arriving.position
            arriving.position = stop = start + len(data)
            buffer.memory[start:stop] = data
        elif arriving.channel is not None:
            arriving.event += data
        if piece.last:
            if arriving.channel is not None and arriving.frame is not None:
                self._verify(arriving, arriving.frame)
            self._arriving = None
            self._complete.append(arriving)

    def _verify(self, arriving: _Arrival, frame: Data) -> None:
        buffer = arriving.buffer
        if frame.last and arriving.event != _END:
            raise RemoteProtocolError(f"{arriving.channel}: an end that is not the end of the partition")
        if (frame.checksum is None) is not (self._checksum is None):
            raise RemoteProtocolError("with a checksum on one side only: set network.checksum on all workers, or none")
        if self._checksum is None:
            return
        whole = memoryview(arriving.event) if buffer is None else buffer.memory[frame.skew : frame.skew + frame.size]
        if (found := self._checksum(whole)) != frame.checksum:
            raise ChecksumMismatch(
                f"{arriving.channel}, sequence number {frame.sequence}: its bytes have the CRC-32C {found:#010x}, "
                f"but {frame.checksum:#010x} was sent"
            )

    def hand_over(self) -> None:
        """Give what is complete to its channels."""
        if not self._complete:
            return
        wakes: list[Call] = []
        self._lock.acquire()
        try:
            self._hand_over_locked(wakes)
        finally:
            self._lock.release()
        for wake in wakes:
            wake()

    def _hand_over_locked(self, wakes: list[Call]) -> None:
        complete, self._complete = self._complete, []
        for one in complete:
            channel, frame, buffer = one.channel, one.frame, one.buffer
            if channel is None:
                continue
            if buffer is not None:
                self.buffers += 1
                self.bytes += one.size
                wake = channel.arrive_locked(buffer, one.size, one.skew, one.backlog)
            else:
                wake = channel.event_locked(one.event, one.backlog, last=frame is not None and frame.last)
            if wake is not None:
                wakes.append(wake)

    def lose_locked(self) -> Wake:
        """The connection is lost: what was being filled goes back."""
        lost = self._complete if self._arriving is None else [*self._complete, self._arriving]
        self._complete, self._arriving = [], None
        return together(*[one.buffer.give_back_locked() for one in lost if one.buffer is not None])
