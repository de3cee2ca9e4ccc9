"""A partition on disk: written once, read by any number of readers, complete or absent, with errors that name it."""

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pytest
from tests.support.partition_files import SEGMENT, data, event, opened, read, writer

from headgate.config import Compression
from headgate.errors import LocalProtocolError, StorageError, StorageFull
from headgate.output.disk.file import ALL, PartitionFileWriter
from headgate.output.disk.folder import Folder
from headgate.output.disk.format import ENTRY, TRAILER, Checksum, Header, Index, trailer
from headgate.worker.storage import Quota

pytestmark = pytest.mark.spec("P3")

CODECS = list(Compression)
TEXT = b"to be, or not to be: that is the question. " * 20


@pytest.fixture(params=["crc32c", "crc32"])
def either_checksum(request, monkeypatch):
    if request.param == "crc32":
        monkeypatch.setitem(__import__("sys").modules, "crc32c", None)  # as if it were not installed
    assert Checksum.best(Compression.LZ4).kind == (2 if request.param == "crc32c" else 1)


@pytest.mark.parametrize("codec", CODECS)
def test_each_reader_reads_its_own_and_the_broadcast_chunks_in_order(tmp_path, codec, either_checksum):
    one = writer(tmp_path, compression=codec)
    one.append([data(0, b"a"), data(1, TEXT), event(b"first"), data(0, TEXT)])
    one.append([data(ALL, b"both"), data(1, b"b"), event(b"mine", channel=1)])
    one.append([])
    one.append([event(b"end")])
    file = one.finish()
    first = [b"a", ("event", b"first"), TEXT, b"both", ("event", b"end")]
    second = [TEXT, ("event", b"first"), b"both", b"b", ("event", b"mine"), ("event", b"end")]
    assert [read(file, index) for index in (0, 1)] == [first, second]
    file.close()
    again = opened(tmp_path)  # in another process it would be the same
    assert again.subpartitions == 2
    assert [read(again, index) for index in (0, 1, 0)] == [first, second, first]
    assert again.bytes_on_disk == os.path.getsize(again.path) == file.bytes_on_disk
    again.remove()


def test_compressed_chunks_take_fewer_bytes(tmp_path):
    sizes = {}
    for codec in CODECS:
        one = writer(tmp_path, compression=codec)
        one.append([data(0, TEXT)])
        sizes[codec] = one.bytes_written
        one.discard()
    assert sizes[Compression.NONE] == 16 + len(TEXT)
    assert max(sizes[Compression.LZ4], sizes[Compression.ZSTD]) < sizes[Compression.NONE] / 4


def test_a_broadcast_chunk_is_stored_once(tmp_path):
    one = writer(tmp_path, subpartitions=100)
    one.append([data(ALL, bytes(SEGMENT))])
    file = one.finish()
    assert file.bytes_on_disk == 16 + SEGMENT + 101 * 8 + 20 + 24
    assert all(read(file, index) == [bytes(SEGMENT)] for index in range(100))
    file.remove()


def test_many_broadcasts_between_many_buffers_keep_their_order(tmp_path):
    one, expected = writer(tmp_path), []
    for number in range(300):
        content = b"%d" % number
        channel = (0, ALL, 1, ALL, 0)[number % 5]
        one.append([data(channel, content)])
        if channel != 1:
            expected.append(content)
    file = one.finish()
    assert read(file, 0, at_once=7) == expected
    file.remove()


