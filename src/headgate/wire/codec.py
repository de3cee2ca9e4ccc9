"""The bytes of every frame: one way to write them, one table to read them.

A frame is a u32 length of what follows, a type byte, a flags byte and a body; numbers are little-endian.

Invariants: any bytes give a frame or RemoteProtocolError, nothing else; no length, count or index of a peer is used
before it was checked.
"""

from __future__ import annotations

import struct
from functools import partial
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
"""Precedes every body: length of type, flags and body; type; flags."""

_REQUEST = struct.Struct("<IIIIIIIB")  # receiver, attempt, vertex, output, subtask, subpartition, credit, job bytes
_CREDIT = struct.Struct("<III")  # receiver, attempt, credit
CREDIT_FRAME: Final = struct.Struct("<IHIII")
"""A whole `AddCredit` frame: length, type and no flags as one number, receiver, attempt, credit."""
_CHANNEL = struct.Struct("<II")  # receiver, attempt
_DATA = struct.Struct("<IIIB")  # receiver, sequence, backlog, skew
_DATA_HEAD: Final = struct.Struct("<IBBIIIB")  # the prefix, receiver, sequence, backlog, skew
PLAIN_DATA: Final = struct.Struct("<IHIIIB")
"""A `Data` frame without flags up to its payload: length, type and no flags as one number, the fields of `Data`."""
_CHECKSUM = struct.Struct("<I")
_PACKED = struct.Struct("<BI")  # codec, size when decompressed
_BACKLOG = struct.Struct("<II")  # receiver, backlog
_ERROR = struct.Struct("<IH")  # receiver, code

EVENT_FLAG, _COMPRESSED_FLAG, CHECKSUM_FLAG, LAST_FLAG = 1, 2, 4, 8
_UNCREDITED_FLAG, _PACKED_FLAG = 1, 2  # of `RequestPartition`
_GOES_ON_FLAG = 1  # of `ReportError`
_MAX_PAYLOAD_BYTES: Final = 0xFFFF_FF00


