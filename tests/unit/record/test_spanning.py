"""Records across buffers: the three results each way, cuts everywhere, limits, and the file of a large record."""

import errno
import os
import tempfile
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.leaks import unnamed_files

from headgate.buffer import Buffer
from headgate.errors import CorruptStream, LocalProtocolError, RecordTooLarge, SpillError
from headgate.record.spanning import LENGTH, Read, RecordLimits, SpanningReader, SpanningWriter, Written

SMALL = RecordLimits(max_size_bytes=1 << 20, spill_threshold_bytes=64)


def framed(*records):
    return b"".join(LENGTH.pack(len(one)) + one for one in records)


def buffer(size):
    return Buffer(memoryview(bytearray(size)))


def read_all(reader, pieces):
    """Every record in these buffers, and what `next` said each time."""
    records, said = [], []
    for piece in pieces:
        reader.feed(memoryview(piece))
        while True:
            said.append(reader.next())
            if said[-1] is not Read.INCOMPLETE:
                records.append(bytes(reader.record))
            if said[-1] is not Read.RECORD_MORE:
                break
    return records, said


@pytest.fixture
def spill_files():
    """Files without a name that this process has opened since the test began."""
    before = unnamed_files()
    return lambda: unnamed_files() - before


@pytest.fixture
def spilling(tmp_path):
    return RecordLimits(spill_threshold_bytes=64, spill_directory=str(tmp_path))


# Writing.


@pytest.mark.spec("R1")
def test_copy_to_returns_one_of_three_results():
    writer = SpanningWriter()
    writer.begin((LENGTH.pack(5), b"hello"))
    assert not writer.begun
    first, second = buffer(6), buffer(6)
    assert writer.copy_to(first) is Written.BUFFER_FULL
    assert writer.begun
    assert writer.unfinished
    assert writer.copy_to(second) is Written.RECORD_DONE
    assert not writer.unfinished
    writer.begin((b"abc",))
    assert writer.copy_to(second) is Written.RECORD_DONE_BUFFER_FULL
    assert bytes(first.memory) == b"\x05\x00\x00\x00he"
    assert bytes(second.memory) == b"lloabc"


@pytest.mark.spec("R1")
def test_a_full_buffer_takes_nothing_and_loses_nothing():
    writer, full, empty = SpanningWriter(), buffer(2), buffer(8)
    full.append(b"xx")
    writer.begin((b"ab",))
    assert writer.copy_to(full) is Written.BUFFER_FULL
    assert not writer.begun
    assert writer.copy_to(empty) is Written.RECORD_DONE
    assert bytes(empty.memory[:2]) == b"ab"


@pytest.mark.spec("R1")
def test_empty_pieces_and_empty_records_are_written():
    writer, target = SpanningWriter(), buffer(8)
    writer.begin((LENGTH.pack(0), b""))
    assert writer.copy_to(target) is Written.RECORD_DONE
    writer.begin((b"", LENGTH.pack(0), b"", b""))
    assert writer.copy_to(target) is Written.RECORD_DONE_BUFFER_FULL
    assert bytes(target.memory) == bytes(8)


@pytest.mark.spec("R1")
def test_one_record_after_the_other():
    writer = SpanningWriter()
    writer.begin((b"abc",))
    with pytest.raises(LocalProtocolError, match="unfinished"):
        writer.begin((b"d",))


@pytest.mark.spec("R4")
def test_the_writer_keeps_nothing_of_a_large_record():
    tracemalloc.start()
    try:
        writer, target = SpanningWriter(), buffer(1 << 20)
        before, _ = tracemalloc.get_traced_memory()
        writer.begin((bytes(1 << 20),))
        assert writer.copy_to(target) is Written.RECORD_DONE_BUFFER_FULL
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 18


# Reading.


@pytest.mark.spec("R2")
def test_read_returns_one_of_three_results():
    data = framed(b"hello", b"world")
    records, said = read_all(SpanningReader(SMALL, "channel 0"), [data[:6], data[6:11], data[11:]])
    assert records == [b"hello", b"world"]
    assert said == [Read.INCOMPLETE, Read.RECORD_MORE, Read.INCOMPLETE, Read.RECORD_LAST]


@pytest.mark.spec("R2")
@pytest.mark.parametrize("cut", range(1, 31))
def test_two_records_cut_at_every_byte(cut):
    data = framed(b"first record", b"", b"second")
    assert len(data) == 30
    reader = SpanningReader(SMALL, "channel 0")
    records, _ = read_all(reader, [data[:cut], data[cut:]])
    assert records == [b"first record", b"", b"second"]
    assert not reader.unfinished


@pytest.mark.spec("R2", "T5")
@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_records_come_back_however_they_are_cut(records, sizes):
    data, pieces, i = framed(*records), [], 0
    while data:
        pieces.append(data[: sizes[i % len(sizes)]])
        data = data[sizes[i % len(sizes)] :]
        i += 1
    reader = SpanningReader(SMALL, "channel 0")
    got, said = read_all(reader, pieces)
    assert got == records
    assert not reader.unfinished
    assert not said or said[-1] is Read.RECORD_LAST


