"""The intake copies payloads from the network into the segments that are reserved for them.

One intake per connection, filled by its pump on the network thread. It uses channels and segments, no session.

Invariants: a payload is copied once; a compressed one is decompressed here, outside the lock, within its segment; the
buffers that one read completes are delivered under one lock, in order, and whole ones are copied under it too, for that
costs less than taking the lock twice; a segment that was taken ends in its channel or is recycled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import ChecksumMismatch, CorruptStream, RemoteProtocolError
from headgate.input import RemoteState, receive_run_locked
from headgate.output.compression import Unpacker
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
    """A buffer or event whose payload is arriving, and its channel; without a channel it is dropped."""

    __slots__ = ("backlog", "buffer", "channel", "event", "frame", "position", "size", "skew")

    def __init__(
        self, channel: RemoteChannel | None, size: int, skew: int, backlog: int, frame: Data | None = None
    ) -> None:
        self.channel = channel
        self.size = size
        self.skew = skew
        self.backlog = backlog
        self.frame = frame  # None: a plain buffer, checked by its run
        self.buffer: Buffer | None = None
        self.event = b""
        self.position = skew  # of the next byte in the buffer


class Intake:
    """The payloads that arrive over one connection.

    >>> from headgate.sync import ThreadSync
    >>> from headgate.wire import Data, Payload
    >>> intake = Intake(ThreadSync().lock, segment_size=32768)
    >>> intake.begin(Data(receiver=0, sequence=0, backlog=0, size=3), channel=None)  # its channel is released
    True
    >>> intake.fill(Payload(memoryview(b"abc"), last=True)); intake.deliver(); intake.buffers
    0
    """

    def __init__(self, lock: Lock, segment_size: int, checksum: Callable[[memoryview], int] | None = None) -> None:
        self._lock = lock
        self._segment_size = segment_size
        self._checksum = checksum
        self._arriving: _Arrival | None = None
        self._complete: list[_Arrival] = []
        self._unpacker = Unpacker()
        self.starved = False  # the arriving payload has no segment; set under the exchange lock
        self.buffers = 0
        self.bytes = 0

    def begin(self, frame: Data, channel: RemoteChannel | None) -> bool:
        """Begin a payload. Return False if it has no segment: reading must stop until `resume` returns True."""
        if not frame.event and frame.skew + frame.size > self._segment_size:
            raise RemoteProtocolError(f"{frame.size} bytes at {frame.skew} for buffers of {self._segment_size}")
        if frame.event:
            self.deliver()  # events that this read has completed count as unread
        if frame.compressed and (frame.skew or not frame.size < frame.unpacked <= self._segment_size):
            raise RemoteProtocolError(
                f"{frame.size} bytes at {frame.skew} that are {frame.unpacked} when decompressed, for buffers of "
                f"{self._segment_size}"
            )
        self._arriving = arriving = _Arrival(channel, frame.size, frame.skew, frame.backlog, frame)
        return channel is None or self._find_segment(arriving, channel)

    def resume(self) -> bool:
        """Return True if the payload that had no segment has one now."""
        arriving = self._arriving
        if arriving is None or arriving.channel is None or not self.starved:
            return True
        return self._find_segment(arriving, arriving.channel)

    def _find_segment(self, arriving: _Arrival, channel: RemoteChannel) -> bool:
        self._lock.acquire()  # see the note on locks in `sync`
        try:
            self.starved = False
            if channel.state is not _RECEIVING:
                arriving.channel = None  # released meanwhile: its request will be cancelled
            elif arriving.frame is not None and arriving.frame.event:
                self.starved = not channel.has_room_for_event_locked()
            else:
                arriving.buffer = channel.take_buffer_locked()
                self.starved = arriving.buffer is None
            return not self.starved
        finally:
            self._lock.release()

    def take_run(self, run: list[Arrived[RemoteChannel]], missing: int = 0) -> None:
        """Receive plain buffers with credit: `begin`, `fill` and `deliver` for many at once.

        `missing` bytes of the last one follow by `fill`.
        """
        wakes: list[Call] = []
        cut = run.pop() if missing else None
        self._lock.acquire()
        try:
            self._deliver_locked(wakes)  # the buffers before the run
            buffers, size = receive_run_locked(run, wakes)
            self.buffers += buffers
            self.bytes += size
            if cut is not None:
                self._begin_locked(cut, missing)
        finally:
            self._lock.release()
            for wake in wakes:  # also after an error: a notified reader must be woken to find the failure
                wake()

    def _begin_locked(self, cut: Arrived[RemoteChannel], missing: int) -> None:
        channel, backlog, skew, payload, _ = cut
        self._arriving = arriving = _Arrival(channel, len(payload) + missing, skew, backlog)
        if channel.state is not _RECEIVING:
            arriving.channel = None  # as in `_find_segment`
            return
        arriving.buffer = buffer = channel.take_buffer_locked()
        assert buffer is not None, "with credit there is a segment"
        arriving.position = stop = skew + len(payload)
        buffer.memory[skew:stop] = payload

    def fill(self, piece: Payload) -> None:
        """Copy a piece of the payload."""
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
                if arriving.frame.compressed and buffer is not None:
                    self._unpack(arriving, arriving.frame, buffer)
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

    def _unpack(self, arriving: _Arrival, frame: Data, buffer: Buffer) -> None:
        """Decompress a payload within its segment: `begin` has checked the size."""
        memory = buffer.memory
        try:
            memory[: frame.unpacked] = self._unpacker.unpack(frame.compressed, memory[: frame.size], frame.unpacked)
        except CorruptStream as error:
            raise RemoteProtocolError(f"{arriving.channel}, sequence number {frame.sequence}: {error}") from error

    def deliver(self) -> None:
        """Deliver complete buffers and events to their channels."""
        if not self._complete:
            return
        wakes: list[Call] = []
        self._lock.acquire()
        try:
            self._deliver_locked(wakes)
        finally:
            self._lock.release()
        for wake in wakes:
            wake()

    def _deliver_locked(self, wakes: list[Call]) -> None:
        complete, self._complete = self._complete, []
        for one in complete:
            channel, frame, buffer = one.channel, one.frame, one.buffer
            if channel is None:
                continue
            if buffer is not None:
                self.buffers += 1
                self.bytes += one.size
                size = one.size if frame is None or not frame.compressed else frame.unpacked
                payload = buffer.memory[one.skew : one.skew + size]
                receive_run_locked([(channel, one.backlog, one.skew, payload, buffer)], wakes)
            else:
                wake = channel.receive_event_locked(one.event, one.backlog, last=frame is not None and frame.last)
                if wake is not None:
                    wakes.append(wake)

    def lose_locked(self) -> Wake:
        """Recycle the segments of payloads that were not delivered: the connection is lost."""
        lost = self._complete if self._arriving is None else [*self._complete, self._arriving]
        self._complete, self._arriving = [], None
        return together(*[one.buffer.give_back_locked() for one in lost if one.buffer is not None])
