"""The record reader: elements out of buffers, and channels that end, break or are closed in the middle."""

import tracemalloc

import pytest
from tests.support.exchange import Exchange
from tests.support.leaks import unnamed_files
from tests.support.threads import Thread

from headgate.buffer import Buffer, BufferReader
from headgate.errors import Cancelled, CorruptStream, SpillError
from headgate.ids import SubpartitionIndex
from headgate.input import InputGate, LocalSource, RecordReader
from headgate.output import Rescale
from headgate.record import (
    Batch,
    BytesSerializer,
    EndOfPartition,
    Record,
    RecordLimits,
    UserEvent,
    Watermark,
)
from headgate.record.element import encode_element


def put(exchange, data, *, channel=0):
    """Raw bytes into a channel, as a writer would."""
    buffer = exchange.partition.next_buffer(channel, None, mid_record=False)
    while data:
        data = data[buffer.append(data) :]
        if data:
            buffer = exchange.partition.next_buffer(channel, buffer, mid_record=True)
    exchange.partition.end_buffer(channel, buffer)


def written(element):
    return b"".join(encode_element(element, BytesSerializer(), RecordLimits()))


@pytest.mark.spec("R2", "R3")
def test_single_records_are_read_too():
    with Exchange() as exchange:
        put(exchange, written(Record(b"a")) + written(Record(b"b", 5)) + written(Watermark(7)))
        assert [exchange.reader.poll() for _ in range(4)] == [Record(b"a"), Record(b"b", 5), Watermark(7), None]
        assert exchange.reader.statistics().records_in == 2


@pytest.mark.spec("R2")
@pytest.mark.parametrize("cut", range(1, 12))
def test_a_partition_that_ends_in_the_middle_of_a_record_is_corrupt(cut):
    data = written(Record(b"a" * 7))
    assert len(data) == 12
    with Exchange() as exchange:
        put(exchange, written(Record(b"whole")) + data[:cut])
        exchange.partition.finish()
        assert exchange.reader.poll() == Record(b"whole")
        with pytest.raises(CorruptStream, match="gate gate-0, channel 0: the partition ends in the middle of a record"):
            exchange.reader.poll()


@pytest.mark.spec("R2")
def test_an_event_between_the_parts_of_a_record_is_harmless():
    """Only a writer that was closed and one of another kind could do so; the reader keeps its place."""
    data = written(Record(b"hello"))
    with Exchange() as exchange:
        put(exchange, data[:6])
        exchange.partition.add_event(UserEvent("e"))
        put(exchange, data[6:])
        assert [exchange.reader.poll() for _ in range(3)] == [UserEvent("e"), Record(b"hello"), None]


@pytest.mark.spec("R3")
@pytest.mark.parametrize("bad", [b"\x02\0\0\0\x77x", b"\0\0\0\0", b"\x03\0\0\0\x10ab"], ids=["tag", "empty", "short"])
def test_a_bad_element_is_corrupt_and_names_gate_and_channel(bad):
    with Exchange(Rescale(), channels=2) as exchange:
        put(exchange, bad, channel=1)
        with pytest.raises(CorruptStream, match="gate gate-1, channel 0"):
            exchange.readers[1].poll()


@pytest.mark.spec("R3")
def test_a_bad_event_is_corrupt():
    with Exchange() as exchange:
        with exchange.sync.lock:
            exchange.partition.subpartitions[0].add_locked(BufferReader(Buffer.event(b"\xc1")))
        with pytest.raises(CorruptStream, match="gate gate-0, channel 0: not an event"):
            exchange.reader.poll()


@pytest.mark.spec("R2")
def test_a_claimed_length_over_the_limit_is_corrupt():
    with Exchange(limits=RecordLimits(max_size_bytes=1000)) as exchange:
        put(exchange, b"\xff\xff\xff\xffx")
        with pytest.raises(CorruptStream, match=r"gate gate-0, channel 0.*4294967295"):
            exchange.reader.poll()


