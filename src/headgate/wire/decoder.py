"""From bytes to frames, wherever the network cuts them.

One decoder per connection and direction, fed by the thread that reads the socket. Small frames are yielded whole; a
`Data` frame is yielded as soon as its head is complete, and its payload after it in the pieces in which it was fed:
views, copied only by the code that puts them into a buffer.

Invariants: a frame's size is checked from its first four bytes, before anything is kept for it; at most one small frame
is kept between calls; after an error every call raises it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headgate.errors import RemoteProtocolError
from headgate.wire.codec import PREFIX, data_head_bytes, decode_data, decode_frame
from headgate.wire.frames import Data, Frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MAX_CONTROL_BYTES", "Decoder", "Payload", "Run"]

MAX_CONTROL_BYTES: Final = 8 * 1024
"""The greatest size of a frame that is not `Data`."""

_LENGTH_BYTES = 4
_PREFIX_BYTES = PREFIX.size


Run = Callable[[memoryview, int], tuple[int, int]]
"""Handles a run of frames of one type: called with the bytes and a position, returns where it stopped and a count.

Under load nearly all frames are whole data or credit frames: one loop that reads, checks and counts them is cheapest. A
run may stop where it began: the decoder then reads the next frame itself. The last payload of a run may be incomplete:
the run then returns the end of the bytes, and how many bytes of the payload are missing.
"""


class Payload(NamedTuple):
    """A piece of the payload of the last `Data` frame.

    >>> Payload(memoryview(b"..."), last=True).last
    True
    """

    data: memoryview
    last: bool


class Decoder:
    """Finds the frames in a stream of bytes.

    >>> from headgate.wire import KeepAlive, encode_frame
    >>> decoder, wire = Decoder(max_payload_bytes=32768), encode_frame(KeepAlive())
    >>> list(decoder.feed(memoryview(wire[:3]))), list(decoder.feed(memoryview(wire[3:])))
    ([], [KeepAlive()])
    """

    __slots__ = (
        "_error",
        "_head",
        "_max_bytes",
        "_max_payload_bytes",
        "_owes_empty",
        "_payload_left",
        "_runs",
        "position",
    )

    def __init__(self, max_payload_bytes: int, runs: Mapping[int, Run] | None = None) -> None:
        self._runs = {} if runs is None else runs  # by the type of their frames
        self._max_payload_bytes = max_payload_bytes
        self._max_bytes = max(2 + data_head_bytes(0xFF) + max_payload_bytes, MAX_CONTROL_BYTES)
        self._head = bytearray()  # of an incomplete frame: all of a small one, or the head of `Data`
        self._payload_left = 0
        self._owes_empty = False  # a payload of no bytes has not been yielded yet
        self._error: str | None = None
        self.position = 0
        """The number of bytes of the latest call up to the end of the latest frame: a caller that stops there feeds the
        rest later."""

    @property
    def idle(self) -> bool:
        """True if the stream is between two frames: the only place where it may end."""
        return not self._head and not self._payload_left and not self._owes_empty

    def feed(self, data: memoryview) -> Iterator[Frame | Payload]:
        """Yield the frames, and pieces of payloads, that these bytes complete.

        The caller consumes all of them before the next call, or stops and begins that call at `position`.

        Raises:
            RemoteProtocolError: the bytes are not frames; every further call raises the same.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        position, end, head = 0, len(data), self._head
        if self._owes_empty:  # the caller has stopped at the head
            self._owes_empty = False
            yield Payload(data[:0], True)
        try:
            while position < end:
                if left := self._payload_left:
                    stop = min(position + left, end)
                    self._payload_left = left = position + left - stop
                    piece = data[position:stop]
                    self.position = position = stop
                    yield Payload(piece, not left)
                    continue
                if not head and end - position >= _PREFIX_BYTES:
                    run = self._runs.get(data[position + _LENGTH_BYTES])
                    if run is not None:
                        stop, self._payload_left = run(data, position)
                        if stop > position:
                            self.position = position = stop
                            continue
                stop = min(end, position + self._needed() - len(head))
                head += data[position:stop]
                position = stop
                if len(head) < self._needed():
                    continue  # the next step of the head, or the next call
                frame = self._frame()
                head.clear()
                self.position = position
                if type(frame) is not Data:
                    yield frame
                    continue
                self._payload_left, self._owes_empty = frame.size, not frame.size
                yield frame
                if self._owes_empty:
                    self._owes_empty = False
                    yield Payload(data[:0], True)
        except RemoteProtocolError as error:
            self._error = str(error)  # not the error: its traceback would keep the bytes
            raise

    def _needed(self) -> int:
        """Return how long the head must be for the next step: length, prefix, then everything before a payload."""
        head = self._head
        if len(head) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if not 2 <= length <= self._max_bytes:
            raise RemoteProtocolError(f"a frame of {length} bytes: it must have 2 to {self._max_bytes}")
        if len(head) < _PREFIX_BYTES:
            return _PREFIX_BYTES
        if head[4] == Data.TYPE:
            before_payload = data_head_bytes(head[5])
            if not 0 <= length - 2 - before_payload <= self._max_payload_bytes:
                most = self._max_payload_bytes
                raise RemoteProtocolError(f"data in a frame of {length} bytes: its payload's limit is {most}")
            return _PREFIX_BYTES + before_payload
        if length > MAX_CONTROL_BYTES:
            raise RemoteProtocolError(f"frame type {head[4]:#04x} of {length} bytes: the limit is {MAX_CONTROL_BYTES}")
        return _LENGTH_BYTES + length

    def _frame(self) -> Frame:
        head = self._head
        if head[4] == Data.TYPE:
            length = int.from_bytes(head[:_LENGTH_BYTES], "little")
            return decode_data(head[5], bytes(head[_PREFIX_BYTES:]), length)
        return decode_frame(head[4], head[5], bytes(head[_PREFIX_BYTES:]))
