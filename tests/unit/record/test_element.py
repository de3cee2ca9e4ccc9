"""Stream elements and events: every kind comes back, anything else is a corrupt stream."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import CorruptStream, RecordTooLarge, SerializationError
from headgate.record import (
    Batch,
    BytesSerializer,
    CheckpointBarrier,
    EndOfPartition,
    EndOfSuperstep,
    LatencyMarker,
    MsgpackSerializer,
    Record,
    RecordLimits,
    Serializer,
    StreamStatus,
    StrSerializer,
    StructSerializer,
    UserEvent,
    Watermark,
)
from headgate.record.arrow import ArrowSerializer
from headgate.record.element import (
    decode_element,
    decode_event,
    encode_aligned,
    encode_batch,
    encode_element,
    encode_event,
    event_name,
)
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer

pytestmark = pytest.mark.spec("R3")

LIMITS = RecordLimits()
I64 = st.integers(-(2**63), 2**63 - 1)
WHERE = "gate words, channel 3"


def body_of(pieces):
    """A record without its length, which must be right."""
    data = b"".join(pieces)
    assert int.from_bytes(data[:4], "little") == len(data) - 4
    return memoryview(data)[4:]


def round_trip(element, serializer):
    return decode_element(body_of(encode_element(element, serializer, LIMITS)), serializer, WHERE)


ELEMENTS = [
    Record("click"),
    Record(""),
    Record("click", timestamp_ms=0),
    Record("click", timestamp_ms=-(2**63)),
    Batch(["a", "", "größer"]),
    Batch([]),
    Batch(["a", "b"], [2**63 - 1, -1]),
    Batch([], []),
    Watermark(1_700_000_000_000),
    Watermark(-(2**63)),
    Watermark(2**63 - 1),
    StreamStatus(active=True),
    StreamStatus(active=False),
    LatencyMarker(marked_ns=2**62, operator=-1, subtask=2**32 - 1),
]


@pytest.mark.parametrize("element", ELEMENTS, ids=repr)
def test_every_element_comes_back(element):
    got = round_trip(element, StrSerializer())
    assert got == element
    assert type(got) is type(element)


@given(st.lists(st.tuples(st.binary(max_size=20), I64), max_size=10), st.booleans())
def test_any_batch_comes_back(pairs, timed):
    batch = Batch([value for value, _ in pairs], [time for _, time in pairs] if timed else None)
    assert round_trip(batch, BytesSerializer()) == batch


@given(I64, I64, st.integers(0, 2**32 - 1))
def test_any_signal_comes_back(first, second, small):
    for signal in (Watermark(first), LatencyMarker(first, second, small)):
        assert round_trip(signal, BytesSerializer()) == signal


@pytest.mark.parametrize("position", [0, 1, 57, 58, 59, 63, 64, 1000])
@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_an_aligned_value_begins_at_a_multiple(position, alignment):
    pieces = encode_aligned((b"head", b"message"), alignment, position, LIMITS)
    data = b"".join(pieces)
    assert (position + data.index(b"headmessage")) % alignment == 0
    assert len(data) < 4 + 2 + alignment + 11
    assert decode_element(body_of(pieces), BytesSerializer(), WHERE) == Record(b"headmessage")


def test_an_arrow_batch_comes_back_aligned():
    batch = pa.record_batch({"n": [1, 2, 3]})
    pieces = encode_aligned(ArrowSerializer().pieces(batch), 64, 10, LIMITS)
    assert decode_element(body_of(pieces), ArrowSerializer(), WHERE).value.equals(batch)


def test_an_unknown_tag_is_named_with_its_channel():
    for tag in set(range(256)) - {1, 2, 3, 4, 5, 0x10, 0x11, 0x12}:
        with pytest.raises(CorruptStream, match=f"gate words, channel 3.*{tag:#04x}"):
            decode_element(memoryview(bytes([tag]) + bytes(20)), BytesSerializer(), WHERE)


def test_a_record_without_a_tag_is_corrupt():
    with pytest.raises(CorruptStream, match="gate words, channel 3"):
        decode_element(memoryview(b""), BytesSerializer(), WHERE)


@pytest.mark.parametrize("status", [2, 255])
def test_a_status_is_active_or_idle(status):
    with pytest.raises(CorruptStream, match="channel 3"):
        decode_element(memoryview(bytes([0x11, status])), BytesSerializer(), WHERE)


SERIALIZERS = [
    BytesSerializer(),
    StrSerializer(),
    MsgpackSerializer(),
    MsgpackSerializer(tuple[str, int]),
    StructSerializer("<qd"),
    PickleSerializer(AuthenticatedPeer.this_process()),
]
TRUNCATED = [
    Batch(["a", "b"], [1, 2]),
    Batch(["ab", "cd"]),
    Watermark(5),
    StreamStatus(active=True),
    LatencyMarker(1, 2, 3),
]


@pytest.mark.parametrize("element", TRUNCATED, ids=repr)
def test_a_truncated_element_is_an_error_at_every_length(element):
    data = body_of(encode_element(element, StrSerializer(), LIMITS))
    for length in range(len(data)):
        with pytest.raises((CorruptStream, SerializationError)):
            decode_element(data[:length], StrSerializer(), WHERE)


@pytest.mark.parametrize("element", [Watermark(5), StreamStatus(active=True), LatencyMarker(1, 2, 3)], ids=repr)
def test_bytes_too_many_are_an_error(element):
    data = bytes(body_of(encode_element(element, StrSerializer(), LIMITS)))
    with pytest.raises(CorruptStream, match="channel 3"):
        decode_element(memoryview(data + b"\0"), StrSerializer(), WHERE)


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_timestamps_and_values_are_equally_many(count):
    data = bytearray(body_of(encode_element(Batch(["a", "b"], [1, 2]), StrSerializer(), LIMITS)))
    data[1:5] = count.to_bytes(4, "little")
    with pytest.raises((CorruptStream, SerializationError)):
        decode_element(memoryview(data), StrSerializer(), WHERE)


@pytest.mark.parametrize("serializer", [*SERIALIZERS[:5], ArrowSerializer()], ids=lambda one: one.name)
@given(tag=st.sampled_from([0, 1, 2, 3, 4, 5, 0x10, 0x11, 0x12, 0xFF]), body=st.binary(max_size=60))
def test_any_bytes_are_an_element_or_one_of_two_errors(serializer, tag, body):
    with contextlib.suppress(CorruptStream, SerializationError):
        decode_element(memoryview(bytes([tag]) + body), serializer, WHERE)


class Picky(Serializer[str]):
    """A user's own, whose decoding raises what Python raises."""

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        return {b"yes": "yes"}[bytes(data)]  # KeyError


