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

__all__ = ["PREFIX", "data_head_bytes", "decode_data", "decode_frame", "encode_frame"]

PREFIX: Final = struct.Struct("<IBB")
"""Before every body: length of type, flags and body; type; flags."""

_REQUEST = struct.Struct("<IIIIIIIB")  # receiver, attempt, vertex, output, subtask, subpartition, credit, job bytes
_CREDIT = struct.Struct("<III")  # receiver, attempt, credit
_CHANNEL = struct.Struct("<II")  # receiver, attempt
_DATA = struct.Struct("<III")  # receiver, sequence, backlog
_CHECKSUM = struct.Struct("<I")
_BACKLOG = struct.Struct("<II")  # receiver, backlog
_ERROR = struct.Struct("<IH")  # receiver, code

_EVENT_FLAG, _COMPRESSED_FLAG, _CHECKSUM_FLAG = 1, 2, 4


# Writing ---------------------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame; of `Data`, those before its payload.

    >>> from headgate.ids import AttemptId
    >>> encode_frame(AddCredit(receiver=5, attempt=AttemptId(1), credit=3)).hex(" ")
    '0e 00 00 00 11 00 05 00 00 00 01 00 00 00 03 00 00 00'
    """
    flags, follows = 0, 0
    match frame:
        case Data(receiver, sequence, backlog, size, event, compressed, checksum):
            flags = event * _EVENT_FLAG | compressed * _COMPRESSED_FLAG | (checksum is not None) * _CHECKSUM_FLAG
            body = _DATA.pack(receiver, sequence, backlog)
            if checksum is not None:
                body += _CHECKSUM.pack(checksum)
            follows = size
        case AddCredit(receiver, attempt, credit):
            body = _CREDIT.pack(receiver, attempt, credit)
        case AnnounceBacklog(receiver, backlog):
            body = _BACKLOG.pack(receiver, backlog)
        case RequestPartition(receiver, partition, subpartition, credit):
            job = partition.job.encode()
            numbers = partition.attempt, partition.vertex, partition.output, partition.subtask, subpartition, credit
            body = _REQUEST.pack(receiver, *numbers, len(job)) + job
        case CancelRequest(receiver, attempt):
            body = _CHANNEL.pack(receiver, attempt)
        case SendTaskEvent(receiver, attempt, event_bytes):
            body = _CHANNEL.pack(receiver, attempt) + event_bytes
        case ReportError(receiver, code, text):
            body = _ERROR.pack(receiver, code) + text.encode()
        case _:
            body = b""
    return PREFIX.pack(2 + len(body) + follows, frame.TYPE, flags) + body


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
    if flags:
        raise RemoteProtocolError(f"frame type {kind:#04x} with reserved flags {flags:#04x}")
    try:
        return read(bytes(body))
    except (struct.error, ValueError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"bad body of frame type {kind:#04x}: {error}") from error


def decode_data(flags: int, head: bytes | memoryview, length: int) -> Data:
    """A `Data` frame from the bytes before its payload; `length` is that of the whole frame without its length field.

    >>> decode_data(0, bytes([5, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]), length=2 + 12 + 100).size
    100
    """
    if flags & ~(_EVENT_FLAG | _COMPRESSED_FLAG | _CHECKSUM_FLAG):
        raise RemoteProtocolError(f"data with reserved flags {flags:#04x}")
    before_payload = data_head_bytes(flags)
    if len(head) < before_payload or length < 2 + before_payload:
        raise RemoteProtocolError(f"data in a frame of {length} bytes is too short for its head")
    receiver, sequence, backlog = _DATA.unpack_from(head)
    checksum = _CHECKSUM.unpack_from(head, _DATA.size)[0] if flags & _CHECKSUM_FLAG else None
    return Data(
        receiver,
        sequence,
        backlog,
        size=length - 2 - before_payload,
        event=bool(flags & _EVENT_FLAG),
        compressed=bool(flags & _COMPRESSED_FLAG),
        checksum=checksum,
    )


def data_head_bytes(flags: int) -> int:
    """How many bytes stand between the prefix of a `Data` frame and its payload.

    >>> data_head_bytes(0), data_head_bytes(4)
    (12, 16)
    """
    return _DATA.size + (_CHECKSUM.size if flags & _CHECKSUM_FLAG else 0)


def _read_request(body: bytes) -> RequestPartition:
    receiver, attempt, vertex, output, subtask, subpartition, credit, job_bytes = _REQUEST.unpack_from(body)
    job = body[_REQUEST.size :]
    if len(job) != job_bytes:
        raise ValueError(f"a job's name of {len(job)} bytes claims to have {job_bytes}")
    partition = PartitionId(JobId(job.decode()), AttemptId(attempt), vertex, output, subtask)
    return RequestPartition(receiver, partition, SubpartitionIndex(subpartition), credit)


def _read_credit(body: bytes) -> AddCredit:
    receiver, attempt, credit = _CREDIT.unpack(body)
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
