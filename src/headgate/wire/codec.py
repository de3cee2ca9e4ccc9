"""How every frame looks as bytes: one way to write them, one table to read them.

A frame is a u32 length of what follows, a type byte, a flags byte and a body; numbers are little-endian.

Invariants: any bytes give a frame or RemoteProtocolError, nothing else; no length, count or index of a peer is used
before it was checked.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headgate.errors import LocalProtocolError, RemoteProtocolError
from headgate.ids import AttemptId, JobId, PartitionId, SubpartitionIndex
from headgate.wire.frames import (
    ALIGNMENT,
    MAX_BACKLOG,
    MAX_CREDIT,
    AddCredit,
    AnnounceBacklog,
    CancelRequest,
    Close,
    Data,
    Frame,
    KeepAlive,
    ReportError,
    RequestPartition,
    SendTaskEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CHECKSUM_FLAG",
    "CREDIT_FRAME",
    "EVENT_FLAG",
    "LAST_FLAG",
    "PLAIN_DATA",
    "PREFIX",
    "data_head_bytes",
    "decode_data",
    "decode_frame",
    "encode_credit",
    "encode_data_head",
    "encode_frame",
]

PREFIX: Final = struct.Struct("<IBB")
"""Before every body: length of type, flags and body; type; flags."""

_REQUEST = struct.Struct("<IIIIIIIB")  # receiver, attempt, vertex, output, subtask, subpartition, credit, job bytes
_CREDIT = struct.Struct("<III")  # receiver, attempt, credit
CREDIT_FRAME: Final = struct.Struct("<IHIII")
"""All of an `AddCredit` frame: length, type and no flags as one number, receiver, attempt, credit."""
_CHANNEL = struct.Struct("<II")  # receiver, attempt
_DATA = struct.Struct("<IIIB")  # receiver, sequence, backlog, skew
_DATA_HEAD: Final = struct.Struct("<IBBIIIB")  # the prefix, receiver, sequence, backlog, skew
PLAIN_DATA: Final = struct.Struct("<IHIIIB")
"""A `Data` frame without flags up to its payload: length, type and no flags as one number, and what `Data` has."""
_CHECKSUM = struct.Struct("<I")
_BACKLOG = struct.Struct("<II")  # receiver, backlog
_ERROR = struct.Struct("<IH")  # receiver, code

EVENT_FLAG, _COMPRESSED_FLAG, CHECKSUM_FLAG, LAST_FLAG = 1, 2, 4, 8
_UNCREDITED_FLAG = 1
_MAX_PAYLOAD_BYTES: Final = 0xFFFF_FF00


# Writing ---------------------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame; of `Data`, those before its payload.

    >>> encode_frame(AddCredit(receiver=5, attempt=AttemptId(1), credit=3)).hex(" ")
    '0e 00 00 00 11 00 05 00 00 00 01 00 00 00 03 00 00 00'
    """
    flags = 0
    match frame:
        case Data(receiver, sequence, backlog, size, skew, event, compressed, last, checksum):
            flags = event * EVENT_FLAG | compressed * _COMPRESSED_FLAG | last * LAST_FLAG
            return encode_data_head(receiver, sequence, backlog, size, skew, flags, checksum)
        case AddCredit(receiver, attempt, credit):
            return encode_credit(receiver, attempt, credit)
        case AnnounceBacklog(receiver, backlog):
            body = _BACKLOG.pack(receiver, backlog)
        case RequestPartition(receiver, partition, subpartition, credit):
            job = partition.job.encode()
            flags = _UNCREDITED_FLAG if credit is None else 0
            numbers = (
                partition.attempt,
                partition.vertex,
                partition.output,
                partition.subtask,
                subpartition,
                credit or 0,
            )
            body = _REQUEST.pack(receiver, *numbers, len(job)) + job
        case CancelRequest(receiver, attempt):
            body = _CHANNEL.pack(receiver, attempt)
        case SendTaskEvent(receiver, attempt, event_bytes):
            body = _CHANNEL.pack(receiver, attempt) + event_bytes
        case ReportError(receiver, code, text):
            body = _ERROR.pack(receiver, code) + text.encode()
        case _:
            body = b""
    return PREFIX.pack(2 + len(body), frame.TYPE, flags) + body


def encode_data_head(  # noqa: PLR0917 - by position, for it is called once per buffer
    receiver: int, sequence: int, backlog: int, size: int, skew: int, flags: int, checksum: int | None = None
) -> bytes:
    """All of a `Data` frame but its payload, by plain numbers: there is one for every buffer.

    >>> encode_data_head(5, 0, 3, 32768, 0, LAST_FLAG) == encode_frame(Data(5, 0, 3, 32768, last=True))
    True
    """
    if not (0 <= size <= _MAX_PAYLOAD_BYTES and skew < ALIGNMENT):
        raise LocalProtocolError(f"a payload of {size} bytes at {skew}")
    try:
        if checksum is None:
            return _DATA_HEAD.pack(2 + _DATA.size + size, Data.TYPE, flags, receiver, sequence, backlog, skew)
        flags |= CHECKSUM_FLAG
        head = _DATA_HEAD.pack(6 + _DATA.size + size, Data.TYPE, flags, receiver, sequence, backlog, skew)
        return head + _CHECKSUM.pack(checksum)
    except struct.error as error:
        raise LocalProtocolError(f"data for receiver {receiver}: {error}") from error


