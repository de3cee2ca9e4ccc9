"""The content of a channel: stream elements, and events between them.

An element is one record on the wire (`spanning`): a tag byte and a body. Batches carry almost all data, because one
batch costs about as much to encode and to send as one single record; single records, watermarks, stream statuses and
latency markers are encoded in the same way. An event has a buffer of its own and uses no credit. Called by the record
writer (producer's task thread or flusher thread) and the record reader (consumer's task thread).

Invariant: any bytes decode to an element, or raise CorruptStream or SerializationError and nothing else.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import msgspec

from headgate.errors import CorruptStream, SerializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headgate.record.serializer import Buffer, Encoded, Serializer
    from headgate.record.spanning import RecordLimits

__all__ = [
    "MAX_TASK_EVENT_BYTES",
    "Batch",
    "CheckpointBarrier",
    "Element",
    "EndOfPartition",
    "EndOfSuperstep",
    "Event",
    "LatencyMarker",
    "Record",
    "StreamStatus",
    "UserEvent",
    "Watermark",
    "decode_element",
    "decode_event",
    "encode_aligned",
    "encode_batch",
    "encode_element",
    "encode_event",
    "event_name",
    "user_event",
]

T = TypeVar("T")
V = TypeVar("V")


class Record(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One value, with its event time in milliseconds if it has one.

    >>> Record("click", timestamp_ms=1000)
    Record(value='click', timestamp_ms=1000)
    """

    value: T
    timestamp_ms: int | None = None


class Batch(msgspec.Struct, Generic[T], frozen=True):
    """Several values of one channel, in order; if they have event times, one for each value.

    >>> Batch(["a", "b"])
    Batch(values=['a', 'b'], timestamps_ms=None)
    """

    values: list[T]
    timestamps_ms: list[int] | None = None


class Watermark(msgspec.Struct, frozen=True):
    """The promise that no record with an event time at or below `timestamp_ms` follows in the channel."""

    timestamp_ms: int


class StreamStatus(msgspec.Struct, frozen=True):
    """True while the channel counts in the consumer's watermark; an idle channel does not hold it back."""

    active: bool


class LatencyMarker(msgspec.Struct, frozen=True):
    """A time stamp, sent between records, by which the consumer measures their latency."""

    marked_ns: int
    operator: int
    subtask: int


Element: TypeAlias = Record[T] | Batch[T] | Watermark | StreamStatus | LatencyMarker
"""Everything that is written to the data of a channel."""

_RECORD: Final = 0x01
_RECORD_TIMED: Final = 0x02
_BATCH: Final = 0x03
_BATCH_TIMED: Final = 0x04
_ALIGNED: Final = 0x05  # one value of a serializer with an `alignment`: Arrow record batches
_WATERMARK: Final = 0x10
_STATUS: Final = 0x11
_LATENCY: Final = 0x12

_HEADER = struct.Struct("<IB")  # length of tag and body, tag
_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
_LATENCY_BODY = struct.Struct("<qqI")


def _framed(tag: int, body: Encoded, limits: RecordLimits) -> Encoded:
    size = 1 + sum(map(len, body))
    limits.check(size)
    return (_HEADER.pack(size, tag), *body)


def _packed(form: struct.Struct, *numbers: int) -> bytes:
    try:
        return form.pack(*numbers)
    except struct.error as error:
        raise SerializationError(f"a number of {numbers[:4]} does not fit: {error}") from error


def encode_batch(
    serializer: Serializer[T], values: Sequence[T], timestamps_ms: Sequence[int] | None, limits: RecordLimits
) -> Encoded:
    r"""Return a batch as the pieces of one record.

    >>> from headgate.record.serializer import StrSerializer
    >>> from headgate.record.spanning import RecordLimits
    >>> b"".join(encode_batch(StrSerializer(), ["to", "be"], None, RecordLimits()))
    b'\x08\x00\x00\x00\x03\x92\xa2to\xa2be'
    """
    body = serializer.encode_batch(values)
    if timestamps_ms is None:
        return _framed(_BATCH, body, limits)
    times = _packed(struct.Struct(f"<I{len(timestamps_ms)}q"), len(timestamps_ms), *timestamps_ms)
    return _framed(_BATCH_TIMED, (times, *body), limits)


