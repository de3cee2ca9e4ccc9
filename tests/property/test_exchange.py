"""Any records, serializer, segment size, pool size and selector: each channel gives back exactly what went in."""

import dataclasses
import math
import os
import random
import struct

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.exchange import Exchange, values_of
from tests.support.leaks import unnamed_files
from tests.support.syncs import HookedSync
from tests.support.threads import Thread

from headgate.output import Broadcast, Custom, Forward, Global, Hash, Rebalance, Rescale, Shuffle
from headgate.output.columns import ColumnWriter, HashColumns
from headgate.output.writer import RecordWriter
from headgate.record import (
    BytesSerializer,
    CheckpointBarrier,
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
    stable_hash,
)
from headgate.record.arrow import ArrowSerializer
from headgate.record.peer import AuthenticatedPeer
from headgate.record.pickled import PickleSerializer

EXAMPLES = settings(
    deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...]


class Reversed(Serializer[bytes]):
    """A user's own."""

    def encode(self, value):
        return value[::-1]

    def decode(self, data):
        return bytes(data)[::-1]


def table(rows):
    return pa.record_batch(
        {"n": pa.array([n for n, _ in rows], pa.int64()), "s": pa.array([s for _, s in rows], pa.string())}
    )


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
small = st.binary(max_size=30)
blobs = small | st.builds(lambda n, b: bytes([b]) * n, st.integers(0, 3000), st.integers(0, 255))
i64 = st.integers(-(2**63), 2**63 - 1)
plain = st.recursive(
    st.none() | st.booleans() | i64 | st.floats(allow_nan=False) | text | small,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
rows = st.lists(st.tuples(i64, text), max_size=20)

KINDS = {
    "str": (StrSerializer, text | st.integers(0, 3000).map("x".__mul__)),
    "bytes": (BytesSerializer, blobs),
    "msgpack": (MsgpackSerializer, plain),
    "msgpack typed": (lambda: MsgpackSerializer(tuple[str, int]), st.tuples(text, i64)),
    "msgpack dataclass": (
        lambda: MsgpackSerializer(Point),
        st.builds(Point, i64, st.lists(text, max_size=3).map(tuple)),
    ),
    "struct": (lambda: StructSerializer("<qd"), st.tuples(i64, st.floats(allow_nan=False))),
    "pickle": (
        lambda: PickleSerializer(AuthenticatedPeer.this_process()),
        plain | st.sets(i64) | st.complex_numbers(allow_nan=False),
    ),
    "user-defined": (Reversed, blobs),
    "arrow": (ArrowSerializer, rows.map(table)),
}


def number_of(value):
    return stable_hash(repr(value))


SELECTORS = {
    "forward": lambda seed: Forward(),
    "global": lambda seed: Global(),
    "rescale": lambda seed: Rescale(),
    "rebalance": lambda seed: Rebalance(random.Random(seed).randrange),
    "shuffle": lambda seed: Shuffle(random.Random(seed).randrange),
    "hash": lambda seed: Hash(repr),
    "custom": lambda seed: Custom(lambda value, channels: number_of(value) % channels, name="custom"),
    "broadcast": lambda seed: Broadcast(),
    "hash columns": lambda seed: HashColumns(["n", "s"]),
}

signals = st.one_of(
    st.builds(Watermark, i64),
    st.builds(StreamStatus, st.booleans()),
    st.builds(LatencyMarker, i64, i64, st.integers(0, 2**32 - 1)),
    st.builds(CheckpointBarrier, i64, i64),
    st.just(EndOfSuperstep()),
    st.builds(UserEvent, text, small),
)


@dataclasses.dataclass
class Case:
    """What is written, through what."""

    serializer: object
    selector: str
    actions: list
    channels: int
    segment_size: int
    segments: int
    seed: int
    timed: bool

    def expected(self, below):
        """What each channel must give, by asking the selector record by record."""
        selector = SELECTORS[self.selector](self.seed)
        selector.connect(self.channels)
        channels = [[] for _ in range(self.channels)]
        for kind, payload in self.actions:
            match kind:
                case "record" | "at" | "batch":
                    for value, time in payload:
                        given_value = value if kind == "record" or time is None else Record(value, time)
                        for channel, part in self.parts(selector, value, given_value):
                            channels[channel].append(part)
                case "element" if isinstance(payload, LatencyMarker):
                    channels[below(self.channels)].append(payload)
                case "element" | "event":
                    for channel in channels:
                        channel.append(payload)
        return channels

    def parts(self, selector, value, given_value):
        if isinstance(selector, HashColumns):
            return selector.scatter(value)
        if selector.broadcast:
            return [(channel, given_value) for channel in range(self.channels)]
        return [(selector.choose(value), given_value)]


@st.composite
def cases(draw, *, with_signals):
    name = draw(st.sampled_from(sorted(KINDS)))
    make, values = KINDS[name]
    usable = [one for one in SELECTORS if (one != "hash columns" or name == "arrow")]
    selector = draw(st.sampled_from(usable))
    channels = 1 if selector == "forward" else draw(st.integers(1, 4))
    timed = name != "arrow" and draw(st.booleans())
    record = values.map(lambda value: ("record", [(value, None)]))
    batch = st.lists(values, max_size=20).map(lambda many: ("batch", [(value, None) for value in many]))
    kinds = [record, batch]
    if timed:
        kinds.append(st.tuples(values, i64).map(lambda pair: ("at", [pair])))
        kinds.append(st.lists(st.tuples(values, i64), max_size=10).map(lambda many: ("batch", many)))
    if with_signals:
        kinds.append(
            signals.map(
                lambda one: (
                    "event" if isinstance(one, CheckpointBarrier | EndOfSuperstep | UserEvent) else "element",
                    one,
                )
            )
        )
    kinds.append(st.sampled_from([("flush", None), ("tick", None)]))
    actions = draw(st.lists(st.one_of(kinds), max_size=25))
    segment_size = draw(st.sampled_from([16, 17, 24, 32, 61, 64, 100, 256, 1024, 4096]) | st.integers(16, 4096))
    segments = channels + 1 + draw(st.sampled_from([0, 0, 1, 3, 20]))
    return Case(make(), selector, actions, channels, segment_size, segments, draw(st.integers(0, 2**32)), timed)


def perform(writer, action):
    kind, payload = action
    match kind:
        case "record":
            writer.emit(payload[0][0])
        case "at":
            writer.emit_at(*payload[0])
        case "batch":
            times = [time for _, time in payload]
            writer.emit_batch([value for value, _ in payload], times if payload and times[0] is not None else None)
        case "element":
            writer.emit_element(payload)
        case "event":
            writer.emit_event(payload)
        case "flush":
            writer.flush()
        case "tick":
            writer.tick()


def same(one, other):
    if isinstance(one, pa.RecordBatch):
        return isinstance(other, pa.RecordBatch) and one.equals(other)
    if isinstance(one, float):
        return type(other) is float and (struct.pack("<d", one) == struct.pack("<d", other) or math.isnan(one))
    return type(one) is type(other) and one == other


def check(got, expected):
    assert [len(channel) for channel in got] == [len(channel) for channel in expected]
    for channel, wanted in zip(got, expected, strict=True):
        for one, other in zip(channel, wanted, strict=True):
            assert same(one, other), f"{one!r} is not {other!r}"


def run(case, buffer_timeout="-1"):
    """Write everything on this thread; whenever the writer would sleep for memory, the readers read."""
    got = [[] for _ in range(case.channels)]

    def drain(_=None):
        for channel in range(case.channels):
            got[channel] += exchange.take(channel)

    sync = HookedSync(drain)
    exchange = Exchange(
        SELECTORS[case.selector](case.seed),
        case.serializer,
        channels=case.channels,
        segment_size=case.segment_size,
        segments=case.segments,
        overdraft=case.seed % 3,
        max_per_channel=None if case.seed % 2 else 2,
        sync=sync,
        below=random.Random(case.seed).randrange,
        writer=ColumnWriter if isinstance(case.serializer, ArrowSerializer) else RecordWriter,
        buffer_timeout=buffer_timeout,
    )
    with exchange:
        for i, action in enumerate(case.actions):
            perform(exchange.writer, action)
            if i % 3 == case.seed % 3:
                drain()
        exchange.writer.finish()
        drain()
        assert all(reader.finished for reader in exchange.readers)
        expected = case.expected(random.Random(case.seed).randrange)
        check(got, expected)
        got.clear()
        assert exchange.used == 0, "all segments are back"


@pytest.mark.spec("T5", "M9", "R1", "R2", "W1", "W3")
@EXAMPLES
@given(cases(with_signals=False), st.sampled_from(["-1", "auto", "0"]))
def test_records_come_out_as_they_went_in(case, timeout):
    run(case, timeout)


@pytest.mark.spec("T5", "R3", "W5", "M9")
@EXAMPLES
@given(cases(with_signals=True), st.sampled_from(["-1", "auto", "0"]))
def test_elements_and_events_keep_their_place_among_records(case, timeout):
    run(case, timeout)


@pytest.mark.spec("T5", "T2", "M9")
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases(with_signals=True))
def test_readers_in_threads_of_their_own(case):
    exchange = Exchange(
        SELECTORS[case.selector](case.seed),
        case.serializer,
        channels=case.channels,
        segment_size=case.segment_size,
        segments=case.segments,
        below=random.Random(case.seed).randrange,
        writer=ColumnWriter if isinstance(case.serializer, ArrowSerializer) else RecordWriter,
    )
    with exchange:
        threads = [Thread(lambda reader=reader: values_of(reader)) for reader in exchange.readers]
        for action in case.actions:
            perform(exchange.writer, action)
        exchange.writer.finish()
        got = [thread.end() for thread in threads]
        for thread in threads:
            thread.result = None
        check(got, case.expected(random.Random(case.seed).randrange))
        got.clear()
        assert exchange.used == 0