def test_one_append_is_one_call_and_so_is_reading_neighbours(tmp_path, monkeypatch):
    one = writer(tmp_path)
    calls = []
    for name in ("writev", "preadv"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: calls.append(name) or real(*args))
    one.append([data(number // 8, bytes([number]) * 100) for number in range(16)])
    assert calls == ["writev"]
    file = one.finish()
    calls.clear()
    memories = [memoryview(bytearray(SEGMENT)) for _ in range(8)]
    assert file.read_many(file.chunks(1), 0, memories) == [100] * 8
    assert [memory[0] for memory in memories] == list(range(8, 16))
    assert calls == ["preadv"]
    file.remove()


def test_neighbours_of_both_kinds_are_read_by_one_call(tmp_path, monkeypatch):
    one = writer(tmp_path, compression=Compression.LZ4)
    noise = os.urandom(500)
    one.append([data(0, TEXT), data(0, noise), data(0, b"short"), data(0, TEXT)])
    file, calls, real = one.finish(), [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: calls.append(args) or real(*args))
    assert read(file, 0, at_once=4) == [TEXT, noise, b"short", TEXT]
    assert len(calls) == 1
    file.remove()


@pytest.mark.parametrize("count", [1024, 1025, 3000])
def test_more_chunks_than_the_system_takes_at_once(tmp_path, count):
    one = writer(tmp_path)
    one.append([data(0, b"%d" % number) for number in range(count)])
    file = one.finish()
    assert read(file, 0, at_once=count) == [b"%d" % number for number in range(count)]
    file.remove()


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_a_system_that_writes_and_reads_less_than_asked(tmp_path, monkeypatch, most):
    def less(pieces):
        taken, room = [], most
        for piece in pieces:
            taken.append(memoryview(piece)[:room])
            room -= len(taken[-1])
        return [piece for piece in taken if len(piece)]

    writev, preadv, pread = os.writev, os.preadv, os.pread
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, less(pieces)))
    monkeypatch.setattr(os, "preadv", lambda fd, pieces, offset: preadv(fd, less(pieces), offset))
    one = writer(tmp_path)
    one.append([data(0, TEXT), data(0, b"xyz"), event(b"end")])
    file = one.finish()
    assert read(file, 0) == [TEXT, b"xyz", ("event", b"end")]
    file.close()
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, max(most, 24)), offset))
    again = opened(tmp_path)
    assert read(again, 0) == [TEXT, b"xyz", ("event", b"end")]
    again.remove()


def test_several_threads_read_at_once(tmp_path):
    one = writer(tmp_path, subpartitions=8, compression=Compression.LZ4)
    for number in range(200):
        one.append([data(number % 8, b"%d " % number * 100)])
    file = one.finish()
    expected = [[b"%d " % number * 100 for number in range(channel, 200, 8)] for channel in range(8)]
    start = threading.Barrier(8)

    def everything(channel):
        start.wait(30)
        return [read(file, channel) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(everything, range(8))) == [[mine] * 5 for mine in expected]
    file.remove()


# Names.


def test_nothing_is_to_be_found_before_the_end(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT)])
    assert os.listdir(tmp_path) == [".a.part"]
    assert stat.S_IMODE(os.stat(tmp_path / ".a.part").st_mode) == 0o600
    file = one.finish()
    assert os.listdir(tmp_path) == ["a.partition"]
    one.discard()  # too late
    assert read(file, 0) == [TEXT]
    file.remove()
    file.remove()
    assert os.listdir(tmp_path) == []


def test_a_discarded_file_is_removed(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT)])
    one.discard()
    one.discard()
    assert os.listdir(tmp_path) == []
    with pytest.raises(LocalProtocolError, match="after its end"):
        one.append([data(0, TEXT)])
    with pytest.raises(LocalProtocolError, match="after its end"):
        one.finish()


def test_a_finished_file_is_never_replaced(tmp_path):
    first, second = writer(tmp_path), None
    file = first.finish()
    second = PartitionFileWriter(
        str(tmp_path / "a.partition"),
        subpartitions=1,
        segment_size=SEGMENT,
        compression=Compression.NONE,
        quota=None,
        temporary=str(tmp_path / ".other.part"),
    )
    with pytest.raises(StorageError, match=r"a\.partition: exists already"):
        second.finish()
    assert os.listdir(tmp_path) == ["a.partition"]
    assert read(file, 1) == []
    file.remove()