@pytest.mark.spec("R2")
def test_empty_records_also_at_the_end_of_a_buffer():
    records, said = read_all(SpanningReader(SMALL, "channel 0"), [framed(b"", b""), framed(b"x", b"")])
    assert records == [b"", b"", b"x", b""]
    assert said == [Read.RECORD_MORE, Read.RECORD_LAST] * 2


@pytest.mark.spec("R2")
def test_a_record_in_one_buffer_is_not_copied():
    data = bytearray(framed(b"hello"))
    reader = SpanningReader(SMALL, "channel 0")
    reader.feed(memoryview(data))
    assert reader.next() is Read.RECORD_LAST
    assert reader.borrowed
    data[4:5] = b"H"
    assert bytes(reader.record) == b"Hello"
    assert reader.end == 9


@pytest.mark.spec("R2")
def test_a_gathered_record_outlives_its_buffers():
    first, second = bytearray(framed(b"hello")[:6]), bytearray(b"llo")
    reader = SpanningReader(SMALL, "channel 0")
    for piece in (first, second):
        reader.feed(memoryview(piece))
        reader.next()
    assert not reader.borrowed
    first[:], second[:] = bytes(6), bytes(3)
    assert bytes(reader.record) == b"hello"


@pytest.mark.spec("R2")
def test_a_buffer_is_fed_only_when_the_last_is_used_up():
    reader = SpanningReader(SMALL, "gate a, channel 3")
    reader.feed(memoryview(framed(b"a", b"b")))
    reader.next()
    with pytest.raises(LocalProtocolError, match=r"gate a, channel 3.*5 bytes"):
        reader.feed(memoryview(b"x"))


@pytest.mark.spec("R2")
@pytest.mark.parametrize("data", [b"\x05", b"\x05\x00\x00\x00", b"\x05\x00\x00\x00hell"])
def test_a_record_that_is_not_all_there_is_unfinished(data):
    reader = SpanningReader(SMALL, "channel 0")
    reader.feed(memoryview(data))
    assert reader.next() is Read.INCOMPLETE
    assert reader.unfinished
    reader.close()
    assert not reader.unfinished
    reader.feed(memoryview(framed(b"new")))
    assert reader.next() is Read.RECORD_LAST
    assert bytes(reader.record) == b"new"


@pytest.mark.spec("R2")
@pytest.mark.parametrize("claimed", [1001, 0xFFFF_FFFF])
@pytest.mark.parametrize("cut", [1, 4])
def test_a_length_over_the_limit_is_refused_before_anything_is_taken(claimed, cut, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: pytest.fail("a file was made"))
    limits = RecordLimits(max_size_bytes=1000, spill_threshold_bytes=500, spill_directory=str(tmp_path))
    reader = SpanningReader(limits, "gate a, channel 3")
    data = LENGTH.pack(claimed)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptStream, match=rf"gate a, channel 3.*{claimed}.*1000.*record\.max_size"):
            read_all(reader, [data[:cut], data[cut:]])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.spec("R1")
def test_the_limit_holds_for_writers_too():
    limits = RecordLimits(max_size_bytes=1000)
    limits.check(1000)
    with pytest.raises(RecordTooLarge, match=r"1001 bytes.*1000.*record\.max_size"):
        limits.check(1001)


@pytest.mark.spec("R2")
@pytest.mark.parametrize("threshold", [1, 1 << 20])
@pytest.mark.parametrize("offset", [0, 1, 5, 12, 15, 16, 27, 64])
def test_gathering_keeps_the_position_modulo_16(offset, threshold):
    reader = SpanningReader(RecordLimits(spill_threshold_bytes=threshold), "channel 0")
    data = framed(bytes(range(200)))
    reader.feed(memoryview(data[:50]), offset)
    assert reader.next() is Read.INCOMPLETE
    reader.feed(memoryview(data[50:]))
    assert reader.next() is Read.RECORD_LAST
    assert bytes(reader.record) == bytes(range(200))
    assert address(reader.record) % 16 == (offset + 4) % 16
    reader.close()


@pytest.mark.spec("R2")
@pytest.mark.parametrize("offset", [0, 3, 28])
def test_a_detached_record_is_a_copy_at_the_same_position_modulo_16(offset):
    reader = SpanningReader(SMALL, "channel 0")
    data = bytearray(framed(b"first", b"hello"))
    reader.feed(memoryview(data), offset)
    reader.next()
    reader.next()
    copy = reader.detached()
    data[-5:] = bytes(5)
    assert bytes(copy) == b"hello"
    assert address(copy) % 16 == (offset + 4 + 5 + 4) % 16


def address(view):
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


# Large records.


@pytest.mark.spec("R2")
def test_a_large_record_is_gathered_in_a_file_that_has_no_name(spilling, tmp_path, spill_files):
    body = os.urandom(1000)
    data = framed(body, b"next")
    reader = SpanningReader(spilling, "channel 0")
    reader.feed(memoryview(data[:100]))
    assert reader.next() is Read.INCOMPLETE
    assert len(spill_files()) == 1, "it is gathered in a file"
    assert list(tmp_path.iterdir()) == [], "the file has no name while gathering"
    reader.feed(memoryview(data[100:]))
    assert reader.next() is Read.RECORD_MORE
    assert bytes(reader.record) == body
    assert list(tmp_path.iterdir()) == []
    assert reader.next() is Read.RECORD_LAST
    assert bytes(reader.record) == b"next"
    assert not spill_files(), "the file is gone with the record"


