"""Any chunks come back; any damage to a file is an error of its own kind, or does no harm."""

import os
import tempfile
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.partition_files import opened, read, writer

from headgate.config import Compression
from headgate.errors import CorruptStream, StorageError
from headgate.output.disk.file import ALL, PartitionFile
from headgate.output.disk.format import HEADER, TRAILER, Header, Index, index_location, trailer

pytestmark = pytest.mark.spec("P3")

SEGMENT = 600


def contents():
    """Bytes that pay to compress, and bytes that do not."""
    few = st.binary(min_size=1, max_size=20)
    return st.one_of(
        st.binary(min_size=1, max_size=SEGMENT),
        st.builds(lambda one, count: (one * count)[:SEGMENT], few, st.integers(1, 60)),
    )


@st.composite
def partitions(draw):
    """How many subpartitions, a codec, and chunks in the portions in which they are written."""
    subpartitions = draw(st.integers(1, 5))
    chunk = st.tuples(st.integers(ALL, subpartitions - 1), contents(), st.booleans())
    return subpartitions, draw(st.sampled_from(Compression)), draw(st.lists(st.lists(chunk, max_size=8), max_size=5))


def expected(subpartition, portions):
    return [
        ("event", content) if is_event else content
        for portion in portions
        for channel, content, is_event in portion
        if channel in (ALL, subpartition)
    ]


@contextmanager
def written(partition):
    subpartitions, codec, portions = partition
    with tempfile.TemporaryDirectory() as place:
        one = writer(place, subpartitions=subpartitions, compression=codec, segment_size=SEGMENT)
        for portion in portions:
            one.append([(channel, memoryview(content), is_event) for channel, content, is_event in portion])
        one.finish().close()
        yield place


def everything(place, subpartitions):
    file = opened(place, segment_size=SEGMENT)
    try:
        assert file.subpartitions == subpartitions
        return [read(file, index, segment_size=SEGMENT) for index in range(subpartitions)]
    finally:
        file.close()


@given(partitions())
def test_any_chunks_come_back(partition):
    subpartitions, _, portions = partition
    with written(partition) as place:
        assert everything(place, subpartitions) == [expected(index, portions) for index in range(subpartitions)]


@st.composite
def damages(draw):
    """What happens to the bytes of a file: some are overwritten, cut out, put in; it is cut off, or grows."""
    kind = draw(st.sampled_from(["overwrite", "flip", "remove", "insert", "truncate", "zero"]))
    return kind, draw(st.floats(0, 1)), draw(st.binary(min_size=1, max_size=30)), draw(st.integers(0, 7))


def damaged(content, damage):
    kind, where, other, bit = damage
    at = int(where * len(content))
    if kind == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
    if kind == "overwrite":
        return content[:at] + other + content[at + len(other) :]
    if kind == "zero":
        return content[:at] + bytes(len(content) - at)
    if kind == "remove":
        return content[:at] + content[at + len(other) :]
    if kind == "insert":
        return content[:at] + other + content[at:]
    return content[:at]


@given(partitions(), st.lists(damages(), min_size=1, max_size=3))
def test_a_damaged_file_is_a_storage_error_or_does_no_harm(partition, all_damages):
    subpartitions, codec, portions = partition
    with written(partition) as place:
        path = os.path.join(place, "a.partition")
        with open(path, "r+b") as file:
            content = file.read()
            for damage in all_damages:
                content = damaged(content, damage)
            file.seek(0)
            file.truncate()
            file.write(content)
        with refusal_names(path):
            found = everything(place, subpartitions)
            right = [expected(index, portions) for index in range(subpartitions)]
            if codec is Compression.NONE:  # its buffers have no checksums: they may have other bytes, but nothing else
                found, right = without_bytes(found), without_bytes(right)
            assert found == right


@contextmanager
def refusal_names(path):
    """Nothing, or the one error that may be."""
    try:
        yield
    except StorageError as error:
        if error.path != path:
            raise


def without_bytes(found):
    return [[len(one) if isinstance(one, bytes) else one for one in chunks] for chunks in found]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_storage_error(content):
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "a.partition")
        with open(path, "wb") as file:
            file.write(content)
        with pytest.raises(StorageError):
            PartitionFile.open(path, segment_size=SEGMENT)


@given(partitions(), st.data())
def test_a_forged_index_with_a_valid_checksum_is_a_storage_error(partition, choices):
    """Its checksum is right, but not what it says: as if somebody had made it up."""
    subpartitions, _, _ = partition
    with written(partition) as place:
        path = os.path.join(place, "a.partition")
        with open(path, "rb") as file:
            content = file.read()
        offset, size, _ = index_location(content[-TRAILER.size :], len(content))
        index = bytearray(content[offset : offset + size])
        at = choices.draw(st.integers(0, len(index) - 1))
        index[at] ^= choices.draw(st.integers(1, 255))
        header = content[: HEADER.size]
        with open(path, "wb") as file:
            file.write(content[:offset] + index + trailer(header, bytes(index), offset))
        try:
            file = opened(place, segment_size=SEGMENT)
        except StorageError:
            return
        try:
            for subpartition in range(subpartitions):
                chunks = file.chunks(subpartition)
                for number in range(len(chunks)):
                    with refusal_names(path):
                        if chunks.is_event(number):
                            file.read_event(chunks, number)
                        else:
                            file.read_many(chunks, number, [memoryview(bytearray(SEGMENT))])
        finally:
            file.close()


@given(st.binary(max_size=200), st.integers(1, 5))
def test_any_bytes_are_an_index_or_corrupt(content, subpartitions):
    try:
        index = Index.decode(content, subpartitions)
    except CorruptStream:
        return
    for subpartition in range(subpartitions):
        assert index.data_chunks(subpartition) <= len(index.chunks(subpartition))


@given(st.binary(max_size=20))
def test_any_bytes_are_a_header_or_corrupt(content):
    with suppress(CorruptStream):
        assert Header.decode(content).encode() == content


numbers = st.one_of(st.integers(0, 100), st.integers(0, 2**64 - 1))


@given(numbers, numbers, st.sampled_from([b"HGPE", b"HGPF"]), numbers)
def test_any_bytes_are_a_trailer_or_corrupt(offset, size, magic, file_size):
    content = TRAILER.pack(offset, size, 0, magic)
    try:
        offset, size, _ = index_location(content, file_size)
    except CorruptStream:
        return
    assert offset >= HEADER.size
    assert offset + size + TRAILER.size == file_size