def test_links_are_not_followed(tmp_path):
    file = writer(tmp_path).finish()
    file.close()
    (tmp_path / "link.partition").symlink_to(file.path)
    with pytest.raises(StorageError, match=r"link\.partition: cannot be read"):
        opened(tmp_path, name="link")
    (tmp_path / ".b.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"b\.partition: cannot be made: File exists"):
        writer(tmp_path, name="b")
    assert not (tmp_path / "elsewhere").exists()
    file.remove()


def test_files_are_reached_through_the_directory_that_was_looked_at(tmp_path):
    (tmp_path / "mine").mkdir()
    folder = Folder(str(tmp_path / "mine"), os.open(tmp_path / "mine", os.O_RDONLY))
    one = PartitionFileWriter(
        folder.path_of("a.partition"),
        subpartitions=1,
        segment_size=SEGMENT,
        compression=Compression.NONE,
        quota=None,
        temporary=folder.path_of(".a.part"),
        folder=folder,
    )
    (tmp_path / "mine").rename(tmp_path / "moved")
    (tmp_path / "mine").mkdir()  # of another process
    file = one.finish()
    assert os.listdir(tmp_path / "moved") == ["a.partition"]
    assert os.listdir(tmp_path / "mine") == []
    file.remove()
    assert os.listdir(tmp_path / "moved") == []
    folder.close()
    folder.close()
    with pytest.raises(StorageError, match="used after it was closed"):
        folder.names()


# Errors.


def test_chunks_that_do_not_belong_are_refused(tmp_path):
    for wrong in (
        data(0, b""),
        event(b""),
        data(2, b"x"),
        data(-2, b"x"),
        data(0, bytes(SEGMENT + 1)),
        event(bytes(8193)),
    ):
        one = writer(tmp_path)
        with pytest.raises(LocalProtocolError, match="does not belong"):
            one.append([data(0, b"good"), wrong])
        assert os.listdir(tmp_path) == []


def test_events_may_be_larger_than_a_small_segment(tmp_path):
    one = writer(tmp_path)
    one.append([event(bytes(8192))])
    file = one.finish()
    assert read(file, 0) == [("event", bytes(8192))]
    file.remove()


def replace_descriptor(owner, path, flags):
    """Let the system itself fail from now on."""
    fd = os.open(path, flags)
    os.dup2(fd, owner._fd)
    os.close(fd)


def test_a_full_device_is_storage_full_and_leaves_nothing(tmp_path):
    quota = Quota(10**6, "quota")
    one = writer(tmp_path, quota=quota)
    one.append([data(0, TEXT)])
    replace_descriptor(one, "/dev/full", os.O_RDWR)
    with pytest.raises(
        StorageFull, match=r"a\.partition: cannot be written: No space left on device; make room"
    ) as full:
        one.append([data(0, TEXT)])
    assert full.value.path == f"{tmp_path}/a.partition"
    assert os.listdir(tmp_path) == []
    assert quota.used == 0
    for again in (one.finish, lambda: one.append([data(0, TEXT)])):
        with pytest.raises(StorageFull, match="was given up before"):
            again()
    one.discard()


def test_a_full_device_at_the_end_leaves_nothing(tmp_path):
    one = writer(tmp_path)
    replace_descriptor(one, "/dev/full", os.O_RDWR)
    with pytest.raises(StorageFull):
        one.finish()
    assert os.listdir(tmp_path) == []


def test_an_io_error_is_a_storage_error(tmp_path):
    # Where nothing is mapped, the memory of a process can be neither read nor written: EIO, from the system itself.
    one = writer(tmp_path)
    replace_descriptor(one, "/proc/self/mem", os.O_RDWR)
    with pytest.raises(StorageError, match=r"a\.partition: cannot be written: Input/output error") as failed:
        one.append([data(0, TEXT)])
    assert type(failed.value) is StorageError
    assert failed.value.__cause__.errno == errno.EIO
    assert os.listdir(tmp_path) == []

    one = writer(tmp_path, compression=Compression.LZ4)
    one.append([data(0, TEXT), data(1, b"plain"), event(b"end")])
    file = one.finish()
    replace_descriptor(file, "/proc/self/mem", os.O_RDONLY)
    with pytest.raises(StorageError, match=r"a\.partition: cannot be read: Input/output error"):
        file.read_many(file.chunks(0), 0, [memoryview(bytearray(SEGMENT))])
    with pytest.raises(StorageError, match=r"a\.partition: cannot be read: Input/output error"):
        file.read_many(file.chunks(1), 0, [memoryview(bytearray(SEGMENT))])
    with pytest.raises(StorageError, match=r"a\.partition: cannot be read: Input/output error"):
        file.read_event(file.chunks(0), 1)
    file.remove()


def test_the_quota_is_asked_before_anything_is_written(tmp_path):
    quota = Quota(2000, "quota")
    one = writer(tmp_path, quota=quota)
    one.append([data(0, bytes(1000))])
    assert quota.used == one.bytes_written == 1016
    with pytest.raises(
        StorageFull, match=rf"{tmp_path}/a\.partition: 2040 bytes .* may keep 2000 \(batch\.disk_quota\)"
    ):
        one.append([data(0, bytes(1024))])
    assert quota.used == 0
    assert os.listdir(tmp_path) == []


def test_a_quota_that_is_smaller_than_the_header(tmp_path):
    quota = Quota(15, "quota")
    with pytest.raises(StorageFull):
        writer(tmp_path, quota=quota)
    assert quota.used == 0
    assert os.listdir(tmp_path) == []


def test_the_quota_has_the_bytes_until_the_file_is_gone(tmp_path):
    quota = Quota(5000, "quota")
    one = writer(tmp_path, quota=quota)
    one.append([data(0, bytes(1000))])
    file = one.finish()
    assert quota.used == file.bytes_on_disk == os.path.getsize(file.path)
    file.close()
    assert quota.used == file.bytes_on_disk
    file.remove()
    file.remove()
    assert quota.used == 0


def test_an_opened_file_counts_even_beyond_the_quota(tmp_path):
    writer(tmp_path).finish().close()
    quota = Quota(10, "quota")
    file = opened(tmp_path, quota=quota)
    assert quota.used == file.bytes_on_disk
    file.remove()
    assert quota.used == 0


def test_a_file_without_hard_links_is_an_error(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    one = writer(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match=r"a\.partition: cannot be given its name: Operation not permitted"):
        one.finish()
    assert os.listdir(tmp_path) == []


def test_reading_wrongly_is_refused(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT), event(b"end")])
    file = one.finish()
    mine, memory = file.chunks(0), memoryview(bytearray(SEGMENT))
    with pytest.raises(LocalProtocolError, match="larger than 10 bytes"):
        file.read_many(mine, 0, [memory[:10]])
    with pytest.raises(LocalProtocolError, match="chunk 1 is an event"):
        file.read_many(mine, 1, [memory])
    with pytest.raises(LocalProtocolError, match="chunk 0 is no event"):
        file.read_event(mine, 0)
    file.close()
    file.close()
    with pytest.raises(StorageError, match="read after it was closed"):
        file.read_many(mine, 0, [memory])
    file.remove()
    with pytest.raises(StorageError, match="read after it was removed"):
        file.chunks(0)


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("at", [20, 16 + len(TEXT), -200])
def test_a_byte_that_has_changed_is_noticed(tmp_path, codec, at, either_checksum):
    one = writer(tmp_path, compression=codec)
    noise = os.urandom(900)
    one.append([data(0, TEXT), data(0, noise), data(0, noise)])
    end = one.bytes_written
    one.finish().close()
    content = bytearray((tmp_path / "a.partition").read_bytes())
    content[end + at if at < 0 else at] ^= 1
    (tmp_path / "a.partition").write_bytes(content)
    file = opened(tmp_path)
    with pytest.raises(StorageError, match=r"a\.partition: is damaged at byte \d+"):
        read(file, 0)
    file.remove()