def encode_aligned(body: Encoded, alignment: int, position: int, limits: RecordLimits) -> Encoded:
    """Return one value as the pieces of one record, padded so that its body is aligned in the buffer's memory.

    `position` is the offset in its buffer at which the record will begin.

    >>> from headgate.record.spanning import RecordLimits
    >>> pieces = encode_aligned((b"columns",), alignment=8, position=0, limits=RecordLimits())
    >>> b"".join(pieces).index(b"columns")
    8
    """
    pad = -(position + _HEADER.size + 1) % alignment
    size = 2 + pad + sum(map(len, body))
    limits.check(size)
    # The first piece is small: joining it costs less than one more piece to copy.
    return (b"".join((_HEADER.pack(size, _ALIGNED), bytes((pad,)), bytes(pad), body[0])), *body[1:])


def encode_element(element: Element[T], serializer: Serializer[T], limits: RecordLimits) -> Encoded:
    r"""Return any element as the pieces of one record.

    >>> from headgate.record.serializer import StrSerializer
    >>> from headgate.record.spanning import RecordLimits
    >>> b"".join(encode_element(Record("to"), StrSerializer(), RecordLimits()))
    b'\x03\x00\x00\x00\x01to'
    """
    match element:
        case Batch(values, timestamps_ms):
            return encode_batch(serializer, values, timestamps_ms, limits)
        case Record(value, None):
            return _framed(_RECORD, serializer.pieces(value), limits)
        case Record(value, int(timestamp_ms)):
            return _framed(_RECORD_TIMED, (_packed(_I64, timestamp_ms), *serializer.pieces(value)), limits)
        case Watermark(timestamp_ms):
            return _framed(_WATERMARK, (_packed(_I64, timestamp_ms),), limits)
        case StreamStatus(active):
            return _framed(_STATUS, (bytes((active,)),), limits)
        case LatencyMarker(marked_ns, operator, subtask):
            return _framed(_LATENCY, (_packed(_LATENCY_BODY, marked_ns, operator, subtask),), limits)
    raise SerializationError(f"{type(element).__name__} is not a stream element")


def decode_element(data: memoryview, serializer: Serializer[T], where: str) -> Element[T]:
    """Return the element in the bytes of one record; `where` names the channel in error texts.

    >>> from headgate.record.serializer import StrSerializer
    >>> from headgate.record.spanning import RecordLimits
    >>> record = b"".join(encode_element(Watermark(1000), StrSerializer(), RecordLimits()))
    >>> decode_element(memoryview(record)[4:], StrSerializer(), "channel 0")  # without its length
    Watermark(timestamp_ms=1000)
    """
    if not data:
        raise CorruptStream(f"{where}: a record without a tag")
    tag = data[0]
    try:
        match tag:
            case 0x03:
                return Batch(_decoded(serializer, serializer.decode_batch, data[1:]))
            case 0x04:
                (count,) = _U32.unpack_from(data, 1)
                times = list(struct.unpack_from(f"<{count}q", data, 5)) if count <= len(data) // 8 else []
                values = _decoded(serializer, serializer.decode_batch, data[5 + 8 * count :])
                if len(values) != count:
                    raise CorruptStream(f"{where}: {count} timestamps for {len(values)} values")
                return Batch(values, times)
            case 0x05:
                return Record(_decoded(serializer, serializer.decode, data[2 + data[1] :]))
            case 0x01:
                return Record(_decoded(serializer, serializer.decode, data[1:]))
            case 0x02:
                (timestamp_ms,) = _I64.unpack_from(data, 1)
                return Record(_decoded(serializer, serializer.decode, data[9:]), timestamp_ms)
            case _:
                return _decode_signal(tag, data, where)
    except (struct.error, IndexError, ValueError) as error:
        raise CorruptStream(f"{where}: an element with tag {tag:#04x} is cut short: {error}") from error