@pytest.mark.parametrize("tag", [1, 2, 3, 5])
def test_an_error_of_a_users_serializer_is_a_serialization_error(tag):
    heads = {1: b"", 2: bytes(8), 3: b"\x01\0\0\0\x02\0\0\0", 5: b"\0"}
    with pytest.raises(SerializationError, match="Picky"):
        decode_element(memoryview(bytes([tag]) + heads[tag] + b"no"), Picky(), WHERE)


@pytest.mark.parametrize(
    "element",
    [Watermark(2**63), LatencyMarker(2**63, 0, 0), LatencyMarker(0, 0, -1), Batch(["a"], [2**63]), Record("a", 2**63)],
    ids=repr,
)
def test_a_number_that_does_not_fit_is_a_serialization_error(element):
    with pytest.raises(SerializationError):
        encode_element(element, StrSerializer(), LIMITS)


def test_only_elements_are_written():
    with pytest.raises(SerializationError, match="EndOfPartition is not a stream element"):
        encode_element(EndOfPartition(), StrSerializer(), LIMITS)


def test_an_element_over_the_limit_is_refused():
    limits = RecordLimits(max_size_bytes=10)
    encode_batch(BytesSerializer(), [b"123456"], None, limits)
    with pytest.raises(RecordTooLarge):
        encode_batch(BytesSerializer(), [b"1234567"], None, limits)


# Events.

EVENTS = [
    EndOfPartition(),
    EndOfSuperstep(),
    CheckpointBarrier(checkpoint=2**40, timestamp_ms=-5),
    UserEvent("reload", b"rules-v2"),
    UserEvent("", b""),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_every_event_comes_back(event):
    got = decode_event(encode_event(event), WHERE)
    assert got == event
    assert type(got) is type(event)


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_a_truncated_event_is_corrupt(event):
    data = encode_event(event)
    for length in range(len(data)):
        with pytest.raises(CorruptStream, match="gate words, channel 3"):
            decode_event(data[:length], WHERE)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_corrupt(data):
    with contextlib.suppress(CorruptStream):
        decode_event(data, WHERE)


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\xa5event\xa7unknown",
        b"\x83\xa5event\xa4user\xa4name\xa1\xff\xa7payload\xc4\x00",  # not UTF-8
        b"\x82\xa5event\xafend-of-superste\xff\xa4name\xa1x",
        b"\x82\xa5event\xb0end-of-partition\xa1x" + b"\x91" * 100_000 + b"\xc0",  # deeper than the interpreter goes
    ],
    ids=["unknown", "not text", "tag not text", "deep"],
)
def test_hostile_events_are_corrupt_or_harmless(data):
    with contextlib.suppress(CorruptStream):
        decode_event(data, WHERE)


@pytest.mark.spec("K4")
@pytest.mark.parametrize(
    ("event", "name"),
    [
        (EndOfPartition(), "end-of-partition"),
        (EndOfSuperstep(), "end-of-superstep"),
        (CheckpointBarrier(1, 0), "checkpoint-barrier"),
        (UserEvent("reload", b"rules-v2"), "reload"),
        (UserEvent(""), ""),
    ],
    ids=repr,
)
def test_an_event_has_a_name_to_be_dispatched_by(event, name):
    assert event_name(event) == name
    assert event_name(decode_event(encode_event(event), WHERE)) == name, "the same at both ends"