def test_without_a_codec_only_index_and_events_are_checked(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT), event(b"end")])
    one.finish().close()
    content = bytearray((tmp_path / "a.partition").read_bytes())
    content[20] ^= 1
    (tmp_path / "a.partition").write_bytes(content)
    file = opened(tmp_path)
    assert read(file, 0)[0] == TEXT[:4] + bytes([TEXT[4] ^ 1]) + TEXT[5:]
    file.close()
    content[16 + len(TEXT)] ^= 1
    (tmp_path / "a.partition").write_bytes(content)
    file = opened(tmp_path)
    with pytest.raises(StorageError, match=r"a\.partition: is damaged at byte"):
        read(file, 0)
    file.remove()


def test_every_byte_that_is_no_buffers_is_checked(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT), data(1, TEXT), event(b"end")])
    end = one.bytes_written
    one.finish().close()
    whole = (tmp_path / "a.partition").read_bytes()
    for at in (*range(16), *range(end, len(whole))):
        (tmp_path / "a.partition").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StorageError, match="cannot be read"):
            opened(tmp_path)


COMPRESSED, EVENT = 1 << 30, 1 << 31


@pytest.mark.parametrize(
    "entry",
    [
        (15, 10, 10, 0),  # begins in the header
        (10_000, 17, 17, 0),  # ends in the index
        (1 << 63, 10, 10, 0),
        (16, SEGMENT + 1, SEGMENT + 1, 0),
        (16, 10, SEGMENT + 1 | COMPRESSED, 0),
        (16, 10, 9, 0),
        (16, 9, 10, 0),
        (16, 10, 10 | COMPRESSED, 0),
        (16, 11, 10 | COMPRESSED, 0),
        (16, 0, 10 | COMPRESSED, 0),
        (16, 0, 0, 0),
        (15, 10, 10 | EVENT, crc32(b"\0" + b"x" * 9)),
        (16, 8193, 8193 | EVENT, crc32(b"x" * 8193)),
        (10_000, 17, 17 | EVENT, crc32(b"x" * 17)),
        (16, 10, 10 | EVENT, 0),  # another checksum
    ],
)
def test_a_forged_index_is_a_storage_error(tmp_path, entry):
    header = Header(Compression.NONE, 0, 1, SEGMENT).encode()
    index = Index.encode([b"", ENTRY.pack(*entry)], [0, 0 if entry[2] & EVENT else 1])
    (tmp_path / "a.partition").write_bytes(header + b"x" * 10_000 + index + trailer(header, index, 10_016))
    file = opened(tmp_path)
    with pytest.raises(StorageError, match=rf"a\.partition: is damaged at byte {entry[0]}"):
        read(file, 0, segment_size=2 * SEGMENT)
    file.remove()


