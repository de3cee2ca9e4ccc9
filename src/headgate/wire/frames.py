"""Every message between two workers, one frozen type each; `codec` has their bytes.

`Data` is the one frame that ends in a payload of any size. The payload is not part of the type: `decoder` yields it in
pieces, which are copied once, into the receiver's segment.

Invariant: a frame object is valid, so writing one cannot fail. The exceptions are `Data` and `AddCredit`, of which
there may be one for every buffer: the codec checks them when it writes and when it reads.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

import msgspec

from headgate.errors import LocalProtocolError
from headgate.ids import AttemptId, PartitionId, SubpartitionIndex  # noqa: TC001 - msgspec needs them at run time
from headgate.record.element import MAX_TASK_EVENT_BYTES

__all__ = [
    "ALIGNMENT",
    "CONNECTION",
    "MAX_BACKLOG",
    "MAX_CREDIT",
    "MAX_ERROR_TEXT_BYTES",
    "AddCredit",
    "AnnounceBacklog",
    "CancelRequest",
    "Close",
    "Data",
    "Frame",
    "KeepAlive",
    "ReportError",
    "RequestPartition",
    "SendTaskEvent",
]

CONNECTION: Final = 0xFFFF_FFFF
"""The receiver of an error that concerns the whole connection."""

MAX_CREDIT: Final = 1 << 17
"""The greatest credit of one channel at a time: above any gate's buffers, far below an overflow."""

MAX_BACKLOG: Final = 1 << 20
"""The greatest backlog that a producer may announce for one channel."""

ALIGNMENT: Final = 64
"""Payloads keep their offset in a buffer modulo this, so that aligned records stay aligned."""

MAX_ERROR_TEXT_BYTES: Final = 1024
_MAX_JOB_BYTES: Final = 255
_U32: Final = 0xFFFF_FFFF


class _Frame(msgspec.Struct, frozen=True):
    """The base of all frames."""

    TYPE: ClassVar[int] = 0


class RequestPartition(_Frame, frozen=True):
    """Consumer to producer: send a subpartition to `receiver`, with this much credit at first.

    Without credit (None) the producer sends as much as the connection takes. With `compressed`, buffers that are stored
    compressed may be sent compressed. Receivers are numbered upwards; a connection uses no number twice.

    >>> from headgate.ids import JobId
    >>> partition = PartitionId(JobId("etl"), AttemptId(1), vertex=3, output=0, subtask=7)
    >>> RequestPartition(receiver=5, partition=partition, subpartition=SubpartitionIndex(2), credit=2).receiver
    5
    """

    TYPE: ClassVar[int] = 0x10

    receiver: int
    partition: PartitionId
    subpartition: SubpartitionIndex
    credit: int | None
    compressed: bool = False

    def __post_init__(self) -> None:
        which = self.partition
        _check_u32(self.receiver, which.attempt, which.vertex, which.output, which.subtask, self.subpartition)
        _check_text(which.job, _MAX_JOB_BYTES, "a job's name")
        _check(self.receiver != CONNECTION, "a request as the receiver that means the connection")
        _check(0 <= (self.credit or 0) <= MAX_CREDIT, f"an initial credit of {self.credit}")


class AddCredit(_Frame, frozen=True):
    """Consumer to producer: so many more buffers are reserved for `receiver`.

    >>> AddCredit(receiver=5, attempt=AttemptId(1), credit=3).credit
    3
    """

    TYPE: ClassVar[int] = 0x11

    receiver: int
    attempt: AttemptId
    credit: int


class CancelRequest(_Frame, frozen=True):
    """Consumer to producer: `receiver` was released, or has read the end. Its last frame in this direction.

    >>> CancelRequest(receiver=5, attempt=AttemptId(1)).attempt
    1
    """

    TYPE: ClassVar[int] = 0x12

    receiver: int
    attempt: AttemptId

    def __post_init__(self) -> None:
        _check_u32(self.receiver, self.attempt)


class SendTaskEvent(_Frame, frozen=True):
    """Consumer to producer, against the stream: an event for the producing task of `receiver`.

    >>> SendTaskEvent(receiver=5, attempt=AttemptId(1), event=b"...").event
    b'...'
    """

    TYPE: ClassVar[int] = 0x13

    receiver: int
    attempt: AttemptId
    event: bytes

    def __post_init__(self) -> None:
        _check_u32(self.receiver, self.attempt)
        _check(len(self.event) <= MAX_TASK_EVENT_BYTES, f"a task event of {len(self.event)} bytes")


class Data(_Frame, frozen=True):
    """Producer to consumer: the head of a buffer or event; `size` bytes of payload follow it.

    >>> Data(receiver=5, sequence=0, backlog=3, size=32768).event
    False
    """

    TYPE: ClassVar[int] = 0x20

    receiver: int
    sequence: int  # counts the buffers and events of a channel, modulo 2**32
    backlog: int  # data buffers still waiting at the producer
    size: int
    skew: int = 0  # where the payload began in its buffer, modulo ALIGNMENT
    event: bool = False
    compressed: int = 0  # the number of the codec; 0: uncompressed
    last: bool = False  # nothing follows on this channel
    checksum: int | None = None  # CRC-32C of the payload, if checksums are on
    unpacked: int = 0  # of a compressed payload: its decompressed size


class AnnounceBacklog(_Frame, frozen=True):
    """Producer to consumer: so many buffers wait for credit.

    >>> AnnounceBacklog(receiver=5, backlog=12).backlog
    12
    """

    TYPE: ClassVar[int] = 0x21

    receiver: int
    backlog: int

    def __post_init__(self) -> None:
        _check_u32(self.receiver)
        _check(0 <= self.backlog <= MAX_BACKLOG, f"a backlog of {self.backlog}")


class ReportError(_Frame, frozen=True):
    """Both directions: a channel, or with `CONNECTION` the whole connection, has failed. A code and a short text.

    With `ends=False`, producer to consumer: a task event has no receiver; the channel continues.

    >>> ReportError(receiver=CONNECTION, code=4, text="unknown frame type 0x99").code
    4
    """

    TYPE: ClassVar[int] = 0x30

    receiver: int
    code: int
    text: str
    ends: bool = True

    def __post_init__(self) -> None:
        _check_u32(self.receiver)
        _check(0 <= self.code <= 0xFFFF, f"an error code of {self.code}")
        _check_text(self.text, MAX_ERROR_TEXT_BYTES, "an error text")
        _check(self.ends or self.receiver != CONNECTION, "an error of the connection after which it goes on")


class Close(_Frame, frozen=True):
    """Both directions: nothing more will be sent; the connection may be closed."""

    TYPE: ClassVar[int] = 0x31


class KeepAlive(_Frame, frozen=True):
    """Both directions: sent when there was nothing else to send for a while."""

    TYPE: ClassVar[int] = 0x32


Frame: TypeAlias = (
    RequestPartition
    | AddCredit
    | CancelRequest
    | SendTaskEvent
    | Data
    | AnnounceBacklog
    | ReportError
    | Close
    | KeepAlive
)
"""Any message of an established connection."""


def _check(holds: bool, what: str) -> None:
    """Raise unless a new frame is valid. The codec turns the error into a RemoteProtocolError if a peer sent it."""
    if not holds:
        raise LocalProtocolError(what)


def _check_u32(*numbers: int) -> None:
    _check(min(numbers) >= 0 and max(numbers) <= _U32, f"a number of {numbers} that is not a u32")


def _check_text(text: str, max_bytes: int, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{what} that is not text: {error}") from error
    _check(size <= max_bytes, f"{what} of {size} bytes; the limit is {max_bytes}")