# Large records.


def travel(records, *, segment_size, segments, limits=None):
    """The same records through one channel, the reader on this thread whenever the writer would sleep."""
    got = []
    sync = HookedSync(lambda _: got.extend(exchange.take()))
    with Exchange(sync=sync, segment_size=segment_size, segments=segments, limits=limits) as exchange:
        for record in records:
            exchange.writer.emit(record)
            exchange.writer.flush()
            got.extend(exchange.take())
        exchange.writer.finish()
        got.extend(exchange.take())
        assert exchange.reader.finished
        assert exchange.used == 0
    return got


@pytest.mark.spec("R1", "R2", "T5")
@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 12, 16, 100, 1000, 100_000])
@pytest.mark.parametrize("segment_size", [16, 100])
def test_records_of_any_size_cross_small_buffers(size, segment_size):
    records = [os.urandom(size), b"", os.urandom(size), b"x"]
    assert travel(records, segment_size=segment_size, segments=3) == records


@pytest.mark.spec("R2", "R4", "T5")
def test_very_large_records_are_gathered_in_a_file(tmp_path):
    before = unnamed_files()
    limits = RecordLimits(spill_threshold_bytes=5 << 20, spill_directory=str(tmp_path))
    records = [os.urandom(64 << 20), b"small", os.urandom((5 << 20) + 1)]
    got = travel(records, segment_size=32768, segments=4, limits=limits)
    assert [len(one) for one in got] == [len(one) for one in records]
    assert got == records
    assert list(tmp_path.iterdir()) == []
    assert unnamed_files() <= before


@pytest.mark.soak
@pytest.mark.spec("R1", "R2", "R4")
def test_a_record_of_a_gibibyte(tmp_path):
    limits = RecordLimits(max_size_bytes=(1 << 30) + 64, spill_directory=str(tmp_path))
    record = os.urandom(1 << 20) * 1024
    (got,) = travel([record], segment_size=32768, segments=4, limits=limits)
    assert got == record