@pytest.mark.spec("R2")
def test_a_gate_s_channels_do_not_mix():
    """Records of two channels arrive in pieces, alternately."""
    with Exchange(Rescale(), channels=2, connect=False, segment_size=16) as exchange:
        gate = InputGate("both", 2, sync=exchange.sync, clock=exchange.clock)
        for i in range(2):
            gate.connect(i, LocalSource(exchange.registry, exchange.partition.id, SubpartitionIndex(i)))
        reader = RecordReader(gate, BytesSerializer())
        exchange.writer.emit_batch([b"a" * 50, b"b" * 50])
        exchange.writer.finish()
        got = [(reader.channel, element) for element in reader]
        assert sorted(got, key=lambda one: one[0]) == [
            (0, Batch([b"a" * 50])),
            (0, EndOfPartition()),
            (1, Batch([b"b" * 50])),
            (1, EndOfPartition()),
        ]
        assert reader.finished
        reader.close()


@pytest.mark.spec("G7", "M9")
def test_closing_in_the_middle_of_a_buffer_gives_everything_back():
    with Exchange(segment_size=1024) as exchange:
        put(exchange, written(Record(b"a")) * 10)
        put(exchange, written(Record(b"b")) * 10)
        assert exchange.reader.poll() == Record(b"a")
        assert not exchange.reader.finished
        exchange.reader.close()
        exchange.reader.close()
        assert exchange.used == 0
        with pytest.raises(Cancelled):
            exchange.reader.poll()
        with pytest.raises(Cancelled):
            exchange.writer.finish()


@pytest.mark.spec("G7", "R2", "M9")
@pytest.mark.parametrize("threshold", [10, 1 << 20])
def test_closing_in_the_middle_of_a_record_gives_everything_back(threshold, tmp_path):
    before = unnamed_files()
    limits = RecordLimits(spill_threshold_bytes=threshold, spill_directory=str(tmp_path))
    with Exchange(limits=limits) as exchange:
        put(exchange, written(Record(bytes(200)))[:-1])
        assert exchange.reader.poll() is None
        assert len(unnamed_files() - before) == (threshold < 200)
        exchange.reader.close()
        assert not unnamed_files() - before
        assert list(tmp_path.iterdir()) == []
        assert exchange.used == 0


@pytest.mark.spec("R2", "R4")
def test_the_file_of_a_large_record_is_gone_once_its_value_is_made(tmp_path):
    """Not only when the channel's next record comes: that may never come."""
    before = unnamed_files()
    limits = RecordLimits(spill_threshold_bytes=100, spill_directory=str(tmp_path))
    with Exchange(limits=limits) as exchange:
        put(exchange, written(Record(bytes(range(250)))))
        assert exchange.reader.poll() == Record(bytes(range(250)))
        assert not unnamed_files() - before


@pytest.mark.spec("R4")
def test_nothing_of_a_large_record_is_kept_once_its_value_is_made():
    with Exchange(segment_size=32768, segments=200) as exchange:
        put(exchange, written(Record(bytes(4 << 20))))
        tracemalloc.start()
        try:
            assert len(exchange.reader.poll().value) == 4 << 20
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 1 << 20


@pytest.mark.spec("R2", "M9")
def test_a_spill_error_leaves_nothing_behind(tmp_path):
    limits = RecordLimits(spill_threshold_bytes=100, spill_directory=str(tmp_path / "missing"))
    with Exchange(limits=limits) as exchange:
        put(exchange, written(Record(bytes(200))))
        with pytest.raises(SpillError, match="missing"):
            exchange.reader.poll()
        exchange.reader.close()
        assert exchange.used == 0


@pytest.mark.spec("T2", "G1")
def test_iterating_sleeps_until_the_end():
    with Exchange(segment_size=16, segments=4, required=2, maximum=2) as exchange:
        records = [bytes([i]) * i for i in range(100)]

        def write():
            for record in records:
                exchange.writer.emit(record)
            exchange.writer.finish()

        writer = Thread(write)
        got = [value for element in exchange.reader if isinstance(element, Batch) for value in element.values]
        writer.end()
        assert got == records
        assert exchange.reader.finished
        assert exchange.reader.statistics().records_in == 100


@pytest.mark.spec("G1")
def test_reading_with_a_time_limit():
    with Exchange() as exchange:
        assert exchange.reader.read(timeout_s=0) is None
        exchange.writer.emit(b"a")
        exchange.writer.flush()
        assert exchange.reader.read(timeout_s=0) == Batch([b"a"])