@pytest.mark.spec("R2")
@pytest.mark.parametrize(("length", "files"), [(64, 0), (65, 1)])
def test_the_threshold_decides(length, files, spilling, spill_files):
    reader = SpanningReader(spilling, "channel 0")
    reader.feed(memoryview(framed(bytes(length))[:10]))
    reader.next()
    assert len(spill_files()) == files
    reader.close()


@pytest.mark.spec("R2")
def test_a_large_record_in_one_buffer_needs_no_file(spilling, spill_files):
    reader = SpanningReader(spilling, "channel 0")
    reader.feed(memoryview(framed(bytes(1000))))
    assert reader.next() is Read.RECORD_LAST
    assert reader.borrowed
    assert not spill_files()


@pytest.mark.spec("R2")
def test_the_file_is_gone_when_closed_in_the_middle_of_a_record(spilling, tmp_path, spill_files):
    reader = SpanningReader(spilling, "channel 0")
    reader.feed(memoryview(framed(bytes(1000))[:100]))
    reader.next()
    assert len(spill_files()) == 1
    reader.close()
    reader.close()
    assert not spill_files()
    assert list(tmp_path.iterdir()) == []


class FullDisk:
    """A temporary file that holds `room` bytes."""

    def __init__(self, room):
        self._room = room
        self.closed = False

    def write(self, data):
        if self.closed:
            raise ValueError("write to closed file")  # as a real file does
        if not self._room and len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = min(len(data), self._room)
        self._room -= count
        return count

    def close(self):
        self.closed = True


@pytest.mark.spec("R2")
@pytest.mark.parametrize("room", [0, 4, 50, 60])
def test_a_full_disk_is_an_error_that_names_the_directory(room, spilling, tmp_path, monkeypatch):
    disk = FullDisk(room)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: disk)
    reader = SpanningReader(spilling, "channel 0")
    data = framed(bytes(1000))
    with pytest.raises(SpillError) as caught:
        read_all(reader, [data[start : start + 40] for start in range(0, len(data), 40)])
    assert str(tmp_path) in str(caught.value)
    assert "No space left" in str(caught.value)
    assert "record.spill_directory" in str(caught.value)
    assert disk.closed, "the file is gone after an error"
    reader.close()


@pytest.mark.spec("R2")
def test_after_a_full_disk_the_channel_stays_failed(spilling, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: FullDisk(50))
    reader = SpanningReader(spilling, "channel 0")
    reader.feed(memoryview(framed(bytes(1000))[:200]))
    for _ in range(2):  # a task may look again: it must not get another kind of error, nor half a record
        with pytest.raises(SpillError):
            reader.next()
    reader.close()


@pytest.mark.spec("R2")
def test_a_directory_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "missing"
    reader = SpanningReader(RecordLimits(spill_threshold_bytes=10, spill_directory=str(missing)), "channel 0")
    reader.feed(memoryview(framed(bytes(100))[:20]))
    with pytest.raises(SpillError, match="missing"):
        reader.next()


@pytest.mark.spec("R2")
def test_without_a_directory_the_system_s_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda *_, **__: FullDisk(0))
    reader = SpanningReader(RecordLimits(spill_threshold_bytes=10), "channel 0")
    reader.feed(memoryview(framed(bytes(100))[:20]))
    with pytest.raises(SpillError) as caught:
        reader.next()
    assert tempfile.gettempdir() in str(caught.value)


@pytest.mark.spec("R2")
def test_a_file_that_cannot_be_mapped_is_gone(spilling, monkeypatch, spill_files):
    import mmap  # noqa: PLC0415

    def no_memory(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", no_memory)
    reader = SpanningReader(spilling, "channel 0")
    data = framed(bytes(100))
    reader.feed(memoryview(data[:50]))
    reader.next()
    reader.feed(memoryview(data[50:]))
    with pytest.raises(SpillError, match="Cannot allocate memory"):
        reader.next()
    assert not spill_files()
    reader.close()


@pytest.mark.spec("R4")
@pytest.mark.parametrize("threshold", [1 << 30, 1 << 16])
def test_the_reader_keeps_nothing_of_a_large_record(threshold, spill_files):
    size = 1 << 22
    reader = SpanningReader(RecordLimits(spill_threshold_bytes=threshold), "channel 0")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        reader.feed(memoryview(LENGTH.pack(size)))
        reader.next()
        chunk = memoryview(bytes(1 << 16))
        for _ in range(size >> 16):
            reader.feed(chunk)
            said = reader.next()
        assert said is Read.RECORD_LAST
        assert len(reader.record) == size
        reader.feed(memoryview(framed(b"small")))
        reader.next()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 18
    assert not spill_files()
    if threshold < size:
        assert peak - before < 1 << 20, "a spilled record does not pass through memory"