def _decoded(serializer: Serializer[T], decode: Callable[[memoryview], V], data: memoryview) -> V:
    """Decode by a serializer, which may be the user's: any exception becomes a SerializationError."""
    try:
        return decode(data)
    except SerializationError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise SerializationError(f"{serializer.name} cannot read these bytes: {why[:200]}") from error


def _decode_signal(tag: int, data: memoryview, where: str) -> Watermark | StreamStatus | LatencyMarker:
    body = data[1:]
    match tag:
        case 0x10:
            return Watermark(*_I64.unpack(body))
        case 0x11 if len(body) == 1 and body[0] <= 1:
            return StreamStatus(active=bool(body[0]))
        case 0x12:
            return LatencyMarker(*_LATENCY_BODY.unpack(body))
    raise CorruptStream(f"{where}: unknown tag {tag:#04x}")


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """A message in order with the data of a partition, in a buffer of its own; sent to all channels.

    >>> decode_event(encode_event(EndOfPartition()), "channel 0")
    EndOfPartition()
    """


class EndOfPartition(Event, frozen=True, tag="end-of-partition"):
    """The end of a partition: the producer has finished, and nothing follows."""


class EndOfSuperstep(Event, frozen=True, tag="end-of-superstep"):
    """The end of one round of an iteration."""


class CheckpointBarrier(Event, frozen=True, tag="checkpoint-barrier"):
    """The boundary in a channel between the records of one checkpoint and those of the next."""

    checkpoint: int
    timestamp_ms: int


class UserEvent(Event, frozen=True, tag="user"):
    """An event that the user's code defines and names."""

    name: str
    payload: bytes = b""


def event_name(event: Event) -> str:
    """Return the name by which an event is dispatched: the user's name, or the kind of a headgate event."""
    return event.name if isinstance(event, UserEvent) else str(type(event).__struct_config__.tag)


MAX_TASK_EVENT_BYTES = 4096
"""The largest event, in bytes, that a consumer may send back to its producer. User events have the same limit."""

_AnyEvent = EndOfPartition | EndOfSuperstep | CheckpointBarrier | UserEvent
_event_encoder = msgspec.msgpack.Encoder()
_event_decoder = msgspec.msgpack.Decoder(_AnyEvent)


def encode_event(event: Event) -> bytes:
    r"""Return the bytes of an event.

    >>> encode_event(EndOfPartition())
    b'\x81\xa5event\xb0end-of-partition'
    """
    return _event_encoder.encode(event)


def user_event(name: object, payload: object = b"") -> UserEvent:
    """Return a user event, which is sent with the data or, as a task event, from a consumer to its producer.

    Raises:
        TypeError: `name` is not a string, or `payload` not bytes.
        ValueError: The name is empty or the name of a headgate event, or the event has more than 4,096 bytes.

    >>> user_event("reload", b"rules-v2")
    UserEvent(name='reload', payload=b'rules-v2')
    """
    if not isinstance(name, str) or not isinstance(payload, bytes):
        raise TypeError(f"an event has a name (str) and a payload (bytes), not {name!r:.100} and {payload!r:.100}")
    if not name or name in _OWN_NAMES:
        raise ValueError(f"an event cannot be called {name!r}: the name is empty, or one of headgate's own events")
    event = UserEvent(name, payload)
    size = len(encode_event(event))
    if size > MAX_TASK_EVENT_BYTES:
        raise ValueError(
            f"event {name!r:.100} has {size} bytes; the limit is {MAX_TASK_EVENT_BYTES}: send large data as records"
        )
    return event


_OWN_NAMES = frozenset(event_name(one) for one in (EndOfPartition(), EndOfSuperstep(), CheckpointBarrier(0, 0)))


def decode_event(data: Buffer, where: str) -> Event:
    """Return the event in these bytes; `where` names the channel in error texts.

    >>> decode_event(encode_event(UserEvent("reload")), "channel 0")
    UserEvent(name='reload', payload=b'')
    """
    try:
        event: Event = _event_decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptStream(f"{where}: not an event: {error}") from error
    return event
