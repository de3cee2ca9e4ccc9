"""Shared by the tests of the wire: one frame of each kind, and frames assembled from the items of a decoder."""

from collections.abc import Callable, Iterable

from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.wire import (
    CONNECTION,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    Decoder,
    Frame,
    KeepAlive,
    Payload,
    ReportError,
    RequestPartition,
    SendTaskEvent,
    encode_frame,
)
from headgate.wire.codec import CREDIT_FRAME, PLAIN_DATA
from headgate.wire.frames import ALIGNMENT, MAX_BACKLOG, MAX_CREDIT

Said = Frame | Payload
"""An item of a decoder."""

Message = tuple[Frame, bytes]
"""A frame and its payload, which is empty for all but `Data`."""


def request(receiver=1, job="etl", attempt=2, vertex=3, output=4, subtask=5, subpartition=6, credit=7):
    partition = PartitionId(JobId(job), AttemptId(attempt), vertex, output, subtask)
    return RequestPartition(receiver, partition, SubpartitionIndex(subpartition), credit)


CONTROL_FRAMES: list[Frame] = [
    request(),
    AddCredit(receiver=1, attempt=AttemptId(2), credit=3),
    CancelRequest(receiver=1, attempt=AttemptId(2)),
    SendTaskEvent(receiver=1, attempt=AttemptId(2), event=b"reload"),
    AnnounceBacklog(receiver=1, backlog=2),
    ReportError(receiver=CONNECTION, code=4, text="stopped"),
    Close(),
    KeepAlive(),
]
"""One frame of each kind except `Data`; all its numbers differ."""


def write(*messages: Message) -> bytes:
    return b"".join(encode_frame(frame) + payload for frame, payload in messages)


def feed(decoder: Decoder, *chunks: bytes | bytearray) -> list[Said]:
    return [said for chunk in chunks for said in decoder.feed(memoryview(chunk))]


def whole_decoder(max_payload_bytes: int, said: list[Said | Message]) -> Decoder:
    """Return a decoder whose runs append whole frames to `said`, as messages; the last one may be incomplete."""

    def take_data(data: memoryview, position: int) -> tuple[int, int]:
        while len(data) - position >= PLAIN_DATA.size:
            length, kind, receiver, sequence, backlog, skew = PLAIN_DATA.unpack_from(data, position)
            start, stop = position + PLAIN_DATA.size, position + 4 + length
            plain = kind == Data.TYPE and skew < ALIGNMENT and backlog <= MAX_BACKLOG
            if not (plain and 0 <= stop - start <= max_payload_bytes):
                break
            frame = Data(receiver, sequence, backlog, stop - start, skew)
            if stop > len(data):
                said.extend([frame, Payload(memoryview(bytes(data[start:])), last=False)])
                return len(data), stop - len(data)
            said.append((frame, bytes(data[start:stop])))
            position = stop
        return position, 0

    def take_credit(data: memoryview, position: int) -> tuple[int, int]:
        size = CREDIT_FRAME.size
        while len(data) - position >= size:
            length, kind, receiver, attempt, credit = CREDIT_FRAME.unpack_from(data, position)
            if (length, kind) != (size - 4, AddCredit.TYPE) or not 1 <= credit <= MAX_CREDIT:
                break
            said.append((AddCredit(receiver, AttemptId(attempt), credit), b""))
            position += size
        return position, 0

    return Decoder(max_payload_bytes, {Data.TYPE: take_data, AddCredit.TYPE: take_credit})


def assemble(said: Iterable[Said | Message]) -> list[Message]:
    """Return frames with their payloads. Check that pieces follow a `Data` frame, have its size, and end with `last`.

    The payload of the last frame may be cut off.
    """
    messages: list[Message] = []
    complete = True
    for one in said:
        if type(one) is tuple:
            assert complete, "a frame in the middle of a payload"
            messages.append(one)
        elif isinstance(one, Payload):
            assert not complete, "a piece that belongs to nothing"
            frame, before = messages[-1]
            messages[-1] = frame, before + bytes(one.data)
            assert len(messages[-1][1]) <= frame.size
            assert one.last == (len(messages[-1][1]) == frame.size)
            complete = one.last
        else:
            assert complete, "a frame in the middle of a payload"
            messages.append((one, b""))
            complete = not isinstance(one, Data)
    return messages


class Pipe:
    """Bytes in flight, delivered a few at a time, and the decoder at their end."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._bytes = b""
        self._decoder = Decoder(max_payload_bytes)

    def __bool__(self) -> bool:
        return bool(self._bytes)

    def put(self, frame: Frame, payload: bytes = b"") -> None:
        self.write(encode_frame(frame) + payload)

    def write(self, data: bytes) -> None:
        self._bytes += data

    def deliver(self, count: int, receive: Callable[[Frame | Payload], object]) -> None:
        """Deliver the next `count` bytes; `receive` is called with each item that they complete."""
        now, self._bytes = self._bytes[:count], self._bytes[count:]
        for one in self._decoder.feed(memoryview(now)):
            receive(one)