# Writing ---------------------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame; of `Data`, those before its payload.

    >>> encode_frame(AddCredit(receiver=5, attempt=AttemptId(1), credit=3)).hex(" ")
    '0e 00 00 00 11 00 05 00 00 00 01 00 00 00 03 00 00 00'
    """
    flags = 0
    match frame:
        case Data(receiver, sequence, backlog, size, skew, event, compressed, last, checksum, unpacked):
            flags = event * EVENT_FLAG | last * LAST_FLAG
            return encode_data_head(
                receiver, sequence, backlog, size, skew, flags, checksum, codec=compressed, unpacked=unpacked
            )
        case AddCredit(receiver, attempt, credit):
            return encode_credit(receiver, attempt, credit)
        case AnnounceBacklog(receiver, backlog):
            body = _BACKLOG.pack(receiver, backlog)
        case RequestPartition(receiver, partition, subpartition, credit, packed):
            job = partition.job.encode()
            flags = (_UNCREDITED_FLAG if credit is None else 0) | packed * _PACKED_FLAG
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
        case ReportError(receiver, code, text, ends):
            flags = 0 if ends else _GOES_ON_FLAG
            body = _ERROR.pack(receiver, code) + text.encode()
        case _:
            body = b""
    return PREFIX.pack(2 + len(body), frame.TYPE, flags) + body


def encode_data_head(  # noqa: PLR0917 - by position: called once per buffer
    receiver: int,
    sequence: int,
    backlog: int,
    size: int,
    skew: int,
    flags: int,
    checksum: int | None = None,
    *,
    codec: int = 0,
    unpacked: int = 0,
) -> bytes:
    """Return the bytes of a `Data` frame before its payload, from plain numbers: called once per buffer."""
    if not (0 <= size <= _MAX_PAYLOAD_BYTES and skew < ALIGNMENT):
        raise LocalProtocolError(f"a payload of {size} bytes at {skew}")
    more = b""
    try:
        if checksum is not None:
            flags |= CHECKSUM_FLAG
            more = _CHECKSUM.pack(checksum)
        if codec:
            flags |= _COMPRESSED_FLAG
            more += _PACKED.pack(codec, unpacked)
        length = 2 + _DATA.size + len(more) + size
        return _DATA_HEAD.pack(length, Data.TYPE, flags, receiver, sequence, backlog, skew) + more
    except struct.error as error:
        raise LocalProtocolError(f"data for receiver {receiver}: {error}") from error


def encode_credit(receiver: int, attempt: int, credit: int) -> bytes:
    """Return the bytes of an `AddCredit` frame, from plain numbers."""
    if not 1 <= credit <= MAX_CREDIT:
        raise LocalProtocolError(f"a credit of {credit}")
    try:
        return CREDIT_FRAME.pack(2 + _CREDIT.size, AddCredit.TYPE, receiver, attempt, credit)
    except struct.error as error:
        raise LocalProtocolError(f"credit for receiver {receiver}: {error}") from error


# Reading ---------------------------------------------------------------------------------------------------


def decode_frame(kind: int, flags: int, body: bytes | memoryview) -> Frame:
    """Return the frame with this body. Not for `Data`: see `decode_data`.

    Raises:
        RemoteProtocolError: there is no such type of frame, or the body does not fit it.

    >>> decode_frame(AnnounceBacklog.TYPE, 0, bytes([5, 0, 0, 0, 12, 0, 0, 0]))
    AnnounceBacklog(receiver=5, backlog=12)
    """
    read = _READERS.get(kind)
    if read is None:
        raise RemoteProtocolError(f"unknown frame type {kind:#04x}")
    if flags:
        flagged = _FLAGGED_READERS.get((kind, flags))
        if flagged is None:
            raise RemoteProtocolError(f"frame type {kind:#04x} with reserved flags {flags:#04x}")
        read = flagged
    try:
        return read(bytes(body))
    except (struct.error, ValueError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"bad body of frame type {kind:#04x}: {error}") from error


def decode_data(flags: int, head: bytes | memoryview, length: int) -> Data:
    """Return a `Data` frame from the bytes before its payload; `length` counts the frame without its length field.

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
    codec = unpacked = 0
    if flags & _COMPRESSED_FLAG:
        codec, unpacked = _PACKED.unpack_from(head, before_payload - _PACKED.size)
        if not codec:
            raise RemoteProtocolError("compressed data without a codec")
    if skew >= ALIGNMENT or backlog > MAX_BACKLOG:
        raise RemoteProtocolError(f"data with a skew of {skew} and a backlog of {backlog}")
    return Data(
        receiver,
        sequence,
        backlog,
        size=length - 2 - before_payload,
        skew=skew,
        event=bool(flags & EVENT_FLAG),
        compressed=codec,
        last=bool(flags & LAST_FLAG),
        checksum=checksum,
        unpacked=unpacked,
    )


def data_head_bytes(flags: int) -> int:
    """Return the number of bytes between the prefix of a `Data` frame and its payload.

    >>> data_head_bytes(0), data_head_bytes(4), data_head_bytes(2)
    (13, 17, 18)
    """
    checksum = _CHECKSUM.size if flags & CHECKSUM_FLAG else 0
    return _DATA.size + checksum + (_PACKED.size if flags & _COMPRESSED_FLAG else 0)


def _read_request(body: bytes, *, credited: bool = True, packed: bool = False) -> RequestPartition:
    receiver, attempt, vertex, output, subtask, subpartition, credit, job_bytes = _REQUEST.unpack_from(body)
    job = body[_REQUEST.size :]
    if len(job) != job_bytes:
        raise ValueError(f"a job's name of {len(job)} bytes claims to have {job_bytes}")
    partition = PartitionId(JobId(job.decode()), AttemptId(attempt), vertex, output, subtask)
    if not credited and credit:
        raise ValueError(f"a credit of {credit} where there should be none")
    return RequestPartition(receiver, partition, SubpartitionIndex(subpartition), credit if credited else None, packed)


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


def _read_error(body: bytes, *, ends: bool = True) -> ReportError:
    receiver, code = _ERROR.unpack_from(body)
    return ReportError(receiver, code, body[_ERROR.size :].decode(), ends)


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

_FLAGGED_READERS: dict[tuple[int, int], Callable[[bytes], Frame]] = {
    (RequestPartition.TYPE, _UNCREDITED_FLAG): partial(_read_request, credited=False),
    (RequestPartition.TYPE, _PACKED_FLAG): partial(_read_request, packed=True),
    (RequestPartition.TYPE, _UNCREDITED_FLAG | _PACKED_FLAG): partial(_read_request, credited=False, packed=True),
    (ReportError.TYPE, _GOES_ON_FLAG): partial(_read_error, ends=False),
}
