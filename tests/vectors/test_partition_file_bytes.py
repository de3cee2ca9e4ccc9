"""The bytes of a partition's file, written down.

A change here makes files of another version unreadable: it needs a new version in the header, not a new meaning.
"""

import sys

import pytest
from tests.support.partition_files import data, event, opened, read, writer

from headgate.config import Compression
from headgate.output.disk.file import ALL

pytestmark = pytest.mark.spec("P3")

TEXT = b"to be, or not to be. " * 10
SEGMENT = 32768
READ = (
    [b"to be", ("event", b"\x80"), b"or not"],
    [("event", b"\x80"), TEXT, b"or not", ("event", b"\x81")],
)

# (codec, checksum): header; chunks; lengths of the lists; entries of all, of 0, of 1; trailer
FILES = {
    ("none", "none"): (
        "48475046 0100 00 00 02000000 00800000"
        " 746f206265 80" + TEXT.hex() + "6f72206e6f74 81"
        " 02000000 01000000 01000000 01000000 02000000 01000000"
        " 1500000000000000 01000000 01000080 ad6cba3f e800000000000000 06000000 06000000 00000000"
        " 1000000000000000 05000000 05000000 00000000"
        " 1600000000000000 d2000000 d2000000 00000000 ee00000000000000 01000000 01000080 3b5cbd48"
        " ef00000000000000 7c00000000000000 bfaa472f 48475045"
    ),
    ("lz4", "crc32c"): (
        "48475046 0100 01 02 02000000 00800000"
        " 746f206265 80 e1746f2062652c206f72206e6f74200e00122e07000f1500a0502062652e20 6f72206e6f74 81"
        " 02000000 01000000 01000000 01000000 02000000 01000000"
        " 1500000000000000 01000000 01000080 ad6cba3f 3500000000000000 06000000 06000000 51ff6f20"
        " 1000000000000000 05000000 05000000 6d8f8187"
        " 1600000000000000 1f000000 d2000040 87345dba 3b00000000000000 01000000 01000080 3b5cbd48"
        " 3c00000000000000 7c00000000000000 4b95c2d6 48475045"
    ),
    ("zstd", "crc32"): (
        "48475046 0100 02 01 02000000 00800000"
        " 746f206265 80 28b52ffd20d2ed0000a0746f2062652c206f72206e6f7420746f2062652e0200359c14d05098 6f72206e6f74 81"
        " 02000000 01000000 01000000 01000000 02000000 01000000"
        " 1500000000000000 01000000 01000080 ad6cba3f 3c00000000000000 06000000 06000000 da24049c"
        " 1000000000000000 05000000 05000000 558c6bfb"
        " 1600000000000000 26000000 d2000040 90d69cc4 4200000000000000 01000000 01000080 3b5cbd48"
        " 4300000000000000 7c00000000000000 747cfba9 48475045"
    ),
}


@pytest.fixture(params=FILES, ids="-".join)
def file_of(request):
    return *request.param, bytes.fromhex(FILES[request.param])


def test_these_bytes_are_read(tmp_path, file_of):
    _, _, written = file_of
    (tmp_path / "a.partition").write_bytes(written)
    file = opened(tmp_path, segment_size=SEGMENT)
    assert [read(file, index, segment_size=SEGMENT) for index in (0, 1)] == [*READ]
    file.close()


def test_these_bytes_are_written(tmp_path, file_of, monkeypatch):
    codec, checksum, written = file_of
    if checksum == "crc32":
        monkeypatch.setitem(sys.modules, "crc32c", None)  # as if it were not installed
    one = writer(tmp_path, segment_size=SEGMENT, compression=Compression(codec))
    one.append([data(0, b"to be"), event(b"\x80"), data(1, TEXT)])
    one.append([data(ALL, b"or not"), event(b"\x81", channel=1)])
    one.finish().close()
    now = (tmp_path / "a.partition").read_bytes()
    if codec == "none":
        assert now.hex() == written.hex()
    else:  # another version of a codec may find other bytes for the same
        assert now[:22].hex() == written[:22].hex()
        file = opened(tmp_path, segment_size=SEGMENT)
        assert read(file, 1, segment_size=SEGMENT) == READ[1]
        file.close()


def test_a_file_with_nothing_in_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "crc32c", None)
    writer(tmp_path, segment_size=SEGMENT, subpartitions=1, compression=Compression.LZ4).finish().close()
    assert (tmp_path / "a.partition").read_bytes() == bytes.fromhex(
        "48475046 0100 01 01 01000000 00800000 00000000 00000000 00000000 00000000"
        " 1000000000000000 1000000000000000 b136da74 48475045"
    )