def encode_credit(receiver: int, attempt: int, credit: int) -> bytes:
    """An `AddCredit` frame, by plain numbers.

    >>> encode_credit(5, 1, 3) == encode_frame(AddCredit(5, AttemptId(1), 3))
    True
    """
    if not 1 <= credit <= MAX_CREDIT:
        raise LocalProtocolError(f"a credit of {credit}")
    try:
        return CREDIT_FRAME.pack(2 + _CREDIT.size, AddCredit.TYPE, receiver, attempt, credit)
    except struct.error as error:
        raise LocalProtocolError(f"credit for receiver {receiver}: {error}") from error


# Reading ---------------------------------------------------------------------------------------------------


def decode_frame(kind: int, flags: int, body: bytes | memoryview) -> Frame:
    """The frame with this body. Not for `Data`: see `decode_data`.

    Raises:
        RemoteProtocolError: there is no such frame, or its body is not one.

    >>> decode_frame(AnnounceBacklog.TYPE, 0, bytes([5, 0, 0, 0, 12, 0, 0, 0]))
    AnnounceBacklog(receiver=5, backlog=12)
    """
    read = _READERS.get(kind)
    if read is None:
        raise RemoteProtocolError(f"unknown frame type {kind:#04x}")
    if flags and not (kind == RequestPartition.TYPE and flags == _UNCREDITED_FLAG):
        raise RemoteProtocolError(f"frame type {kind:#04x} with reserved flags {flags:#04x}")
    try:
        return read(bytes(body)) if not flags else _read_request(bytes(body), credited=False)
    except (struct.error, ValueError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"bad body of frame type {kind:#04x}: {error}") from error


def decode_data(flags: int, head: bytes | memoryview, length: int) -> Data:
    """A `Data` frame from the bytes before its payload; `length` is that of the whole frame without its length field.

    >>> decode_data(0, bytes([5, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]), length=2 + 13 + 100).size
    100
    """
    if flags & ~(EVENT_FLAG | _COMPRESSED_FLAG | CHECKSUM_FLAG | LAST_FLAG):
        raise RemoteProtocolError(f"data with reserved flags {flags:#04x}")
    before_payload = data_head_bytes(flags)
    if len(head) < before_payload or length < 2 + before_payload:
        raise RemoteProtocolError(f"data in a frame of {length} bytes is too short for its head")
    receiver, sequence, backlog, skew = _DATA.unpack_from(head)
    checksum = _CHECKSUM.unpack_from(head, _DATA.size)[0] if flags & CHECKSUM_FLAG else None
    if skew >= ALIGNMENT or backlog > MAX_BACKLOG:
        raise RemoteProtocolError(f"data with a skew of {skew} and a backlog of {backlog}")
    return Data(
        receiver,
        sequence,
        backlog,
        size=length - 2 - before_payload,
        skew=skew,
        event=bool(flags & EVENT_FLAG),
        compressed=bool(flags & _COMPRESSED_FLAG),
        last=bool(flags & LAST_FLAG),
        checksum=checksum,
    )


def data_head_bytes(flags: int) -> int:
    """How many bytes stand between the prefix of a `Data` frame and its payload.

    >>> data_head_bytes(0), data_head_bytes(4)
    (13, 17)
    """
    return _DATA.size + (_CHECKSUM.size if flags & CHECKSUM_FLAG else 0)


def _read_request(body: bytes, *, credited: bool = True) -> RequestPartition:
    receiver, attempt, vertex, output, subtask, subpartition, credit, job_bytes = _REQUEST.unpack_from(body)
    job = body[_REQUEST.size :]
    if len(job) != job_bytes:
        raise ValueError(f"a job's name of {len(job)} bytes claims to have {job_bytes}")
    partition = PartitionId(JobId(job.decode()), AttemptId(attempt), vertex, output, subtask)
    if not credited and credit:
        raise ValueError(f"a credit of {credit} where there should be none")
    return RequestPartition(receiver, partition, SubpartitionIndex(subpartition), credit if credited else None)


def _read_credit(body: bytes) -> AddCredit:
    receiver, attempt, credit = _CREDIT.unpack(body)
    if not 1 <= credit <= MAX_CREDIT:
        raise ValueError(f"a credit of {credit}")
    return AddCredit(receiver, AttemptId(attempt), credit)


def _read_cancel(body: bytes) -> CancelRequest:
    receiver, attempt = _CHANNEL.unpack(body)
    return CancelRequest(receiver, AttemptId(attempt))


def _read_task_event(body: bytes) -> SendTaskEvent:
    receiver, attempt = _CHANNEL.unpack_from(body)
    return SendTaskEvent(receiver, AttemptId(attempt), body[_CHANNEL.size :])


def _read_backlog(body: bytes) -> AnnounceBacklog:
    return AnnounceBacklog(*_BACKLOG.unpack(body))


def _read_error(body: bytes) -> ReportError:
    receiver, code = _ERROR.unpack_from(body)
    return ReportError(receiver, code, body[_ERROR.size :].decode())


def _read_empty(kind: type[Close | KeepAlive]) -> Callable[[bytes], Frame]:
    def read(body: bytes) -> Frame:
        if body:
            raise ValueError(f"{len(body)} bytes where there should be none")
        return kind()

    return read


_READERS: dict[int, Callable[[bytes], Frame]] = {
    RequestPartition.TYPE: _read_request,
    AddCredit.TYPE: _read_credit,
    CancelRequest.TYPE: _read_cancel,
    SendTaskEvent.TYPE: _read_task_event,
    AnnounceBacklog.TYPE: _read_backlog,
    ReportError.TYPE: _read_error,
    Close.TYPE: _read_empty(Close),
    KeepAlive.TYPE: _read_empty(KeepAlive),
}
