"""Partition files for tests."""

from headgate.config import Compression
from headgate.output.disk.file import ALL, PartitionFile, PartitionFileWriter

SEGMENT = 1024


def writer(place, *, subpartitions=2, segment_size=SEGMENT, compression=Compression.NONE, quota=None, name="a"):
    return PartitionFileWriter(
        f"{place}/{name}.partition",
        subpartitions=subpartitions,
        segment_size=segment_size,
        compression=compression,
        quota=quota,
        temporary=f"{place}/.{name}.part",
    )


def data(channel, content):
    return channel, memoryview(content), False


def event(content, channel=ALL):
    return channel, memoryview(content), True


def opened(place, *, segment_size=SEGMENT, name="a", quota=None):
    return PartitionFile.open(f"{place}/{name}.partition", segment_size=segment_size, quota=quota)


def read(file, subpartition, *, segment_size=SEGMENT, at_once=3):
    """Return everything that a reader gets: bytes of buffers, and events as ('event', bytes)."""
    chunks, found, number = file.chunks(subpartition), [], 0
    while number < len(chunks):
        if chunks.is_event(number):
            found.append(("event", file.read_event(chunks, number)))
            number += 1
            continue
        end = number
        while end < len(chunks) and end - number < at_once and not chunks.is_event(end):
            end += 1
        memories = [memoryview(bytearray(segment_size)) for _ in range(number, end)]
        sizes = file.read_many(chunks, number, memories)
        found += [bytes(memory[:size]) for memory, size in zip(memories, sizes, strict=True)]
        number = end
    assert file.data_chunks(subpartition) == sum(isinstance(one, bytes) for one in found)
    return found