def test_lists_that_count_more_buffers_than_chunks_are_refused(tmp_path):
    header = Header(Compression.NONE, 0, 1, SEGMENT).encode()
    index = Index.encode([b"", ENTRY.pack(16, 10, 10, 0)], [0, 2])
    (tmp_path / "a.partition").write_bytes(header + b"x" * 10_000 + index + trailer(header, index, 10_016))
    with pytest.raises(StorageError, match="its index is damaged"):
        opened(tmp_path)


def test_a_file_that_loses_its_end_while_it_is_read(tmp_path):
    one = writer(tmp_path)
    one.append([data(0, TEXT), data(0, TEXT)])
    file = one.finish()
    os.truncate(file.path, 30)
    with pytest.raises(StorageError, match=r"a\.partition: is damaged at byte 30"):
        read(file, 0)
    file.remove()


def test_a_missing_or_irregular_file_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"a\.partition: cannot be read: No such file"):
        opened(tmp_path)
    os.mkfifo(tmp_path / "fifo.partition")
    with pytest.raises(StorageError, match="it is no file"):
        opened(tmp_path, name="fifo")
    (tmp_path / "directory.partition").mkdir()
    with pytest.raises(StorageError, match="it is no file"):
        opened(tmp_path, name="directory")


def test_larger_buffers_than_now_are_refused_when_opened(tmp_path):
    writer(tmp_path).finish().close()
    with pytest.raises(StorageError, match=f"buffers of {SEGMENT} bytes; they are of {SEGMENT - 1} now"):
        opened(tmp_path, segment_size=SEGMENT - 1)
    opened(tmp_path, segment_size=SEGMENT + 1).remove()


def test_a_checksum_that_cannot_be_computed_here_is_an_error(tmp_path, monkeypatch):
    writer(tmp_path, compression=Compression.ZSTD).finish().close()
    monkeypatch.setitem(__import__("sys").modules, "crc32c", None)
    with pytest.raises(StorageError, match="pip install 'headgate"):
        opened(tmp_path)


def test_an_index_that_does_not_fit_into_memory_is_an_error(tmp_path, monkeypatch):
    writer(tmp_path, subpartitions=3).finish().close()
    real = os.pread

    def too_much(fd, size, offset):
        if size > 24:
            raise MemoryError
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", too_much)
    with pytest.raises(StorageError, match="index is too large"):
        opened(tmp_path, segment_size=SEGMENT)


def test_a_claimed_index_size_allocates_no_memory(tmp_path):
    file = writer(tmp_path).finish()
    path, size = file.path, 1 << 40
    file.close()
    os.truncate(path, size - 24)  # a hole
    with open(path, "ab") as whole:
        whole.write(TRAILER.pack(16, size - 24 - 16, 0, b"HGPE"))
    assert os.path.getsize(path) == size
    with pytest.raises(StorageError, match="its index is damaged"):
        opened(tmp_path)


def test_a_temporary_name_that_cannot_be_removed_does_no_harm(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    one = writer(tmp_path)
    monkeypatch.setattr(os, "unlink", refuse)
    file = one.finish()
    assert read(file, 0) == []
    with pytest.raises(StorageError, match="cannot be removed"):
        file.remove()
    monkeypatch.undo()
    file.remove()
    assert os.listdir(tmp_path) == [".a.part"]
